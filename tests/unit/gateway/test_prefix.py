from __future__ import annotations

import contextlib
import json

import pytest

from forebay.gateway.asks import BadRequest
from forebay.gateway.demand import read_chat, read_completion
from forebay.gateway.prefix import PREFIX_CHARACTERS

SYSTEM = "You answer questions about rivers, weirs and turbines. " * 12


def chat(*contents: object, model: str | None = "m", tools: object = None) -> int | None:
    """The number of a chat with these message contents."""
    body: dict[str, object] = {"messages": [{"role": "user", "content": content} for content in contents]}
    if model is not None:
        body["model"] = model
    if tools is not None:
        body["tools"] = tools
    return read_chat(json.dumps(body).encode()).prefix_hash


def test_chats_that_begin_alike_have_the_same_number() -> None:
    """A shared system prompt, and the next turn of a conversation."""
    first = chat(SYSTEM, "Why a basin?")
    assert first is not None
    assert first == chat(SYSTEM, "What is head loss?")
    assert first == chat(SYSTEM, "Why a basin?", "Since more water comes", "And then?")
    assert first == chat([{"type": "text", "text": SYSTEM}], "Why?")
    assert first != chat("Not " + SYSTEM, "Why a basin?")


def test_short_messages_are_taken_together() -> None:
    """With a short system prompt it is the first question that tells conversations apart."""
    question = "Why does a hydro plant need a basin? " * 20
    first = chat("Be brief.", question)
    assert first is not None
    assert first == chat("Be brief.", question, "So that", "More?")
    assert first != chat("Be brief.", "Or: " + question)


@pytest.mark.parametrize("other", [{"model": "n"}, {"model": None}, {"tools": [{"type": "function"}]}])
def test_models_and_tools_tell_prompts_apart(other: dict[str, object]) -> None:
    """Engines cache each model apart, and put the tools before the messages."""
    assert chat(SYSTEM) != chat(SYSTEM, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "contents",
    [
        (),
        ("short",),
        (None, "x" * (PREFIX_CHARACTERS - 1)),
        (["a" * 100, {"type": "image_url", "image_url": {"url": "data:"}}, SYSTEM],),
    ],
)
def test_short_beginnings_have_no_number(contents: tuple[object, ...]) -> None:
    """What comes after an attachment is not part of the beginning."""
    assert chat(*contents) is None


def test_completions_have_one_too() -> None:
    """For one text; lists of texts and token ids are not told apart."""

    def number(prompt: object) -> int | None:
        return read_completion(json.dumps({"prompt": prompt, "model": "m"}).encode()).prefix_hash

    assert number(SYSTEM + "a") == number(SYSTEM + "b") is not None
    assert number("é" * PREFIX_CHARACTERS) is not None
    assert [None] * 3 == [number("short"), number([SYSTEM, SYSTEM]), number([1] * 1000)]


def test_a_lone_surrogate_is_no_crash() -> None:
    """Half a character, written as an escape, is the client's mistake and no failure of ours."""
    body = b'{"messages":[{"content":"' + rb"\ud800" * PREFIX_CHARACTERS + b'"}]}'
    with contextlib.suppress(BadRequest):
        assert read_chat(body).prefix_hash is not None
