"""The shape of a configuration: every key, its type, its default and why, in one place.

Field descriptions are the reference: `forebay schema` prints them. Unknown keys are errors, numbers are never
guessed from text, and durations and sizes carry units. The models hold what was written; `mapping` turns them
into the core's settings. Nothing here reads files, the environment or the machine.
"""

from __future__ import annotations

import re
from math import inf
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from forebay.config.engine_entry import EngineEntry, or_name
from forebay.config.gpu_metrics import GPU_METRICS_JSON_SCHEMA, Endpoint, GpuMetrics
from forebay.config.header_names import free_header
from forebay.config.origins import Origin
from forebay.config.record_entry import RecordEntry
from forebay.config.rule_entries import RuleEntry
from forebay.config.strict import DURATION_JSON_SCHEMA, Duration, Size, Strict, plain_name
from forebay.config.tenancy import (
    AnonymousPolicy,
    Network,
    PlanEntry,
    TenantEntry,
    plans_have_plain_names,
)
from forebay.config.units import (
    Address,
    parse_address,
    parse_duration_s,
    parse_size_bytes,
)
from forebay.config.written_defaults import write_defaults

__all__ = ["LATER_KEYS", "ClassEntry", "Config", "Limits", "Pool", "Profile", "json_schema"]

LATER_KEYS: Final[dict[str, frozenset[str]]] = {
    "": frozenset(
        {
            "shared_state",
        }
    ),
    "pools[]": frozenset(
        {
            "discovery",
        }
    ),
}
"""Keys of the planned configuration that this version does not have, by where they belong. A file that uses one
is refused with a message that says so: accepted and ignored, it would be a limit that somebody believes in."""


_PASSED_PATH: Final = re.compile(r"(?:/[A-Za-z0-9._~@:+-]+)+(?:/\*)?")


def _auto_or_size(value: object) -> int | None:
    return None if value is None or value == "auto" else parse_size_bytes(value)


def _auto_or_number(value: object) -> object:
    return None if value == "auto" else value


def _none_or_duration(value: object) -> float | None:
    if value is None:
        return None
    return inf if value == "none" else parse_duration_s(value)


NoneOrDuration = Annotated[
    Annotated[float, Field(gt=0)] | None,
    BeforeValidator(_none_or_duration),
    WithJsonSchema({"anyOf": [{"const": "none"}, DURATION_JSON_SCHEMA, {"type": "null"}]}),
]
AutoSize = Annotated[
    int | None,
    BeforeValidator(_auto_or_size),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer"}, {"type": "string"}]}),
]
AutoMemory = Annotated[
    Annotated[int, Field(ge=64 * 1024 * 1024)] | None,
    BeforeValidator(_auto_or_size),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer"}, {"type": "string"}]}),
]
AutoNumber = Annotated[
    Annotated[float, Field(ge=0, le=1e9)] | None,
    BeforeValidator(_auto_or_number),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "number", "minimum": 0, "maximum": 1e9}]}),
]
OnStaleName = Literal["own_count", "last_known", "refuse", "admit"]
ModeName = Literal["enforce", "shadow", "bypass"]
ListenAddress = Annotated[
    Address,
    BeforeValidator(parse_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["0.0.0.0:8080"]}),
]


class Profile(Strict):
    """How fast an engine is: `learn`, the name of a profile that comes with Forebay, a file, or one number."""

    name: str | None = None
    """A profile's name or file. Unset with `tokens_per_gpu_second` unset means: learn while running."""
    tokens_per_gpu_second: Annotated[float, Field(ge=0.001, le=1e9)] | None = None
    """The simplest profile: prompt and output tokens together that one GPU gets through per second when busy."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, Profile):
            return value
        if value in ({}, "learn"):
            return {}
        if isinstance(value, str) and value:
            return {"name": value}
        if isinstance(value, dict) and set(value) == {"tokens_per_gpu_second"}:
            return value
        raise ValueError("expected learn, a profile's name, a file, or {tokens_per_gpu_second: NUMBER}")


_PROFILE_JSON_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": ["learn", "llama3-8b-h100x1-bf16", "measured.json"]},
        {
            "type": "object",
            "properties": {"tokens_per_gpu_second": {"type": "number", "minimum": 0.001, "maximum": 1e9}},
            "required": ["tokens_per_gpu_second"],
            "additionalProperties": False,
        },
    ]
}


class Pool(Strict):
    """Endpoints that serve the same models and share one set of queues."""

    name: str = "default"
    """In metrics, logs and errors. Needed as soon as there is more than one pool."""
    endpoints: Annotated[list[Endpoint], Field(min_length=1, max_length=1000)]
    """The engines, each `http://HOST:PORT` or `https://HOST:PORT`."""
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    """Certificates (PEM) of those who sign the certificates of `https://` engines; unset means the system's."""
    engine: Annotated[EngineEntry, Field(json_schema_extra=or_name)] = EngineEntry()
    """The engine family: `auto` looks at what the server answers, `trtllm` is TensorRT-LLM, behind Triton or by itself,
    `openai` is any server without metrics we know. Or a mapping that also says which metrics to read."""
    gpus: Annotated[int, Field(ge=1, le=4096)] | None = None
    """GPUs per endpoint: turns an endpoint's time into GPU-seconds. Unset means the profile's, else 1."""
    gpu_metrics: Annotated[GpuMetrics, WithJsonSchema(GPU_METRICS_JSON_SCHEMA)] | None = None
    """DCGM exporters that tell how busy the GPUs are: `gpu_utilization` in rules. A list, or with labels that say which
    GPUs are meant. Unset: what is seen of the pool itself."""
    profile: Annotated[Profile, WithJsonSchema(_PROFILE_JSON_SCHEMA)] = Profile()
    """Speed to start from. `learn` begins optimistic, so that nothing is refused on a guess, and corrects itself."""
    max_gpu_seconds: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Bound on queued and running work of the pool, times `headroom`; unset is unlimited (wait budgets still hold)."""
    headroom: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Part of each capacity limit that is used; the rest absorbs estimates that were too low."""
    max_inflight_requests: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Per endpoint; unset means found from what the engine shows."""
    max_inflight_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """KV tokens booked per endpoint; unset means the engine's KV capacity."""
    max_pool_requests: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """In flight over all endpoints; unset is unlimited."""
    max_output_tokens: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Longest answer. A client that states a higher limit is refused (413); where it states none, a stream ends here
    with `stream_limit`. Unset is unlimited."""
    inject_limit: bool = False
    """Where a client states no limit, put `max_output_tokens` into its request instead: the engine ends the answer,
    also one that is not streamed."""
    max_queue: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """Waiting requests over all classes; unset is unlimited, 0 refuses whatever cannot start at once."""
    models: Annotated[list[str], Field(min_length=1)] | None = None
    """Model names served here, `*` stands for anything; unset means what the endpoints list."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """The model's `tokenizer.json`, or the folder that has it: prompts are counted exactly with it, and what a chat
    template adds is learned. Needs `pip install 'forebay[tokenizer]'`. Unset: tokens are estimated from bytes, at a
    ratio that is learned for each model."""
    pass_priority: bool = False
    """Tell vLLM and SGLang how important requests are: the `priority` field of the body becomes the rank of the
    class, as that engine counts, and 0 is the least important one (vLLM: -2, -1, 0, SGLang: 2, 1, 0 for three). The
    engine must be started for it (vLLM: `--scheduling-policy priority`, SGLang: `--enable-priority-scheduling`), or it
    refuses such requests. `/v1/messages`, audio and images have no such field: they count as of the least important
    class there."""
    fallback: str | None = None
    """Name of the pool that is tried with what this one turns away for overload or for want of an engine, with a model
    that it serves. It may have a fallback itself; nobody takes more than three steps."""
    group: str | None = None
    """Pools that name the same group share their GPUs: each has its part of them, and what one does not use the others
    borrow."""
    share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Its guaranteed part of the GPU time of its group; unset means an equal part of what the shares of the others
    leave. All shares of a group are 1 at most."""
    poll_interval: Annotated[Duration, Field(ge=0.05, le=60)] = 0.2
    """Shortest time between two readings of an engine's metrics; they slow down by themselves when costly."""
    on_stale: OnStaleName = "own_count"
    """At an engine that no longer tells its load, for classes that do not say themselves: go by own books
    (`own_count`), by the last sample (`last_known`), refuse, or let all in (`admit`)."""
    audio_gpu_seconds: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """What a request to the audio paths is taken to cost: a transcription, a translation, or speech."""
    image_gpu_seconds: Annotated[float, Field(gt=0, le=1e6)] = 5.0
    """What each picture is taken to cost that a request to the image paths asks for."""
    hold_without_endpoints: Annotated[Duration, Field(ge=0, le=3600)] = 0.0
    """How long requests wait when no endpoint can serve them; 0 answers 503 at once."""
    wait_predictor: Literal["backlog", "plain"] = "backlog"
    """`backlog`: work ahead ÷ drain rate. `plain`: all work in flight and ahead ÷ drain rate, which refuses earlier."""
    queue_policy: Literal["latency", "balanced", "throughput"] | None = None
    """Ceiling on the pool's utilisation: 0.70, 0.85 or 0.95. Unset is none."""
    passthrough: Annotated[list[str], Field(max_length=100, default_factory=list)]
    """Further paths that are passed to these engines as they are, with any method and without admission; `/name/*`
    stands for all below. For what is not served otherwise: with it clients may reach what administers an engine."""
    forward_authorization: bool = False
    """Where tenants have keys, these are for Forebay and engines do not see them; true sends them on all the same."""
    upstream_key: Annotated[SecretStr, Field(min_length=1)] | None = None
    """API key of the engines. It is sent in place of whatever key a client sends, also with readings of metrics. Better
    set as FOREBAY_POOLS__0__UPSTREAM_KEY than in a file."""
    mode: ModeName | None = None
    """What is done with decisions in this pool; unset means what the class or the top of the file says. Where class and
    pool both say something, the one that interferes less holds."""

    @field_validator("name", "group")
    @classmethod
    def _name_is_plain(cls, value: str | None) -> str | None:
        return None if value is None else plain_name(value)

    @field_validator("upstream_key")
    @classmethod
    def _key_fits_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not (
            value.get_secret_value().isascii() and value.get_secret_value().isprintable()
        ):
            raise ValueError("a key has printable ASCII characters only; is there a line break at its end?")
        return value

    @field_validator("passthrough")
    @classmethod
    def _passed_paths_are_paths(cls, value: list[str]) -> list[str]:
        for path in value:
            if _PASSED_PATH.fullmatch(path) is None:
                raise ValueError(f"found {path[:60]!r}; a path is like /name/more, and may end with /*")
        return value

    @field_validator("models")
    @classmethod
    def _models_are_names(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and not all(value):
            raise ValueError("a model name is empty")
        return value


class ClassEntry(Strict):
    """A priority class. The order in the file is the rank: first is most important."""

    ttft: Annotated[Duration, Field(gt=0, le=86400 * 7)] | None = None
    """Objective: arrival to first token. Needed unless the class is realtime, standard or batch."""
    tpot: Annotated[Duration, Field(gt=0, le=86400)] | None = None
    """Objective: mean time per output token after the first. 120ms if unset."""
    whole_answer: Annotated[Duration, Field(gt=0, le=86400 * 7)] | None = None
    """Objective of answers that are not streamed: arrival to the whole answer. Unset means `ttft` + `tpot` × output
    tokens."""
    wait_budget: Annotated[Duration, Field(ge=0, le=86400 * 7)] | None = None
    """Longest a request may wait here, predicted or real; unset means the TTFT objective."""
    weight: Annotated[float, Field(ge=0.001, le=1e6)] | None = None
    """Share of GPU time relative to other classes while both wait. 1 if unset."""
    value: Annotated[float, Field(ge=0.001, le=1e6)] | None = None
    """Worth of one request that meets its objective, relative to other classes: where not all can be on time, the least
    worth for its cost goes. 1 if unset."""
    max_queue: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """Waiting requests of this class; unset is unlimited, 0 refuses whatever cannot start at once."""
    max_queue_gpu_seconds: AutoNumber = None
    """Waiting work of this class; `auto` is drain rate × the class's share × wait budget, once the pool has learned."""
    idle_stream: Annotated[Duration, Field(gt=0)] = 60.0
    """A running request from which no byte has come for this long is ended."""
    on_stale: OnStaleName | None = None
    """At an engine that no longer tells its load: go by own books, by the last sample, refuse, or let all in. Unset
    means what the pool says."""
    order: Literal["sjf", "fifo", "edf"] = "sjf"
    """Among one tenant's waiting requests: shortest first with aging, first come first served, or the one that must
    start soonest."""
    aging: Annotated[Duration, Field(ge=0.001, le=86400 * 7)] | None = None
    """With `sjf`: a request of twice the cost is overtaken for this long at most, of four times the cost for twice as
    long. Unset means half the wait budget."""
    short_tokens: Annotated[int, Field(ge=0)] = 0
    """Requests expected to make fewer output tokens than this are short."""
    short_weight: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    """With `sjf`: a short request is ordered as if its cost were divided by this."""
    max_share: Annotated[float, Field(ge=0.001, le=1)] = 1.0
    """Part of the pool's GPU time that this class may get while others wait; above it nothing of it starts then."""
    admit_below_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Requests of this class start only while the pool is used less than this (`forebay_utilization`); for work that
    fills gaps. Unset is no ceiling."""
    max_stream: NoneOrDuration = None
    """A stream that took longer is ended while others wait, those that took longest first; `none` for no limit. Unset
    means 5m, and none for batch."""
    confidence: Annotated[float, Field(gt=0, lt=1)] | None = None
    """A request is refused if this quantile of its predicted wait is over its budget. Unset means 0.9 for realtime, 0.5
    otherwise."""
    waiting_comments: Annotated[Duration, Field(ge=1, le=3600)] | None = None
    """How often the client of a streamed request is sent an SSE comment until its first event comes, against clients
    and proxies that give up on silence; `15s` suits most. The answer then begins with status 200, and a refusal is told
    as an error event in it. Unset: nothing is sent before the answer begins."""
    never_refuse: bool = False
    """Its requests wait for as long as it takes, beyond the wait budget and all bounds but that on bytes, and are never
    displaced. Only a deadline that the client states, and what can never be served, ends that."""
    mode: ModeName | None = None
    """What is done with decisions about this class; unset means what the pool or the top of the file says."""


class Limits(Strict):
    """Bounds on what one process holds."""

    max_body: Annotated[Size, Field(ge=1024, le=1 << 32)] = 32 * 1024 * 1024
    """Largest request body; larger ones are answered 413."""
    memory: AutoMemory = None
    """Memory that this process may use; `auto` is the limit that it lives under, its control group's or else the
    machine's."""
    max_waiting_bytes: AutoSize = None
    """Bodies of all waiting requests; `auto` is a quarter of `memory`. Bodies at engines that have not begun to answer
    are kept as well, in case that another has to be asked: they may take as much again."""
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 16_384
    """Connections of clients at once; whoever waits has one. Never more than half of the files that the process may
    have open: each request that runs needs a second one."""
    head_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 10.0
    """Time for a client to send its request head."""
    connect_timeout: Annotated[Duration, Field(ge=0.01, le=60)] = 2.0
    """Time for a connection to an engine to be made; a request that has to wait longer is sent to another engine."""
    answer_timeout: Annotated[Duration, Field(ge=0.1, le=86400)] = 600.0
    """Time from when a request is sent to an engine to the first byte of an answer that is not streamed; then another
    engine is asked, or the client told 504. For streams that is `idle_stream` of the class."""


class Config(Strict):
    """A whole configuration."""

    listen: ListenAddress = Address("127.0.0.1", 8080)
    """Where clients connect."""
    ssl_certfile: Annotated[str, Field(min_length=1)] | None = None
    """Certificate (PEM, with its chain) for clients: with it they connect by `https://`. When the file changes, new
    connections get the new one."""
    ssl_keyfile: Annotated[str, Field(min_length=1)] | None = None
    """Its private key (PEM, without a password); unset means that it stands in `ssl_certfile`."""
    admin: ListenAddress = Address("127.0.0.1", 9321)
    """Health, metrics and the admin API. Off loopback, `/api/` needs `admin_token`."""
    admin_token: Annotated[SecretStr, Field(min_length=8)] | None = None
    """Bearer credential for `/api/` on the admin port. Better set as FOREBAY_ADMIN_TOKEN than in a file."""
    metrics_tenants: bool | None = None
    """Tenant names as metric labels; unset means only while the admin port is on loopback."""
    mode: ModeName = "enforce"
    """What is done with decisions. `shadow`: they are made and recorded, and every request goes to an engine at once.
    `bypass`: none is made. Can be changed live (`forebay mode`)."""
    overload_status: Literal[429, 503, 529] = 429
    """HTTP status of refusals for contended capacity. 5xx makes proxies think that the gateway is broken."""
    pools: Annotated[list[Pool], Field(min_length=1, max_length=1000)]
    """At least one."""
    classes: Annotated[dict[str, ClassEntry], Field(min_length=1, max_length=64)] | None = None
    """Priority classes by rank; unset means realtime, standard, batch with their documented objectives."""
    rules: Annotated[list[RuleEntry], Field(max_length=200, default_factory=list)]
    """Tried in this order; of each kind of action (class, pool, model, and refuse or accept) the first that matches
    counts."""
    default_class: str | None = None
    """Class of requests that name none; unset means `standard`, or the only class there is."""
    plans: Annotated[dict[str, PlanEntry], Field(max_length=1000)] | None = None
    """What tenants may have, by the plan's name."""
    tenants: Annotated[list[TenantEntry], Field(max_length=10_000, default_factory=list)]
    """Those who have API keys. With any key configured, an unknown one is answered 401."""
    anonymous: AnonymousPolicy | None = None
    """Requests without a key: `refuse`, or `{plan: NAME}`. Unset means refuse where a tenant has a key, and else let
    everybody in."""
    trusted_proxies: Annotated[list[Network], Field(max_length=1000, default_factory=list)]
    """Networks of proxies whose `x-forebay-tenant` is believed; from anybody else it is ignored."""
    cors_origins: Annotated[list[Origin], Field(max_length=1000, default_factory=list)]
    """Web pages that may call from a browser, as in `https://chat.example.com`; `"*"` is any page."""
    class_order: Literal["weighted", "strict"] = "weighted"
    """`weighted`: classes share GPU time by weight. `strict`: by rank, with its part of all weights as floor."""
    displace: Literal["off", "lower", "same"] = "lower"
    """Which waiting requests a newcomer may push out when a bound is reached: none, those of less important classes, or
    those of its own class as well; with `same` also when not all of its class can be on time."""
    retries: Literal["prefer", "equal", "penalise"] = "equal"
    """Requests that say that they are retries: `prefer` orders them among their tenant's requests as if they had come
    one wait budget earlier; `penalise` as if they had come one later."""
    retry_header: str | None = None
    """One more header that says which retry a request is, beside `x-stainless-retry-count`: a number, or anything for
    the first."""
    refuse_hopeless: bool = False
    """Refuse a client's deadline that even an idle engine could not meet (400); otherwise it is only recorded."""
    state_file: str = "auto"
    """Where what was learned of engines is kept over restarts: a file, `auto` (under the user's state directory), or
    `none`."""
    record: RecordEntry | None = None
    """Where each request that ends leaves a line, for `forebay report` and other tools; unset means nowhere."""
    limits: Limits = Limits()
    """Bounds on what one process holds."""
    grace: Annotated[Duration, Field(ge=0, le=86400)] = 30.0
    """Longest a shutdown takes after SIGTERM; what still runs then is cut. Waiting requests have half of it to
    start."""
    notice: Annotated[Duration, Field(ge=0, le=3600)] = 0.0
    """First part of the grace time: readiness is down already but requests are still served, so that load
    balancers can look away."""

    @field_validator("plans")
    @classmethod
    def _plan_names_are_plain(cls, value: dict[str, PlanEntry] | None) -> dict[str, PlanEntry] | None:
        return plans_have_plain_names(value)

    @field_validator("retry_header")
    @classmethod
    def _retry_header_is_free(cls, value: str | None) -> str | None:
        return None if value is None else free_header(value)

    @field_validator("classes", "plans", mode="before")
    @classmethod
    def _bare_classes(cls, value: Any) -> Any:
        """`realtime:` with nothing after it means its defaults."""
        if isinstance(value, dict):
            return {key: {} if entry is None else entry for key, entry in value.items()}
        return value

    @field_validator("classes")
    @classmethod
    def _class_names_are_plain(cls, value: dict[str, ClassEntry] | None) -> dict[str, ClassEntry] | None:
        for name in value or {}:
            plain_name(name)
        return value


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file."""
    schema = Config.model_json_schema()
    write_defaults(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
