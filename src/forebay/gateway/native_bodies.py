"""Reads the bodies of engines' own generation routes.

They are opaque: what is known of them is read, and no shape of a prompt is refused here, since which ones there are is
the engine's business.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from forebay.gateway.api_fields import (
    Params,
    decode_generate,
    decode_llamacpp,
    decode_params,
    decode_params_list,
    decode_tokens_in,
    decode_triton,
)
from forebay.gateway.asks import (
    ATTACHMENT_TOKENS,
    Ask,
    BadRequest,
    bounded,
    count_prompt,
    decoded,
    decoded_field,
    output_limit,
    samples_of,
    size_of,
)
from forebay.gateway.body_fields import ABSENT, Number

__all__ = ["read_generate", "read_generate_stream", "read_llamacpp", "read_tokens_in", "triton_reader"]

_NO_PARAMS: Final = Params()


def read_generate(body: bytes) -> Ask:
    """The body of /generate: TGI's form, or SGLang's.

    Raises:
        BadRequest: The body is not a JSON object, or a field that is read has a wrong type or value.
    """
    fields = decoded(decode_generate, body)
    if fields.sampling_params is not ABSENT:
        field, params = "sampling_params", _sampling_params(fields.sampling_params)
    else:
        field, params = "parameters", fields.parameters or _NO_PARAMS
    ask = _ask(fields.model, fields.stream is True, params, field)
    for raw, name in (
        (fields.input_ids, "input_ids"),
        (fields.text, "text"),
        (fields.inputs, "inputs"),
    ):
        if raw is not ABSENT:
            _count(raw, ask, name)
            break
    images = bytes(memoryview(fields.image_data)[:1])
    if images == b"[":
        ask.extra_prompt_tokens += ATTACHMENT_TOKENS * (bytes(fields.image_data).count(b",") + 1)
    elif images == b'"':
        ask.extra_prompt_tokens += ATTACHMENT_TOKENS
    return ask


def read_generate_stream(body: bytes) -> Ask:
    """The body of TGI's /generate_stream, which always streams. Raises: BadRequest."""
    ask = read_generate(body)
    ask.stream = True
    return ask


def read_tokens_in(body: bytes) -> Ask:
    """The body of vLLM's /inference/v1/generate. Raises: BadRequest."""
    fields = decoded(decode_tokens_in, body)
    ask = _ask(fields.model, fields.stream is True, fields.sampling_params or _NO_PARAMS, "sampling_params")
    _count(fields.token_ids, ask, "token_ids")
    return ask


def read_llamacpp(body: bytes) -> Ask:
    """The body of llama.cpp's /completion and /infill. A limit below nought is none. Raises: BadRequest."""
    fields = decoded(decode_llamacpp, body)
    limit = fields.n_predict
    ask = Ask(
        bounded(fields.model),
        fields.stream is True,
        0,
        max_output_tokens=None if limit is None or limit < 0 else output_limit(limit or 1, "n_predict"),
    )
    _count(fields.prompt, ask, "prompt")
    ask.prompt_bytes += sum(
        [size_of(raw) for raw in (fields.input_prefix, fields.input_suffix, fields.input_extra)]
    )
    return ask


def triton_reader(model: str, *, stream: bool) -> partial[Ask]:
    """The reader for a path of Triton's, which names the model and says whether the answer is streamed."""
    return partial(_read_triton, model, stream)


def _read_triton(model: str, stream: bool, body: bytes) -> Ask:
    fields = decoded(decode_triton, body)
    params = fields.parameters or _NO_PARAMS
    ask = _ask(model, stream, params, "parameters")
    if fields.max_tokens is not None:
        ask.max_output_tokens = output_limit(fields.max_tokens, "max_tokens")
    _count(fields.text_input, ask, "text_input")
    return ask


def _ask(model: str | None, stream: bool, params: Params, field: str) -> Ask:
    name = "max_new_tokens" if params.max_new_tokens is not None else "max_tokens"
    limit: Number | None = params.max_tokens if params.max_new_tokens is None else params.max_new_tokens
    ask = Ask(bounded(model), stream, 0, max_output_tokens=output_limit(limit, f"{field}.{name}"))
    for samples, sampled in ((params.n, "n"), (params.best_of, "best_of")):
        if samples is not None:
            ask.samples = max(ask.samples, samples_of(samples, f"{field}.{sampled}"))
    return ask


def _sampling_params(raw: msgspec.Raw) -> Params:
    """SGLang takes one set of parameters, or one for each prompt: then the largest of each counts."""
    if bytes(memoryview(raw)[:1]) == b"[":
        each = decoded_field(decode_params_list, raw, "sampling_params")
        return Params(
            max_new_tokens=_largest([params.max_new_tokens for params in each]),
            n=_largest([params.n for params in each]),
        )
    return _NO_PARAMS if not size_of(raw) else decoded_field(decode_params, raw, "sampling_params")


def _largest(values: list[Number | None]) -> Number | None:
    """None if one of them is: that one has no limit."""
    most: Number | None = None
    for value in values:
        if value is None:
            return None
        if most is None or value > most:
            most = value
    return most


def _count(raw: msgspec.Raw, ask: Ask, field: str) -> None:
    """A prompt of any shape: what is neither texts nor ids counts by its size."""
    try:
        count_prompt(bytes(raw), ask, field)
    except BadRequest:
        ask.prompt_bytes = size_of(raw)
