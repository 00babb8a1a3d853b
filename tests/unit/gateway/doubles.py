"""Stand-ins for what surrounds a relay: the client, the engine, and a core that does as it is told."""

from __future__ import annotations

import json
from collections.abc import Callable

from forebay.admission.effects import Abort, Dispatch, Hold
from forebay.admission.events import Arrived, AttemptFailed, ClientLeft, Ended, Event
from forebay.admission.model import DecisionRecord, EndpointId, Exhausted, Refusal, TicketId
from forebay.admission.outcomes import Outcome
from forebay.gateway.bodies import BodyRoom
from forebay.gateway.gateway import Gateway
from forebay.gateway.ports import EndpointView, GatewaySettings, Listener, PoolView, Serving
from forebay.gateway.upstreams import Target, Upstreams
from forebay.http.call import Call, Sink
from forebay.http.client import Upstream
from forebay.http.exchange import BodyFailure, Exchange
from forebay.http.message import Headers, RequestHead, ResponseHead

ENDPOINTS = tuple(EndpointView(EndpointId(f"e{n}"), "127.0.0.1", 8000 + n) for n in range(3))
POOL = PoolView("p", ENDPOINTS, ("m",), checks_model_names=True, engine="vllm")

STREAM = ResponseHead(200, b"OK", [(b"content-type", b"text/event-stream")], True, None, True)


def plain_head(status: int = 200, length: int | None = None) -> ResponseHead:
    """Head of an answer that is no stream."""
    return ResponseHead(status, b"", [(b"content-type", b"application/json")], True, length, length is None)


def chat_body(**fields: object) -> bytes:
    """A small chat body."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | fields).encode()


def fields_of(headers: Headers | bytes) -> dict[bytes, bytes]:
    """Fields given as such or as lines."""
    if not isinstance(headers, bytes):
        return dict(headers)
    return {name: value for name, _, value in (line.partition(b": ") for line in headers.split(b"\r\n")[:-1])}


class ScriptedExchange(Exchange):
    """Notes what is sent to the client."""

    def __init__(
        self, body: bytes, headers: Headers | None = None, path: str = "/v1/chat/completions"
    ) -> None:
        target = path.encode()
        fields = [(b"host", b"x"), *(headers or [])]
        self.head = RequestHead(b"POST", target, path, b"", fields, 1, True, len(body), False, False)
        self.peer = None
        self.on_disconnect = self.on_drain_change = self.on_slow_reader = None
        self.body = body
        self.status: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.sent = b""
        self.ends: list[str] = []
        self.failure: Callable[[BodyFailure], None] | None = None
        self.arrive: Callable[[bytes], None] | None = None
        self.reads_at_once = True
        self.promised = False
        """The answer was begun before it was known what it will be."""

    @property
    def started(self) -> bool:
        return self.status is not None

    @property
    def over(self) -> bool:
        return bool(self.ends)

    def begin_events(self, headers: Headers) -> None:
        self.start(200, headers, content_length=None)
        self.promised = True

    def read_body(
        self,
        limit_bytes: int,
        on_body: Callable[[bytes], None],
        on_failure: Callable[[BodyFailure], None],
        keep: Callable[[int], bool] | None = None,
    ) -> None:
        self.limit_bytes, self.keep = limit_bytes, keep
        self.arrive, self.failure = on_body, on_failure
        if self.reads_at_once:
            on_body(self.body)

    def respond(self, status: int, headers: Headers | bytes, body: bytes, *, close: bool = False) -> None:
        if self.promised:
            self.write(b"data: %b\n\n" % body)
            self._end("finish" if status < 400 else "abort")
        elif not self.ends:
            self.status, self.headers, self.sent = status, fields_of(headers), body
            self._end("respond")

    def start(self, status: int, headers: Headers | bytes, *, content_length: int | None) -> None:
        if not self.ends and not self.promised:
            assert self.status is None, "a head was sent twice"
            self.status, self.headers = status, fields_of(headers)

    def write(self, data: bytes, framed: bytes = b"") -> None:
        if not self.ends:
            assert self.status is not None, "body before head"
            self.sent += data

    def finish(self) -> None:
        self._end("finish")

    def abort(self) -> None:
        self._end("abort")

    def leave(self) -> None:
        """The client goes away."""
        callback = self.on_disconnect
        self._end("left")
        if callback is not None:
            callback()

    def error(self) -> dict[str, str]:
        """The error object of the answer."""
        found: dict[str, str] = json.loads(self.sent)["error"]
        return found

    def _end(self, how: str) -> None:
        if not self.ends:
            self.ends.append(how)
            self.on_disconnect = self.on_drain_change = self.on_slow_reader = None


class ScriptedCall(Call):
    """One call, driven by the test."""

    def __init__(self, upstream: Upstream, head: bytes, body: bytes, sink: Sink) -> None:
        super().__init__(upstream, head, body, sink)
        self.sent_head, self.sent_body = head, body
        self.aborted = False
        self.ended = False
        self.was_paused = False

    @property
    def live(self) -> bool:
        """True while the sink may be called."""
        return not (self.aborted or self.ended)

    def abort(self) -> None:
        self.aborted = True

    def pause(self) -> None:
        self.was_paused = True

    def resume(self) -> None:
        self.was_paused = False


class ScriptedUpstream(Upstream):
    """Makes scripted calls."""

    def __init__(self, calls: list[ScriptedCall]) -> None:
        super().__init__("127.0.0.1", 1)
        self.scripted = calls

    def send(self, head: bytes, body: bytes, sink: Sink, *, reuse: bool = True) -> Call:
        call = ScriptedCall(self, head, body, sink)
        self.scripted.append(call)
        return call


class ScriptedUpstreams(Upstreams):
    """Endpoints whose calls are all noted in one list."""

    def __init__(self) -> None:
        super().__init__(GatewaySettings())
        self.calls: list[ScriptedCall] = []
        self.known = {}
        for view in ENDPOINTS:
            target = Target(view, GatewaySettings())
            target.upstream = ScriptedUpstream(self.calls)
            self.known[view.id] = target

    def update(self, serving: Serving) -> None:
        """The set is fixed."""

    def get(self, endpoint_id: EndpointId) -> Target | None:
        return self.known.get(endpoint_id)


def record(ticket: TicketId, *, position: int = 0, waited_s: float = 0.0) -> DecisionRecord:
    """A decision record with little in it."""
    return DecisionRecord(
        ticket, 0.0, "p", "standard", "t", "m", "hold", None, "passed", (), 0.1, 10, 1.5, 5.0, waited_s, position,
        None, learning=False,
    )  # fmt: skip


class ScriptedCore:
    """Keeps each ticket's state as the real core does, and checks that it is told the truth, once."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.listeners: dict[TicketId, Listener] = {}
        self.state: dict[TicketId, str] = {}
        self.clock_s = 100.0
        self.used_up: dict[str, Exhausted] = {}
        self.on_arrival: Callable[[TicketId], None] = lambda _: None
        self.on_failure: Callable[[TicketId], None] = lambda _: None
        self._last = 0
        self._attempts: dict[TicketId, int] = {}

    def now(self) -> float:
        return self.clock_s

    def new_ticket(self) -> TicketId:
        self._last += 1
        return TicketId(self._last)

    def register(self, ticket: TicketId, listener: Listener) -> None:
        assert ticket not in self.listeners
        self.listeners[ticket] = listener

    def exhausted(self, tenant: str, plan: str) -> Exhausted | None:
        return self.used_up.get(tenant)

    def feed(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Arrived):
            ticket = event.demand.ticket
            assert ticket not in self.state
            assert ticket in self.listeners, "fed before it was registered"
            self.state[ticket] = "waiting"
            self.on_arrival(ticket)
        elif isinstance(event, AttemptFailed):
            assert self.state[event.ticket] == "running"
            self.state[event.ticket] = "waiting"
            self.on_failure(event.ticket)
        elif isinstance(event, Ended):
            assert self.state[event.ticket] == "running"
            self.state[event.ticket] = "ended"
        elif isinstance(event, ClientLeft):
            assert self.state[event.ticket] in ("waiting", "running")
            self.state[event.ticket] = "ended"

    def told(self, kind: type) -> list[Event]:
        """Events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    # Decisions

    def dispatch(self, ticket: TicketId, endpoint: str = "e0", waited_s: float = 0.0) -> None:
        """Send it there."""
        self.state[ticket] = "running"
        self._attempts[ticket] = self._attempts.get(ticket, 0) + 1
        effect = Dispatch(
            ticket, EndpointId(endpoint), self._attempts[ticket], record(ticket, waited_s=waited_s)
        )
        self.listeners[ticket].on_dispatch(effect)

    def hold(self, ticket: TicketId, position: int = 0) -> None:
        """Keep it waiting, or take it back."""
        self.state[ticket] = "waiting"
        self.listeners[ticket].on_hold(Hold(ticket, record(ticket, position=position)))

    def refuse(
        self, ticket: TicketId, outcome: Outcome = Outcome.QUEUE_FULL, *, evicted: bool = False
    ) -> None:
        """Turn it away."""
        self.state[ticket] = "ended"
        self.listeners[ticket].on_refuse(Refusal(outcome, 2.0, 3.0, record(ticket)), evicted)

    def abort(self, ticket: TicketId, outcome: Outcome = Outcome.UPSTREAM_FAILED) -> None:
        """End it."""
        self.state[ticket] = "ended"
        self.listeners[ticket].on_abort(Abort(ticket, outcome, "It failed."))


class FixedDirectory:
    """Always the same view, until a test puts in another."""

    def __init__(self, serving: Serving | None = None) -> None:
        self.serving = serving or Serving((POOL,))


class Desk:
    """A gateway with doubles around it."""

    def __init__(self, settings: GatewaySettings | None = None) -> None:
        self.core = ScriptedCore()
        self.directory = FixedDirectory()
        self.gateway = Gateway(self.core, self.directory, settings or GatewaySettings())
        self.upstreams = ScriptedUpstreams()
        self.gateway.upstreams = self.upstreams

    @property
    def bodies(self) -> BodyRoom:
        """The account of body bytes."""
        return self.gateway.bodies

    @property
    def calls(self) -> list[ScriptedCall]:
        """All calls made to engines."""
        return self.upstreams.calls

    def request(
        self, body: bytes | None = None, headers: Headers | None = None, *, at_once: bool = True
    ) -> ScriptedExchange:
        """A chat request comes in."""
        exchange = ScriptedExchange(chat_body() if body is None else body, headers)
        exchange.reads_at_once = at_once
        self.gateway.on_request(exchange)
        return exchange
