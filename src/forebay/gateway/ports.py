"""What the data plane needs from whoever runs it: the core behind a driver, and a view of what is served.

For: the border between `gateway` and `runtime`. The gateway tells what happened (`Core.feed`) and is told what
to do (`Listener`); it looks up names and addresses in an immutable `Serving` and never asks the core about them.
Owns nothing. Must never import the controller, a clock or a socket: tests drive the gateway with a scripted core.

The rules between the two sides:

- A listener is registered for its ticket before `Arrived` is fed. The driver calls it in the order of the core's
  effects and drops it when the core settles the ticket; nothing is called afterwards.
- `feed` never raises because of a ticket that the core no longer knows. Called from inside a listener it is queued
  and handled after the effects at hand.
- For each `Dispatch` the gateway tells exactly one of `Ended`, `ClientLeft`, `AttemptFailed`, unless the core took
  the dispatch back first (`Abort`, `Hold`, or a `Dispatch` with a higher attempt).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from forebay.admission.effects import Abort, Dispatch, Hold
from forebay.admission.events import Event
from forebay.admission.model import EndpointId, Exhausted, Refusal, TicketId
from forebay.gateway.counting import PromptCounter
from forebay.gateway.identity import Access

__all__ = ["Core", "Directory", "EndpointView", "GatewaySettings", "Listener", "PoolView", "Serving"]


class Listener(Protocol):
    """Carries out what the core decided for one ticket."""

    @property
    def request_id(self) -> bytes | None:
        """The client's own `x-request-id`, made safe, if it sent one: for logs and the admin API."""

    def on_dispatch(self, effect: Dispatch) -> None:
        """Send the request to `effect.endpoint` now; an earlier attempt that is still open is given up."""

    def on_hold(self, effect: Hold) -> None:
        """Keep the request; the client is told nothing yet."""

    def on_refuse(self, refusal: Refusal, evicted: bool) -> None:
        """Answer with this refusal. `evicted`: it had been waiting."""

    def on_abort(self, effect: Abort) -> None:
        """End a dispatched request: cut the engine's connection and tell the client."""


class Core(Protocol):
    """The decision core behind its driver."""

    def now(self) -> float:
        """The driver's monotonic clock, in seconds: the only clock the gateway uses for decisions."""

    def new_ticket(self) -> TicketId:
        """A number never used before in this process."""

    def register(self, ticket: TicketId, listener: Listener) -> None:
        """From now until the ticket is settled, effects for it go to `listener`."""

    def feed(self, event: Event) -> None:
        """Something happened. Effects may be carried out before this returns."""

    def exhausted(self, tenant: str, plan: str) -> Exhausted | None:
        """What a tenant has used up, so that its request need not be read; None if it may ask."""


@dataclass(frozen=True, slots=True)
class EndpointView:
    """Where an endpoint is, and the habits of its engine that matter to a connection."""

    id: EndpointId
    host: str
    port: int
    base_path: str = ""
    """Put before the path of every request; no slash at its end."""
    reuse_after_stream: bool = True
    """False if the engine closes its connection after a streamed answer, whatever it announces."""
    takes_credentials: bool = True
    """True if it is sent what clients send as keys."""
    own_key: bytes = field(default=b"", repr=False)
    """Our own API key there; empty if none is needed."""
    tls: ssl.SSLContext | None = None
    """What connections to it are encrypted with; None for plain HTTP."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool as the data plane sees it."""

    name: str
    endpoints: tuple[EndpointView, ...] = ()
    models: tuple[str, ...] = ()
    """Configured names (a `*` in them matches anything), else what the engines listed; () while nothing is known."""
    checks_model_names: bool = False
    """True if the engines refuse unknown names themselves, so that we may too."""
    context_tokens: int | None = None
    engine: str = "openai"
    """Engine family, as the model list shows it (`owned_by`)."""
    counter: PromptCounter | None = None
    """Counts prompts exactly, where there is a tokenizer; the same one as long as its file is."""
    passthrough: tuple[str, ...] = ()
    """Further paths that are passed to its engines, without admission; one that ends with `*` stands for all that begin
    so."""


@dataclass(frozen=True, slots=True)
class Serving:
    """All that the data plane looks up, replaced whole whenever a part of it changes."""

    pools: tuple[PoolView, ...] = ()
    access: Access = field(default_factory=Access)
    draining: bool = False


class Directory(Protocol):
    """Where the current `Serving` is read from, once per request; compared by identity to notice a change."""

    @property
    def serving(self) -> Serving:
        """The current view. The same object as long as nothing changed."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What an operator decides about the data plane itself."""

    max_body_bytes: int = 32 * 1024 * 1024
    max_waiting_bytes: int = 256 * 1024 * 1024
    """Bodies being read or waiting, all together; the same number as the core's."""
    overload_status: int = 429
    """Status of refusals for contended capacity: 429, 503 or 529."""
    connect_timeout_s: float = 2.0
    upstream_idle_s: float = 4.0
    """Idle engine connections are dropped after this; engines close theirs at 5 s, unannounced."""
    progress_interval_s: float = 0.075
    """How often moved streams are reported to the core, per endpoint."""
    waiting_comments_s: Mapping[str, float] = field(default_factory=dict)
    """By class: how often the client of a waiting stream is sent a comment. Classes that are not in it: never."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may call from a browser; `*` is any."""
    passed_gets: tuple[str, ...] = ("/version",)
    """Paths of `GET`s that are passed to an engine without admission."""
