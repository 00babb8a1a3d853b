"""The records that cross the border of the core: what it is told about requests and engines, and what it says back.

Everything here is plain data. Units are in the names: `_s` seconds (float, the driver's monotonic clock),
`_us` integer micro-endpoint-seconds (the books hold integers, so that they balance exactly), `_gpu_s` GPU-seconds,
`_tokens` LLM tokens. Records that go outwards are frozen; nobody outside may change what was decided.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import Final, NewType, TypeAlias

from forebay.admission.outcomes import Outcome
from forebay.admission.record import record

TicketId = NewType("TicketId", int)
"""Our record of one request, from arrival to outcome. Given by the driver, never used twice in a process."""

EndpointId = NewType("EndpointId", str)
"""One addressable engine. Stable while the engine is configured, also across a restart of that engine."""

ANONYMOUS: Final = "anonymous"
"""The tenant of a request that does not say whose it is."""

MICRO: Final = 1_000_000
"""Micro-endpoint-seconds in one endpoint-second."""


@record
class Demand:
    """One request as the core sees it: no bytes, no headers."""

    ticket: TicketId
    pool: str
    class_name: str
    """A class of the settings; already resolved and clamped by whoever built the demand."""
    model: str
    stream: bool
    prompt_bytes: int
    """Text bytes that the engine will tokenise; base64 and JSON syntax are not counted."""
    body_bytes: int
    """Bytes of the body that are held in memory while the request waits."""
    tenant: str = ANONYMOUS
    prompt_tokens: int | None = None
    """The exact count where it is known (token-id prompts); None where it must be estimated from bytes."""
    extra_prompt_tokens: int = 0
    """Tokens on top of the text: images, audio."""
    max_output_tokens: int | None = None
    """The client's own limit, per sample; None when it set none."""
    samples: int = 1
    """Answers generated for this one prompt (`n`, `best_of`)."""
    generates: bool = True
    """False for embeddings and scoring: no output tokens, no KV held."""
    first_token_by_s: float | None = None
    """The client's stated deadline for the first token (may refuse at arrival)."""
    patience_until_s: float | None = None
    """When the client's own timeout runs out. It sheds waiters; it never refuses at arrival."""
    session: str | None = None
    retry_count: int = 0
    prefix_hash: int | None = None
    """What the prompt begins with: requests with the same number may share a cached prefix. None if nobody says."""
    prompts: int = 1
    """Separate prompts in it; sizes are those of all together, and `samples` counts the answers to all."""
    cut_output_tokens: int | None = None
    """An answer that reaches this may have been cut off there: the smaller of two limits that a client states. None
    where only `max_output_tokens` cuts."""
    plan: str = ""
    """The tenant's plan, one of the settings; empty if it has none."""
    asked_model: str | None = None
    """What the client asked for, where `model` is what its plan, a rule or a fallback gave it instead; else None."""
    class_claimed: bool = True
    """The client has named a class; else `class_name` is the default."""
    flat: str = ""
    """`audio` or `image`: each of `samples` costs what the pool's settings say of its kind; empty for all that is made
    of tokens."""


@record
class Cost:
    """What a request is expected to take, on the pool's reference endpoint."""

    work_us: int
    """Micro-endpoint-seconds: prefill, decode and its share of the fixed step cost."""
    prefill_us: int
    """The prefill part of `work_us`."""
    kv_tokens: int
    """KV cache to book: the prompt, and what the output holds on average over its life."""
    prompt_tokens: int
    output_tokens: int
    """Expected output tokens over all samples."""
    cached_tokens: int = 0
    """Prompt tokens that are expected to be in the prefix cache."""

    @property
    def fresh_tokens(self) -> int:
        """Prompt tokens that the engine has to work out."""
        return self.prompt_tokens - self.cached_tokens


@unique
class EngineKind(Enum):
    """Engine families; the value is what configuration and metrics say."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"
    """Any server with the OpenAI API and no metrics that we know."""


@record
class EngineInfo:
    """What was found out about an engine, once, by looking at it."""

    kind: EngineKind
    models: tuple[str, ...] = ()
    """Names that the engine answers to; () when it did not say."""
    checks_model_names: bool = False
    """True if the engine itself refuses unknown names (vLLM), so that we may too."""
    context_tokens: int | None = None
    kv_tokens: int | None = None
    kv_block_tokens: int = 1
    """The KV cache is given out in blocks of so many tokens."""
    max_requests: int | None = None
    """Requests the engine runs at once (llama.cpp slots); None when it does not say."""
    linger_s: float = 1.0
    """How long an aborted request may go on holding its room when no sample shows that it left."""
    aborts_unstreamed: bool = True
    """False if the engine runs a non-streamed request to its end although the client left (llama.cpp)."""
    reports_load: bool = False
    """True if samples carry running and waiting counts."""
    counts_while_running: bool = False
    """True if token counters grow with each step, not only when a request ends: a standstill then means a hang."""
    closes_after_stream: bool = False
    """True if the engine closes its connection after a streamed answer, whatever it announces (llama.cpp)."""


@record
class EngineSample:
    """One reading of an engine's metrics. A field is None when the engine does not say or said nonsense.

    Counters are totals since the engine started; the reader of two samples takes differences and must
    expect a fall (restart). With several data-parallel ranks, counts are summed and `kv_usage` is the worst.
    """

    at_s: float
    """When the reading began, on the driver's clock: what happened later is not in it."""
    took_s: float = 0.0
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    preemptions_total: int | None = None
    prompt_tokens_total: int | None = None
    output_tokens_total: int | None = None
    steps_total: int | None = None
    """Engine iterations (count of vLLM's iteration histogram)."""
    step_tokens_total: int | None = None
    """Tokens over all iterations (sum of the same histogram)."""
    cached_tokens_total: int | None = None
    unready: str = ""
    """Why the engine says itself that it takes no work at present (asleep, loading, shutting down); empty if it does
    not say so. That it does not proves nothing: a hung engine goes on answering."""
    doubtful: tuple[str, ...] = ()
    """Names of series that were present but unusable (NaN, negative, out of range)."""

    def differs_from(self, before: EngineSample) -> bool:
        """True if any counter of work done has changed (a fall is a restart, which is life too)."""
        return (
            before.output_tokens_total != self.output_tokens_total
            or before.prompt_tokens_total != self.prompt_tokens_total
            or before.steps_total != self.steps_total
        )


@record
class Usage:
    """Token counts that the engine reported for one request."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that were in its prefix cache; None if it does not say."""


@unique
class EndpointState(Enum):
    """Whether an endpoint may be given work; the value is the metric label."""

    STARTING = "starting"
    """Configured, and nothing is known of it yet: requests wait for its first sample."""
    UP = "up"
    DOWN = "down"
    """Connections or attempts fail; tried again after a back-off, when a sample comes."""
    UNREADY = "unready"
    """It says itself that it takes no work (asleep, loading, shutting down); what runs there may finish."""
    STALLED = "stalled"
    """It has work in flight and no byte has moved for too long."""
    REMOVED = "removed"
    """No longer configured; what runs there may finish."""
    DRAINED = "drained"
    """Taken out of use by an operator; what runs there may finish, and it stays out until it is put back."""


@unique
class Mode(Enum):
    """What is done with decisions; the value is what configuration says."""

    ENFORCE = "enforce"
    SHADOW = "shadow"
    """They are made and recorded, and every request starts at once."""
    BYPASS = "bypass"
    """None is made: every request starts at once."""


@record
class ModeChange:
    """A mode that was set live, and for what."""

    pool: str
    """Empty for all pools."""
    class_name: str
    """Empty for all classes."""
    mode: Mode


Amount: TypeAlias = int | float
"""What a check compares. Not `float`, of which the compiled build would make one of every count: 2.0 endpoints."""


@record
class Check:
    """One comparison made in a decision."""

    name: str
    value: Amount
    limit: Amount | None
    """What the value was compared with; None where there is no limit."""
    passed: bool


@record
class QuotaView:
    """What a tenant's buckets hold: for the client, so in whole numbers, and rounded against it."""

    requests: int | None
    """Capacity; None if requests are not limited."""
    requests_left: int
    requests_full_in_s: float
    """Until it is full again."""
    tokens: int | None
    tokens_left: int
    tokens_full_in_s: float


@record
class Exhausted:
    """What a tenant has used up, so that nothing of it could be let in now."""

    check: str
    """The limit, by the name of its check."""
    wait_s: float
    """Until something of it might be let in."""
    retry_after_s: float
    quota: QuotaView | None


@record
class DecisionRecord:
    """Why one request was treated so: log, header, dashboard, simulator and tests all read this."""

    ticket: TicketId
    at_s: float
    pool: str
    class_name: str
    tenant: str
    model: str
    action: str
    """`dispatch`, `hold`, `refuse`, `evict` or `abort`."""
    outcome: Outcome | None
    """Set when the action ended the ticket, or would have (`mode`)."""
    decided_by: str
    """Name of the check that decided, or `passed` when none failed."""
    checks: tuple[Check, ...]
    cost_gpu_s: float
    kv_tokens: int
    predicted_wait_s: float
    wait_budget_s: float
    """The class's budget or the client's stated deadline, the tighter, at arrival."""
    waited_s: float
    position: int
    """Requests that were to be served before it when it arrived; 0 when it did not have to wait."""
    endpoint: EndpointId | None
    learning: bool
    detail: str = ""
    """One sentence for a person, where the checks do not say it all."""
    mode: Mode = Mode.ENFORCE
    """With `shadow`, action and outcome are what would have been done: it was dispatched to `endpoint` in any case.
    With `bypass` nothing was asked."""
    quota: QuotaView | None = None
    """What the tenant has left after this decision; None if it has no such limits."""


@record
class Refusal:
    """A refusal is a value: what to tell the client."""

    outcome: Outcome
    retry_after_s: float | None
    """Seconds until a retry is worthwhile, before rounding for the header; None when it can never pass."""
    predicted_wait_s: float
    record: DecisionRecord


@record
class BodyChange:
    """Fields of the request's body that go to the engine with other values than the client gave; None: as it is."""

    model: str | None = None
    priority: int | None = None
    """As the engine counts it."""
    max_tokens: int | None = None
    """Where the client states no limit."""


@record
class Settlement:
    """The closed account of one ticket. There is exactly one per ticket, on every way out."""

    ticket: TicketId
    at_s: float
    pool: str
    class_name: str
    tenant: str
    model: str
    outcome: Outcome
    endpoint: EndpointId | None
    """Where it ran last; None if it was never dispatched."""
    waited_s: float
    """Time spent in the queue: arrival to dispatch, and again after a failed attempt."""
    predicted_wait_s: float
    ttft_s: float | None
    """Arrival to first token; None if there was none."""
    duration_s: float
    """Arrival to end."""
    estimated_gpu_s: float
    charged_gpu_s: float
    """The true cost as far as known: 0 if it never ran."""
    prompt_tokens: int
    output_tokens: int
    attempts: int
    met_objective: bool
    demand: Demand | None = None
    """What was asked for."""
    cost: Cost | None = None
    """What it was expected to take."""
    usage: Usage | None = None
    """What the engine counted, as far as it is believed."""
