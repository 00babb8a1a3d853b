"""One poller per endpoint, each with an HTTP client of its own, and the rhythm of all of them.

Owns the pollers and their connections from `start` to `stop`. Polls slow down while an engine's own counts agree
with our books, and are hurried when requests begin to wait. Never on the path of a request.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from forebay.admission.events import Event
from forebay.admission.model import DecisionRecord, EndpointId, EndpointState, EngineKind
from forebay.admission.snapshot import EndpointView, Snapshot
from forebay.engines import Answer, EndpointPoller, MetricMap, ReadFailed, Rhythm
from forebay.gateway.gateway import POLLER_HEADER
from forebay.http.client import CallFailure, Upstream
from forebay.http.fetching import FetchFailed, fetch

__all__ = ["EngineClient", "Polled", "Polling"]

_NO_CONNECTION: Final = (CallFailure.CONNECT, CallFailure.CONNECT_TIMEOUT)
_CONNECT_TIMEOUT_S: Final = 1.5
"""Shorter than the time that a scrape may take, so that a missing host is told apart from a slow engine."""
_SNAPSHOT_AGE_S: Final = 0.05
"""A view this old is good enough to see whether books and samples agree; many pollers then share one."""
_HURRY_INTERVAL_S: Final = 0.1
_TOLERANCE: Final = 0.1
"""Books and samples agree within this share, or within one request: a sample is always a little late."""


class EngineClient:
    """Asks one engine (`engines.EngineReader`)."""

    def __init__(
        self,
        host: str,
        port: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        asker: bytes = b"",
        key: bytes = b"",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """See the class.

        Args:
            asker: who asks, so that a gateway notices when it asks itself.
            key: our API key there; empty if none is needed.
            tls: what to encrypt with; None for plain HTTP.
        """
        self._headers = [(b"accept-encoding", b"identity")]
        if key:
            self._headers.append((b"authorization", b"Bearer " + key))
        if asker:
            self._headers.append((POLLER_HEADER, asker))
        self._upstream = Upstream(host, port, connect_timeout_s=_CONNECT_TIMEOUT_S, tls=tls)
        self._clock = clock

    async def get(self, path: str, *, timeout_s: float, max_bytes: int) -> Answer:
        """The answer to a GET. Raises: ReadFailed."""
        began_s = self._clock()
        try:
            head, body = await fetch(
                self._upstream,
                b"GET",
                path.encode(),
                timeout_s=timeout_s,
                max_bytes=max_bytes,
                headers=self._headers,
            )
        except FetchFailed as failure:
            raise ReadFailed(str(failure), unreachable=failure.kind in _NO_CONNECTION) from None
        return Answer(head.status, body, head.headers, began_s, self._clock() - began_s)

    def close(self) -> None:
        """Close idle connections."""
        self._upstream.close()


@dataclass(frozen=True, slots=True)
class Polled:
    """One endpoint to be read."""

    pool: str
    endpoint: EndpointId
    host: str
    port: int
    kind: EngineKind | None
    """None: it is found out."""
    interval_s: float
    key: bytes = field(default=b"", repr=False)
    """Our API key there; empty if none is needed."""
    names: MetricMap | None = None
    """Series to read in place of the family's own."""
    tls: ssl.SSLContext | None = None
    """What to encrypt with; None for plain HTTP."""


class Polling:
    """All pollers."""

    def __init__(
        self,
        feed: Callable[[Event], None],
        snapshot: Callable[[], Snapshot | None],
        client_for: Callable[[Polled], EngineClient],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """See the class.

        Args:
            feed: told what is read.
            snapshot: the core as it is now.
            client_for: makes the client of an engine.
            clock: the driver's.
        """
        self._feed = feed
        self._snapshot = snapshot
        self._client_for = client_for
        self._clock = clock
        self._started = False
        self._wanted: dict[EndpointId, Polled] = {}
        self._pollers: dict[EndpointId, EndpointPoller] = {}
        self._clients: dict[EndpointId, EngineClient] = {}
        self._by_pool: dict[str, list[EndpointPoller]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._views: Mapping[EndpointId, EndpointView] = {}
        self._views_at_s = float("-inf")
        self._hurry_from_s: dict[str, float] = {}

    def follow(self, wanted: Sequence[Polled]) -> None:
        """Read these endpoints from now on, and no others. Those that are wanted as before are not disturbed."""
        now = {polled.endpoint: polled for polled in wanted}
        for endpoint in [known for known, polled in self._wanted.items() if now.get(known) != polled]:
            self._drop(endpoint)
        for endpoint, polled in now.items():
            if endpoint not in self._wanted:
                self._add(polled)
        self._by_pool = {}
        for endpoint, polled in self._wanted.items():
            self._by_pool.setdefault(polled.pool, []).append(self._pollers[endpoint])

    def look_again(self, endpoint: EndpointId) -> None:
        """Find out anew what the engine is: whoever is told was not there to hear it before."""
        polled = self._wanted.get(endpoint)
        if polled is not None and self._started:
            others = [entry for entry in self._wanted.values() if entry is not polled]
            self.follow(others)
            self.follow([*others, polled])

    def start(self) -> None:
        """All at once: each finds out what its engine is before anything else."""
        self._started = True
        for poller in self._pollers.values():
            poller.start()

    async def stop(self) -> None:
        """Give up what is under way."""
        self.follow([])
        if self._stopping:
            await asyncio.wait(self._stopping)

    def _add(self, polled: Polled) -> None:
        endpoint, interval_s = polled.endpoint, polled.interval_s
        client = self._client_for(polled)
        poller = EndpointPoller(
            endpoint,
            client,
            self._feed,
            kind=polled.kind,
            names=polled.names,
            rhythm=Rhythm(interval_s=interval_s, quiet_interval_s=max(1.0, interval_s)),
            quiet=lambda: self._agrees(endpoint),
            clock=self._clock,
        )
        self._wanted[endpoint] = polled
        self._clients[endpoint] = client
        self._pollers[endpoint] = poller
        if self._started:
            poller.start()

    def _drop(self, endpoint: EndpointId) -> None:
        del self._wanted[endpoint]
        poller, client = self._pollers.pop(endpoint), self._clients.pop(endpoint)

        async def end() -> None:
            await poller.stop()
            client.close()

        if not self._started:
            client.close()
            return
        task = asyncio.get_running_loop().create_task(end())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def on_hold(self, record: DecisionRecord) -> None:
        """Where requests begin to wait, fresh samples are wanted."""
        now = self._clock()
        if now >= self._hurry_from_s.get(record.pool, 0.0):
            self._hurry_from_s[record.pool] = now + _HURRY_INTERVAL_S
            for poller in self._by_pool.get(record.pool, ()):
                poller.hurry()

    def _agrees(self, endpoint: EndpointId) -> bool:
        """True if the engine last said what our books say, and nothing waits inside it."""
        now = self._clock()
        if now > self._views_at_s + _SNAPSHOT_AGE_S:
            snapshot = self._snapshot()
            pools = snapshot.pools if snapshot is not None else ()
            self._views = {view.id: view for pool in pools for view in pool.endpoints}
            self._views_at_s = now
        view = self._views.get(endpoint)
        if view is None or view.state is not EndpointState.UP:
            return False
        if view.engine_running is None:
            return view.running_requests == 0
        if view.engine_waiting:
            return False
        ours = view.running_requests + view.draining_requests
        return abs(view.engine_running - ours) <= max(1.0, _TOLERANCE * ours)
