"""Who asks for what in the decision benchmark, and the settings and engines that it meets.

Owns the plan of a run, everything that is configured, and the draw of requests from one seeded stream. It drives
nothing. What the core is configured with stands in `settings_for` alone, so that a new setting is tried out there.

Requests come in two lanes. `FULL` is for engines that are full, with a queue at its bound behind them; `SPARE` is
for room that no waiter can take, since a core that keeps its engines busy has left no other. What makes that room
is the plan's `full_by`:

- `slots`: the engines run a fixed number of requests. `SPARE` is a pool of its own, which nobody waits for.
- `kv`: one pool, whose engines fill their KV cache. `SPARE` requests are small enough for what is left beside the
  large ones that wait. So there is nearly always room, and after every end somebody has to be looked for who fits it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from forebay.admission import ClassSettings, PoolSettings, Settings
from forebay.admission.events import Described, EndpointsChanged, Event
from forebay.admission.model import ANONYMOUS, Demand, EndpointId, EngineInfo, EngineKind, TicketId
from forebay.admission.rule_book import RuleBook
from forebay.admission.settings import OPTIMISTIC_LAW
from forebay.config.rules import rule_book
from forebay.config.schema import Config
from forebay.load.workload import Lengths

MODEL: Final = "model"
CLASS_NAMES: Final = tuple(f"class-{rank}" for rank in range(1, 9))
"""In rank order, most important first."""
RATE_PER_S: Final = 200.0
"""Arrivals per second of virtual time while measuring."""
FILLING_PER_S: Final = 10 * RATE_PER_S
"""And while the queue is being filled."""
FULL_ENGINES: Final = 8
SPARE_ENGINES: Final = 4
SLOTS: Final = 32
"""Requests that an engine runs at once, where slots are what fills it."""
KV_TOKENS: Final = 100_000
"""KV cache of an engine where that is what fills it: some 30 of the large requests."""
SMALL_ENGINE_KV_TOKENS: Final = 2_200
"""Of the one engine, where KV fills them, on which no large request fits: `SPARE` requests always do."""
SPARE_KEPT: Final = 16
"""`SPARE` requests that run: far below what there is room for."""
BYTES_PER_TOKEN: Final = 4.2

SHAPES: Final = {"tenants": 1_000, "anonymous": 1}
"""How many tenants ask; one means that nobody says who it is."""
FILLED_BY: Final = ("slots", "kv")
FROZEN: Final = ("start", "filled")
RULES: Final = ("none", "engines", "requests")
"""No rule; five about engines, which are asked for each reading; five about requests. None ever matches."""

ORDINARY: Final = (Lengths(600, 1.0, 32, 8_192), Lengths(200, 0.8, 16, 2_048))
"""Prompt and client's limit, in tokens."""
LARGE: Final = (Lengths(3_000, 0.4, 2_500, 8_192), Lengths(200, 0.8, 64, 1_024))
SMALL: Final = (Lengths(40, 0.3, 24, 64), Lengths(32, 0.3, 16, 64))


class Lane(Enum):
    """Which room a request is after."""

    FULL = "full"
    SPARE = "spare"


@dataclass(frozen=True)
class Plan:
    """One run."""

    shape: str = "tenants"
    """A name in `SHAPES`."""
    waiting: int = 10_000
    """Requests in the queue, all the time."""
    arrivals: int = 20_000
    """That are measured."""
    full_by: str = "slots"
    frozen: str = "start"
    """When `gc.freeze` is called: at the start, as `forebay serve` does it, or once the queue is filled."""
    seed: int = 1
    compiled: bool = False
    rules: str = "none"

    @property
    def pools(self) -> dict[Lane, str]:
        """The pool of each lane."""
        spare = "full" if self.full_by == "kv" else "spare"
        return {Lane.FULL: "full", Lane.SPARE: spare}

    @property
    def wait_budget_s(self) -> float:
        """A hundred times what it takes to serve the whole queue, and the run.

        Nobody's budget runs out, also by predictions made while the queue is filled and engines are hardly known.
        """
        return 100 * max(self.waiting / (RATE_PER_S / 3), self.arrivals / RATE_PER_S)


@dataclass(frozen=True)
class Request:
    """One request, and what becomes of it at an engine, which the core is not told beforehand."""

    demand: Demand
    lane: Lane
    prompt_tokens: int
    output_tokens: int


def settings_for(plan: Plan) -> Settings:
    """What the core is configured with. The bound on waiting requests is what the queue is held at."""
    by_slots = plan.full_by == "slots"
    pool = PoolSettings(
        plan.pools[Lane.FULL],
        law=OPTIMISTIC_LAW,
        headroom=1.0,
        max_inflight_requests=SLOTS if by_slots else 4_096,
        max_queue=plan.waiting,
    )
    spare = PoolSettings("spare", law=OPTIMISTIC_LAW, headroom=1.0, max_inflight_requests=SLOTS)
    return Settings(
        pools=(pool, spare) if by_slots else (pool,),
        classes=tuple(
            ClassSettings(
                name,
                ttft_s=plan.wait_budget_s * (1 + rank / 4),
                tpot_s=0.1,
                wait_budget_s=plan.wait_budget_s * (1 + rank / 4),
                max_queue_gpu_s=1e9,
                weight=len(CLASS_NAMES) - rank,
                value=len(CLASS_NAMES) - rank,
            )
            for rank, name in enumerate(CLASS_NAMES)
        ),
        default_class=CLASS_NAMES[3],
        rules=rules_of(plan),
        max_waiting_bytes=1 << 40,
    )


def rules_of(plan: Plan) -> RuleBook | None:
    """Five conditions of two comparisons each, as operators write them."""
    if plan.rules == "none":
        return None
    first, second = {
        "engines": ("waiting_seq_count > 1{}000", "gpu_cache_usage_perc > 1.{}"),
        "requests": ("request.max_tokens > 1{}0000", "tenant.name == 'nobody-{}'"),
    }[plan.rules]
    actions = ({"class": CLASS_NAMES[7]}, {"class": CLASS_NAMES[6]}, {"pool": "full"}, {"accept": True})
    rules = [
        {"name": f"rule-{n}", "when": f"{first} || {second}".format(n, n), "then": then}
        for n, then in enumerate((*actions, {"refuse": {"retry_after": "2s"}}))
    ]
    pools = [{"name": "full", "endpoints": ["http://127.0.0.1:1"]}]
    classes = {name: {"ttft": "1s"} for name in CLASS_NAMES}
    return rule_book(Config.model_validate({"pools": pools, "classes": classes, "rules": rules}))


def engines_of(plan: Plan) -> dict[Lane, tuple[EndpointId, ...]]:
    """The engines of each lane, in the order of the configuration."""
    full = tuple(EndpointId(f"full-{number}") for number in range(1, FULL_ENGINES + 1))
    spare = SPARE_ENGINES if plan.full_by == "slots" else 1
    return {
        Lane.FULL: full,
        Lane.SPARE: tuple(EndpointId(f"spare-{number}") for number in range(1, spare + 1)),
    }


def opening(plan: Plan) -> list[Event]:
    """What a gateway tells its core when it starts: which engines there are, and what was found out about them."""
    members: dict[str, tuple[EndpointId, ...]] = {}
    described: list[Event] = []
    for lane, engines in engines_of(plan).items():
        pool = plan.pools[lane]
        members[pool] = members.get(pool, ()) + engines
        kv_tokens = None
        if plan.full_by == "kv":
            kv_tokens = KV_TOKENS if lane is Lane.FULL else SMALL_ENGINE_KV_TOKENS
        info = EngineInfo(
            EngineKind.VLLM,
            models=(MODEL,),
            kv_tokens=kv_tokens,
            reports_load=True,
            counts_while_running=True,
        )
        described += [Described(engine, info) for engine in engines]
    return [*(EndpointsChanged(pool, engines) for pool, engines in members.items()), *described]


class Requests:
    """Draws requests: the same seed gives the same ones."""

    def __init__(self, plan: Plan, stream: random.Random) -> None:
        self._pools = plan.pools
        self._stream = stream
        self._tenants = tenants_of(plan.shape)
        self._full = LARGE if plan.full_by == "kv" else ORDINARY
        self._spare = SMALL if plan.full_by == "kv" else ORDINARY
        self._number = 0

    def draw(self, lane: Lane, class_name: str, patience_until_s: float | None = None) -> Request:
        """The next request of this lane and class; any tenant is as likely as any other."""
        stream = self._stream
        self._number += 1
        prompts, limits = self._full if lane is Lane.FULL else self._spare
        prompt, limit = prompts.draw(stream), limits.draw(stream)
        text_bytes = round(prompt * BYTES_PER_TOKEN)
        demand = Demand(
            TicketId(self._number),
            self._pools[lane],
            class_name,
            MODEL,
            stream=stream.random() < 0.8,
            prompt_bytes=text_bytes,
            body_bytes=text_bytes + 200,
            tenant=stream.choice(self._tenants),
            max_output_tokens=limit,
            patience_until_s=patience_until_s,
        )
        return Request(demand, lane, prompt, round(limit * stream.uniform(0.1, 1.0)) or 1)


def tenants_of(shape: str) -> Sequence[str]:
    """Names of the tenants that ask."""
    count = SHAPES[shape]
    return [f"tenant-{number:04}" for number in range(count)] if count > 1 else [ANONYMOUS]
