"""Reads the bodies of what has a prompt and no output: embeddings, pooling, classification, scores, rerankings.

A list of inputs is as many prompts. A score reads each pair as one prompt: a query counts once for each document.
"""

from __future__ import annotations

import msgspec

from forebay.gateway.api_fields import decode_blocks, decode_embeddings, decode_scores, decode_which
from forebay.gateway.asks import (
    MAX_LIST_SAMPLES,
    Ask,
    BadRequest,
    bounded,
    count_prompt,
    decoded,
    decoded_field,
    is_crowded,
)
from forebay.gateway.body_fields import ABSENT
from forebay.gateway.content import Content

__all__ = ["read_embeddings", "read_scores", "read_which"]


def read_embeddings(body: bytes) -> Ask:
    """The body of /v1/embeddings and the like: `input` as of a completion's prompt, or parts, or `messages`.

    Raises:
        BadRequest: The body is not a JSON object, or a field that is read has a wrong type or value.
    """
    fields = decoded(decode_embeddings, body)
    ask = Ask(bounded(fields.model), stream=False, prompt_bytes=0, generates=False)
    for raw, field in (
        (fields.input, "input"),
        (fields.input_ids, "input_ids"),
        (fields.content, "content"),
        (fields.text, "text"),
    ):
        if raw is not ABSENT:
            if _holds_objects(raw):
                _count_each(raw, field, ask)
            else:
                count_prompt(bytes(raw), ask, field)
            return ask
    content = Content()
    content.value(fields.messages, "messages")
    content.give(ask)
    return ask


def read_scores(body: bytes) -> Ask:
    """The body of a score or a reranking. One query is compared with each document, equal numbers one by one.

    Raises:
        BadRequest: As for `read_embeddings`.
    """
    fields = decoded(decode_scores, body)
    ask = Ask(bounded(fields.model), stream=False, prompt_bytes=0, generates=False)
    left = _side(
        (fields.query, "query"),
        (fields.queries, "queries"),
        (fields.text_1, "text_1"),
        (fields.data_1, "data_1"),
    )
    right = _side(
        (fields.documents, "documents"),
        (fields.items, "items"),
        (fields.text_2, "text_2"),
        (fields.data_2, "data_2"),
        (fields.texts, "texts"),
    )
    pairs = max(left.prompts, right.prompts)
    if pairs > MAX_LIST_SAMPLES:
        raise BadRequest(
            f"The request compares {pairs} pairs, and {MAX_LIST_SAMPLES} is the most in one request.",
            "documents",
        )
    for side in (left, right):
        times = pairs if side.prompts == 1 else 1
        ask.prompt_bytes += times * side.prompt_bytes
        ask.extra_prompt_tokens += times * (side.extra_prompt_tokens + (side.prompt_tokens or 0))
    if not ask.prompt_bytes and (left.prompt_tokens or right.prompt_tokens):
        ask.prompt_tokens, ask.extra_prompt_tokens = ask.extra_prompt_tokens, 0
    ask.prompts = ask.samples = pairs
    return ask


def read_which(body: bytes) -> Ask:
    """The body of what counts tokens: only whose they are matters. Raises: BadRequest."""
    fields = decoded(decode_which, body)
    return Ask(bounded(fields.model), stream=False, prompt_bytes=0, generates=False)


def _side(*names: tuple[msgspec.Raw, str]) -> Ask:
    """One side of the comparison, by whichever of these names it is there."""
    side = Ask(None, stream=False, prompt_bytes=0)
    for raw, field in names:
        if raw is not ABSENT:
            if _holds_objects(raw):
                _count_each(raw, field, side)
            else:
                count_prompt(bytes(raw), side, field)
            break
    return side


def _holds_objects(raw: msgspec.Raw) -> bool:
    """True if it is an object or a list that begins with one: no texts and no ids."""
    beginning = bytes(memoryview(raw)[:64]).lstrip(b"[ \t\r\n")
    return beginning.startswith(b"{")


def _count_each(raw: msgspec.Raw, field: str, ask: Ask) -> None:
    """Parts of several kinds, each a prompt of its own."""
    content = Content()
    content.value(raw, field)
    content.give(ask)
    ask.prefix_hash = None
    if bytes(memoryview(raw)[:1]) == b"[" and not is_crowded(bytes(raw)):
        ask.prompts = ask.samples = max(len(decoded_field(decode_blocks, raw, field)), 1)
