"""The admin API: health, readiness, metrics and read-only views, on a port of its own, away from the data plane.

Runs on the same event loop as the gateway but waits for nothing: no handler talks to an engine or a disk, so the
answers come while every engine hangs. `/healthz`, `/readyz` and `/metrics` are open to whoever reaches the port;
everything under `/api/` tells more and is closed off loopback unless a credential is configured.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from forebay import __version__
from forebay.observe.decision_stream import DecisionStream
from forebay.observe.decision_views import Asked, DecisionViews
from forebay.observe.decisions import RecentDecisions
from forebay.observe.metrics import CONTENT_TYPE, Metrics
from forebay.observe.operations import Operated, Operations, json_answer

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["AdminAccess", "Process", "admin_app"]

_INDEX = f"""Forebay {__version__}: admin API

GET /healthz              200 while the process answers
GET /readyz               200 once it serves; 503 while it shuts down
GET /metrics              Prometheus metrics
GET /api/snapshot         what is held, waiting and known, as JSON
GET /api/decisions        recent decisions, newest first (?limit=100);
                          as they are made with `Accept: text/event-stream`
GET /api/requests/ID      what one request does now, what was decided about it and why, and how it ended
                          (ID: its x-forebay-id, or its own x-request-id)
GET /api/mode             what is done with decisions, for each pool and class
POST /api/mode            switch it: {{"mode": "enforce" | "shadow" | "bypass" | "configured", "pool": …, "class": …}}
POST /api/drain           {{"endpoint": URL}} takes an endpoint out of use, with "undo": true it is put back;
                          without a body the whole process shuts down, as by SIGTERM
POST /api/reload          take over the configuration file as it is now
"""


class Process(Asked, Operated, Protocol):
    """What the admin API asks of the running gateway."""

    def unready_reason(self) -> str | None:
        """None when requests are served; else why not, in a few words."""

    def uptime_s(self) -> float:
        """Seconds since the process was ready."""


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Who may read `/api/`."""

    on_loopback: bool
    """True if only this machine can reach the port."""
    credential: str | None = None
    """When set, `/api/` takes `Authorization: Bearer` with exactly this."""

    def refusal(self, authorization: str | None, host: str | None) -> Response | None:
        """None if the caller may read; else the answer that says what is missing.

        Args:
            host: what the client calls this server. A name that is not of this machine is that of a web page which its
                owner's DNS now points here (rebinding): the page's scripts would be of our own origin.
        """
        if self.credential is None:
            if self.on_loopback:
                if host is None or _LOCAL_NAMES.fullmatch(_host_name(host)):
                    return None
                message = "closed: ask for localhost or 127.0.0.1, or set admin_token to use other names\n"
                return PlainTextResponse(message, 403)
            message = "closed: the admin port is open to the network; set admin_token to use /api/\n"
            return PlainTextResponse(message, 403)
        scheme, _, given = (authorization or "").partition(" ")
        # Bytes, because the comparison takes only ASCII text; constant time, so that it cannot be felt out.
        if scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), self.credential.encode()
        ):
            return None
        return PlainTextResponse(
            "send the admin_token as Authorization: Bearer …\n", 401, {"www-authenticate": "Bearer"}
        )


def admin_app(
    process: Process,
    metrics: Metrics,
    decisions: RecentDecisions,
    stream: DecisionStream,
    access: AdminAccess,
) -> Starlette:
    """The ASGI application."""
    views = _Views(process, metrics, access)
    requests = DecisionViews(process, decisions, stream)
    operations = Operations(process)
    return Starlette(
        routes=[
            Route("/", views.index),
            Route("/healthz", views.healthz),
            Route("/readyz", views.readyz),
            Route("/metrics", views.metrics),
            Route("/api/snapshot", views.guarded(views.snapshot)),
            Route("/api/decisions", views.guarded(requests.decisions)),
            Route("/api/requests/{request_id:path}", views.guarded(requests.request)),
            Route("/api/mode", views.guarded(operations.mode), methods=["GET", "POST"]),
            Route("/api/drain", views.guarded(operations.drain), methods=["POST"]),
            Route("/api/reload", views.guarded(operations.reload), methods=["POST"]),
        ]
    )


_LOCAL_NAMES = re.compile(r"localhost|\[::1\]|127(\.[0-9]{1,3}){3}")
_View = Callable[["Request"], Awaitable[Response]]


class _Views:
    """One coroutine per path; coroutines, so that none is moved to a thread."""

    def __init__(self, process: Process, metrics: Metrics, access: AdminAccess) -> None:
        self._process = process
        self._metrics = metrics
        self._access = access

    def guarded(self, view: _View) -> _View:
        async def checked(request: Request) -> Response:
            access, headers = self._access, request.headers
            refusal = access.refusal(headers.get("authorization"), headers.get("host")) or _foreign(request)
            return refusal if refusal is not None else await view(request)

        return checked

    async def index(self, _: Request) -> Response:
        return PlainTextResponse(_INDEX)

    async def healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        reason = self._process.unready_reason()
        return PlainTextResponse("ok\n") if reason is None else PlainTextResponse(f"{reason}\n", 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    async def snapshot(self, _: Request) -> Response:
        snapshot = self._process.snapshot()
        if snapshot is None:
            return json_answer({"error": "the decision core has failed; see the log"}, 503)
        body = {
            "version": __version__,
            "uptime_s": self._process.uptime_s(),
            "ready": self._process.unready_reason() is None,
            **msgspec.to_builtins(snapshot),
        }
        return json_answer(body)


def _host_name(host: str) -> str:
    """A Host header without its port."""
    name = host.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def _foreign(request: Request) -> Response | None:
    """A refusal for what a web page of somebody else makes a browser send: whoever runs it can reach this port."""
    origin = request.headers.get("origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return None
    if origin.partition("://")[2] == request.headers.get("host"):
        return None
    return PlainTextResponse("closed: this comes from a web page of another origin\n", 403)
