"""The demo: one overload, offered twice, straight to the engines and through Forebay.

Owns the plan (what is offered, for how long, to what) and the two arms. Each arm has fresh emulated engines and gets
the very same requests at the very same times: a warm-up at half load, which is not scored, then bursts around a
multiple of what the engines can serve. Everything runs in processes of its own on loopback, as users would run it;
this module plays the clients. It prints nothing and leaves nothing running.
"""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES as CLASSES
from forebay.admission.settings import SpeedLaw
from forebay.config.mapping import law_of
from forebay.engines.exposition import PageReader
from forebay.http.client import FetchFailed, Upstream, fetch
from forebay.load.chat import ChatBodies
from forebay.load.felt import Felt, Report, summarise
from forebay.load.generator import Counts, OpenLoop, Target
from forebay.load.workload import DEMO_MIX, Arrival, Phase, arrivals, capacity_rps
from forebay.profiles import load_profile
from forebay.runtime.children import Child, ChildFailed, Children

ENGINES: Final = 2
PROFILE: Final = "llama3-8b-a100x1-bf16"
"""Slow enough that two cores emulate two of them and send twice their load with time to spare."""
KV_TOKENS: Final = 60_000
"""Small, so that memory is what runs out first, as it does on real engines with long documents."""
WARM_UP_S: Final = 10.0
TAIL_S: Final = 6.0
"""How long the clients wait for answers after the last request was sent."""
SWING: Final = 0.5
PERIOD_S: Final = 10.0
TICK_S: Final = 0.5
_OPEN_FILES: Final = 8_192
_READ_TIMEOUT_S: Final = 5.0
_METRICS_BYTES: Final = 1 << 20
_PREEMPTIONS: Final = "vllm:num_preemptions_total"
_LATE: Final = "emulator:lag_seconds_total"
_METRICS: Final = PageReader((_PREEMPTIONS, _LATE))


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demo offers."""

    seconds_s: float = 44.0
    """Scored part of each arm."""
    load: float = 2.0
    """Offered work over what the engines can serve."""
    seed: int = 1

    @property
    def warm_up_s(self) -> float:
        """Unscored start of each arm."""
        return min(WARM_UP_S, max(1.0, self.seconds_s / 4))

    @property
    def tail_s(self) -> float:
        """Time for the last answers."""
        return min(TAIL_S, self.seconds_s)

    @property
    def capacity_rps(self) -> float:
        """Requests a second that the engines can serve."""
        return capacity_rps(DEMO_MIX, demo_law(), ENGINES)

    def requests(self) -> list[Arrival]:
        """Every request of an arm."""
        phases = (
            Phase(self.warm_up_s, 0.5),
            Phase(self.seconds_s, self.load, swing=SWING, period_s=min(PERIOD_S, self.seconds_s / 2)),
        )
        return arrivals(DEMO_MIX, phases, self.capacity_rps, self.seed)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What came of one arm."""

    report: Report
    engine_late_s: float
    """Time by which an emulated engine fell behind its profile (mean): what the machine could not keep up with."""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What came of both."""

    plan: DemoPlan
    direct: ArmResult
    forebay: ArmResult

    def to_json(self) -> dict[str, object]:
        """The result as one JSON object."""
        return {
            "load": self.plan.load,
            "direct": self.direct.report.to_json(),
            "forebay": self.forebay.report.to_json(),
            "seconds_s": self.plan.seconds_s,
            "seed": self.plan.seed,
            "capacity_rps": round(self.plan.capacity_rps, 3),
            "engine_late_s": {
                "direct": round(self.direct.engine_late_s, 3),
                "forebay": round(self.forebay.engine_late_s, 3),
            },
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an arm has got."""

    arm: str
    """`direct` or `forebay`."""
    warming_up: bool
    elapsed_s: float
    total_s: float
    counts: Counts
    met: int
    """Scored requests within their objectives so far."""
    scored: int
    """Scored requests that have ended so far."""


class Watch(Protocol):
    """Whoever shows the progress."""

    def starting(self, arm: str) -> None: ...

    def progress(self, progress: Progress) -> None: ...


class Stopped(Exception):
    """A signal asked for the end; `number` is which."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def demo_law() -> SpeedLaw:
    """The cost law of one of the demo's engines."""
    return replace(law_of(load_profile(PROFILE)), kv_tokens=KV_TOKENS)


async def run_demo(plan: DemoPlan, watch: Watch) -> DemoResult:
    """Run both arms. Raises `Stopped` on SIGINT, SIGTERM or SIGHUP, and `ChildFailed` if a process does not hold."""
    _allow_open_files()
    with _signals_stop_this():
        planned = plan.requests()
        direct = await run_arm("direct", plan, planned, watch)
        forebay = await run_arm("forebay", plan, planned, watch)
    return DemoResult(plan, direct, forebay)


async def run_arm(arm: str, plan: DemoPlan, planned: Sequence[Arrival], watch: Watch) -> ArmResult:
    """Offer the requests to fresh engines: in turn, or all through a gateway with no configuration."""
    watch.starting(arm)
    async with Children() as children:
        engines = await asyncio.gather(*(_start_engine(children, number, plan) for number in range(ENGINES)))
        entrances = list(engines)
        if arm == "forebay":
            entrances = [await _start_gateway(children, engines)]
        client = OpenLoop(
            [Target.parse(entrance.url) for entrance in entrances],
            ChatBodies(load_profile(PROFILE).model, f"{plan.seed}"),
        )
        felt, before = await _offer(
            client, plan, planned, engines, _observe(arm, plan, client, children, watch)
        )
        after = await _read_engines(engines)
    scored = [replace(one, at_s=one.at_s - plan.warm_up_s) for one in felt if one.at_s >= plan.warm_up_s]
    return ArmResult(
        report=summarise(
            scored,
            CLASSES,
            duration_s=plan.seconds_s,
            preemptions=round(after.preemptions - before.preemptions),
        ),
        engine_late_s=after.late_s,
    )


async def _offer(
    client: OpenLoop,
    plan: DemoPlan,
    planned: Sequence[Arrival],
    engines: Sequence[Child],
    observing: Coroutine[None, None, None],
) -> tuple[list[Felt], _EngineReading]:
    """Send everything; what was felt, and what the engines said when the warm-up was over."""
    try:
        async with asyncio.TaskGroup() as tasks:
            observer = tasks.create_task(observing)
            before = tasks.create_task(_read_after(plan.warm_up_s, engines))
            felt = await client.run(planned, tail_s=plan.tail_s)
            observer.cancel()
    except ExceptionGroup as group:
        # Not `except*`: early releases of Python 3.11 put what is raised inside it into a group again.
        failure = next((one for one in group.exceptions if isinstance(one, ChildFailed)), None)
        if failure is None:
            raise
        raise failure from None
    return felt, before.result()


async def _start_engine(children: Children, number: int, plan: DemoPlan) -> Child:
    return await children.start(
        f"engine {number + 1}",
        f"engine --profile {PROFILE} --kv-tokens {KV_TOKENS} --seed {plan.seed + number} --port 0".split(),
    )


async def _start_gateway(children: Children, engines: Sequence[Child]) -> Child:
    upstreams = [argument for engine in engines for argument in ("--upstream", engine.url)]
    listeners = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    return await children.start("gateway", ["serve", *listeners, *upstreams], addresses=2)


async def _observe(arm: str, plan: DemoPlan, client: OpenLoop, children: Children, watch: Watch) -> None:
    """Tell the watch how it goes, and fail as soon as a process is gone."""
    loop = asyncio.get_running_loop()
    objectives = {objective.name: objective for objective in CLASSES}
    start_s = loop.time()
    seen = met = scored = 0
    while True:
        children.check()
        for one in client.felt[seen:]:
            if one.at_s >= plan.warm_up_s:
                scored += 1
                met += one.met(objectives[one.class_name])
        seen = len(client.felt)
        elapsed_s = loop.time() - start_s
        watch.progress(
            Progress(
                arm=arm,
                warming_up=elapsed_s < plan.warm_up_s,
                elapsed_s=elapsed_s,
                total_s=plan.warm_up_s + plan.seconds_s + plan.tail_s,
                counts=replace(client.counts),
                met=met,
                scored=scored,
            )
        )
        await asyncio.sleep(TICK_S)


@dataclass(frozen=True, slots=True)
class _EngineReading:
    preemptions: float
    late_s: float


async def _read_after(delay_s: float, engines: Sequence[Child]) -> _EngineReading:
    await asyncio.sleep(delay_s)
    return await _read_engines(engines)


async def _read_engines(engines: Sequence[Child]) -> _EngineReading:
    """Counters of all engines, as they report them."""
    preemptions = late_s = 0.0
    for engine in engines:
        upstream = Upstream("127.0.0.1", engine.ports[0])
        try:
            _, page = await fetch(
                upstream, b"GET", b"/metrics", timeout_s=_READ_TIMEOUT_S, max_bytes=_METRICS_BYTES
            )
        except FetchFailed as failure:
            raise ChildFailed(f"{engine.name} does not answer: {failure}") from None
        finally:
            upstream.close()
        values = _METRICS.read(page)
        preemptions += sum(values.values(_PREEMPTIONS))
        late_s += sum(values.values(_LATE))
    return _EngineReading(preemptions, late_s / len(engines))


def _allow_open_files() -> None:
    """Two connections per request wait side by side in an overload: more than some systems allow by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def _signals_stop_this() -> Iterator[None]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into `Stopped`; further ones must not disturb the cleaning up."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    received: list[int] = []

    def stop(number: int) -> None:
        if not received:
            task.cancel()
        received.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    except asyncio.CancelledError:
        if not received:
            raise
        task.uncancel()
        raise Stopped(received[0]) from None
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
