from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from forebay.emulator.answers import Answer, StreamAnswer, WholeAnswer
from forebay.emulator.generation import GenerationRules, read_chat
from forebay.emulator.wording import AnswerWording
from forebay.http.exchange import Exchange


class FakeExchange:
    """Takes what is sent, and lets the test play the connection."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.sent = b""
        self.writes = 0
        self.finished = False
        self.on_drain_change: Callable[[bool], None] | None = None

    def start(self, status: int, headers: object, *, content_length: int | None) -> None:
        self.status = status

    def write(self, data: bytes) -> None:
        self.sent += data
        self.writes += bool(data)

    def write_many(self, pieces: Sequence[bytes]) -> None:
        self.write(b"".join(pieces))

    def finish(self) -> None:
        self.finished = True

    def respond(self, status: int, headers: object, body: bytes) -> None:
        self.status, self.sent, self.finished = status, body, True

    def pause(self, paused: bool) -> None:
        assert self.on_drain_change is not None
        self.on_drain_change(paused)

    def events(self) -> list[dict[str, Any]]:
        return [
            json.loads(line[6:])
            for line in self.sent.decode().split("\n\n")
            if line and line != "data: [DONE]"
        ]


def _answer(**fields: Any) -> tuple[FakeExchange, Answer]:
    body = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True, "max_tokens": 4, **fields}
    wanted = read_chat(json.dumps(body).encode(), GenerationRules("m", 100, 0))
    wording = AnswerWording(
        chat=True,
        answer_id="a",
        created=1,
        model="m",
        prompt_tokens=wanted.prompt_tokens,
        continuous_usage=False,
    )
    exchange = FakeExchange()
    form = StreamAnswer if wanted.stream else WholeAnswer
    return exchange, form(cast("Exchange", exchange), wording, wanted, 10, 0.0)


def _texts(exchange: FakeExchange, index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for event in exchange.events()
        for choice in event["choices"]
        if choice["index"] == index
    )


def test_the_head_of_a_stream_goes_out_before_any_token() -> None:
    """A queued stream has its 200 at once and no data."""
    exchange, _ = _answer(stream=True)
    assert (200, b"") == (exchange.status, exchange.sent)


def test_a_stream_gives_role_tokens_reason_and_done() -> None:
    """Four tokens make a role chunk, four text chunks, the reason on the last, and [DONE]."""
    exchange, answer = _answer(stream=True)
    for _ in range(4):
        answer.give(answer.choices[0])
    events = exchange.events()
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, None, "length"]
    assert exchange.sent.endswith(b"data: [DONE]\n\n")
    assert exchange.finished


def test_all_roles_come_with_the_first_token_of_any_choice() -> None:
    """With two samples both roles come first; the stream ends when both have."""
    exchange, answer = _answer(stream=True, n=2, max_tokens=2, stream_options={"include_usage": True})
    first, second = answer.choices
    answer.give(second)
    assert [event["choices"][0]["index"] for event in exchange.events()] == [0, 1, 1]
    ends = []
    for choice in (second, first, first):
        answer.give(choice)
        ends.append(exchange.finished)
    assert ends == [False, False, True]
    assert exchange.events()[-1]["usage"]["completion_tokens"] == 4


def test_a_slow_reader_gets_merged_chunks_and_the_same_text() -> None:
    """Tokens that come while the connection is full are one chunk when it drains; no text is lost."""
    steady, answer = _answer(stream=True, max_tokens=20)
    for _ in range(20):
        answer.give(answer.choices[0])
    slow, answer = _answer(stream=True, max_tokens=20)
    for token in range(20):
        if token == 5:
            slow.pause(True)
        if token == 15:
            slow.pause(False)
        answer.give(answer.choices[0])
    assert _texts(slow) == _texts(steady)
    assert slow.writes == steady.writes - 9
    assert slow.finished


def test_an_answer_that_ends_while_its_reader_is_slow_ends_when_it_drains() -> None:
    """The end waits with the rest of the text for a connection that takes it."""
    exchange, answer = _answer(stream=True)
    exchange.pause(True)
    for _ in range(4):
        answer.give(answer.choices[0])
    assert (b"", False) == (exchange.sent, exchange.finished)
    exchange.pause(False)
    assert exchange.finished
    assert len(_texts(exchange).split()) == 4


def test_a_cut_stream_ends_as_vllm_ends_it() -> None:
    """A stopping engine ends a stream with finish_reason "abort" and [DONE]."""
    exchange, answer = _answer(stream=True)
    answer.give(answer.choices[0])
    answer.cut()
    assert exchange.events()[-1]["choices"][0]["finish_reason"] == "abort"
    assert exchange.sent.endswith(b"data: [DONE]\n\n")
    assert exchange.finished


def test_a_whole_answer_comes_when_its_last_choice_is_done() -> None:
    """Two samples of four tokens make one body with both texts."""
    exchange, answer = _answer(n=2)
    first, second = answer.choices
    for choice in (first, second, first, second, first, second, first):
        answer.give(choice)
        assert exchange.status is None
    answer.give(second)
    body = json.loads(exchange.sent)
    assert [len(choice["message"]["content"].split()) for choice in body["choices"]] == [4, 4]
    assert (200, 8) == (exchange.status, body["usage"]["completion_tokens"])


def test_a_cut_whole_answer_gives_what_there_is() -> None:
    """A stopping engine answers 200 with the partial text and finish_reason "abort"."""
    exchange, answer = _answer()
    answer.give(answer.choices[0])
    answer.cut()
    choice = json.loads(exchange.sent)["choices"][0]
    assert ("abort", 1) == (choice["finish_reason"], len(choice["message"]["content"].split()))
