"""The composition root of `forebay serve`: builds every part from a configuration, and starts, drains and ends them.

Owns the order in which things happen. Start: both listeners are bound before an engine is looked at, so a port that
is taken is told at once, and readiness does not depend on engines. Shutdown: readiness falls first; the listener
stays open and new requests are told to go elsewhere; who waits starts or is told so; running answers end or are cut
when the grace time is over. Nothing here is on the path of a request.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Final

from forebay.admission.events import (
    Described,
    DrainStarted,
    EndpointDrained,
    EndpointsChanged,
    Event,
    ModeChanged,
)
from forebay.admission.model import EndpointId, Mode, TicketId
from forebay.admission.settings import Settings
from forebay.admission.snapshot import Snapshot, TicketView
from forebay.config import Config
from forebay.config.units import Address
from forebay.gateway.early_answers import EarlyAnswer
from forebay.gateway.gateway import Gateway
from forebay.gateway.ports import GatewaySettings
from forebay.http.server import HttpServer, ServerLimits
from forebay.observe.admin import AdminAccess, admin_app
from forebay.observe.decision_stream import DecisionStream
from forebay.observe.decisions import RecentDecisions
from forebay.observe.endpoint_log import EndpointLog
from forebay.observe.metrics import Metrics
from forebay.observe.request_log import RequestLog
from forebay.runtime.access import polled_endpoints
from forebay.runtime.admin_server import AdminServer
from forebay.runtime.driver import Driver
from forebay.runtime.dump import write_dump
from forebay.runtime.gpu_polling import GpuPolling, GpuSource
from forebay.runtime.listening import ListenerTls
from forebay.runtime.polling import EngineClient, Polling
from forebay.runtime.prepared import Prepared
from forebay.runtime.recording import Recording
from forebay.runtime.reloading import Reloading, ReloadResult
from forebay.runtime.serving import ServingDirectory
from forebay.runtime.state_file import StateFile, state_path

__all__ = ["App", "StartFailed"]

_log = logging.getLogger(__name__)

_DRAIN_LOOK_S: Final = 0.05
"""Between two looks at what is still open while draining; never used while serving."""
_CLOSE_S: Final = 1.0
"""For the last bytes of answers on their way to clients, once everything has ended."""
_OTHER_FILES: Final = 64
"""Open files that are not for requests: listeners, the admin port, readings of the engines, the log."""
_FEWEST_CONNECTIONS: Final = 8
_GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Requests make little that only the collector can free; a full collection would stop the loop for milliseconds."""
_REQUEST_ID: Final = re.compile(r"[0-9a-f]{1,32}-[0-9a-f]{1,16}")


class StartFailed(Exception):
    """The gateway cannot start; the message says why and what to do."""


class App:
    """One gateway process. `start`, then `wait`, then `stop`."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        read_again: Callable[[], Prepared] | None = None,
        lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        """See the class.

        Args:
            prepared: the configuration to start with.
            read_again: reads it anew, for a reload; None: it stays as it is.
            lines_dropped: log lines that were not written.
        """
        config, settings = prepared.config, prepared.settings
        self._config = config
        self._unready: str | None = "starting"
        self._began_s = time.monotonic()
        self._ending = asyncio.Event()
        self._signals = 0
        self._asked_to_drain = False
        self._exit_code = 0

        show_tenants = config.admin.is_loopback if config.metrics_tenants is None else config.metrics_tenants
        self.metrics = Metrics(self.snapshot, show_tenants=show_tenants)
        self.metrics.lines_dropped = lines_dropped
        self.decisions = RecentDecisions()
        self.driver = Driver(
            settings,
            asyncio.get_running_loop(),
            on_broken=self._on_broken,
            on_error=self.metrics.counts.count_error,
            on_decided=self.metrics.counts.decision_s.observe,
        )
        tls = prepared.tls
        self._listener_tls = None if tls.server is None else ListenerTls(tls.server)
        self.directory = ServingDirectory(prepared.pools(), prepared.access)
        self.gateway = Gateway(self.driver, self.directory, _gateway_settings(config, settings))
        self.metrics.early_answers = lambda: self.gateway.early.counts
        self._make_pollers(prepared)
        self.reloading = Reloading(
            prepared, read_again or (lambda: prepared), self.driver, self._take_over, self.polling.look_again
        )
        self.metrics.configuration = self.reloading
        path = state_path(config.state_file, config.listen, os.environ)
        self._state = None if path is None else StateFile(path, self.driver.export_learned)
        self.endpoint_log = EndpointLog(self.snapshot, self.driver.now)
        self._observe()
        self.recording = Recording(self.driver, self.ids_of, self.metrics.recorded)
        self.server = HttpServer(self.gateway, _server_limits(config))
        credential = config.admin_token.get_secret_value() if config.admin_token is not None else None
        access = AdminAccess(on_loopback=config.admin.is_loopback, credential=credential)
        self.stream = DecisionStream(self.driver.delivery.watch)
        app = admin_app(self, self.metrics, self.decisions, self.stream, access)
        self.admin = AdminServer(app, config.admin)

    def _make_pollers(self, prepared: Prepared) -> None:
        """Who looks at engines, and at their GPUs."""
        self.polling = Polling(
            self._on_engine,
            self.snapshot,
            lambda polled: EngineClient(
                polled.host,
                polled.port,
                self.driver.now,
                asker=self.gateway.mark,
                key=polled.key,
                tls=polled.tls,
            ),
            self.driver.now,
        )
        self._polled = polled_endpoints(prepared.config, prepared.tls)
        self.polling.follow(self._polled)
        self.gpu_polling = GpuPolling(
            self.driver.feed, lambda host, port: EngineClient(host, port, self.driver.now), self.driver.now
        )
        self.gpu_polling.follow(_gpu_sources(prepared.config))

    def _observe(self) -> None:
        """Who is told of each decision and each end."""
        self.gateway.early.on_refusal = self.metrics.counts.on_early_refusal
        log = RequestLog(self.driver.now, self.ids_of)
        self.driver.delivery.observe(
            settlements=(
                self.metrics.counts.on_settlement,
                self.decisions.add_end,
                log.on_settlement,
                self.endpoint_log.on_settlement,
            ),
            records=(self.decisions.add, log.on_record, self.endpoint_log.on_record),
            holds=(self.polling.on_hold,),
            unenforced=(self.metrics.counts.on_unenforced,),
        )

    # What the admin API asks (`observe.admin.Process`)

    def unready_reason(self) -> str | None:
        """None when requests are served; else why not, in a few words."""
        return self._unready

    def uptime_s(self) -> float:
        """Seconds since the process began."""
        return time.monotonic() - self._began_s

    def snapshot(self) -> Snapshot | None:
        """The core as it is; None once it has failed."""
        return self.driver.snapshot()

    def ids_of(self, ticket: TicketId) -> dict[str, str]:
        """`id`: its `x-forebay-id`. `request_id`: the `x-request-id` that its client sent, if it sent one."""
        ids = {"id": self.gateway.own_id(ticket).decode("ascii")}
        request_id = self.driver.delivery.request_id_of(ticket)
        return ids if request_id is None else {**ids, "request_id": request_id}

    def answered_early(self, ticket: TicketId) -> EarlyAnswer | None:
        """What was answered under this id without a decision; None if nothing was, or too long ago."""
        return self.gateway.early.of_ticket(ticket)

    def named_early(self, request_id: str) -> TicketId | None:
        """The latest request so answered that its client named so."""
        return self.gateway.early.named(request_id.encode())

    def look_up(self, ticket: TicketId) -> TicketView | None:
        """One request as it is now; None if it is over, or was never known."""
        return self.driver.look_up(ticket)

    def wall_clock_s(self, at_s: float) -> float:
        """Seconds since the epoch of a moment on the core's clock."""
        return time.time() - (self.driver.now() - at_s)

    def ticket_of(self, request_id: str) -> TicketId | None:
        """The ticket behind an `x-forebay-id` of this process."""
        if _REQUEST_ID.fullmatch(request_id) is None:
            return None
        ticket = TicketId(int(request_id.rpartition("-")[2], 16))
        return ticket if self.gateway.own_id(ticket) == request_id.encode("ascii") else None

    # The life of the process

    async def start(self) -> list[str]:
        """Bind, begin to serve, begin to look at the engines; returns a line for each listener.

        Raises:
            StartFailed: a listener cannot be bound. Nothing is left running.
        """
        config = self._config
        tls = None if self._listener_tls is None else self._listener_tls.context
        start = self.server.start(config.listen.host, config.listen.port, tls=tls)
        await _bind("listen", config.listen, start)
        try:
            await _bind("admin", config.admin, self.admin.start())
        except StartFailed:
            await self.server.close(0.0)
            raise
        if self._state is not None:
            for fault in self.driver.restore_learned(self._state.read()):
                _log.warning("state file: not used of %s", fault)
            self._state.start()
        for pool in config.pools:
            endpoints = tuple(EndpointId(str(endpoint)) for endpoint in pool.endpoints)
            self.driver.feed(EndpointsChanged(pool.name, endpoints))
        self.polling.start()
        self.gpu_polling.start()
        self.reloading.start()
        self.recording.follow(config.record)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        if self.driver.broken is None:
            self._unready = None
        return [
            f"forebay listening on http{'' if tls is None else 's'}://{Address(config.listen.host, self.server.port)}",
            f"admin on http://{Address(config.admin.host, self.admin.port)}",
        ]

    def on_signal(self, number: int) -> None:
        """SIGTERM and SIGINT: the first drains, the second ends at once and makes the exit code 1."""
        self._signals += 1
        name = signal.Signals(number).name
        if self._signals == 1 and self._asked_to_drain:
            _log.warning("%s: already draining; a second signal ends at once", name)
            return
        if self._signals == 1:
            _log.warning(
                "%s: draining for at most %g s; a second signal ends at once", name, self._config.grace
            )
        else:
            _log.warning("%s again: ending at once", name)
            self._exit_code = 1
        self._ending.set()

    def drain(self) -> float:
        """Asked for over the admin API: the same as the first signal. Returns the longest that it takes."""
        if not self._asked_to_drain and not self._signals:
            self._asked_to_drain = True
            _log.warning("asked over the admin API: draining for at most %g s", self._config.grace)
            self._ending.set()
        return self._config.grace

    def drain_endpoint(self, endpoint: EndpointId, *, out: bool) -> None:
        """Give an endpoint no more requests, or give it some again."""
        _log.warning("endpoint %s is %s over the admin API", endpoint, "drained" if out else "put back")
        self.driver.feed(EndpointDrained(endpoint, out))

    def change_mode(self, mode: Mode | None, pool: str, class_name: str) -> None:
        """Switch what is done with decisions; None goes back to the configuration. Empty names mean all."""
        what = "as configured" if mode is None else mode.value
        _log.warning(
            "mode of pool %s, class %s: %s, by the admin API", pool or "(all)", class_name or "(all)", what
        )
        self.driver.feed(ModeChanged(mode, pool, class_name))

    async def reload(self, reason: str) -> ReloadResult:
        """Read the configuration anew and apply it, or say why not."""
        if self._ending.is_set() or self.directory.serving.draining:
            return ReloadResult(applied=False, problems=("the gateway is shutting down",))
        return await self.reloading.reload(reason)

    def _take_over(self, prepared: Prepared) -> None:
        """Everything outside the core goes by this configuration from now on."""
        config, settings = prepared.config, prepared.settings
        self._config = config
        self.directory.reconfigure(prepared.pools(), prepared.access)
        self.gateway.reconfigure(_gateway_settings(config, settings))
        wanted, kept = polled_endpoints(config, prepared.tls), self.reloading.kept_pools
        read = {polled.endpoint for polled in wanted}
        wanted += [polled for polled in self._polled if polled.pool in kept and polled.endpoint not in read]
        self._polled = wanted
        self.polling.follow(wanted)
        self.gpu_polling.follow(_gpu_sources(config))
        self.recording.follow(config.record)
        if self._listener_tls is not None and prepared.tls.server is not None:
            self._listener_tls.replace(prepared.tls.server)

    async def wait(self) -> None:
        """Until there is a reason to end."""
        await self._ending.wait()

    async def stop(self) -> int:
        """Drain, end everything, and return the exit code."""
        ending_s = time.monotonic()
        until_s = ending_s + self._config.grace
        self._unready = self._unready or "draining"
        self._ending.clear()
        await self.reloading.stop()
        if self._config.notice > 0 and self.driver.broken is None:
            await self._hurried(self._config.notice)
        self.directory.start_draining()
        now = time.monotonic()
        self.driver.feed(DrainStarted(until_s=now + max(0.0, until_s - now) / 2))
        cut = await self._drained(until_s)
        if cut:
            _log.warning("%d requests were still open and are cut", cut)
            self.driver.cut_all("This request did not end in time and was cut.")
        await self.server.close(_CLOSE_S)
        await self.polling.stop()
        await self.gpu_polling.stop()
        self.gateway.close()
        self.driver.stop()
        await self.recording.stop()
        if self._state is not None and self.driver.broken is None:
            await self._state.stop()
        self.stream.close()
        await self.admin.stop()
        return self._exit_code

    async def _drained(self, until_s: float) -> int:
        """Wait until no request is open; returns how many are when the time is over or a second signal came."""
        while self.driver.delivery.open_tickets and time.monotonic() < until_s:
            if await self._hurried(_DRAIN_LOOK_S):
                break
        return self.driver.delivery.open_tickets

    async def _hurried(self, seconds: float) -> bool:
        """Let the time pass; True at once if a second signal cuts it short."""
        try:
            await asyncio.wait_for(self._ending.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def _on_broken(self, error: BaseException) -> None:
        """The core has failed: stop being ready, leave a dump, let running answers end, and exit with 1."""
        self._unready = "the decision core has failed"
        self._exit_code = 1
        try:
            path = write_dump(error, self.driver.recent_events)
            _log.critical("the last events are in %s; please report them", path)
        except OSError as problem:
            _log.critical("the last events could not be written: %s", problem)
        self._ending.set()

    # Parts

    def _on_engine(self, event: Event) -> None:
        if isinstance(event, Described):
            self.directory.describe(event.endpoint, event.info)
        self.driver.feed(event)
        self.endpoint_log.on_event(event)


async def _bind(key: str, address: Address, starting: Coroutine[None, None, None]) -> None:
    try:
        await starting
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = f"another program uses it; stop that one, or choose another address with --{key}"
        elif error.errno == errno.EACCES:
            fix = f"not allowed; ports below 1024 need a privilege, choose another with --{key}"
        else:
            fix = f"{error.strerror or error}; choose an address of this machine with --{key}"
        raise StartFailed(f"cannot listen on {address} ({key}): {fix}") from None


def _gpu_sources(config: Config) -> list[GpuSource]:
    return [
        GpuSource(
            pool.name,
            tuple((exporter.host, exporter.port) for exporter in pool.gpu_metrics.exporters),
            tuple(pool.gpu_metrics.labels.items()),
        )
        for pool in config.pools
        if pool.gpu_metrics is not None
    ]


def _server_limits(config: Config) -> ServerLimits:
    wanted = config.limits.max_connections
    limits = ServerLimits(head_timeout_s=config.limits.head_timeout, connections=wanted)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    # A request needs a second file, its connection to the engine. Without this bound clients could take them all, and
    # engines that cannot be connected to for want of one would be taken for dead.
    most = max(_FEWEST_CONNECTIONS, (files - _OTHER_FILES) // 2)
    if most < wanted and "max_connections" in config.limits.model_fields_set:
        _log.warning(
            "limits.max_connections: %d, but only %d files may be open, so it is %d connections; raise the hard limit "
            "(ulimit -Hn, LimitNOFILE)",
            wanted,
            files,
            most,
        )
    return replace(limits, connections=min(wanted, most))


def _gateway_settings(config: Config, settings: Settings) -> GatewaySettings:
    return GatewaySettings(
        max_body_bytes=config.limits.max_body,
        max_waiting_bytes=settings.max_waiting_bytes,
        overload_status=config.overload_status,
        connect_timeout_s=settings.connect_timeout_s,
        cors_origins=tuple(config.cors_origins),
        waiting_comments_s={
            name: entry.waiting_comments
            for name, entry in (config.classes or {}).items()
            if entry.waiting_comments is not None
        },
    )
