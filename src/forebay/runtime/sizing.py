"""What `forebay size` works with: engines and lengths from wherever the user has them, in the numbers of `sizing`.

Owns the reading: a profile, a model's shape (`config.json`) with a GPU, a trace. The arithmetic is in `forebay.sizing`.
Every failure is a `SizingError` that names the fix.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, SpeedLaw
from forebay.config.mapping import law_of
from forebay.load.synthetic import read_source
from forebay.load.traces import TraceError
from forebay.load.workload import Lengths, request_work_s
from forebay.profiles import ProfileError, load_profile
from forebay.sizing.batching import Engine, Request, Workload, workload_of
from forebay.sizing.errors import SizingError
from forebay.sizing.memory import SHAPES, ModelShape
from forebay.sizing.plan import ClassTarget

__all__ = [
    "engine_of_profile",
    "given_workload",
    "law_of_engine",
    "model_shape",
    "trace_workload",
    "usual_classes",
]

TRACE_ROWS: Final = 200_000
"""Rows that are read of a trace when nothing is said: enough for means, and a few seconds."""
_CONFIG_BYTES: Final = 1 << 20
_RESERVOIR: Final = 20_000
"""Requests of a trace that stand for all."""


def engine_of_profile(name: str) -> tuple[Engine, SpeedLaw]:
    """The engine that a profile tells of, and its cost law."""
    try:
        profile = load_profile(name)
    except ProfileError as error:
        raise SizingError(str(error)) from error
    law = law_of(profile)
    engine = Engine(
        name=profile.name,
        c0_s=law.c0_s,
        c1_s=law.c1_s,
        c2_s=law.c2_s,
        c3_s=law.c3_s,
        kv_tokens=profile.kv_tokens,
        max_requests=profile.max_num_seqs,
        chunk_tokens=profile.max_num_batched_tokens,
        context_tokens=min(profile.context_tokens, profile.kv_tokens),
        gpus=profile.gpus,
    )
    return engine, law


def law_of_engine(engine: Engine) -> SpeedLaw:
    """The cost law of an engine that was only estimated; attention within prefill is left out."""
    return SpeedLaw(
        engine.c0_s, engine.c1_s, engine.c2_s, engine.c3_s, 0.0, engine.kv_tokens, engine.max_requests
    )


def usual_classes(*, ttft_s: float | None, tpot_s: float | None) -> tuple[ClassTarget, ...]:
    """The classes of zero configuration; what is given replaces the objectives of the most important one."""
    first, *others = (
        ClassTarget(each.name, each.ttft_s, each.tpot_s, each.wait_budget_s, each.weight, each.value)
        for each in ZERO_CONFIGURATION_CLASSES
    )
    if ttft_s is not None:
        first = replace(first, ttft_s=ttft_s, wait_budget_s=ttft_s)
    if tpot_s is not None:
        first = replace(first, tpot_s=tpot_s)
    return first, *others


def given_workload(
    engine: Engine, law: SpeedLaw, *, prompt_tokens: float, output_tokens: float, spread: float
) -> Workload:
    """Lengths by their means, log-normally distributed around them.

    Args:
        spread: standard deviation of the logarithm; 0 takes all requests to be alike.
    """
    prompts, outputs = (_grid(mean, spread) for mean in (prompt_tokens, output_tokens))
    return _workload(engine, law, ((prompt, output) for prompt in prompts for output in outputs))


def trace_workload(
    engine: Engine, law: SpeedLaw, path: str | Path, limit: int | None
) -> tuple[Workload, float | None]:
    """Lengths of a trace, and its mean rate; None where it has a single moment.

    Of a long trace requests are drawn (reservoir, always the same ones). Rows without an answer count in the rate,
    not in the lengths.
    """
    drawn: list[tuple[int, int]] = []
    stream = random.Random(0)  # noqa: S311 - a sample of lengths, not a secret
    count = answered = 0
    last_s = 0.0
    try:
        for row in read_source(str(path), TRACE_ROWS if limit is None else limit):
            count += 1
            last_s = row.at_s
            if row.output_tokens < 1:
                continue
            answered += 1
            lengths = (max(1, row.prompt_tokens), row.output_tokens)
            if len(drawn) < _RESERVOIR:
                drawn.append(lengths)
            elif (place := stream.randrange(answered)) < _RESERVOIR:
                drawn[place] = lengths
    except (TraceError, OSError) as error:
        raise SizingError(str(error)) from error
    if not drawn:
        raise SizingError(f"{path} has no request with an answer")
    rate_rps = (count - 1) / last_s if last_s > 0 else None
    return _workload(engine, law, drawn), rate_rps


def _workload(engine: Engine, law: SpeedLaw, lengths: Iterable[tuple[int, int]]) -> Workload:
    free = replace(law, c0_s=0.0)
    requests = []
    for prompt, output in lengths:
        linear_s = request_work_s(free, prompt, output)
        steps = math.ceil(prompt / engine.chunk_tokens) + output - 1
        requests.append(
            Request(
                prompt,
                output,
                work_s=request_work_s(law, prompt, output),
                linear_s=linear_s,
                idle_s=linear_s + engine.c0_s * steps,
            )
        )
    return workload_of(requests)


def _grid(mean: float, spread: float) -> Sequence[int]:
    """Equally likely lengths of a log-normal distribution with that mean."""
    if spread == 0:
        return [max(1, round(mean))]
    median = max(1, round(mean * math.exp(-spread * spread / 2)))
    return Lengths(median, spread, 1, max(2, round(mean * 40))).grid()


def model_shape(name_or_path: str) -> ModelShape:
    """The shape of a model that is known by name, or that a `config.json` (or the folder with it) tells of.

    Parameters are counted from the sizes. Of a mixture of experts that is rough: some have dense layers as well.
    """
    known = SHAPES.get(name_or_path.lower())
    if known is not None:
        return known
    path = Path(name_or_path)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise SizingError(
            f"there is no file {path}, and no model of that name is known. Known: {', '.join(SHAPES)}; of others give "
            "the config.json"
        )
    try:
        if path.stat().st_size > _CONFIG_BYTES:
            raise SizingError(
                f"{path} is larger than {_CONFIG_BYTES} bytes: that is no config.json of a model"
            )
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise SizingError(f"{path} cannot be read as JSON: {error}") from error
    if isinstance(body, dict) and isinstance(body.get("text_config"), dict):
        body = body["text_config"]  # models that also see or hear
    if not isinstance(body, dict):
        raise SizingError(f"{path}: a model's configuration is a JSON object")
    return _shape(path, body)


def _shape(path: Path, body: dict[str, Any]) -> ModelShape:
    """Sizes from the keys that decoders of the Hugging Face form have in common."""

    def count(key: str, default: int | None = None) -> int:
        value = body.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
            raise SizingError(f"{path}: {key}: expected a whole number above 0, found {value!r}")
        return value

    layers, hidden, heads = count("num_hidden_layers"), count("hidden_size"), count("num_attention_heads")
    kv_heads, head_size = count("num_key_value_heads", heads), count("head_dim", max(1, hidden // heads))
    inner, vocabulary = count("intermediate_size", 4 * hidden), count("vocab_size")
    experts = count("num_local_experts", count("n_routed_experts", count("num_experts", 1)))
    chosen = min(experts, count("num_experts_per_tok", 1))
    expert_inner = count("moe_intermediate_size", inner)
    shared = expert_inner * (count("n_shared_experts") if body.get("n_shared_experts") else 0)
    latent = 0
    if body.get("kv_lora_rank"):
        latent = count("kv_lora_rank") + count("qk_rope_head_dim", 64)
        attention = (
            hidden * (heads * head_size + latent)
            + 2 * latent * heads * head_size
            + heads * head_size * hidden
        )
    else:
        attention = hidden * head_size * (2 * heads + 2 * kv_heads)

    def with_experts(number: int) -> float:
        width = inner if experts == 1 else expert_inner * number + shared
        return float(layers * (attention + 3 * hidden * width) + embeddings)

    embeddings = vocabulary * hidden * (1 if body.get("tie_word_embeddings") else 2)
    return ModelShape(
        name=path.parent.name if path.stem == "config" and path.parent.name else path.stem,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        parameters=with_experts(experts),
        embedding_parameters=float(embeddings),
        active_parameters=with_experts(chosen),
        latent_size=latent,
        context_tokens=count("max_position_embeddings", 131_072),
    )
