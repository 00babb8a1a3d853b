"""What happened, in the past tense: the only way the world reaches the core.

Every event is handled by `Controller.handle(event, now)`. Events about a ticket or an endpoint that the
core no longer knows are late news, not errors, where a race between a driver and its network can make
them (`Progressed`, `Ended`, `ClientLeft`, `AttemptFailed`, `Sampled`): they change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, unique

from forebay.admission.model import Demand, EndpointId, EngineInfo, EngineSample, Mode, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.record import record


@record
class Arrived:
    """A request came in. It is answered at once by `Dispatch`, `Hold` or `Refuse`."""

    demand: Demand


@record
class Progressed:
    """Bytes moved on streams of one endpoint since the last report (batched, every 50 to 100 ms)."""

    endpoint: EndpointId
    tokens: Sequence[tuple[TicketId, int]]
    """Data events seen per ticket since the last report. Events are not exactly tokens."""
    mean_gap_s: float | None = None
    """Mean time between events of one stream over the batch; None when no stream had two."""
    alive: bool = True
    """False if nothing came from the engine: those in the batch are only not read by their clients at present."""


@record
class WaitTold:
    """The client of a waiting request was sent the beginning of an answer: it can no longer be sent away unheard."""

    ticket: TicketId


@record
class FirstTokenCame:
    """The first data event of a stream, or the first byte of any other answer, arrived from the engine."""

    ticket: TicketId


@record
class Ended:
    """A dispatched request is over, and the engine no longer works on it unless `engine_goes_on`."""

    ticket: TicketId
    outcome: Outcome
    """How it ended.

    `COMPLETED`; `ENGINE_REJECTED` where the engine's own error was passed on; one of the FAILED group when the gateway
    itself ended it; or `DRAINING` when shutdown cut it.
    """
    usage: Usage | None = None
    output_events: int = 0
    """Data events relayed: stands in for output tokens when there is no usage."""
    engine_goes_on: bool = False
    """True if we cut the connection while the engine was at work: its room is kept as draining."""


@record
class ClientLeft:
    """The client closed its connection, while waiting or while running."""

    ticket: TicketId
    output_events: int = 0


@unique
class Failure(Enum):
    """How an attempt at an endpoint failed before the first token."""

    CONNECT = "connect"
    """Refused, unreachable or not connected in time: the engine cannot have started."""
    CLOSED = "closed"
    """The connection ended before an answer."""
    MALFORMED = "malformed"
    """What came back is not HTTP, or not an answer that can be relayed."""
    REFUSED = "refused"
    """The engine answered, with a 5xx or 429, or with an error as its first event."""
    TIMEOUT = "timeout"
    """No first byte in time."""
    CUT = "cut"
    """The engine ended its answer itself before it was whole (finish reason `abort`): it is shutting down."""


@record
class AttemptFailed:
    """A dispatch failed before its first token. Answered by another `Dispatch`, by `Hold`, or by `Abort`."""

    ticket: TicketId
    endpoint: EndpointId
    failure: Failure
    engine_goes_on: bool = False


@record
class Sampled:
    """An engine's metrics were read."""

    endpoint: EndpointId
    sample: EngineSample


@record
class SampleMissed:
    """A reading failed or timed out."""

    endpoint: EndpointId
    unreachable: bool
    """True if the connection itself failed: evidence that the process is gone."""


@record
class Described:
    """What an engine is was found out, or found to have changed."""

    endpoint: EndpointId
    info: EngineInfo
    restarted: bool = False
    """True if it is another process than the one that was heard of before."""


@record
class EndpointsChanged:
    """The set of endpoints of a pool is now this. Those that vanish finish what they run."""

    pool: str
    endpoints: tuple[EndpointId, ...]


@record
class EndpointDrained:
    """An operator took an endpoint out of use, or put it back."""

    endpoint: EndpointId
    out: bool
    """False: it is back, and is used again as soon as it is heard of."""


@record
class ModeChanged:
    """An operator changed a mode live."""

    mode: Mode | None
    """None: what the configuration says."""
    pool: str = ""
    """Empty for all pools."""
    class_name: str = ""
    """Empty for all classes."""


@record
class ShareChanged:
    """This replica may now use this part (0 to 1) of the pool's limits."""

    pool: str
    share: float


@record
class GpusSampled:
    """It was read from the GPUs of a pool how busy they are."""

    pool: str
    busy: float
    """The mean over them, 0 to 1."""
    at_s: float


@record
class DrainStarted:
    """Shutting down: refuse what arrives; waiters have until `until_s` to start."""

    until_s: float


Event = (
    Arrived
    | Progressed
    | FirstTokenCame
    | Ended
    | ClientLeft
    | AttemptFailed
    | Sampled
    | SampleMissed
    | Described
    | EndpointsChanged
    | EndpointDrained
    | ModeChanged
    | ShareChanged
    | GpusSampled
    | DrainStarted
    | WaitTold
)
