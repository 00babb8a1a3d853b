"""Answers under way: tokens of the engine on one side, an exchange on the other.

A `StreamAnswer` sends its head at once, as vLLM does while the request is still queued, and its first data when
the first token is there. A client that reads too slowly does not hold the engine up: tokens that come while its
connection is full are merged into one chunk per choice when it drains, so memory stays bounded. A `WholeAnswer`
is sent when its last choice is done.

An answer owns its exchange until it has ended it. It never talks to the engine; `app` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from forebay.emulator.generation import Generation, Sample
from forebay.emulator.wording import Wording, filler
from forebay.http.exchange import Exchange
from forebay.http.message import Headers

SSE_HEADERS: Final[Headers] = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON_HEADERS: Final[Headers] = [(b"content-type", b"application/json")]


class Choice:
    """One sample of an answer: a request of the engine."""

    __slots__ = (
        "admitted_s",
        "answer",
        "arrived_s",
        "finish_reason",
        "first_s",
        "generated",
        "given",
        "held_since_s",
        "opening",
        "preemptions",
        "request_id",
        "sample",
        "words_from",
    )

    def __init__(
        self, answer: Answer, sample: Sample, request_id: int, arrived_s: float, opening: bytes
    ) -> None:
        self.answer = answer
        self.sample = sample
        self.request_id = request_id
        self.opening = opening
        self.words_from = sample.prompt.fingerprint + sample.index
        self.generated = 0
        """Tokens that the engine has given."""
        self.given = 0
        """Tokens that were passed on to the client."""
        self.finish_reason = sample.finish_reason
        self.arrived_s = arrived_s
        self.admitted_s = arrived_s
        self.first_s = arrived_s
        self.held_since_s = arrived_s
        """When its last token before a preemption came."""
        self.preemptions = 0

    @property
    def complete(self) -> bool:
        """Whether the engine has given all its tokens."""
        return self.generated == self.sample.output_tokens

    def next_text(self) -> bytes:
        """The words that the client does not have yet; it has them then."""
        start = self.given
        self.given = self.generated
        return filler(self.words_from + start, self.generated - start)


class Answer(ABC):
    """What both forms have in common."""

    def __init__(
        self, exchange: Exchange, wording: Wording, generation: Generation, first_id: int, now_s: float
    ) -> None:
        self.exchange = exchange
        self.number = first_id
        """Request id of its first choice."""
        self._wording = wording
        self._generation = generation
        self.choices = [
            Choice(self, sample, first_id + sample.index, now_s, wording.opening(sample.index))
            for sample in generation.samples
        ]
        self._open = len(self.choices)
        """Choices whose end the client has not been given."""

    @abstractmethod
    def give(self, choice: Choice) -> None:
        """The engine gave `choice` one more token."""

    @abstractmethod
    def cut(self) -> None:
        """The engine stops: end the answer with what there is, as vLLM does on SIGTERM."""

    def _output_tokens(self) -> int:
        return sum(choice.generated for choice in self.choices)

    def _mark_cut(self) -> None:
        for choice in self.choices:
            if not choice.complete:
                choice.finish_reason = "abort"


class StreamAnswer(Answer):
    """Server-sent events, a chunk per token."""

    def __init__(
        self, exchange: Exchange, wording: Wording, generation: Generation, first_id: int, now_s: float
    ) -> None:
        super().__init__(exchange, wording, generation, first_id, now_s)
        self._paused = False
        self._roles_due = generation.chat
        exchange.on_drain_change = self._on_drain_change
        exchange.start(200, SSE_HEADERS, content_length=None)

    def give(self, choice: Choice) -> None:
        choice.generated += 1
        if self._paused:
            return
        if self._roles_due or choice.generated == choice.sample.output_tokens:
            self._write_pieces([choice])
        else:
            text = filler(choice.words_from + choice.given, choice.generated - choice.given)
            choice.given = choice.generated
            self.exchange.write(self._wording.text_chunk(choice.opening, text, choice.given))

    def cut(self) -> None:
        self._mark_cut()
        pieces = self._roles()
        for choice in self.choices:
            if choice.given < choice.sample.output_tokens:
                pieces.append(self._last_chunk(choice))
        self._open = 0
        self._end(pieces)

    def _write_pieces(self, choices: list[Choice]) -> None:
        """Give these choices what is due to them, and end the stream if that was the last of it."""
        pieces = self._roles()
        for choice in choices:
            if choice.complete:
                pieces.append(self._last_chunk(choice))
                self._open -= 1
            else:
                text = choice.next_text()
                pieces.append(self._wording.text_chunk(choice.opening, text, choice.given))
        if self._open:
            self.exchange.write_many(pieces)
        else:
            self._end(pieces)

    def _roles(self) -> list[bytes]:
        if not self._roles_due:
            return []
        self._roles_due = False
        return [self._wording.role_chunk(choice.sample.index) for choice in self.choices]

    def _last_chunk(self, choice: Choice) -> bytes:
        text = choice.next_text()
        whole = filler(choice.words_from, choice.given) if self._wording.tells_whole_text else b""
        reason = choice.finish_reason.encode("ascii")
        return self._wording.last_chunk(choice.opening, text, choice.given, reason, whole)

    def _end(self, pieces: list[bytes]) -> None:
        if self._generation.include_usage:
            pieces.append(self._wording.usage_chunk(self._output_tokens()))
        pieces.append(self._wording.closing)
        self.exchange.write_many(pieces)
        self.exchange.finish()

    def _on_drain_change(self, paused: bool) -> None:
        self._paused = paused
        if not paused:
            due = [choice for choice in self.choices if choice.generated > choice.given]
            if due:
                self._write_pieces(due)


class WholeAnswer(Answer):
    """One JSON body at the end."""

    def give(self, choice: Choice) -> None:
        choice.generated += 1
        if choice.complete:
            self._open -= 1
            if not self._open:
                self._respond()

    def cut(self) -> None:
        self._mark_cut()
        self._open = 0
        self._respond()

    def _respond(self) -> None:
        texts = [(choice.next_text(), choice.finish_reason) for choice in self.choices]
        self.exchange.respond(200, JSON_HEADERS, self._wording.whole(texts, self._output_tokens()))
