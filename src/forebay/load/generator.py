"""An open-loop client: sends each request when it is due, whatever became of the ones before.

Owns the clients' side of the wire: building OpenAI chat requests, timing their answers, and saying how each
ended (`felt.Felt`). Times count from the moment a request was *due*, so a client that is late itself cannot
hide a server's delay. It never retries, never waits for an answer before the next request, and never judges
an answer; nothing it holds outlives `run`.

One timer and no task per request: it has to share two cores with what it measures.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic  # not the loop's clock, which uvloop rounds to milliseconds and reads once a turn
from typing import Final
from urllib.parse import urlsplit

import msgspec

from forebay.http.client import Call, CallFailure, Upstream
from forebay.http.message import ResponseHead, get_header
from forebay.http.sse import SseScanner
from forebay.load.felt import End, Felt
from forebay.load.workload import Arrival

REFUSAL_STATUSES: Final = frozenset({429, 503, 529})
_KEPT_BYTES: Final = 256 * 1024
"""Of an answer that is not a stream: enough for an error or a whole chat answer; the rest is counted, not kept."""


class WrongTarget(ValueError):
    """The URL of a target cannot be used; the message says what it should look like."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    tls: bool = False

    @staticmethod
    def parse(url: str) -> Target:
        """Read `http://HOST:PORT` or `https://…`; a path is refused, since the API's own paths are appended."""
        wrong = WrongTarget(f"target {url!r} should look like http://127.0.0.1:8000")
        try:
            parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise wrong from None
        if not host or parts.scheme not in {"http", "https"} or parts.path.strip("/") or parts.query:
            raise wrong
        tls = parts.scheme == "https"
        return Target(host, port or (443 if tls else 80), tls)

    def upstream(self) -> Upstream:
        """Connections to it."""
        return Upstream(self.host, self.port, tls=ssl.create_default_context() if self.tls else None)


Compose = Callable[[Arrival], bytes]
"""Builds the JSON body of a request."""


@dataclass(slots=True)
class Counts:
    """How far a run has got."""

    sent: int = 0
    open: int = 0
    completed: int = 0
    refused: int = 0
    failed: int = 0


class _UsageCounts(msgspec.Struct):
    completion_tokens: int | None = None


class _ErrorBody(msgspec.Struct):
    code: str | int | None = None
    type: str | None = None


class _AnswerBody(msgspec.Struct):
    usage: _UsageCounts | None = None
    error: _ErrorBody | None = None


_answer_decoder = msgspec.json.Decoder(_AnswerBody)
_usage_decoder = msgspec.json.Decoder(_UsageCounts)
_error_decoder = msgspec.json.Decoder(_ErrorBody)


class OpenLoop:
    """Sends a planned workload to one target, or in turn to several."""

    def __init__(
        self,
        targets: Sequence[Target],
        compose: Compose,
        *,
        path: str = "/v1/chat/completions",
        headers: Sequence[tuple[str, str]] = (),
        own_headers: Callable[[Arrival], str] | None = None,
    ) -> None:
        """A client that has sent nothing yet.

        Args:
            targets: asked in turn.
            compose: makes the bodies.
            path: of the API.
            headers: of every request.
            own_headers: further lines for one request, each with its line break.
        """
        if not targets:
            raise WrongTarget("at least one target is needed")
        self.counts = Counts()
        self.felt: list[Felt] = []
        """One record per request that has ended, in the order of their ends."""
        self._upstreams = [target.upstream() for target in targets]
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers)
        self._heads = [
            f"POST {path} HTTP/1.1\r\nhost: {target.host}:{target.port}\r\n"
            f"content-type: application/json\r\n{extra}x-forebay-class: ".encode("latin-1")
            for target in targets
        ]
        self._turns = itertools.cycle(range(len(targets)))
        self._compose = compose
        self._own_headers = own_headers
        self._planned: Sequence[Arrival] = ()
        self._next = 0
        self._start_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._open: dict[int, _Exchange] = {}
        self._all_done: asyncio.Event = asyncio.Event()

    async def run(self, planned: Sequence[Arrival], *, tail_s: float) -> list[Felt]:
        """Send everything, wait for answers up to `tail_s` after the last arrival, and return one record each.

        May be called once. Requests still open at the end are given up and count as unanswered at their age.
        """
        if self._planned:
            raise RuntimeError("an OpenLoop runs once")
        if not planned:
            return self.felt
        self._planned = planned
        self._start_s = monotonic()
        try:
            self._send_due()
            async with asyncio.timeout(planned[-1].at_s + tail_s):
                await self._all_done.wait()
        except TimeoutError:
            pass
        finally:
            self._close()
        return self.felt

    def _send_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._next < len(self._planned):
            arrival = self._planned[self._next]
            due_s = self._start_s + arrival.at_s
            wait_s = due_s - monotonic()
            if wait_s > 0:
                self._timer = loop.call_later(wait_s, self._send_due)
                return
            self._next += 1
            self._send(arrival, due_s)

    def _send(self, arrival: Arrival, due_s: float) -> None:
        turn = next(self._turns)
        body = self._compose(arrival)
        own = "" if self._own_headers is None else self._own_headers(arrival)
        head = b"%s%s\r\n%scontent-length: %d\r\n\r\n" % (
            self._heads[turn],
            arrival.class_name.encode("latin-1"),
            own.encode("latin-1"),
            len(body),
        )
        self.counts.sent += 1
        self.counts.open += 1
        exchange = _Exchange(self, arrival, due_s)
        self._open[arrival.index] = exchange
        exchange.begin(self._upstreams[turn], head, body)

    def note_end(self, arrival: Arrival, felt: Felt) -> None:
        """Called by an exchange, exactly once, when it is over."""
        del self._open[arrival.index]
        self.felt.append(felt)
        counts = self.counts
        counts.open -= 1
        counts.completed += felt.end is End.COMPLETED
        counts.refused += felt.end is End.REFUSED
        counts.failed += felt.end is End.FAILED
        if counts.open == 0 and self._next == len(self._planned):
            self._all_done.set()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for exchange in list(self._open.values()):
            exchange.give_up()
        for upstream in self._upstreams:
            upstream.close()


class _Exchange:
    """One request and its answer: a sink for the HTTP client."""

    __slots__ = (
        "_arrival", "_body", "_call", "_due_s", "_first_s", "_head", "_last_s", "_late_s", "_owner", "_scanner"
    )  # fmt: skip

    def __init__(self, owner: OpenLoop, arrival: Arrival, due_s: float) -> None:
        self._owner = owner
        self._arrival = arrival
        self._due_s = due_s
        self._late_s = monotonic() - due_s
        self._call: Call | None = None
        self._head: ResponseHead | None = None
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._scanner: SseScanner | None = None
        self._body = bytearray()

    def begin(self, upstream: Upstream, head: bytes, body: bytes) -> None:
        self._call = upstream.send(head, body, self)

    def on_head(self, head: ResponseHead) -> None:
        self._head = head
        content_type = get_header(head.headers, b"content-type") or b""
        if head.status == 200 and content_type.startswith(b"text/event-stream"):
            self._scanner = SseScanner()

    def on_data(self, data: bytes) -> None:
        if self._scanner is None:
            if len(self._body) < _KEPT_BYTES:
                self._body += data
        elif self._scanner.feed(data) == 0:
            return
        self._last_s = monotonic()
        if self._first_s is None:
            self._first_s = self._last_s

    def on_end(self) -> None:
        head = self._head
        assert head is not None
        if self._scanner is not None:
            self._end_of_stream(self._scanner)
            return
        answer = _read_answer(bytes(self._body))
        if head.status == 200 and not self._body.lstrip().startswith(b"{"):
            self._finish(End.FAILED, code="not_json")
            return
        if head.status == 200 and answer.error is None:
            tokens = answer.usage.completion_tokens if answer.usage else None
            self._finish(End.COMPLETED, tokens=tokens or 0)
            return
        end = End.REFUSED if head.status in REFUSAL_STATUSES else End.FAILED
        self._finish(end, code=_error_code(answer.error))

    def on_failure(self, kind: CallFailure, detail: str) -> None:
        del detail  # the kind says what a report needs
        self._finish(End.FAILED, code=kind.name.lower())

    def give_up(self) -> None:
        """Stop waiting for the answer."""
        if self._call is not None:
            self._call.abort()
        self._finish(End.UNANSWERED)

    def _end_of_stream(self, scanner: SseScanner) -> None:
        if scanner.error is not None:
            self._finish(End.FAILED, code=_stream_error_code(scanner.error))
        elif not scanner.done:
            self._finish(End.FAILED, code="stream_cut_short")
        else:
            self._finish(End.COMPLETED, tokens=_stream_tokens(scanner))

    def _finish(self, end: End, *, code: str = "", tokens: int = 0) -> None:
        head = self._head
        # What came before a refusal or an error is no token.
        answered = end in {End.COMPLETED, End.UNANSWERED} and (head is None or head.status == 200)
        arrival = self._arrival
        felt = Felt(
            class_name=arrival.class_name,
            at_s=arrival.at_s,
            stream=arrival.stream,
            end=end,
            duration_s=monotonic() - self._due_s,
            first_token_s=self._since_due(self._first_s) if answered else None,
            last_token_s=self._since_due(self._last_s) if answered else None,
            output_tokens=tokens,
            status=None if head is None else head.status,
            code=code,
            retry_after_s=_retry_after_s(head),
            late_s=self._late_s,
        )
        self._owner.note_end(arrival, felt)

    def _since_due(self, at_s: float | None) -> float | None:
        return None if at_s is None else at_s - self._due_s


def _read_answer(body: bytes) -> _AnswerBody:
    try:
        return _answer_decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return _AnswerBody()


def _error_code(error: _ErrorBody | None) -> str:
    if error is None:
        return ""
    return str(error.code or error.type or "")


def _stream_error_code(event: bytes) -> str:
    """The code in an error event, which is either `{"error": {…}}` or the error object itself."""
    code = _error_code(_read_answer(event).error)
    if code:
        return code
    try:
        return _error_code(_error_decoder.decode(event)) or "stream_error"
    except (msgspec.MsgspecError, RecursionError):
        return "stream_error"


def _stream_tokens(scanner: SseScanner) -> int:
    if scanner.usage is not None:
        try:
            tokens = _usage_decoder.decode(scanner.usage).completion_tokens
        except (msgspec.MsgspecError, RecursionError):
            tokens = None
        if tokens is not None:
            return tokens
    return scanner.data_events


def _retry_after_s(head: ResponseHead | None) -> float | None:
    value = None if head is None else get_header(head.headers, b"retry-after")
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        return None
