"""From the bodies of the other APIs to a `Generation`, or a `RequestRefused` as vLLM would answer.

For: `app`. What has a prompt and no output (embeddings, scores) is a generation of one token for each input: the engine
model knows nothing shorter, and a step of prefill is what it takes. Pure; does no I/O.
"""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.emulator import errors
from forebay.emulator.generation import (
    Body,
    Generation,
    GenerationRules,
    Message,
    Part,
    check_model,
    decode,
    generation_of,
    prompts_of,
)
from forebay.emulator.lengths import Prompt, chat_prompt, text_prompt

_Ids = str | list[str | int | list[int]]


class MessagesBody(Body):
    """Body of /v1/messages, and of /v1/messages/count_tokens."""

    messages: list[Message] | None = None
    system: str | list[Part] | None = None


class Item(msgspec.Struct):
    """One item of a response's input."""

    role: str = "user"
    content: str | list[Part] | None = None
    output: str | None = None


class ResponsesBody(Body):
    """Body of /v1/responses."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None


class EmbeddingBody(Body):
    """Body of /v1/embeddings."""

    input: _Ids | None = None


class Document(msgspec.Struct):
    """A document to be ranked."""

    text: str


class ScoreBody(Body):
    """Body of /score and of /rerank."""

    query: str | None = None
    documents: list[str | Document] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None


_MESSAGES: Final = msgspec.json.Decoder(MessagesBody, strict=False)
_RESPONSES: Final = msgspec.json.Decoder(ResponsesBody, strict=False)
_EMBEDDINGS: Final = msgspec.json.Decoder(EmbeddingBody, strict=False)
_SCORES: Final = msgspec.json.Decoder(ScoreBody, strict=False)


def read_messages(raw: bytes, rules: GenerationRules) -> Generation:
    """The generation that a /v1/messages body asks for. Raises `RequestRefused`."""
    body = decode(_MESSAGES, raw)
    if body.max_tokens is None:
        raise errors.invalid_body("body.max_tokens", "missing", "Field required")
    check_model(body, rules)
    return generation_of(body, rules, [_messages_prompt(body)], "max_tokens", body.max_tokens, chat=True)


def read_count(raw: bytes) -> Prompt:
    """The prompt in a /v1/messages/count_tokens body. Raises `RequestRefused`."""
    return _messages_prompt(decode(_MESSAGES, raw))


def read_responses(raw: bytes, rules: GenerationRules) -> Generation:
    """The generation that a /v1/responses body asks for. Raises `RequestRefused`."""
    body = decode(_RESPONSES, raw)
    if body.input is None:
        raise errors.invalid_body("body.input", "missing", "Field required")
    check_model(body, rules)
    items = [Item(content=body.input)] if isinstance(body.input, str) else body.input
    told = [] if body.instructions is None else [("system", body.instructions)]
    prompt = chat_prompt([*told, *((item.role, _text(item.content) + (item.output or "")) for item in items)])
    return generation_of(body, rules, [prompt], "max_output_tokens", body.max_output_tokens, chat=True)


def read_embeddings(raw: bytes, rules: GenerationRules) -> Generation:
    """The inputs that a /v1/embeddings body asks to embed. Raises `RequestRefused`."""
    body = decode(_EMBEDDINGS, raw)
    if body.input is None:
        raise errors.invalid_body("body.input", "missing", "Field required")
    return _pooled(body, rules, prompts_of(body.input))


def read_scores(raw: bytes, rules: GenerationRules) -> Generation:
    """The pairs that a score or a reranking compares. Raises `RequestRefused`."""
    body = decode(_SCORES, raw)
    left = body.query if body.query is not None else body.text_1
    right = body.documents if body.documents is not None else body.text_2
    if left is None or right is None:
        raise errors.invalid_body("body.query", "missing", "Field required")
    lefts = [left] if isinstance(left, str) else left
    rights = (
        [right] if isinstance(right, str) else [one if isinstance(one, str) else one.text for one in right]
    )
    if len(lefts) == 1:
        lefts *= len(rights)
    if len(lefts) != len(rights) or not rights:
        raise errors.RequestRefused(400, "The two sides must be of one length, or the first be one text.")
    return _pooled(body, rules, [text_prompt(a + b) for a, b in zip(lefts, rights, strict=True)])


def _pooled(body: Body, rules: GenerationRules, prompts: list[Prompt]) -> Generation:
    check_model(body, rules)
    one = Body(model=body.model, ignore_eos=True)
    return generation_of(one, rules, prompts, "max_tokens", 1, chat=False)


def _messages_prompt(body: MessagesBody) -> Prompt:
    if body.messages is None:
        raise errors.invalid_body("body.messages", "missing", "Field required")
    told = [] if body.system is None else [("system", _text(body.system))]
    return chat_prompt([*told, *((message.role, message.text()) for message in body.messages)])


def _text(content: str | list[Part] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text for part in content if part.text)
    return content or ""
