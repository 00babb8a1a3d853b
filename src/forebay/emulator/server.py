"""Starts and stops one emulated engine: the model, its clock, the routes and the HTTP server put together.

    async with EmulatorServer(EmulatorSettings(profile=load_profile(DEFAULT_PROFILE))) as server:
        …  # http://127.0.0.1:{server.port}

Owns the listener and everything behind it until `close`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from forebay.emulator.app import EmulatorApp
from forebay.emulator.realtime import RealTimeEngine
from forebay.enginemodel import Engine, EngineConfig, EngineProfile, EngineStatistics
from forebay.http.limits import ServerLimits
from forebay.http.server import HttpServer

KEEP_ALIVE_S: Final = 5.0
"""Idle connections are closed after this time without notice, as by vLLM's HTTP server."""
SLOW_READER_S: Final = 3600.0
"""vLLM waits for a reader that takes nothing; so does this, for an hour."""
STOP_GRACE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """One emulated engine."""

    profile: EngineProfile
    config: EngineConfig | None = None
    """How the engine is started; None for the profile's values."""
    model: str | None = None
    """Name of the model served; None for the profile's."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free port."""
    speed: float = 1.0
    """How many times faster than the measured engine time passes."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.speed <= 10_000.0:
            raise ValueError(f"speed must be above 0 and at most 10000, got {self.speed}")


class EmulatorServer:
    """A running emulator."""

    def __init__(
        self,
        settings: EmulatorSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.config = settings.config or EngineConfig.from_profile(settings.profile)
        self.model = settings.model or settings.profile.model
        self._clock = clock
        self._app = EmulatorApp(
            config=self.config, model=self.model, seed=settings.seed, clock=clock, wall_clock=wall_clock
        )
        limits = ServerLimits(keep_alive_s=KEEP_ALIVE_S, write_timeout_s=SLOW_READER_S)
        self._http = HttpServer(self._app, limits)
        self._engine: RealTimeEngine | None = None

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._http.port

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.port}"

    @property
    def statistics(self) -> EngineStatistics:
        """The engine at the end of its last step."""
        if self._engine is None:
            raise RuntimeError("the emulator is not started")
        return self._engine.statistics

    async def start(self) -> None:
        """Listen. Raises `OSError` if the address cannot be had."""
        self._engine = RealTimeEngine(
            Engine(self.settings.profile, self.config),
            speed=self.settings.speed,
            on_step=self._app.on_step,
            loop=asyncio.get_running_loop(),
            clock=self._clock,
        )
        self._app.attach(self._engine)
        await self._http.start(self.settings.host, self.settings.port)

    async def close(self) -> None:
        """Stop as vLLM does on SIGTERM: the port closes, what runs ends at once with finish_reason "abort"."""
        self._http.stop_accepting()
        self._app.close()
        if self._engine is not None:
            self._engine.close()
        await self._http.close(STOP_GRACE_S)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
