"""Pools that share GPUs, under random histories: what each is charged, and who is held for whom."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from forebay.admission.effects import Dispatch, Effect, Hold, Settle
from forebay.admission.events import (
    AttemptFailed,
    ClientLeft,
    Described,
    Ended,
    EndpointsChanged,
    Event,
    Failure,
    FirstTokenCame,
    Progressed,
    Sampled,
    SampleMissed,
)
from forebay.admission.model import (
    Demand,
    EndpointId,
    EngineInfo,
    EngineKind,
    EngineSample,
    TicketId,
    Usage,
)
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, PoolSettings, Settings, SpeedLaw
from tests.property.driving import Bench, Seen, audit, check_what_was_said, close

LAW = SpeedLaw(c0_s=6.8e-3, c1_s=2e-5, c2_s=5e-5, c3_s=4e-8, c4_s=8e-10, kv_tokens=8000, max_requests=64)
NAMES = ("small", "large", "third")
WINDOW_S = 10.0


@dataclass
class Charge:
    """What one request was charged while others of its group waited."""

    pool: str
    gpu_s: float
    at_s: float


class GroupBench(Bench):
    """Keeps besides what each pool was charged in its group, from the effects alone."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.charges: list[Charge] = []
        self.open: dict[TicketId, Charge] = {}
        """Of requests that are not settled."""

    def group_of(self, pool: str, settings: Settings | None = None) -> list[str]:
        """The pools of its group; none if it is alone."""
        pools = (settings or self.settings).pools
        group = next(p.group for p in pools if p.name == pool)
        together = [p.name for p in pools if p.group == group and group is not None]
        return together if len(together) > 1 else []

    def reconfigure(self, settings: Settings) -> None:
        """A pool that leaves its group, comes to it, or has other GPUs has been charged nothing."""
        gpus = {p.name: p.gpus for p in self.settings.pools}
        changed = [p.name for p in settings.pools if p.gpus != gpus[p.name]]
        for name in NAMES:
            if name in changed or not self.group_of(name, settings) or not self.group_of(name):
                self.charges = [charge for charge in self.charges if charge.pool != name]
                self.open = {t: charge for t, charge in self.open.items() if charge.pool != name}
        super().reconfigure(settings)

    def part_of(self, pool: str) -> float | None:
        """Its part of what was charged in its group lately; None of nothing."""
        together = self.group_of(pool)
        faded = dict.fromkeys(together, 0.0)
        for charge in self.charges:
            if charge.pool in faded:
                faded[charge.pool] += charge.gpu_s * math.exp((charge.at_s - self.now) / WINDOW_S)
        total = sum(faded.values())
        return faded[pool] / total if total > 1e-3 else None

    def _carry_out(self, effects: list[Effect], newcomer: Demand | None = None) -> None:
        for effect in effects:  # one by one: who waits is asked at each
            if isinstance(effect, Dispatch):
                self._started(self.tickets[effect.ticket], effect.record.cost_gpu_s)
            elif isinstance(effect, Hold):
                self._corrected(effect.ticket, 0.0)
            elif isinstance(effect, Settle):
                self._corrected(effect.settlement.ticket, effect.settlement.charged_gpu_s)
            super()._carry_out([effect], newcomer)

    def _started(self, seen: Seen, gpu_s: float) -> None:
        pool = seen.demand.pool
        others = [name for name in self.group_of(pool) if name != pool]
        if any(other.demand.pool in others for other in self.where("waiting")):
            charge = Charge(pool, gpu_s, self.now)
            self.charges.append(charge)
            self.open[seen.demand.ticket] = charge

    def _corrected(self, ticket: TicketId, gpu_s: float) -> None:
        charge = self.open.pop(ticket, None)
        if charge is not None:
            charge.gpu_s = gpu_s


class Crowd:
    """Two or three pools of one engine or two each, and more requests than they can serve; all from one seed."""

    def __init__(self, seed: str) -> None:
        self.draw = random.Random(seed)
        self.has_limits = self.draw.random() < 0.4
        """Caps and ceilings of their own. Who waited at one when another was charged is not to be seen from effects."""
        self.bench = GroupBench(self.settings())
        self.number = 0
        self.engines: dict[str, tuple[EndpointId, ...]] = {}
        self.seen: Counter[str] = Counter()
        for name in NAMES:
            self.change_engines(name, self.draw.choice([1, 1, 2]))

    def settings(self) -> Settings:
        """Any parts, some in no group; at times with a cap or a ceiling."""
        draw = self.draw
        shares = draw.choice(
            [(0.2, None, None), (0.5, 0.3, 0.2), (None, None, None), (0.0, 0.7, None), (1.0, 0.0, 0.0)]
        )
        pools = tuple(
            PoolSettings(
                name, gpus=draw.choice([1, 1, 2]), law=LAW, group=draw.choice(["gpus", "gpus", "gpus", "gpus", None]),
                share=share, max_inflight_requests=draw.choice([1, 2, 6, None]), max_queue=draw.choice([None, None, 8]),
                max_pool_requests=draw.choice([None, 2]) if self.has_limits else None,
            )
            for name, share in zip(NAMES, shares, strict=True)
        )  # fmt: skip
        ceiling = draw.choice([None, 0.3]) if self.has_limits else None
        classes = tuple(
            replace(c, admit_below_utilization=ceiling if c.name == "batch" else None)
            for c in ZERO_CONFIGURATION_CLASSES
        )
        return Settings(pools, classes=classes)

    def run(self, steps: int) -> None:
        """So many things happen, and after each one every account is the same twice."""
        for _ in range(steps):
            self.step()
            audit(self.bench)
            check_what_was_said(self.bench)
            for name in NAMES:
                self.compare(name)
        close(self.bench)

    def compare(self, name: str) -> None:
        """What the core says of a pool is what the effects say."""
        member = self.bench.controller._pools[name].member
        assert (member is not None) == bool(self.bench.group_of(name))
        part = self.bench.part_of(name) if member is not None else None
        if member is not None and part is not None and not self.has_limits:
            assert member.group.contended.share_of(member.index) == pytest.approx(part, abs=1e-3)
            self.seen["contended"] += 0.0 < part < 1.0
            self.seen["held"] += member.held

    def step(self) -> None:
        """One thing happens: mostly arrivals, answers and time, sometimes losses and changes."""
        draw, bench = self.draw, self.bench
        what, running = draw.random(), bench.where("running")
        if what < 0.35 or not running:
            for _ in range(draw.choice([1, 2, 6])):
                self.arrive(draw.choice(NAMES))
        elif what < 0.75:
            self.happen_to(draw.choice(running))
        elif what < 0.93:
            bench.advance(draw.choice([0.0, 0.02, 0.05, 0.2, 0.2, 0.7, 3.0]))
        elif what < 0.98:
            name = draw.choice(NAMES)
            if draw.random() < 0.5:
                self.change_engines(name, draw.choice([0, 1, 2]))
            elif self.engines[name]:
                bench.feed(SampleMissed(draw.choice(self.engines[name]), draw.random() < 0.5))
        else:
            bench.reconfigure(self.settings())

    def change_engines(self, name: str, count: int) -> None:
        """A pool has so many engines from now on."""
        self.engines[name] = tuple(EndpointId(f"{name}-{number}") for number in range(count))
        self.bench.feed(EndpointsChanged(name, self.engines[name]))
        for endpoint in self.engines[name]:
            info = EngineInfo(EngineKind.VLLM, kv_tokens=8000, reports_load=self.draw.random() < 0.5)
            self.bench.feed(Described(endpoint, info))

    def arrive(self, pool: str) -> None:
        """A request comes."""
        draw = self.draw
        self.number += 1
        prompt = draw.choice([10, 100, 400, 900])
        self.bench.arrive(
            Demand(
                TicketId(self.number), pool, draw.choice(["realtime", "standard", "standard", "batch"]), "m",
                draw.random() < 0.8, prompt_bytes=prompt * 4, body_bytes=prompt * 4 + 200, tenant=draw.choice("ab"),
                prompt_tokens=prompt, max_output_tokens=draw.choice([1, 50, 400]),
            )
        )  # fmt: skip

    def happen_to(self, seen: Seen) -> None:
        """An engine says something of a request, or of itself, or a client leaves."""
        draw, bench, ticket = self.draw, self.bench, seen.demand.ticket
        assert seen.endpoint is not None
        event: Event
        what = draw.random()
        if what < 0.5:
            usage = draw.choice([None, Usage(seen.demand.prompt_bytes // 4, draw.randint(1, 400))])
            event = Ended(
                ticket, Outcome.COMPLETED, usage, draw.randint(0, 300), engine_goes_on=draw.random() < 0.1
            )
        elif what < 0.65:
            event = FirstTokenCame(ticket)
        elif what < 0.8:
            there: Sequence[Seen] = [s for s in bench.where("running") if s.endpoint == seen.endpoint]
            event = Progressed(seen.endpoint, [(s.demand.ticket, draw.randint(0, 20)) for s in there], 0.02)
        elif what < 0.85:
            event = AttemptFailed(
                ticket, seen.endpoint, draw.choice(list(Failure)), engine_goes_on=draw.random() < 0.3
            )
        elif what < 0.9:
            event = ClientLeft(ticket, 3)
        else:
            count = sum(s.endpoint == seen.endpoint for s in bench.where("running"))
            event = Sampled(
                seen.endpoint, EngineSample(bench.now - 0.01, running=count, waiting=0, kv_usage=0.1)
            )
        bench.feed(event)


@pytest.mark.parametrize("series", range(3))
def test_pools_on_the_same_gpus_are_held_for_others_that_have_less(series: int) -> None:
    """And for nobody else, by accounts that are those of the effects; and in the end all of them are empty."""
    seen: Counter[str] = Counter()
    for number in range(16):
        crowd = Crowd(f"group {series} {number}")
        crowd.run(90)
        seen += crowd.seen
    assert min(seen["held"], seen["contended"]) > 20, "the crowds are too tame"
