"""The fields of request bodies that are ever looked at, of all APIs but chats and completions, and their decoders.

For: the readers of those APIs. Owns the shapes, nothing else, as `body_fields` does for the two that nearly everybody
uses; interpreted in the compiled build for the same reason. What may have several shapes is raw JSON here, and the
readers look into it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.gateway.body_fields import ABSENT, Number

__all__ = [
    "Block",
    "decode_blocks",
    "decode_embeddings",
    "decode_generate",
    "decode_image",
    "decode_llamacpp",
    "decode_messages",
    "decode_one_block",
    "decode_params",
    "decode_params_list",
    "decode_responses",
    "decode_scores",
    "decode_source",
    "decode_speech",
    "decode_text",
    "decode_tokens_in",
    "decode_triton",
    "decode_which",
]


class Block(msgspec.Struct, gc=False):
    """A message, or a part of one: a block of Anthropic's, an item of a response's input, a part of a chat's."""

    type: str | None = None
    text: str | None = None
    content: msgspec.Raw = ABSENT
    thinking: str | None = None
    input: msgspec.Raw = ABSENT
    arguments: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT
    summary: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT
    source: msgspec.Raw = ABSENT
    image_url: msgspec.Raw = ABSENT
    detail: str | None = None


class Source(msgspec.Struct, gc=False):
    """Where a document is from."""

    type: str | None = None
    data: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT


class Messages(msgspec.Struct, gc=False):
    """The body of /v1/messages."""

    model: str | None = None
    system: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    stream: bool | None = None
    max_tokens: Number | None = None


class Responses(msgspec.Struct, gc=False):
    """The body of /v1/responses."""

    model: str | None = None
    instructions: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    stream: bool | None = None
    background: bool | None = None
    max_output_tokens: Number | None = None


class Embeddings(msgspec.Struct, gc=False):
    """The body of /v1/embeddings, /pooling and /classify, and of llama.cpp's own form (`content`)."""

    model: str | None = None
    input: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT
    input_ids: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT


class Scores(msgspec.Struct, gc=False):
    """The bodies of scores and rerankings: one side, and what each of it is compared with."""

    model: str | None = None
    query: msgspec.Raw = ABSENT
    queries: msgspec.Raw = ABSENT
    text_1: msgspec.Raw = ABSENT
    data_1: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    items: msgspec.Raw = ABSENT
    text_2: msgspec.Raw = ABSENT
    data_2: msgspec.Raw = ABSENT
    texts: msgspec.Raw = ABSENT


class Params(msgspec.Struct, gc=False):
    """The parameters of engines' own routes, by all their names."""

    max_new_tokens: Number | None = None
    max_tokens: Number | None = None
    n: Number | None = None
    best_of: Number | None = None
    stream: bool | None = None


class Generate(msgspec.Struct, gc=False):
    """The body of /generate, as TGI (`inputs`, `parameters`) and SGLang (`text`, `sampling_params`) have it."""

    model: str | None = None
    inputs: msgspec.Raw = ABSENT
    parameters: Params | None = None
    stream: bool | None = None
    text: msgspec.Raw = ABSENT
    input_ids: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT
    image_data: msgspec.Raw = ABSENT


class TokensIn(msgspec.Struct, gc=False):
    """The body of vLLM's /inference/v1/generate."""

    model: str | None = None
    token_ids: msgspec.Raw = ABSENT
    sampling_params: Params | None = None
    stream: bool | None = None


class LlamaCpp(msgspec.Struct, gc=False):
    """The body of llama.cpp's /completion and /infill."""

    model: str | None = None
    prompt: msgspec.Raw = ABSENT
    input_prefix: msgspec.Raw = ABSENT
    input_suffix: msgspec.Raw = ABSENT
    input_extra: msgspec.Raw = ABSENT
    n_predict: Number | None = None
    stream: bool | None = None


class Triton(msgspec.Struct, gc=False):
    """The body of Triton's generate extension."""

    text_input: msgspec.Raw = ABSENT
    max_tokens: Number | None = None
    stream: bool | None = None
    parameters: Params | None = None


class Image(msgspec.Struct, gc=False):
    """The body of /v1/images/generations."""

    model: str | None = None
    n: Number | None = None
    stream: bool | None = None


class Speech(msgspec.Struct, gc=False):
    """The body of /v1/audio/speech."""

    model: str | None = None
    stream_format: str | None = None


class Which(msgspec.Struct, gc=False):
    """Any body of which only the model matters."""

    model: str | None = None


decode_blocks: Final = msgspec.json.Decoder(list[Block | str]).decode
decode_one_block: Final = msgspec.json.Decoder(Block).decode
decode_source: Final = msgspec.json.Decoder(Source).decode
decode_text: Final = msgspec.json.Decoder(str).decode
decode_messages: Final = msgspec.json.Decoder(Messages).decode
decode_responses: Final = msgspec.json.Decoder(Responses).decode
decode_embeddings: Final = msgspec.json.Decoder(Embeddings).decode
decode_scores: Final = msgspec.json.Decoder(Scores).decode
decode_params: Final = msgspec.json.Decoder(Params).decode
decode_params_list: Final = msgspec.json.Decoder(list[Params]).decode
decode_generate: Final = msgspec.json.Decoder(Generate).decode
decode_tokens_in: Final = msgspec.json.Decoder(TokensIn).decode
decode_llamacpp: Final = msgspec.json.Decoder(LlamaCpp).decode
decode_triton: Final = msgspec.json.Decoder(Triton).decode
decode_image: Final = msgspec.json.Decoder(Image).decode
decode_speech: Final = msgspec.json.Decoder(Speech).decode
decode_which: Final = msgspec.json.Decoder(Which).decode
