"""The data plane's front: takes each request head to what answers it.

For: `runtime`, which puts it behind an `http.server.HttpServer`. Owns what all requests share: the connections to the
engines, the progress reports, the room for bodies, the lookups. Never blocks and never makes a task; a request that
needs no engine is answered before this returns.
"""

from __future__ import annotations

import logging
import urllib.parse
from typing import Final

from forebay.admission.outcomes import Outcome
from forebay.gateway.asks import BadRequest
from forebay.gateway.cors import CorsPolicy
from forebay.gateway.desk import Desk
from forebay.gateway.error_shapes import in_shape
from forebay.gateway.headers import Claims, claims_of, safe_id
from forebay.gateway.identity import Denied
from forebay.gateway.passing import Passage, Passed
from forebay.gateway.pooling_bodies import read_which
from forebay.gateway.ports import Core, Directory, EndpointView, GatewaySettings, PoolView
from forebay.gateway.refusals import Answer, early_refusal, plain_error
from forebay.gateway.relay import Relay
from forebay.gateway.routes import (
    ADMITTED,
    HEALTH_PATH,
    MODELS_PATH,
    PASSED_POSTS,
    AdmittedRoute,
    admitted_route,
    allowed_methods,
    errors_of,
    not_allowed,
    not_found,
)
from forebay.gateway.routing import Routing
from forebay.http.exchange import Exchange
from forebay.http.message import Headers, get_header

__all__ = ["POLLER_HEADER", "Gateway"]

_log = logging.getLogger(__name__)

POLLER_HEADER: Final = b"x-forebay-poller"
"""On questions to engines: which gateway asks."""

LISTED_GET_S: Final = 5.0
PASSED_THROUGH_S: Final = 600.0
"""Without a byte: what administers an engine may load a model first."""

_ANY_METHOD: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_HEALTHY = Answer(200, [(b"content-type", b"application/json")], b'{"status":"ok"}')


class Gateway(Desk):
    """Handler of the main port."""

    def __init__(self, core: Core, directory: Directory, settings: GatewaySettings) -> None:
        super().__init__(core, settings, directory.serving)
        self._directory = directory
        self._cors = CorsPolicy(settings.cors_origins)
        self._loop_told = False
        self.upstreams.update(directory.serving)

    def reconfigure(self, settings: GatewaySettings) -> None:
        """Takes over settings, and what is served by now, for requests from now on."""
        self._look()
        self.settings = settings
        self._cors = CorsPolicy(settings.cors_origins)
        self.bodies.limit_bytes = settings.max_waiting_bytes
        self.progress.interval_s = settings.progress_interval_s
        self.upstreams.reconfigure(settings)

    def close(self) -> None:
        """Stops reports and closes idle connections to the engines. For after the last request."""
        self.progress.close()
        self.upstreams.close()

    # From the server

    def on_request(self, exchange: Exchange) -> None:
        head = exchange.head
        if self._cors.is_open:
            exchange.cors = self._cors.lines_for(head.headers)
        serving = self._directory.serving
        if serving is not self.routing.serving:
            self._look()
        route = ADMITTED.get(head.path)
        if route is None or head.method != b"POST":
            self._answer_other(exchange)
        else:
            self._admit(exchange, route)

    def protocol_error(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        self.early.count(code)
        answer = plain_error(status, code, message[:1].upper() + message[1:].rstrip(".") + ".")
        return answer.headers, answer.body

    def _look(self) -> None:
        """What is served has changed."""
        serving = self._directory.serving
        self.routing = Routing(serving)
        self.upstreams.update(serving)

    # Ways to answer

    def _admit(self, exchange: Exchange, route: AdmittedRoute) -> None:
        if self.routing.serving.draining:
            self._turn_away(exchange)
            return
        claims = self._claims(exchange)
        if claims is not None:
            Relay(self, exchange, route, claims).begin()

    def _claims(self, exchange: Exchange) -> Claims | None:
        """What its headers say; None if that has been answered already."""
        try:
            return claims_of(exchange.head, self.routing.serving.access, exchange.address)
        except BadRequest as error:
            self._answer(exchange, plain_error(400, "invalid_request", error.message, error.param))
        except Denied as denied:
            self._answer(exchange, denied.answer)
        return None

    def _turn_away(self, exchange: Exchange) -> None:
        """Shutting down. Who would have been let in is counted."""
        try:
            claims = claims_of(exchange.head, self.routing.serving.access, exchange.address)
            self.early.turned_away(
                Outcome.DRAINING.value, self.routing.only_pool(), claims.class_name, claims.tenant.name
            )
        except (BadRequest, Denied):
            pass
        self._answer(exchange, self._draining())

    def _answer_other(self, exchange: Exchange) -> None:
        """Everything that is not admitted: none of it waits in a queue, counts against a limit or needs an engine."""
        head = exchange.head
        if get_header(head.headers, POLLER_HEADER) == self.mark:
            self._answer_own_poll(exchange)
            return
        path, method = head.path, head.method
        if method == b"POST" and (self._pass_post(exchange) or self._admit_named(exchange)):
            return
        allow = allowed_methods(path, self.settings.passed_gets)
        pool = self.routing.passed_to(path) if allow is None else None
        if pool is not None:
            allow = _ANY_METHOD
        elif path == "*" and method == b"OPTIONS":
            allow = b"GET, HEAD, POST, OPTIONS"
        if allow is None:
            self._answer(exchange, not_found(path, self.settings.passed_gets))
        elif method == b"OPTIONS":
            self._answer(exchange, self._options(exchange, allow))
        elif pool is not None:
            self._pass_through(exchange, pool)
        elif method not in allow.split(b", "):
            self._answer(exchange, not_allowed(allow))
        else:
            self._answer_get(exchange, path)

    def _options(self, exchange: Exchange, allow: bytes) -> Answer:
        headers = exchange.head.headers
        if exchange.cors and get_header(headers, b"access-control-request-method"):
            return self._cors.preflight(headers, allow)
        return Answer(204, [(b"allow", allow)], b"")

    def _answer_get(self, exchange: Exchange, path: str) -> None:
        if path == HEALTH_PATH:
            answer = _HEALTHY
        elif (denied := self._denied(exchange)) is not None:
            answer = denied
        elif path == MODELS_PATH:
            answer = self.routing.model_list()
        elif path in self.settings.passed_gets:
            endpoints = self.routing.endpoints()
            passed = Passed(lambda body: endpoints, self._answer, silence_s=LISTED_GET_S)
            Passage(self, exchange, passed).begin()
            return
        else:
            answer = self.routing.model_entry(urllib.parse.unquote(path.removeprefix(MODELS_PATH + "/")))
        self._answer(exchange, answer)

    def _admit_named(self, exchange: Exchange) -> bool:
        """A path that names a model; False if it is none of those."""
        route = admitted_route(exchange.head.path)
        if route is not None:
            self._admit(exchange, route)
        return route is not None

    def _pass_post(self, exchange: Exchange) -> bool:
        """What only counts tokens, at an engine of the model; False if it is something else."""
        if exchange.head.path not in PASSED_POSTS:
            return False
        claims = self._claims(exchange)
        if claims is None:
            return True
        plan = claims.tenant.plan

        def choose(body: bytes) -> list[EndpointView]:
            ask = read_which(body)
            pool = self.routing.pool_for(ask.model)
            if plan is not None:
                plan.check(ask, pool.models)
            return list(pool.endpoints)

        Passage(self, exchange, Passed(choose, self._answer, claims)).begin()
        return True

    def _pass_through(self, exchange: Exchange, pool: PoolView) -> None:
        """A path that an operator has listed."""
        claims = self._claims(exchange)
        if claims is not None:
            repeatable = exchange.head.method in (b"GET", b"HEAD")
            passed = Passed(
                lambda body: list(pool.endpoints),
                self._answer,
                claims,
                silence_s=PASSED_THROUGH_S,
                repeatable=repeatable,
            )
            Passage(self, exchange, passed).begin()

    def _denied(self, exchange: Exchange) -> Answer | None:
        """What is told to somebody who may not even look; None to everybody else."""
        try:
            self.routing.serving.access.identify(exchange.head.headers, exchange.address)
        except Denied as denied:
            return denied.answer
        return None

    def _answer(self, exchange: Exchange, answer: Answer) -> None:
        """Answers without the core. An error has an id like any other."""
        answer = in_shape(answer, errors_of(exchange.head.path))
        headers = answer.headers
        request_id = safe_id(get_header(exchange.head.headers, b"x-request-id") or b"")
        if answer.code:
            ticket = self.core.new_ticket()
            self.early.add(ticket, self.core.now(), answer, request_id or None)
            own_id = self.own_id(ticket)
            headers = [*headers, (b"x-forebay-id", own_id)]
            request_id = request_id or own_id
        if request_id:
            headers = [*headers, (b"x-request-id", request_id)]
        exchange.respond(answer.status, headers, answer.body)

    def _answer_own_poll(self, exchange: Exchange) -> None:
        """One of our endpoints leads back to us. 503 keeps it out of use, so that no request goes in circles."""
        if not self._loop_told:
            self._loop_told = True
            _log.error("an endpoint of this gateway leads back to the gateway itself: it is not used")
        exchange.respond(503, [(b"content-type", b"text/plain")], b"This is the gateway that asks.\n")

    def _draining(self) -> Answer:
        message = (
            "This gateway is shutting down and takes no new requests; another one may. Try again in 1 to 2 s."
        )
        return early_refusal(503, Outcome.DRAINING, message, retry_after_s=self.bodies.promise_s())
