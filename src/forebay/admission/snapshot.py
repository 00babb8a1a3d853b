"""A frozen view of the controller: for metrics, the admin API, dumps and the checkers of the tests."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.admission.learning import LearningView
from forebay.admission.model import EndpointId, EndpointState, EngineKind, Mode, ModeChange, TicketId


@dataclass(frozen=True, slots=True)
class ClassView:
    """One class of one pool."""

    name: str
    waiting_requests: int
    waiting_gpu_s: float
    predicted_wait_s: float
    """Of an arrival now that could not start at once."""
    mode: Mode = Mode.ENFORCE
    """In force for it in this pool."""


@dataclass(frozen=True, slots=True)
class TicketView:
    """One request that is not over."""

    phase: str
    """`waiting` or `running`."""
    since_s: float
    """When it began to wait, or was dispatched."""
    waited_s: float
    """In the queue, up to now."""
    pool: str
    class_name: str
    attempts: int
    position: int | None = None
    """Requests that will be served before it; None unless it waits."""
    predicted_wait_s: float | None = None
    """From now on; None unless it waits and something is up."""
    waits_at_most_s: float | None = None
    """From now on; None unless it waits."""
    endpoint: EndpointId | None = None
    """Where it runs; None while it waits."""
    ttft_s: float | None = None
    """Arrival to first token; None before that."""
    output_events: int = 0


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One endpoint."""

    id: EndpointId
    state: EndpointState
    kind: EngineKind
    described: bool
    is_open: bool
    """True if it would take a request that fits its KV room."""
    reserved_for: TicketId | None
    """The one request that it is kept free for, if any."""
    running_requests: int
    draining_requests: int
    kv_tokens: int
    """Booked, draining ones included."""
    kv_limit: int | None
    context_tokens: int | None
    request_limit: int
    request_limit_is_firm: bool
    """False if it was found and may be exceeded at a calm engine."""
    work_gpu_s: float
    speed: float
    kv_usage: float | None
    """As the engine last said."""
    sample_at_s: float | None
    sample_took_s: float | None
    engine_running: int | None
    engine_waiting: int | None
    preemptions_total: int | None
    rejections_in_row: int = 0
    """Its last answers, if they were errors that it gave itself."""
    faults: tuple[tuple[str, int], ...] = ()
    """What was held against it since the start, by kind."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool."""

    name: str
    learning: bool
    """True while nobody is refused on a predicted wait."""
    learned: LearningView
    waiting_requests: int
    waiting_gpu_s: float
    in_flight_requests: int
    """Running and draining."""
    in_flight_gpu_s: float
    max_gpu_s: float | None
    """The bound on queued and running work, headroom and share applied."""
    max_requests: int | None
    drain_gpu_s_per_s: float
    wait_error_median: float | None
    bytes_per_prompt_token: float
    output_error_ratio: float | None
    """True over expected output tokens, decayed mean; None before the first answer."""
    fell_back: int
    """Requests that it turned away and its fallback took."""
    utilization: float
    """Of the endpoints that are up, the mean: 0 to 1, over 10 s."""
    classes: tuple[ClassView, ...]
    endpoints: tuple[EndpointView, ...]
    group_share: float | None = None
    """Its part of the work done in its group lately; None if it is in none."""
    gpu_utilization: float | None = None
    """How busy its GPUs are as they say, 0 to 1; None if nobody has read that lately."""


@dataclass(frozen=True, slots=True)
class RuleView:
    """One of the operator's rules."""

    name: str
    matches: int
    """Requests for which it decided something."""
    errors: int
    """Times that it could not be evaluated."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything, at one moment."""

    at_s: float
    draining: bool
    tickets: int
    """Waiting and running."""
    waiting_bytes: int
    max_waiting_bytes: int
    pools: tuple[PoolView, ...]
    mode: Mode = Mode.ENFORCE
    """Where neither pool nor class says otherwise."""
    live_modes: tuple[ModeChange, ...] = ()
    """Changed live, and in force."""
    rules: tuple[RuleView, ...] = ()
