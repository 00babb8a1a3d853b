"""One try at one endpoint: the engine's answer as it comes, and what it means for the request.

For: the engine's half of a proxied request (`relay` is the client's half and the core's). Owns the call to the engine
and what of its answer is held back. Reports to its owner exactly one ending, unless it is given up first:
`attempt_failed` while nothing has been relayed, `answer_ended` afterwards.

The head of a stream is held until the first data event: engines send `200` at once and may refuse inside it, and
as long as nothing was relayed another endpoint can be tried. After the first byte there is no second attempt.
Never changes a byte of what it relays, and never keeps more of it than the bounds below.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from forebay.admission.events import Failure
from forebay.admission.model import EndpointId, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.gateway.apis import AdmittedRoute
from forebay.gateway.engine_answers import (
    answer_from_event,
    gave_up,
    is_refusal,
    passed_head,
    usage_of_body,
    usage_of_ends,
    usage_of_native,
    usage_of_object,
)
from forebay.gateway.error_shapes import event_of
from forebay.gateway.headers import without_limits
from forebay.gateway.progress import Progress
from forebay.gateway.refusals import Answer, ending_body
from forebay.gateway.upstreams import Target
from forebay.http.client import Call, CallFailure
from forebay.http.exchange import Exchange
from forebay.http.message import ResponseHead, encode_headers
from forebay.http.sse import SseScanner

__all__ = ["Attempt", "Owner"]

HELD_BYTES: Final = 4 * 1024
"""Comments before the first event are held up to this many bytes."""
HELD_PRELUDE_BYTES: Final = 64 * 1024
"""The same where events say what was asked for, tools and all, before there is an answer."""
ERROR_BODY_BYTES: Final = 64 * 1024
"""An engine's error answer is kept up to this size, to be relayed if no other endpoint helps."""
LARGE_PIECE_BYTES: Final = 1024
USAGE_BODY_BYTES: Final = 256 * 1024
"""A non-streamed answer is looked into for its usage up to this size,"""
TAIL_BYTES: Final = 4 * 1024
"""and at its end if it is longer: embeddings are."""

_FAILURES: Final = {
    CallFailure.CONNECT: Failure.CONNECT,
    CallFailure.CONNECT_TIMEOUT: Failure.CONNECT,
    CallFailure.CLOSED_BEFORE_ANSWER: Failure.CLOSED,
    CallFailure.CLOSED_IN_BODY: Failure.CLOSED,
    CallFailure.MALFORMED: Failure.MALFORMED,
}


class Owner(Protocol):
    """The request that this attempt is made for."""

    def own_lines(self, engine_request_id: bytes | None) -> bytes:
        """Header lines that are added to the head of the answer."""

    def first_byte_passed(self) -> None:
        """Something was relayed: from now on the answer is this attempt's."""

    def attempt_failed(self, failure: Failure, answer: Answer | None, *, engine_goes_on: bool) -> None:
        """Nothing was relayed. `answer`: the engine's own error, if it gave one."""

    def answer_ended(
        self, outcome: Outcome, usage: Usage | None, output_events: int, *, engine_goes_on: bool
    ) -> None:
        """The relayed answer is over and the exchange was finished or aborted."""


class _Phase(Enum):
    HEAD = "waiting for the head"
    REFUSED = "collecting an error answer"
    HELD_STREAM = "holding the head of a stream"
    HELD_PLAIN = "holding the head of another answer"
    STREAM = "relaying a stream"
    PLAIN = "relaying another answer"


_HEAD: Final = _Phase.HEAD
_REFUSED: Final = _Phase.REFUSED
_HELD_STREAM: Final = _Phase.HELD_STREAM
_HELD_PLAIN: Final = _Phase.HELD_PLAIN
_STREAM: Final = _Phase.STREAM
_PLAIN: Final = _Phase.PLAIN


class Attempt:
    """The sink of one call to an engine."""

    __slots__ = (
        "_call",
        "_exchange",
        "_head",
        "_kept",
        "_kept_bytes",
        "_last",
        "_now",
        "_owner",
        "_phase",
        "_progress",
        "_route",
        "_scanner",
        "endpoint",
        "last_event_s",
        "moved",
        "new_events",
        "over",
        "reported_event_s",
        "target",
        "ticket",
    )

    def __init__(  # noqa: PLR0917 - by position: for each request
        self,
        owner: Owner,
        exchange: Exchange,
        target: Target,
        ticket: TicketId,
        progress: Progress,
        route: AdmittedRoute,
    ) -> None:
        self._owner = owner
        self._route = route
        self._exchange = exchange
        self._progress = progress
        self._call: Call | None = None
        self._phase = _HEAD
        self._head: ResponseHead | None = None
        self._scanner: SseScanner | None = None
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._last = b""
        self._now = progress.now
        self.target = target
        self.ticket = ticket
        self.endpoint: EndpointId = target.view.id
        self.new_events = 0
        self.moved = False
        self.last_event_s = 0.0
        self.reported_event_s = 0.0
        self.over = False

    # From the owner

    def start(self, head: bytes, body: bytes) -> None:
        """Sends the request."""
        # Where connections end unannounced after a stream, none that has served before can be trusted.
        reuse = self.target.view.reuse_after_stream
        self._call = self.target.upstream.send(head, body, self, reuse=reuse)

    def give_up(self) -> None:
        """Cuts the connection to the engine; nothing is reported any more."""
        call = self._call
        self._close()
        if call is not None:
            call.abort()

    def pause(self, paused: bool) -> None:
        """The client reads too slowly, or reads again: the engine's socket follows."""
        if self._call is None:
            return
        if paused:
            self._call.pause()
            self._progress.pause(self)
        else:
            self._progress.resume(self)
            self._call.resume()

    @property
    def output_events(self) -> int:
        """Data events seen so far."""
        return self._scanner.data_events if self._scanner is not None else 0

    @property
    def streams(self) -> bool:
        """True if the client sees a stream of events, so that an error can be told inside it."""
        return self._phase is _STREAM

    @property
    def told_ending(self) -> Outcome | None:
        """How the answer ends as far as the client was told; None while there was more to come.

        Clients act on it before the engine has ended the body: the OpenAI SDKs close at `[DONE]` and at an error.
        """
        if self._phase is _STREAM:
            scanner = self._stream_scanner()
            if scanner.error is not None or scanner.aborted:
                return Outcome.UPSTREAM_INTERRUPTED
            return Outcome.COMPLETED if scanner.done else None
        if self._phase is _PLAIN and self._kept_bytes == self._answer_head().content_length:
            return self._outcome()
        return None

    def _outcome(self) -> Outcome:
        """What a whole answer means: an error that the engine gave itself is no service, nor is one that it gave up."""
        if self._answer_head().status >= 400:
            return Outcome.ENGINE_REJECTED
        return Outcome.UPSTREAM_INTERRUPTED if gave_up(b"".join(self._kept)) else Outcome.COMPLETED

    def usage(self) -> Usage | None:
        """What the engine said so far about the cost of its answer."""
        if self._phase is _PLAIN:
            return self._usage_of_kept()
        scanner = self._scanner
        if scanner is None:
            return None
        if scanner.usage is None:
            return usage_of_ends(scanner.ends) if self._route.native else None
        return usage_of_object(scanner.usage, scanner.first_usage)

    def end_stream(self, outcome: Outcome, detail: str) -> None:
        """Tells the client inside the stream why it ends, and closes so that it cannot be taken for a whole one."""
        status, body = ending_body(outcome, detail)
        event = event_of(self._route.errors, status, body)
        # A cut-off event is ended first, so that ours is not read as a part of it.
        self._exchange.write(
            event if self._last.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) else b"\n\n" + event
        )
        self._exchange.abort()

    # From the engine

    def on_head(self, head: ResponseHead) -> None:
        self._head = head
        if is_refusal(head.status):
            self._phase = _REFUSED
            self._progress.hold(self)
        elif passed_head(head).is_stream:
            self._phase = _HELD_STREAM
            route = self._route
            self._scanner = SseScanner(route.end_key, all_ends=route.all_ends, preludes=route.preludes)
        else:
            self._phase = _HELD_PLAIN

    def on_data(self, data: bytes) -> None:
        phase = self._phase
        if phase is _STREAM:
            scanner, call = self._stream_scanner(), self._call
            events = scanner.feed(data)
            self._exchange.write(data, b"" if call is None else call.framed)
            self._last = data
            if events:
                self.new_events += events
                self.last_event_s = self._now()
                if not self.moved:
                    self._progress.note(self)
            elif scanner.done:
                # The stream is over. What an engine adds, or that it does not close, holds nobody up for long.
                self._progress.hold(self)
            elif len(data) >= LARGE_PIECE_BYTES and not self.moved:
                # A part of a huge event moves too; a comment does not: a hung engine's front may go on with those.
                self._progress.note(self)
        elif phase is _HELD_STREAM:
            self._hold(data)
        elif phase is _PLAIN:
            self._exchange.write(data)
            self._keep_tail(data)
            if not self.moved:
                self._progress.note(self)
        elif phase is _HELD_PLAIN:
            self._begin_plain(data)
        else:
            self._keep(data, ERROR_BODY_BYTES)
            if self._kept_bytes > ERROR_BODY_BYTES:
                self._cut_refusal()

    def on_end(self) -> None:
        phase = self._phase
        if phase is _STREAM:
            self._end_of_stream(clean=True)
        elif phase is _PLAIN:
            self._exchange.finish()
            self._ended(self._outcome(), self._usage_of_kept())
        elif phase is _HELD_PLAIN and self._kept_bytes > USAGE_BODY_BYTES:
            self._failed(Failure.MALFORMED, None)  # a stream was promised, and for an event this is too much
        elif phase is _HELD_PLAIN:
            self._whole_answer(b"".join(self._kept))
        elif phase is _HELD_STREAM:
            self._end_before_first_event()
        else:
            self._failed(Failure.REFUSED, self._engine_error())

    def on_failure(self, kind: CallFailure, detail: str) -> None:
        phase = self._phase
        # Of all failures only this one is noticed by us and not told by the engine.
        goes_on = kind is CallFailure.MALFORMED
        if phase is _STREAM:
            self._end_of_stream(clean=False, engine_goes_on=goes_on)
        elif phase is _PLAIN:
            self._exchange.abort()
            self._ended(Outcome.UPSTREAM_INTERRUPTED, None, engine_goes_on=goes_on)
        elif phase is _REFUSED:
            self._failed(Failure.REFUSED, None, engine_goes_on=goes_on)
        else:
            self._failed(_FAILURES[kind], None, engine_goes_on=goes_on)

    # What the answer turns out to be

    def release_head(self) -> None:
        """Sends the held head of a stream, with the comments behind it: the first byte has passed."""
        if self.over:
            return
        if self._phase is _HELD_STREAM:
            self._begin_stream()
        elif self._phase is _REFUSED:
            self._cut_refusal()
        elif self._phase is _STREAM and self._stream_scanner().done:
            call = self._call
            self._end_of_stream(clean=True)
            if call is not None:
                call.abort()

    def _cut_refusal(self) -> None:
        """An error answer that is too long, or does not come to its end: it is an error all the same."""
        call = self._call
        self._failed(Failure.REFUSED, None, engine_goes_on=True)
        if call is not None:
            call.abort()

    def _hold(self, data: bytes) -> None:
        scanner = self._stream_scanner()
        scanner.feed(data)
        self._kept.append(data)
        self._kept_bytes += len(data)
        if scanner.data_events or scanner.done:
            self._first_event()
        elif self._kept_bytes > (HELD_PRELUDE_BYTES if self._route.preludes else HELD_BYTES):
            self._begin_stream()
        elif len(self._kept) == 1:
            self._progress.hold(self)

    def _first_event(self) -> None:
        """The first event decides: it is an error, and nothing was relayed yet, or the answer begins."""
        scanner = self._stream_scanner()
        if scanner.error is not None and scanner.error == scanner.first_event:
            self._refused_inside(scanner.error)
        elif scanner.aborted:
            self._give_up_on(Failure.CUT)
        else:
            self._begin_stream()

    def _begin_stream(self) -> None:
        self._start(content_length=None)
        self._phase = _STREAM
        data = b"".join(self._kept)
        self._kept.clear()
        self._last = data
        self._exchange.write(data)
        events = self._stream_scanner().data_events
        if events:
            self.last_event_s = self._now()
            self.new_events += events
            self._progress.note(self)
        self._owner.first_byte_passed()

    def _begin_plain(self, data: bytes) -> None:
        head = self._answer_head()
        self._keep(data, USAGE_BODY_BYTES)
        if len(data) == head.content_length or self._exchange.started:
            return  # The whole of it, or to be told as one event: it goes out in one write when the end is reported.
        self._start(content_length=head.content_length)
        self._phase = _PLAIN
        self._exchange.write(data)
        self._owner.first_byte_passed()

    def _start(self, *, content_length: int | None) -> None:
        self._exchange.start(self._answer_head().status, self._lines(), content_length=content_length)

    def _lines(self) -> bytes:
        passed = passed_head(self._answer_head())
        own = self._owner.own_lines(passed.request_id)
        return passed.joined(own, our_account=bool(self.target.view.own_key))

    def _whole_answer(self, body: bytes) -> None:
        head = self._answer_head()
        if head.status == 200 and gave_up(body):
            # Another endpoint may do better; if there is none, a part of an answer is better than none.
            self._failed(Failure.CUT, self._engine_error())
            return
        self._exchange.respond(head.status, self._lines(), body)
        self._ended(self._outcome(), self._usage_of(body))

    def _refused_inside(self, data: bytes) -> None:
        """The stream begins with an error."""
        answer = answer_from_event(data)
        call = self._call
        if is_refusal(answer.status):
            self._failed(Failure.REFUSED, answer)
        else:
            lines = encode_headers(answer.headers) + self._owner.own_lines(None)
            self._exchange.respond(answer.status, lines, answer.body)
            self._ended(Outcome.ENGINE_REJECTED, None)
        if call is not None:
            call.abort()

    def _give_up_on(self, failure: Failure) -> None:
        """Nothing was relayed of an answer that is not worth relaying."""
        call = self._call
        self._failed(failure, None)
        if call is not None:
            call.abort()

    def _end_of_stream(self, *, clean: bool, engine_goes_on: bool = False) -> None:
        """The engine's side ended. Nothing is added to a stream to make it look whole."""
        scanner = self._stream_scanner()
        # An engine that dies behind its last word has said it: an error behind `[DONE]` would be nonsense.
        if clean or scanner.lacks_only_its_empty_line():
            scanner.end()
        usage = self.usage()
        if scanner.error is not None or scanner.aborted:
            # The client has seen the error, or the reason.
            if clean:
                self._exchange.finish()
            else:
                self._exchange.abort()
            self._ended(Outcome.UPSTREAM_INTERRUPTED, usage, engine_goes_on=engine_goes_on)
        elif scanner.done or (clean and (scanner.finish_reason_seen or self._route.native)):
            self._exchange.finish()
            self._ended(Outcome.COMPLETED, usage)
        else:
            self.end_stream(Outcome.UPSTREAM_INTERRUPTED, "")
            self._ended(Outcome.UPSTREAM_INTERRUPTED, usage, engine_goes_on=engine_goes_on)

    def _end_before_first_event(self) -> None:
        scanner = self._stream_scanner()
        if scanner.end() or scanner.done:
            # Its first event lacked the empty line behind it.
            self._first_event()
            if not self.over:
                self._end_of_stream(clean=True)
        else:
            self._failed(Failure.MALFORMED, None)

    def _engine_error(self) -> Answer:
        head = self._answer_head()
        told = without_limits(head.headers) if self.target.view.own_key else head.headers
        return Answer(head.status, told, b"".join(self._kept))

    def _usage_of_kept(self) -> Usage | None:
        return self._usage_of(b"".join(self._kept))

    def _usage_of(self, body: bytes) -> Usage | None:
        """What a whole answer, or the end of a long one, says of its cost."""
        head = self._answer_head()
        if head.status != 200:
            return None
        usage = usage_of_body(body)
        return usage_of_native(body, head.headers) if usage is None and self._route.native else usage

    # Ends and small parts

    def _failed(self, failure: Failure, answer: Answer | None, *, engine_goes_on: bool = False) -> None:
        self._close()
        self._owner.attempt_failed(failure, answer, engine_goes_on=engine_goes_on)

    def _ended(self, outcome: Outcome, usage: Usage | None, *, engine_goes_on: bool = False) -> None:
        self._close()
        self._owner.answer_ended(outcome, usage, self.output_events, engine_goes_on=engine_goes_on)

    def _close(self) -> None:
        self.over = True
        self._call = None
        self._progress.resume(self)
        self._kept.clear()

    def _keep(self, data: bytes, limit_bytes: int) -> None:
        self._kept_bytes += len(data)
        if self._kept_bytes <= limit_bytes:
            self._kept.append(data)
        else:
            self._kept.clear()

    def _keep_tail(self, data: bytes) -> None:
        """Of a long answer its end is kept, where most engines put what it came to."""
        self._kept.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes > USAGE_BODY_BYTES:
            tail = data if len(data) > TAIL_BYTES else b"".join(self._kept)
            self._kept = [tail[-TAIL_BYTES:]]

    def _answer_head(self) -> ResponseHead:
        assert self._head is not None
        return self._head

    def _stream_scanner(self) -> SseScanner:
        assert self._scanner is not None
        return self._scanner
