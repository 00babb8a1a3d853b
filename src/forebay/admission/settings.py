"""What an operator decides, as the core reads it. `config` builds these; the defaults are the zero-configuration ones.

Times are seconds, work is GPU-seconds at this surface and is converted once, in `PoolSettings.to_work_us`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING

from forebay.admission.model import MICRO, EngineKind, Mode

if TYPE_CHECKING:
    from forebay.admission.rule_book import RuleBook


@dataclass(frozen=True, slots=True)
class SpeedLaw:
    """Time of one engine step, in seconds: c0 + c1·prefill tokens + c2·sequences + c3·KV tokens + c4·Σ chunk·context.

    What it means for a request, and how it comes from a profile: docs/explanation/decisions.md.
    """

    c0_s: float
    c1_s: float
    c2_s: float
    c3_s: float
    c4_s: float
    kv_tokens: int
    """KV cache of the reference endpoint (M in the cost formula)."""
    max_requests: int
    """Sequences that the reference endpoint runs at once (N)."""


OPTIMISTIC_LAW = SpeedLaw(
    c0_s=5.328e-3,
    c1_s=2.008e-5,
    c2_s=5.203e-5,
    c3_s=2.99e-8,
    c4_s=8.043e-10,
    kv_tokens=893_024,
    max_requests=256,
)
"""The prior where nothing is known: an 8B model on an H200, the fastest of our measured profiles.

Optimistic on purpose: a cost guessed too low refuses nobody; learning raises it.
"""


@unique
class OnStale(Enum):
    """What a class does at an engine whose samples are too old; the value is what configuration says."""

    OWN_COUNT = "own_count"
    """Go by our own books alone: what we sent there and what came back."""
    LAST_KNOWN = "last_known"
    """Believe the last sample, however old."""
    REFUSE = "refuse"
    """Dispatch nothing there; with no other endpoint the request is refused (`stale_engine`)."""
    ADMIT = "admit"
    """Dispatch whatever the books say."""


@unique
class Order(Enum):
    """Who of one tenant's requests is served first; the value is what configuration says."""

    SJF = "sjf"
    """The shortest, with aging: a longer one is overtaken for a bounded time only."""
    FIFO = "fifo"
    """The first to come."""
    EDF = "edf"
    """The one that must start soonest."""


@unique
class ClassOrder(Enum):
    """How classes share an engine; the value is what configuration says."""

    WEIGHTED = "weighted"
    """GPU-seconds by weight among the classes that have requests waiting."""
    STRICT = "strict"
    """By rank, except that a class below its guaranteed share (its part of all weights) comes first."""


@unique
class Displace(Enum):
    """Which waiters a newcomer may push out; the value is what configuration says."""

    OFF = "off"
    LOWER = "lower"
    """Those of less important classes."""
    SAME = "same"
    """Those of its own class as well."""


@unique
class Retries(Enum):
    """How requests that say that they are retries are ordered; the value is what configuration says."""

    PREFER = "prefer"
    """As if they had come one wait budget earlier."""
    EQUAL = "equal"
    """Like any other."""
    PENALISE = "penalise"
    """As if they had come one wait budget later."""


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """A priority class. Order in `Settings.classes` is rank, first is most important."""

    name: str
    ttft_s: float
    """Objective: arrival to first token."""
    tpot_s: float
    """Objective: mean time per output token after the first."""
    wait_budget_s: float
    """Longest a request may wait here, predicted or real. Default: the TTFT objective."""
    weight: float = 1.0
    value: float = 1.0
    max_queue: int | None = None
    """Waiting requests; None is unlimited, 0 refuses whatever cannot start at once."""
    max_queue_gpu_s: float | None = None
    """Waiting work; None means drain rate × wait budget (`auto`)."""
    idle_stream_s: float = 60.0
    """A dispatched request from which no byte has come for this long is ended."""
    on_stale: OnStale | None = None
    """What to do at an engine that tells its load and has not done so for `Settings.stale_after_s`; None: as its pool
    says."""
    order: Order = Order.SJF
    """Among the waiting requests of one tenant."""
    aging_s: float | None = None
    """With `SJF`: a request of twice the cost is overtaken for this long at most; None means half the wait budget."""
    short_tokens: int = 0
    """Requests expected to make fewer output tokens are short; 0: none is."""
    short_weight: float = 1.0
    """With `SJF`: a short request counts as if its cost were divided by this."""
    max_share: float = 1.0
    """Part of the pool's GPU-seconds that the class may get while others wait."""
    confidence: float = 0.5
    """A request is refused if this quantile of its predicted wait is over its budget."""
    never_refuse: bool = False
    """Its requests wait for as long as it takes (`Ticket.never_refuse`)."""
    mode: Mode | None = None
    """None: what the pool or the whole says."""
    admit_below_utilization: float | None = None
    """Its requests start only while the pool is used less than this; None is no ceiling."""
    max_stream_s: float | None = None
    """A stream that took longer may be ended while others wait; None is no limit."""
    whole_answer_s: float | None = None
    """Objective of an answer that is not streamed: arrival to the whole of it. None: by `ttft_s` and `tpot_s`."""

    def answer_s(self, output_tokens: float) -> float:
        """The objective of an answer of this length that is not streamed."""
        whole_s = self.whole_answer_s
        return self.ttft_s + self.tpot_s * output_tokens if whole_s is None else whole_s

    @property
    def aging(self) -> float:
        """Seconds per doubling of the cost, with the default applied."""
        aging_s = self.wait_budget_s / 2 if self.aging_s is None else self.aging_s
        return aging_s if aging_s > 0 else 1.0


ZERO_CONFIGURATION_CLASSES = (
    ClassSettings(
        "realtime",
        ttft_s=1.5,
        tpot_s=0.08,
        wait_budget_s=1.5,
        weight=3,
        value=3,
        confidence=0.9,
        max_stream_s=300.0,
    ),
    ClassSettings(
        "standard", ttft_s=5.0, tpot_s=0.12, wait_budget_s=5.0, weight=5, value=2, max_stream_s=300.0
    ),
    ClassSettings("batch", ttft_s=60.0, tpot_s=0.2, wait_budget_s=60.0, weight=2, value=1),
)
"""What users get who configure no classes; the objectives are those of a chat, an ordinary call and a batch job."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Endpoints that serve the same model and share one set of queues."""

    name: str
    gpus: int = 1
    """GPUs per endpoint: turns endpoint-seconds into GPU-seconds."""
    law: SpeedLaw | None = None
    """From a profile; None means learn, starting from `OPTIMISTIC_LAW`."""
    max_gpu_s: float | None = None
    """Bound on queued and running work; None is unlimited."""
    headroom: float = 0.9
    """Part used of the engine's KV capacity and of `max_gpu_s`; limits given as counts are used as they are."""
    max_inflight_requests: int | None = None
    """Per endpoint; None means found."""
    max_inflight_tokens: int | None = None
    """Per endpoint; None means the engine's KV capacity."""
    max_pool_requests: int | None = None
    """In flight over all endpoints; None is unlimited."""
    max_queue: int | None = None
    """Waiting requests over all classes; None is unlimited."""
    max_output_tokens: int | None = None
    """Of one answer; None is unlimited. No client's limit may be above it; where there is none, it is cut there."""
    inject_limit: bool = False
    """Where a client states no limit, `max_output_tokens` is put into its request."""
    models: tuple[str, ...] = ()
    """Names served, `*` stands for anything; () means what the engines list."""
    engine: EngineKind | None = None
    """Family of its engines, where it was said; None: as found."""
    pass_priority: bool = False
    """Tell engines that know priorities the rank of each request's class."""
    fallback: str | None = None
    """The pool that is tried with what this one turns away under overload; None: none."""
    group: str | None = None
    """Pools that name the same share their GPUs."""
    share: float | None = None
    """Its guaranteed part of its group's GPU time; None: an equal part of what is left."""
    on_stale: OnStale = OnStale.OWN_COUNT
    """For classes that do not say themselves."""
    audio_gpu_s: float = 1.0
    """What a request for or with sound takes."""
    image_gpu_s: float = 5.0
    """What each picture takes that is made."""
    hold_without_endpoints_s: float = 0.0
    wait_predictor: str = "backlog"
    """`backlog` (work ahead ÷ drain rate) or `plain` (all work in flight and ahead ÷ drain rate)."""
    target_utilization: float | None = None
    """Above this utilisation nothing more is dispatched (`queue_policy`); None is no ceiling."""
    mode: Mode | None = None
    """None: what the class or the whole says."""

    def to_work_us(self, gpu_s: float) -> int:
        """GPU-seconds to integer micro-endpoint-seconds."""
        return int(gpu_s / self.gpus * MICRO + 0.5)

    def to_gpu_s(self, work_us: int) -> float:
        """Integer micro-endpoint-seconds to GPU-seconds."""
        return work_us * self.gpus / MICRO


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What one tenant of a plan may have."""

    name: str
    weight: float = 1.0
    """Share in GPU time relative to other tenants that wait in the same class."""
    never_refuse: bool = False
    """As of a class, for the requests of its tenants."""
    tokens_per_s: float | None = None
    """Input and output tokens; None is unlimited, here as below, and 0 lets nothing through."""
    tokens_capacity: int | None = None
    """What may be used at once after a pause. Set where `tokens_per_s` is."""
    requests_per_s: float | None = None
    requests_capacity: int | None = None
    max_inflight: int | None = None
    """Requests held or running."""
    max_inflight_gpu_us: int | None = None
    """Their expected work, in millionths of a GPU-second."""
    bills_cap: bool = False
    """The most that an answer may be counts, not what it is expected and turns out to be."""
    models: tuple[str, ...] | None = None
    """Those that may be asked for, `*` stands for anything; None: all. Here it keeps fallbacks from giving others."""
    classes: tuple[str, ...] | None = None
    """Those that may be used; None: all. Here it keeps sessions from going on in others."""

    @property
    def limits(self) -> bool:
        """True if anything is limited."""
        return (
            self.tokens_per_s is not None
            or self.requests_per_s is not None
            or self.max_inflight is not None
            or self.max_inflight_gpu_us is not None
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the controller needs to know; replaced whole by `reconfigure`."""

    pools: tuple[PoolSettings, ...]
    classes: tuple[ClassSettings, ...] = ZERO_CONFIGURATION_CLASSES
    plans: tuple[PlanSettings, ...] = ()
    default_class: str = "standard"
    mode: Mode = Mode.ENFORCE
    """Where neither pool nor class says otherwise."""
    class_order: ClassOrder = ClassOrder.WEIGHTED
    displace: Displace = Displace.LOWER
    retries: Retries = Retries.EQUAL
    """The order of requests that say that they are retries."""
    refuse_hopeless: bool = False
    """Refuse a client's deadline that an idle endpoint could not meet; False only records it."""
    rules: RuleBook | None = None
    """The operator's rules; None where there are none."""
    max_waiting_bytes: int = 256 * 1024 * 1024
    """Bodies of waiting requests, over all pools."""
    max_attempts: int = 2
    """Dispatches per request, all endpoints together."""
    connect_timeout_s: float = 2.0
    """Also how long a request may wait for the first sample of a pool that has just started."""
    unstreamed_timeout_s: float = 600.0
    """Longest time from dispatch to the first byte of an answer that is not streamed."""
    stale_after_s: float = 5.0
    """Age at which a sample is no longer believed."""
