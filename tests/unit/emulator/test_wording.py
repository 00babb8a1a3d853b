from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.emulator.wording import DONE, FILLER, AnswerWording, filler


def _wording(*, chat: bool = True, continuous: bool = False) -> AnswerWording:
    return AnswerWording(
        chat=chat,
        answer_id='odd "id"\n',
        created=1_700_000_000,
        model="m",
        prompt_tokens=7,
        continuous_usage=continuous,
    )


def _event(raw: bytes) -> dict[str, Any]:
    assert raw.startswith(b"data: ")
    assert raw.endswith(b"\n\n")
    event: dict[str, Any] = json.loads(raw[6:])
    return event


def test_filler_is_about_four_bytes_per_token_and_repeats() -> None:
    """Words are plain ASCII that needs no escaping in JSON, and continue where the last piece ended."""
    assert 3.5 < sum(map(len, FILLER)) / len(FILLER) < 4.5
    assert all(json.dumps(word.decode())[1:-1] == word.decode() for word in FILLER)
    assert filler(3, 200) == b"".join(filler(3 + offset, 1) for offset in range(200))
    assert filler(5, 0) == b""


@pytest.mark.parametrize("chat", [True, False])
def test_a_text_chunk_has_the_shape_of_vllm(chat: bool) -> None:
    """A chunk carries the answer's id, one choice, its text and no reason for an end."""
    wording = _wording(chat=chat)
    event = _event(wording.text_chunk(wording.opening(1), b" the", 1))
    choice = event["choices"][0]
    assert ('odd "id"\n', 1, None) == (event["id"], choice["index"], choice["finish_reason"])
    assert " the" == (choice["delta"]["content"] if chat else choice["text"])
    assert ("chat.completion.chunk" if chat else "text_completion") == event["object"]
    assert "usage" not in event


def test_the_first_chunk_of_a_chat_gives_the_role_and_no_text() -> None:
    """The role comes with empty content, as vLLM sends it."""
    choice = _event(_wording().role_chunk(0))["choices"][0]
    assert choice["delta"] == {"role": "assistant", "content": ""}


def test_the_last_chunk_carries_text_and_the_reason() -> None:
    """The reason for the end rides on the chunk with the last token."""
    wording = _wording()
    choice = _event(wording.last_chunk(wording.opening(0), b" end", 3, b"length"))["choices"][0]
    assert (" end", "length") == (choice["delta"]["content"], choice["finish_reason"])


def test_usage_is_in_every_chunk_when_asked_for() -> None:
    """Continuous usage counts up with the tokens given, role chunk included."""
    wording = _wording(continuous=True)
    opening = wording.opening(0)
    events = [
        wording.role_chunk(0),
        wording.text_chunk(opening, b" a", 1),
        wording.last_chunk(opening, b" b", 2, b"stop"),
    ]
    totals = [_event(raw)["usage"]["total_tokens"] for raw in events]
    assert totals == [7, 8, 9]


def test_the_usage_chunk_has_no_choices() -> None:
    """Usage at the end comes in a chunk of its own."""
    event = _event(_wording().usage_chunk(5))
    assert ([], 5, 12) == (
        event["choices"],
        event["usage"]["completion_tokens"],
        event["usage"]["total_tokens"],
    )
    assert DONE == b"data: [DONE]\n\n"


@pytest.mark.parametrize("chat", [True, False])
def test_a_whole_answer_has_all_choices_and_usage(chat: bool) -> None:
    """The body of an unstreamed answer lists every choice with text and reason."""
    body = json.loads(_wording(chat=chat).whole([(b" a b", "stop"), (b" c", "length")], 3))
    texts = [choice["message"]["content"] if chat else choice["text"] for choice in body["choices"]]
    assert ([" a b", " c"], 10) == (texts, body["usage"]["total_tokens"])
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length"]
