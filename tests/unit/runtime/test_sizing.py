"""What `forebay size` reads: profiles, shapes, traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.runtime.sizing import (
    engine_of_profile,
    given_workload,
    model_shape,
    trace_workload,
    usual_classes,
)
from forebay.sizing.errors import SizingError
from forebay.sizing.memory import SHAPES, kv_bytes_per_token

LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def config(folder: Path, **changes: Any) -> str:
    """A `config.json` in a folder named like its model."""
    place = folder / "my-model"
    place.mkdir(exist_ok=True)
    body = {key: value for key, value in {**LLAMA, **changes}.items() if value is not None}
    (place / "config.json").write_text(json.dumps(body), encoding="utf-8")
    return str(place)


def test_shape_from_config_is_that_of_the_known_model(tmp_path: Path) -> None:
    """Parameters counted from the sizes are those that are published."""
    shape, known = model_shape(config(tmp_path)), SHAPES["llama3-8b"]
    assert ("my-model", known.kv_heads, known.head_size) == (shape.name, shape.kv_heads, shape.head_size)
    assert shape.parameters == pytest.approx(known.parameters, rel=0.005)
    assert shape.embedding_parameters == pytest.approx(known.embedding_parameters, rel=0.005)
    assert kv_bytes_per_token(shape, "bf16") == 131_072


def test_shape_of_experts_counts_those_used(tmp_path: Path) -> None:
    """With 8 experts of which 2 are used, a token uses a quarter of their weights."""
    shape = model_shape(config(tmp_path, num_local_experts=8, num_experts_per_tok=2))
    dense = 32 * 3 * 4096 * 14336
    assert shape.parameters - shape.active_parameters == pytest.approx(6 * dense)


def test_shape_with_latent_attention(tmp_path: Path) -> None:
    """The latent and its rotary part are what a layer keeps of a token."""
    assert model_shape(config(tmp_path, kv_lora_rank=512, qk_rope_head_dim=64)).latent_size == 576


def test_text_part_of_a_model_that_sees(tmp_path: Path) -> None:
    """Sizes may be in `text_config`."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"vision_config": {}, "text_config": LLAMA}), encoding="utf-8")
    assert model_shape(str(path)).layers == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: expected a whole number above 0, found None"),
        ({"hidden_size": "4096"}, "hidden_size: expected a whole number above 0, found '4096'"),
        ({"vocab_size": -1}, "vocab_size: expected a whole number above 0, found -1"),
        ({"num_attention_heads": True}, "num_attention_heads: expected a whole number"),
    ],
)
def test_wrong_sizes_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """The error names the file, the key, and what was found."""
    with pytest.raises(SizingError, match=message):
        model_shape(config(tmp_path, **changes))


@pytest.mark.parametrize("text", ["[]", "{", "[" * 5000, '"text"'])
def test_what_is_no_config_is_refused(tmp_path: Path, text: str) -> None:
    """No JSON object, no shape; never a traceback."""
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SizingError, match=r"config\.json"):
        model_shape(str(path))


def test_unknown_names_are_answered_with_known_ones() -> None:
    """Of profiles as of models."""
    with pytest.raises(SizingError, match="Known: llama3-8b"):
        model_shape("gpt-9")
    with pytest.raises(SizingError, match="did you mean llama3-8b-h100x1-bf16"):
        engine_of_profile("llama3-8b-h100-bf16")


def test_means_are_kept() -> None:
    """Lengths that are spread have the mean that was given, within 3 %."""
    engine, law = engine_of_profile("llama3-8b-h100x1-bf16")
    spread = given_workload(engine, law, prompt_tokens=1000, output_tokens=250, spread=0.8)
    assert (1000, 250) == pytest.approx((spread.prompt_tokens, spread.output_tokens), rel=0.03)
    alike = given_workload(engine, law, prompt_tokens=1000, output_tokens=250, spread=0)
    assert (1, 1000, 250) == (alike.requests, alike.prompt_tokens, alike.output_tokens)


def test_idle_time_is_that_of_the_steps() -> None:
    """Two chunks of prompt and 9 further tokens are 11 steps of 6.784 ms, besides its own work."""
    engine, law = engine_of_profile("llama3-8b-h100x1-bf16")
    one = given_workload(engine, law, prompt_tokens=4096, output_tokens=10, spread=0)
    assert one.idle_s == pytest.approx(one.linear_s + 11 * 0.006784, rel=1e-6)


def test_trace_gives_lengths_and_rate(tmp_path: Path) -> None:
    """Five requests over 8 s are one every 2 s; the one without an answer counts in the rate alone."""
    path = tmp_path / "trace.csv"
    rows = "\n".join(
        f"{at},{100 * (at + 1)},{output}" for at, output in ((0, 10), (2, 10), (4, 0), (6, 10), (8, 10))
    )
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    engine, law = engine_of_profile("llama3-8b-h100x1-bf16")
    workload, rate = trace_workload(engine, law, path, None)
    assert (4, 500, 10, 0.5) == (workload.requests, workload.prompt_tokens, workload.output_tokens, rate)
    workload, rate = trace_workload(engine, law, path, 1)
    assert (1, None) == (workload.requests, rate)


def test_long_trace_is_drawn_from(tmp_path: Path) -> None:
    """Of more requests than are kept, the mean of those drawn is that of all."""
    path = tmp_path / "trace.csv"
    rows = "\n".join(f"{at / 10},{at // 25 + 1},20" for at in range(25_000))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}\n", encoding="utf-8")
    engine, law = engine_of_profile("llama3-8b-h100x1-bf16")
    workload, rate = trace_workload(engine, law, path, None)
    assert workload.requests == 20_000
    assert (500, 10) == pytest.approx((workload.prompt_tokens, rate), rel=0.02)


def test_a_made_trace_does_in_place_of_a_file() -> None:
    """As for every command that takes a trace."""
    engine, law = engine_of_profile("llama3-8b-h100x1-bf16")
    _, rate = trace_workload(engine, law, "synthetic:chat,seconds=60,rate=5", None)
    assert rate == pytest.approx(5, rel=0.5)


def test_trace_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A missing file, and one without answers."""
    engine, law = engine_of_profile("llama3-8b-h100x1-bf16")
    with pytest.raises(SizingError, match=r"none\.csv"):
        trace_workload(engine, law, tmp_path / "none.csv", None)
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,0\n", encoding="utf-8")
    with pytest.raises(SizingError, match="no request with an answer"):
        trace_workload(engine, law, path, None)


def test_targets_replace_those_of_the_first_class() -> None:
    """A first token in 800 ms is also the wait that is allowed."""
    first, *others = usual_classes(ttft_s=0.8, tpot_s=0.05)
    assert ("realtime", 0.8, 0.05, 0.8) == (first.name, first.ttft_s, first.tpot_s, first.wait_budget_s)
    assert ["standard", "batch"] == [each.name for each in others]
