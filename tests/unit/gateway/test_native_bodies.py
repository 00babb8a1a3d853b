from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.gateway.asks import ATTACHMENT_TOKENS, Ask, BadRequest
from forebay.gateway.native_bodies import (
    read_generate,
    read_generate_stream,
    read_llamacpp,
    read_tokens_in,
)


def generate(**fields: object) -> Ask:
    """A body of /generate, read."""
    return read_generate(json.dumps(fields).encode())


def llamacpp(**fields: object) -> Ask:
    """A body of /completion, read."""
    return read_llamacpp(json.dumps(fields).encode())


def test_tgi() -> None:
    """`inputs` and `parameters`."""
    ask = generate(inputs="hello", parameters={"max_new_tokens": 20, "best_of": 2, "details": True})
    assert (5, 20, 2, False) == (ask.prompt_bytes, ask.max_output_tokens, ask.samples, ask.stream)
    assert read_generate_stream(b'{"inputs": "x"}').stream


def test_sglang() -> None:
    """`text` or `input_ids`, and `sampling_params`, of which there may be a list."""
    ask = generate(text="hello", sampling_params={"max_new_tokens": 20, "n": 3}, stream=True)
    assert (5, 20, 3, True) == (ask.prompt_bytes, ask.max_output_tokens, ask.samples, ask.stream)
    each = [{"max_new_tokens": 5}, {"max_new_tokens": 9}]
    ask = generate(input_ids=[[1, 2], [3]], sampling_params=each, image_data=["a", "b"])
    assert (3, 9, 2, 2 * ATTACHMENT_TOKENS) == (
        ask.prompt_tokens,
        ask.max_output_tokens,
        ask.prompts,
        ask.extra_prompt_tokens,
    )
    assert generate(text="x", sampling_params=[{"max_new_tokens": 5}, {}]).max_output_tokens is None


def test_llamacpp() -> None:
    """`n_predict` below nought is no limit; what stands before and behind an infill counts."""
    assert llamacpp(prompt="hello", n_predict=-1).max_output_tokens is None
    assert llamacpp(prompt="hello", n_predict=7).max_output_tokens == 7
    assert llamacpp(prompt=[1, 2, 3]).prompt_tokens == 3
    assert (
        llamacpp(input_prefix="ab", input_suffix="c", prompt="d").prompt_bytes == len('"ab"') + len('"c"') + 1
    )
    assert llamacpp(prompt=[12, "mixed", {"prompt_string": "x"}]).prompt_bytes > 20


def test_vllm() -> None:
    """Token ids and `sampling_params`."""
    body: dict[str, Any] = {"model": "m", "token_ids": [5, 6], "sampling_params": {"max_tokens": 3, "n": 2}}
    ask = read_tokens_in(json.dumps(body).encode())
    assert ("m", 2, 3, 2) == (ask.model, ask.prompt_tokens, ask.max_output_tokens, ask.samples)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        ({"sampling_params": {"max_new_tokens": "9"}}, "sampling_params.max_new_tokens"),
        ({"sampling_params": [{"n": 1000}]}, "sampling_params.n"),
        ({"parameters": 7}, "parameters"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_what_is_read_must_be_right(fields: dict[str, Any], param: str) -> None:
    """A limit of a wrong kind is told by its name."""
    with pytest.raises(BadRequest) as caught:
        generate(**fields)
    assert param == caught.value.param


def test_prompts_of_unknown_shape_are_the_engines_to_judge() -> None:
    """They count by their size."""
    assert generate(inputs={"a": "hello"}).prompt_bytes == len('{"a": "hello"}')
    assert generate().prompt_bytes == 0
