"""One proxied request: from its head to its end, on whatever way out.

For: the client's half of a request and its tie to the core; the engine's half is `attempt`. A relay owns the exchange
with the client, the body while another attempt may need it, and the open attempt. It carries out what the core
decides and never decides itself.

How the core is told exactly once. A relay is in one stage at a time, and only these moves exist:

    READING ──arrived──► WAITING ◄──attempt_failed── RUNNING ──first byte──► RELAYING
       │                    │ └──────dispatch──────────►│                        │
       └──────► OVER ◄──────┴───────────────────────────┴────────────────────────┘

READING owes the core nothing. Each way from WAITING, RUNNING or RELAYING to OVER goes through `_leave`, which is where
the stage changes: by the core's own word (refusal, abort: nothing to tell), by the client's leaving (`ClientLeft`), or
by the end of the answer (`Ended`). A failed attempt tells `AttemptFailed` on the move back to WAITING. What comes
later finds the stage OVER and does nothing.
"""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import Final

from forebay.admission.effects import Abort, Dispatch, Hold
from forebay.admission.events import Arrived, AttemptFailed, ClientLeft, Ended, Failure, FirstTokenCame
from forebay.admission.model import BodyChange, DecisionRecord, Exhausted, Refusal, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.gateway.arrival import demand_of
from forebay.gateway.asks import Ask, BadRequest
from forebay.gateway.attempt import Attempt
from forebay.gateway.body_answers import NOT_FOR_NOTHING_BYTES, answer_to, unread_refusal
from forebay.gateway.counting import Counted
from forebay.gateway.demand import unstated_limit
from forebay.gateway.desk import Desk
from forebay.gateway.error_shapes import in_shape, tell
from forebay.gateway.failure_answers import failure_answer
from forebay.gateway.headers import Claims, claims_of, engine_target, safe_id
from forebay.gateway.identity import Denied
from forebay.gateway.ports import PoolView
from forebay.gateway.refusals import (
    Answer,
    decision_header,
    plain_error,
    predicted_wait,
    quota_headers,
    refusal_answer,
    seconds,
    status_of,
)
from forebay.gateway.routes import AdmittedRoute
from forebay.gateway.routing import Unroutable
from forebay.gateway.splice import changed_body
from forebay.gateway.waiting import WaitingComments, hold_headers
from forebay.http.exchange import BodyFailure, Exchange
from forebay.http.message import Headers, encode_headers

__all__ = ["Relay"]


class _Stage(Enum):
    READING = "reading the body"
    WAITING = "waiting for the core's word"
    RUNNING = "an attempt is open, nothing was relayed"
    RELAYING = "the answer is being relayed"
    OVER = "over"


_READING: Final = _Stage.READING
_WAITING: Final = _Stage.WAITING
_RUNNING: Final = _Stage.RUNNING
_RELAYING: Final = _Stage.RELAYING
_OVER: Final = _Stage.OVER
_NO_TICKET: Final = TicketId(0)
_NOT_WAITED: Final = (b"x-queue-time", b"0.000")
_NOT_WAITED_LINES: Final = b"x-forebay-id: %b\r\nx-request-id: %b\r\nx-queue-time: 0.000\r\n"
"""The headers of nearly every answer."""


class Relay:
    """The life of one request to an inference path. Listener of its ticket and owner of its attempts."""

    __slots__ = (
        "_arrived_s",
        "_attempt",
        "_body",
        "_change",
        "_claims",
        "_comments",
        "_counted",
        "_desk",
        "_dispatch",
        "_engine_error",
        "_exchange",
        "_failure",
        "_hold",
        "_reserved_bytes",
        "_route",
        "_sent_bytes",
        "_stage",
        "_stream",
        "_ticket",
        "_waiting_bytes",
    )

    def __init__(self, desk: Desk, exchange: Exchange, route: AdmittedRoute, claims: Claims) -> None:
        self._desk = desk
        self._exchange = exchange
        self._route = route
        self._claims = claims
        self._arrived_s = desk.core.now()
        self._stage = _READING
        self._ticket = _NO_TICKET
        self._body = b""
        self._change: BodyChange | None = None
        self._attempt: Attempt | None = None
        self._dispatch: DecisionRecord | None = None
        self._hold: DecisionRecord | None = None
        self._engine_error: Answer | None = None
        self._failure: Failure | None = None
        self._reserved_bytes = 0
        self._waiting_bytes = 0
        self._sent_bytes = 0
        self._stream = False
        self._comments: WaitingComments | None = None
        self._counted: Counted | None = None

    @property
    def request_id(self) -> bytes | None:
        """The client's own `x-request-id`, if it sent one."""
        return self._claims.request_id

    # The request

    def begin(self) -> None:
        """Reads the body, or refuses it unread."""
        exchange = self._exchange
        settings = self._desk.settings
        limit_bytes = min(settings.max_body_bytes, settings.max_waiting_bytes)
        # A chunked body has one byte at the least.
        declared_bytes = 1 if exchange.head.chunked else exchange.head.content_length or 0
        if declared_bytes > limit_bytes:
            self._body_failed(BodyFailure.TOO_LARGE)
        elif declared_bytes > self._desk.bodies.left_bytes(declared_bytes):
            self._body_failed(BodyFailure.NO_ROOM)
        elif declared_bytes > NOT_FOR_NOTHING_BYTES and (exhausted := self._exhausted()) is not None:
            self._answer_early(unread_refusal(exhausted))
        else:
            exchange.on_disconnect = self._client_left
            exchange.read_body(limit_bytes, self._arrived, self._body_failed, self._reserve)

    def _exhausted(self) -> Exhausted | None:
        """What the tenant has used up, so that its body need not be read."""
        tenant = self._claims.tenant
        plan = tenant.plan
        return None if plan is None else self._desk.core.exhausted(tenant.name, plan.name)

    def _reserve(self, piece_bytes: int) -> bool:
        """Room is taken for what has come, not for what was announced: announcing costs a client nothing."""
        if not self._desk.bodies.reserve(piece_bytes, self._reserved_bytes + piece_bytes):
            return False
        self._reserved_bytes += piece_bytes
        return True

    def _arrived(self, body: bytes) -> None:
        self._release_reserved()
        desk = self._desk
        exchange = self._exchange
        try:
            access = desk.routing.serving.access
            if self._claims.access is not access:  # another configuration came before the body
                self._claims = claims_of(exchange.head, access, exchange.address)
            ask = self._route.read(body)
            pool = desk.routing.pool_for(ask.model)
            plan = self._claims.tenant.plan
            given = None if plan is None else plan.check(ask, pool.models, self._route.limit_field)
        except BadRequest as error:
            self._answer_early(plain_error(400, "invalid_request", error.message, error.param))
            return
        except Unroutable as unroutable:
            self._answer_early(unroutable.answer)
            return
        except Denied as denied:
            self._answer_early(denied.answer)
            return
        texts = self._route.texts
        counter = pool.counter
        if (
            counter is None
            or texts is None
            or ask.prompt_tokens is not None
            or not counter.takes(ask.prompt_bytes)
        ):
            self._enter(ask, given, pool, body)
            return
        desk.bodies.add(len(body))
        done = partial(self._was_counted, ask, given, pool, body)
        counter.begin(self._route.path, texts, body, ask.prompt_bytes, done)

    def _was_counted(
        self, ask: Ask, given: str | None, pool: PoolView, body: bytes, counted: Counted | None
    ) -> None:
        desk = self._desk
        desk.bodies.remove(len(body))
        if self._stage is _OVER:
            return
        if pool not in desk.routing.serving.pools:
            self._arrived(body)  # another configuration came meanwhile
            return
        if counted is not None:
            ask.prompt_tokens = counted.prompt_tokens
            self._counted = None if ask.extra_prompt_tokens else counted
        self._enter(ask, given, pool, body)

    def _enter(self, ask: Ask, given: str | None, pool: PoolView, body: bytes) -> None:
        """Tells the core."""
        desk, exchange = self._desk, self._exchange
        if ask.max_output_tokens is None and self._route.unstated:
            ask.max_output_tokens = unstated_limit(pool.engine)
        exchange.on_drain_change = self._drain_changed
        exchange.on_slow_reader = self._reader_is_slow
        self._body = body
        self._stream = ask.stream
        self._ticket = desk.core.new_ticket()
        self._stage = _WAITING
        desk.core.register(self._ticket, self)
        demand = demand_of(self._ticket, ask, given, pool.name, len(body), self._claims, self._arrived_s)
        desk.core.feed(Arrived(demand))

    def _body_failed(self, failure: BodyFailure) -> None:
        self._release_reserved()
        self._answer_early(answer_to(failure, self._desk.settings, self._desk.bodies))

    def _answer_early(self, answer: Answer) -> None:
        self._stage = _OVER
        core = self._desk.core
        # Never known to the core, but the client can name it all the same.
        self._ticket = core.new_ticket()
        desk, claims = self._desk, self._claims
        answer = in_shape(answer, self._route.errors)
        desk.early.add(self._ticket, core.now(), answer, claims.request_id)
        desk.early.turned_away(answer.code, desk.routing.only_pool(), claims.class_name, claims.tenant.name)
        self._exchange.respond(answer.status, [*answer.headers, *self._identity()], answer.body)

    # What the core decides

    def on_dispatch(self, effect: Dispatch) -> None:
        if self._stage is _OVER or self._stage is _RELAYING:
            return  # The client has left or been served; the core will hear of it, or has.
        if self._attempt is not None:
            self._attempt.give_up()
        desk = self._desk
        self._stop_waiting()
        self._forget_sent()
        self._stage = _RUNNING
        self._dispatch = effect.record
        if desk.settings.waiting_comments_s:
            self._show_life(effect.record.class_name)
        target = desk.upstreams.get(effect.endpoint)
        if target is None:
            self._attempt = None
            self._stage = _WAITING
            desk.core.feed(AttemptFailed(self._ticket, effect.endpoint, Failure.CONNECT))
            return
        attempt = self._attempt = Attempt(
            self, self._exchange, target, self._ticket, desk.progress, self._route
        )
        claims = self._claims
        forward = claims.forward
        with_keys = target.view.takes_credentials
        if claims.credentials and with_keys:
            forward += claims.credentials
        body, self._change = self._body, effect.change
        self._sent_bytes = len(body)
        desk.bodies.send(self._sent_bytes)
        if effect.change is not None:
            body = changed_body(body, effect.change, self._route)
        path = engine_target(self._exchange.head, with_keys=with_keys)
        attempt.start(target.post_head(path, forward, len(body)), body)

    def on_hold(self, effect: Hold) -> None:
        if self._stage is _RUNNING and self._attempt is not None:
            # The engine stalled, and the core takes the request back before it has begun.
            self._attempt.give_up()
            self._attempt = None
            self._stage = _WAITING
        if self._stage is not _WAITING:
            return
        if self._hold is None:
            self._hold = effect.record
        if not self._waiting_bytes:
            self._forget_sent()
            self._waiting_bytes = len(self._body)
            self._desk.bodies.add(self._waiting_bytes)
        self._show_life(effect.record.class_name)

    def on_refuse(self, refusal: Refusal, evicted: bool) -> None:
        if self._stage is _OVER:
            return
        self._leave()
        answer = refusal_answer(refusal, self._desk.settings.overload_status)
        answer.headers.extend(self._identity())
        if self._hold is not None:
            answer.headers.append((b"x-queue-position", b"%d" % self._hold.position))
        if self._claims.explain:
            answer.headers.append((b"x-forebay-decision", decision_header(refusal.record)))
        tell(self._exchange, answer, self._route.errors)

    def on_abort(self, effect: Abort) -> None:
        if self._stage is _OVER:
            return
        stage, attempt = self._stage, self._attempt
        if effect.record is not None:
            self._dispatch = effect.record
        if attempt is not None:
            attempt.give_up()
        if stage is _RELAYING and attempt is not None:
            if attempt.streams:
                attempt.end_stream(effect.outcome, effect.detail)
            else:
                self._exchange.abort()
            self._leave()
            return
        self._leave()
        self._answer_failure(effect, silent=stage is _RUNNING)

    def _answer_failure(self, effect: Abort, *, silent: bool) -> None:
        """No attempt gave an answer: the engine's own error where there is one, else ours."""
        desk = self._desk
        answer = failure_answer(
            effect,
            self._engine_error,
            self._own_headers(None),
            status_of(effect.outcome, desk.settings.overload_status),
            silent=silent or self._failure is Failure.TIMEOUT,
            promise_s=desk.bodies.promise_s,
        )
        tell(self._exchange, answer, self._route.errors)

    # What the attempt reports

    def own_lines(self, engine_request_id: bytes | None) -> bytes:
        """Our headers on an answer, as lines."""
        dispatch = self._dispatch
        has_quota = dispatch is not None and dispatch.quota is not None
        if self._hold is not None or self._claims.explain or self._change is not None or has_quota:
            return encode_headers(self._own_headers(engine_request_id))
        own_id = self._desk.own_id(self._ticket)
        return _NOT_WAITED_LINES % (own_id, self._claims.request_id or engine_request_id or own_id)

    def _own_headers(self, engine_request_id: bytes | None) -> Headers:
        """Our headers on an answer: who it is, how long it waited and, where asked for, why."""
        headers = self._identity(engine_request_id)
        hold, record = self._hold, self._dispatch
        if hold is not None and record is not None:
            headers.append((b"x-queue-time", seconds(record.waited_s)))
            if hold.predicted_wait_s:  # 0 where no endpoint was there to predict a wait for
                headers += predicted_wait(hold.predicted_wait_s)
            headers.append((b"x-queue-position", b"%d" % hold.position))
        else:
            headers.append(_NOT_WAITED)
        change = self._change
        if change is not None and change.model is not None:
            headers.append((b"x-forebay-model", safe_id(change.model.encode())))
        if record is not None:
            if record.quota is not None:
                headers += quota_headers(record.quota)
            if self._claims.explain:
                headers.append((b"x-forebay-decision", decision_header(record)))
        return headers

    def first_byte_passed(self) -> None:
        """The answer is being relayed: no other attempt can follow, and the body is not needed any more."""
        if self._stage is _RUNNING:
            self._stage = _RELAYING
            self._body = b""
            self._forget_sent()
            self._stop_comments()
            self._desk.core.feed(FirstTokenCame(self._ticket))

    def attempt_failed(self, failure: Failure, answer: Answer | None, *, engine_goes_on: bool) -> None:
        """Nothing was relayed. The core says what follows."""
        attempt = self._attempt
        if self._stage is not _RUNNING or attempt is None:
            return
        self._attempt = None
        self._forget_sent()
        self._stage = _WAITING
        self._failure = failure
        if answer is not None:
            self._engine_error = answer
        self._desk.core.feed(
            AttemptFailed(self._ticket, attempt.endpoint, failure, engine_goes_on=engine_goes_on)
        )

    def answer_ended(
        self, outcome: Outcome, usage: Usage | None, output_events: int, *, engine_goes_on: bool
    ) -> None:
        """The exchange is finished or aborted; the account is closed."""
        if self._stage is _RUNNING or self._stage is _RELAYING:
            if self._counted is not None and usage is not None:
                self._counted.learn(usage.prompt_tokens)
            self._leave()
            self._desk.core.feed(
                Ended(self._ticket, outcome, usage, output_events, engine_goes_on=engine_goes_on)
            )

    # What the client does

    def _client_left(self) -> None:
        stage, attempt = self._stage, self._attempt
        if stage is _OVER:
            return
        if stage is _READING:
            self._stage = _OVER
            self._release_reserved()
            self._desk.early.count(Outcome.CLIENT_GONE.value)
            return
        event: ClientLeft | Ended = ClientLeft(self._ticket)
        if attempt is not None:
            outcome, output_events = attempt.told_ending, attempt.output_events
            if outcome is None:
                event = ClientLeft(self._ticket, output_events)
            else:
                goes_on = outcome is not Outcome.COMPLETED
                event = Ended(self._ticket, outcome, attempt.usage(), output_events, engine_goes_on=goes_on)
            attempt.give_up()
        self._leave()
        self._desk.core.feed(event)

    def _drain_changed(self, paused: bool) -> None:
        if self._attempt is not None:
            self._attempt.pause(paused)

    def _reader_is_slow(self) -> None:
        stage, attempt = self._stage, self._attempt
        if stage is not _RELAYING or attempt is None:
            return
        output_events = attempt.output_events
        attempt.give_up()
        # What waits in the buffer is lost either way; the event tells a reader that wakes up in time.
        if attempt.streams:
            attempt.end_stream(Outcome.SLOW_READER, "")
        else:
            self._exchange.abort()
        self._leave()
        self._desk.core.feed(
            Ended(self._ticket, Outcome.SLOW_READER, None, output_events, engine_goes_on=True)
        )

    # Small parts

    def _leave(self) -> None:
        """The one way to OVER for a request that the core knows."""
        self._stage = _OVER
        self._stop_waiting()
        self._forget_sent()
        self._stop_comments()
        self._attempt = None
        self._body = b""

    def _show_life(self, class_name: str) -> None:
        """From now on its client is told that it is not forgotten, where its class says so."""
        every_s = self._desk.settings.waiting_comments_s.get(class_name)
        if every_s is not None and self._stream and self._comments is None:
            self._comments = WaitingComments(
                self._exchange, self._desk.core, self._ticket, self._headers_so_far, every_s=every_s
            )

    def _headers_so_far(self) -> Headers:
        if self._stage is _RUNNING:
            return self._own_headers(None)
        return [*self._identity(), *hold_headers(self._hold, explain=self._claims.explain)]

    def _stop_comments(self) -> None:
        if self._comments is not None:
            self._comments.stop()
            self._comments = None

    def _stop_waiting(self) -> None:
        if self._waiting_bytes:
            self._desk.bodies.remove(self._waiting_bytes)
            self._waiting_bytes = 0

    def _forget_sent(self) -> None:
        if self._sent_bytes:
            self._desk.bodies.forget(self._sent_bytes)
            self._sent_bytes = 0

    def _release_reserved(self) -> None:
        if self._reserved_bytes:
            self._desk.bodies.remove(self._reserved_bytes)
            self._reserved_bytes = 0

    def _identity(self, engine_request_id: bytes | None = None) -> Headers:
        own_id = self._desk.own_id(self._ticket)
        request_id = self._claims.request_id or engine_request_id or own_id
        return [(b"x-forebay-id", own_id), (b"x-request-id", request_id)]
