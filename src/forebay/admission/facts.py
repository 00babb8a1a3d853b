"""What a rule can look at: every name, its type, and where its value comes from.

The one list. Expressions are checked against it, the reference page is held against it, and only what a rule names is
read. Facts of a request are known when it comes; facts of engines are those of its pool, and of that pool's least
loaded endpoint: what holds even there holds everywhere. A fact that nobody knows is None, and a rule that
needs it has an error instead of a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from forebay.admission.endpoints import Endpoint
from forebay.admission.model import Cost, Demand, EndpointState, EngineSample
from forebay.admission.pools import Pool
from forebay.admission.record import record

FactValue: TypeAlias = int | float | str | bool

INT: Final = "int"
DOUBLE: Final = "double"
STRING: Final = "string"
BOOL: Final = "bool"

_UP: Final = EndpointState.UP
_MICRO: Final = 1e6


@record
class RequestFact:
    """Something about the request itself, or about who sent it."""

    name: str
    kind: str
    words: str
    read: Callable[[Demand, Cost, Pool], FactValue]

    @property
    def key(self) -> str:
        """Its name in the compiled expression, where a lookup of two steps would cost three times as much."""
        return key_of(self.name)


@record
class EngineFact:
    """Something about the engines."""

    name: str
    kind: str
    words: str
    read: Callable[[Scene], FactValue | None]
    of_endpoint: bool = False

    @property
    def key(self) -> str:
        """As of a `RequestFact`."""
        return key_of(self.name)


def key_of(name: str) -> str:
    """The single word that stands for a name of two."""
    return name.replace(".", "__")


class Scene:
    """A pool and its least loaded endpoint at one moment."""

    __slots__ = ("endpoint", "now", "pool", "rates")

    def __init__(self, pool: Pool, rates: dict[str, float], now: float) -> None:
        """See the class.

        Args:
            rates: output tokens per second by endpoint, of those of which it is known.
        """
        self.pool = pool
        self.now = now
        self.rates = rates
        self.endpoint = least_loaded(pool)


def least_loaded(pool: Pool) -> Endpoint | None:
    """The endpoint with the fewest sequences in all, of those that are up; None if none is."""
    best: Endpoint | None = None
    fewest = 0
    for endpoint in pool.endpoints.values():
        if endpoint.state is _UP:
            sequences = _running(endpoint) + _waiting(endpoint)
            if best is None or sequences < fewest:
                best, fewest = endpoint, sequences
    return best


def _running(endpoint: Endpoint) -> int:
    """As the engine last said; by own count where it says nothing."""
    sample = endpoint.sample
    return endpoint.sequences if sample is None or sample.running is None else sample.running


def _waiting(endpoint: Endpoint) -> int:
    sample = endpoint.sample
    return 0 if sample is None or sample.waiting is None else sample.waiting


def _kv_usage(scene: Scene) -> float | None:
    endpoint = scene.endpoint
    if endpoint is None:
        return None
    sample: EngineSample | None = endpoint.sample
    if sample is not None and sample.kv_usage is not None:
        return sample.kv_usage
    limit = endpoint.kv_limit
    return endpoint.books.kv_tokens / limit if limit else None


def _output_rate(scene: Scene) -> float | None:
    return None if scene.endpoint is None else scene.rates.get(scene.endpoint.id)


def _utilization(scene: Scene) -> float:
    total, count = 0.0, 0
    for endpoint in scene.pool.endpoints.values():
        if endpoint.state is _UP:
            total += endpoint.utilization.value(scene.now)
            count += 1
    return total / count if count else 0.0


def _gpu_utilization(scene: Scene) -> float:
    pool = scene.pool
    told = pool.gpu_load.value(scene.now, pool.common.stale_after_s)
    return _utilization(scene) if told is None else told


def _of_endpoint(read: Callable[[Endpoint, Scene], FactValue | None]) -> Callable[[Scene], FactValue | None]:
    def read_there(scene: Scene) -> FactValue | None:
        return None if scene.endpoint is None else read(scene.endpoint, scene)

    return read_there


def _sample_age_s(endpoint: Endpoint, scene: Scene) -> float | None:
    sample = endpoint.sample
    return None if sample is None else max(scene.now - sample.at_s, 0.0)


REQUEST_FACTS: Final[tuple[RequestFact, ...]] = (
    RequestFact(
        "request.model", STRING, "the model asked for; empty if none is named", lambda d, c, p: d.model
    ),
    RequestFact("request.stream", BOOL, "true if the answer is to be streamed", lambda d, c, p: d.stream),
    RequestFact(
        "request.max_tokens",
        INT,
        "the client's limit on output tokens, of each answer; 0 if it set none",
        lambda d, c, p: d.max_output_tokens or 0,
    ),
    RequestFact(
        "request.prompt_tokens", INT, "prompt tokens: counted or estimated", lambda d, c, p: c.prompt_tokens
    ),
    RequestFact(
        "request.output_tokens",
        INT,
        "output tokens expected, over all answers",
        lambda d, c, p: c.output_tokens,
    ),
    RequestFact(
        "request.tokens",
        INT,
        "`request.prompt_tokens` + `request.output_tokens`",
        lambda d, c, p: c.prompt_tokens + c.output_tokens,
    ),
    RequestFact(
        "request.samples",
        INT,
        "answers asked for (`n`, `best_of`, prompts in a list)",
        lambda d, c, p: d.samples,
    ),
    RequestFact(
        "request.cost",
        DOUBLE,
        "GPU-seconds that it is expected to take",
        lambda d, c, p: p.settings.to_gpu_s(c.work_us),
    ),
    RequestFact("request.body_bytes", INT, "size of the body", lambda d, c, p: d.body_bytes),
    RequestFact(
        "request.retry_count", INT, "which retry this is; 0 for a first try", lambda d, c, p: d.retry_count
    ),
    RequestFact(
        "request.session",
        STRING,
        "`x-forebay-session`; empty if none is named",
        lambda d, c, p: d.session or "",
    ),
    RequestFact("tenant.name", STRING, "the tenant; `anonymous` if unknown", lambda d, c, p: d.tenant),
    RequestFact("tenant.plan", STRING, "its plan; empty if it has none", lambda d, c, p: d.plan),
    RequestFact("class", STRING, "the request's class", lambda d, c, p: d.class_name),
)

ENGINE_FACTS: Final[tuple[EngineFact, ...]] = (
    EngineFact("pool.name", STRING, "the pool", lambda s: s.pool.settings.name),
    EngineFact("pool.endpoints", INT, "endpoints that are up", lambda s: s.pool.count_up()),
    EngineFact(
        "pool.inflight_requests", INT, "requests at its engines", lambda s: s.pool.books.in_flight.requests
    ),
    EngineFact(
        "pool.inflight_gpu_seconds",
        DOUBLE,
        "work at its engines",
        lambda s: s.pool.settings.to_gpu_s(s.pool.books.in_flight.work_us),
    ),
    EngineFact(
        "pool.queue_requests",
        INT,
        "requests that wait here, of all classes",
        lambda s: s.pool.books.waiting.requests,
    ),
    EngineFact(
        "pool.queue_gpu_seconds",
        DOUBLE,
        "work that waits here",
        lambda s: s.pool.settings.to_gpu_s(s.pool.books.waiting.work_us),
    ),
    EngineFact(
        "pool.drain_rate",
        DOUBLE,
        "GPU-seconds of work that it gets through per second",
        lambda s: s.pool.drain_us_per_s() * s.pool.settings.gpus / _MICRO,
    ),
    EngineFact("pool.utilization", DOUBLE, "share in use, 0 to 1, as `forebay_utilization`", _utilization),
    EngineFact(
        "pool.learning",
        BOOL,
        "true while nobody is refused for a predicted wait",
        lambda s: not s.pool.learning.may_refuse,
    ),
    EngineFact(
        "endpoint.running_requests",
        INT,
        "requests that we have there",
        _of_endpoint(lambda e, s: e.books.running.requests),
        of_endpoint=True,
    ),
    EngineFact(
        "endpoint.request_limit",
        INT,
        "requests that it may have at once",
        _of_endpoint(lambda e, s: e.request_limit[0]),
        of_endpoint=True,
    ),
    EngineFact(
        "endpoint.speed",
        DOUBLE,
        "its speed; 1 is the pool's reference",
        _of_endpoint(lambda e, s: e.meter.speed),
        of_endpoint=True,
    ),
    EngineFact(
        "endpoint.sample_age",
        DOUBLE,
        "seconds since its last reading; unknown before the first",
        _of_endpoint(_sample_age_s),
        of_endpoint=True,
    ),
    EngineFact(
        "running_seq_count",
        INT,
        "sequences that the engine runs, as it says, else by own count",
        _of_endpoint(lambda e, s: _running(e)),
        of_endpoint=True,
    ),
    EngineFact(
        "waiting_seq_count",
        INT,
        "sequences in the engine's own queue; 0 if it does not say",
        _of_endpoint(lambda e, s: _waiting(e)),
        of_endpoint=True,
    ),
    EngineFact(
        "gpu_cache_usage_perc",
        DOUBLE,
        "share of its KV cache in use, 0 to 1, as it says, else what we have booked; unknown if there is neither",
        _kv_usage,
        of_endpoint=True,
    ),
    EngineFact(
        "generation_tput",
        DOUBLE,
        "output tokens per second between its last two readings; unknown if it does not count them",
        _output_rate,
        of_endpoint=True,
    ),
    EngineFact(
        "gpu_utilization",
        DOUBLE,
        "how busy the pool's GPUs are, 0 to 1: as its `gpu_metrics` say, else `pool.utilization`",
        _gpu_utilization,
    ),
)
