"""One modelled engine of a run, and what has been told of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from forebay.admission.model import EndpointId, EngineInfo, EngineKind, EngineSample, TicketId
from forebay.admission.settings import SpeedLaw
from forebay.config.mapping import law_of
from forebay.enginemodel.engine import Engine
from forebay.enginemodel.profile import EngineConfig, EngineProfile
from forebay.enginemodel.step import StepResult


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """An engine to be modelled."""

    pool: str
    profile: EngineProfile
    config: EngineConfig
    mute: bool = False
    """It tells nothing of itself."""

    def law(self) -> SpeedLaw:
        """The closed form of its costs."""
        return replace(
            law_of(self.profile), kv_tokens=self.config.kv_tokens, max_requests=self.config.max_num_seqs
        )


def fleet(
    pool: str,
    profile: EngineProfile,
    config: EngineConfig,
    engines: int,
    *,
    slow: tuple[float, ...] = (),
    mute: bool = False,
) -> list[EngineSetup]:
    """So many engines alike; `slow` says of the first ones how much longer their steps take than the profile's."""
    factors = (*slow, *(1.0 for _ in range(engines)))[:engines]
    return [EngineSetup(pool, slowed(profile, factor), config, mute) for factor in factors]


def slowed(profile: EngineProfile, factor: float) -> EngineProfile:
    """The same engine on a machine on which each step takes `factor` times as long."""
    if factor == 1.0:
        return profile
    law = profile.law
    numbers = {f.name: getattr(law, f.name) * factor for f in fields(law) if f.name != "n0"}
    return replace(profile, law=replace(law, **numbers))


class Place:
    """One engine. `up` and `heard` are what faults take away."""

    __slots__ = (
        "ended_busy_s",
        "ended_preemptions",
        "ends_s",
        "engine",
        "gap_s",
        "gaps",
        "gpus",
        "heard",
        "id",
        "last_step_s",
        "law",
        "result",
        "running",
        "setup",
        "streams",
        "up",
    )

    def __init__(self, endpoint: EndpointId, setup: EngineSetup, gpus: int = 1) -> None:
        self.id = endpoint
        self.setup = setup
        self.gpus = gpus
        self.law = setup.law()
        self.up = True
        self.heard = True
        self.ended_busy_s = 0.0
        self.ended_preemptions = 0
        self.running: dict[TicketId, None] = {}
        """Sent there and not over."""
        self.engine = Engine(setup.profile, setup.config)
        self.streams: dict[int, int] = {}
        """Streams that have begun, with the tokens told of each."""
        self.result: StepResult | None = None
        """Of the step that runs."""
        self.ends_s = 0.0
        """When that is over."""
        self.last_step_s = 0.0
        self.gap_s = 0.0
        self.gaps = 0

    @property
    def busy_s(self) -> float:
        """Time in which it worked, those of its processes that are gone included."""
        return self.ended_busy_s + self.engine.statistics().busy_s

    @property
    def preemptions(self) -> int:
        """The same of preemptions."""
        return self.ended_preemptions + self.engine.statistics().preemptions

    def info(self) -> EngineInfo:
        """What is found out about it by looking."""
        if self.setup.mute:
            return EngineInfo(EngineKind.OPENAI)
        config = self.setup.config
        return EngineInfo(
            EngineKind.VLLM,
            context_tokens=config.context_tokens,
            kv_tokens=config.kv_tokens,
            kv_block_tokens=config.block_size,
            reports_load=True,
            counts_while_running=True,
        )

    def sample(self, now: float) -> EngineSample:
        """A reading of its metrics."""
        if self.setup.mute:
            return EngineSample(now)
        stats = self.engine.statistics()
        return EngineSample(
            at_s=now,
            took_s=0.001,
            running=stats.running,
            waiting=stats.waiting,
            kv_usage=stats.kv_usage,
            preemptions_total=stats.preemptions,
            prompt_tokens_total=stats.prompt_tokens,
            output_tokens_total=stats.generation_tokens,
            steps_total=stats.iteration_tokens.count,
            step_tokens_total=stats.iteration_tokens.sum,
            cached_tokens_total=stats.prompt_tokens_cached,
        )

    def given(self, ticket: int) -> int:
        """Tokens of a live request that have come by now; those of the step that runs have not."""
        engine = self.engine
        given = engine.generated_before_step(ticket) if self.result is not None else engine.generated(ticket)
        return given or 0

    def progress(self) -> tuple[tuple[TicketId, int], ...]:
        """Tokens of each stream since this was last asked."""
        streams = self.streams
        moved = []
        for ticket, told in streams.items():
            given = self.given(ticket)
            if given > told:
                streams[ticket] = given
                moved.append((TicketId(ticket), given - told))
        return tuple(moved)

    def mean_gap_s(self) -> float | None:
        """Mean time between the tokens of a stream since this was last asked."""
        if not self.gaps:
            return None
        mean_s = self.gap_s / self.gaps
        self.gap_s, self.gaps = 0.0, 0
        return mean_s

    def die(self) -> list[TicketId]:
        """The process is gone; what it had, in the order in which it was sent there."""
        stats = self.engine.statistics()
        self.ended_busy_s += stats.busy_s
        self.ended_preemptions += stats.preemptions
        lost = list(self.running)
        self.running.clear()
        self.streams.clear()
        self.result = None
        self.up = False
        self.engine = Engine(self.engine.profile, self.setup.config)
        return lost

    def slow_down(self, factor: float) -> None:
        """From its next step on; 1 is the speed of its profile."""
        self.engine.profile = slowed(self.setup.profile, factor)
