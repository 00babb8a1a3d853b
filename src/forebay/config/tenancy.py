"""Plans, tenants and proxies: the keys by which requests are told apart, and what each may have. Pure."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, field_validator, model_validator

from forebay.config.secret_keys import quoted
from forebay.config.strict import Strict, plain_name

__all__ = [
    "Anonymous",
    "AnonymousPolicy",
    "KeyDigest",
    "Network",
    "PlanEntry",
    "TenantEntry",
    "plans_have_plain_names",
]

_DIGEST: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")
_TENANT: Final = re.compile(r"[!-~](?:[ -~]{0,98}[!-~])?")


def _digest(value: object) -> str:
    """The key's digest in lower case. What was found is never repeated: it may be a key."""
    found = _DIGEST.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(
            "expected sha256: and 64 hexadecimal digits, never the key itself; make it with "
            "`printf %s KEY | sha256sum`"
        )
    return found[1].lower()


def _network(value: object) -> IPv4Network | IPv6Network:
    if isinstance(value, IPv4Network | IPv6Network):
        return value
    if not isinstance(value, str):
        raise ValueError("expected an address or a network, as in 10.0.0.0/8")
    try:
        return ip_network(value)
    except ValueError as error:
        why = "; it has host bits set" if "host bits" in str(error) else ""
        raise ValueError(f"found {quoted(value)}, expected a network as in 10.0.0.0/8{why}") from None


KeyDigest = Annotated[
    str,
    BeforeValidator(_digest),
    WithJsonSchema({"type": "string", "pattern": "^sha256:[0-9a-fA-F]{64}$"}),
]
Network = Annotated[
    IPv4Network | IPv6Network,
    BeforeValidator(_network),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.0/8", "fd00::/8"]}),
]


class PlanEntry(Strict):
    """What the tenants of a plan may have. What is left out is not limited; 0 lets nothing through."""

    classes: Annotated[list[str], Field(min_length=1)] | None = None
    """Classes that may be claimed; unset is all. Another one is taken for the next less important one of these, and if
    there is none for the least important of them."""
    weight: Annotated[float, Field(ge=0.001, le=1e6)] = 1.0
    """Share of each of its tenants in GPU time, relative to other tenants that wait in the same class."""
    never_refuse: bool = False
    """Requests of its tenants wait for as long as it takes, as in a class that says so. The limits of the plan hold."""
    models: Annotated[list[str], Field(min_length=1)] | None = None
    """Models that may be asked for, `*` stands for anything; unset is all. Others are answered 403, and no `fallback`
    gives them; who names none gets the first of the pool that is among them. A rule may give any."""
    tokens_per_second: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Tokens of each tenant, input and output together. Charged as expected when a request is let in, settled when it
    is over: whoever gets only a part of an answer pays for that part."""
    burst: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Tokens that a tenant may use at once after a pause. Unset is what comes in a minute. A request of more passes
    when all of it is there, and leaves a debt; one whose input alone is more is answered 400."""
    requests_per_second: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Requests of each tenant."""
    requests_burst: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """Requests that a tenant may send at once after a pause. Unset is what comes in a second, and at least 1."""
    max_inflight: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """Requests of each tenant that wait or run."""
    max_inflight_gpu_seconds: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """Their expected work. A request of more passes when the tenant has nothing else in flight."""
    bill: Literal["estimate", "cap"] = "estimate"
    """What counts as output against `tokens_per_second`: what is expected, and in the end what came; or the most that
    the request allows, from beginning to end."""
    require_max_tokens: bool = False
    """Requests that state no limit of their answer are answered 400."""

    @field_validator("models")
    @classmethod
    def _models_are_names(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and not all(value):
            raise ValueError("a model name is empty")
        return value


class TenantEntry(Strict):
    """Somebody with keys of their own."""

    name: str
    """In logs, metrics and decisions; what `x-forebay-tenant` says."""
    plan: str | None = None
    """Name of its plan; unset: all classes and models, and no limits."""
    keys: Annotated[list[KeyDigest], Field(default_factory=list)]
    """Its API keys as `sha256:` and the hexadecimal digest of the key, made with `printf %s KEY | sha256sum`."""

    @field_validator("name")
    @classmethod
    def _name_is_printable(cls, value: str) -> str:
        if _TENANT.fullmatch(value) is None:
            raise ValueError(
                f"found {quoted(value)}; a tenant's name has 1 to 100 printable ASCII characters"
            )
        return value


class Anonymous(Strict):
    """What requests without a key get: `refuse`, or `{plan: NAME}`."""

    plan: str | None = None
    """Name of a plan; None refuses them. All of them together are one tenant, `anonymous`, and share its limits."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, Anonymous):
            return value
        if value == "refuse":
            return {}
        if isinstance(value, dict) and set(value) == {"plan"} and isinstance(value["plan"], str):
            return value
        raise ValueError("expected refuse, or {plan: NAME}")


AnonymousPolicy = Annotated[
    Anonymous,
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "refuse"},
                {
                    "type": "object",
                    "properties": {"plan": {"type": "string"}},
                    "required": ["plan"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


def plans_have_plain_names(value: dict[str, PlanEntry] | None) -> dict[str, PlanEntry] | None:
    """For a validator. Raises: ValueError."""
    for name in value or {}:
        plain_name(name)
    return value
