"""Who a request comes from: from its API key, or a trusted proxy's word, to a tenant and what its plan lets it ask for.

For: `headers`, which asks once for each head that is read. Owns the table of keys, as digests: no key is ever kept, and
since a key is looked up by its SHA-256, how long that takes tells nothing about those that exist. Immutable, and
replaced whole by a reload. Never puts anything of a key, right or wrong, into an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from forebay.admission.model import ANONYMOUS
from forebay.admission.patterns import first_granted, fits_any
from forebay.gateway.asks import Ask, BadRequest
from forebay.gateway.refusals import Answer, plain_error
from forebay.http.message import Headers

__all__ = ["CREDENTIALS", "NOBODY", "Access", "Denied", "Plan", "Tenant", "nearest_classes"]

CREDENTIALS: Final = (b"authorization", b"x-api-key")
"""Headers that carry a key."""
_TENANT: Final = b"x-forebay-tenant"
_TWO_TENANTS: Final = (
    "x-forebay-tenant is there more than once. Proxies must replace what clients send, not add to it."
)
_NO_KEY: Final = "An API key is needed here: send it as 'Authorization: Bearer KEY'."


class Denied(Exception):
    """Not let in; `answer` is what the client is told."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Plan:
    """What the tenants of a plan may ask for. How much of it is the core's business."""

    name: str
    classes: Mapping[str, str]
    """For each class that there is, the one that is given where it is asked for (`nearest_classes`)."""
    models: tuple[str, ...] | None = None
    """Names, `*` in them stands for anything; None is all."""
    requires_limit: bool = False
    """Requests must state how many tokens they may generate at most."""

    def check(self, ask: Ask, served: tuple[str, ...], limit_field: str = "max_tokens") -> str | None:
        """May this be asked for?

        Args:
            served: models of the pool that it goes to.
            limit_field: what the API calls an output limit; empty if it has none.

        Returns:
            What to ask the engine for where the client names no model: left alone it might serve one that the plan does
            not have. None: what the client says.

        Raises:
            BadRequest, Denied: it may not.
        """
        given: str | None = None
        models = self.models
        if models is not None:
            if ask.model is None:
                given = first_granted(served, models)
            if given is None and (ask.model is None or not fits_any(ask.model, models)):
                raise self._not_included(models, ask, served)
        if self.requires_limit and ask.generates and limit_field and ask.max_output_tokens is None:
            raise BadRequest(
                f"Your plan {self.name!r} needs a limit of the answer: set '{limit_field}'.", limit_field
            )
        return given

    def _not_included(self, models: tuple[str, ...], ask: Ask, served: tuple[str, ...]) -> Exception:
        has = ", ".join(models[:20]) + (", …" if len(models) > 20 else "")
        if ask.model is None and first_granted(served, None) is None:  # which models there are cannot be told
            return BadRequest(f"'model' is missing. Your plan {self.name!r} has: {has}.", "model")
        what = "the model that is served here" if ask.model is None else "this model"
        message = f"Your plan {self.name!r} does not include {what}. It has: {has}."
        return Denied(plain_error(403, "model_not_allowed", message, "model"))


@dataclass(frozen=True, slots=True)
class Tenant:
    """On whose account requests go."""

    name: str
    plan: Plan | None = None
    """None: nothing is limited."""


NOBODY: Final = Tenant(ANONYMOUS)
"""Everybody, where no key is asked for."""


def nearest_classes(classes: tuple[str, ...], granted: tuple[str, ...]) -> dict[str, str]:
    """For each class by rank, the granted one that stands for it: itself, else the next less important that is granted.

    Where none of those is, the least important of all that are granted.
    """
    least = [name for name in classes if name in granted][-1]
    nearest: dict[str, str] = {}
    for name in reversed(classes):
        if name in granted:
            least = name
        nearest[name] = least
    return nearest


class Access:
    """Who is let in, and as whom."""

    def __init__(
        self,
        classes: tuple[str, ...] = ("realtime", "standard", "batch"),
        default_class: str = "standard",
        *,
        tenants: Mapping[str, Tenant] | None = None,
        keys: Mapping[bytes, Tenant] | None = None,
        anonymous: Tenant | None = NOBODY,
        trusted: tuple[IPv4Network | IPv6Network, ...] = (),
        passes_credentials: bool = True,
        retry_header: str | None = None,
    ) -> None:
        """See the class.

        Args:
            classes: all that there are, by rank.
            default_class: of requests that name none.
            tenants: those that are configured, by name.
            keys: digests (SHA-256) of API keys, and whose they are.
            anonymous: whose account is used for requests without a key; None refuses them.
            trusted: networks of proxies whose `x-forebay-tenant` is believed.
            passes_credentials: every pool gets the credentials that clients send.
            retry_header: one more header that says which retry a request is.
        """
        self.classes = classes
        self.default_class = default_class
        self.passes_credentials = passes_credentials
        self.retry_header = None if retry_header is None else retry_header.encode("ascii")
        self._tenants = dict(tenants or {})
        self._keys = dict(keys or {})
        self._anonymous = anonymous
        self._trusted = trusted
        self._asks = bool(self._keys) or bool(trusted) or anonymous is not NOBODY

    def identify(self, headers: Headers, address: str | None) -> Tenant:
        """Whose request this is.

        Args:
            address: where the connection comes from.

        Raises:
            Denied: nobody's who may ask here.
        """
        if not self._asks:
            return NOBODY
        if self._trusted:
            named = [value for name, value in headers if name == _TENANT and value]
            if named and self._trusts(address):
                if len(named) > 1:
                    # One of them may be its client's own, and which one that is depends on the proxy.
                    raise Denied(plain_error(400, "invalid_request", _TWO_TENANTS, "x-forebay-tenant"))
                return self._named(named[0])
        found = self._by_key(headers) if self._keys else None
        if found is None:
            found = self._anonymous
            if found is None:
                raise Denied(_unauthorized(_NO_KEY))
        return found

    def class_for(self, tenant: Tenant, claimed: str | None) -> str:
        """The class of a request, by what it claims and what its plan grants."""
        name = self.default_class if claimed is None else claimed
        return name if tenant.plan is None else tenant.plan.classes[name]

    def _by_key(self, headers: Headers) -> Tenant | None:
        """The tenant of the key that is sent; None if none is."""
        key: bytes | None = None
        for name, value in headers:
            if name not in CREDENTIALS:
                continue
            sent = value if name == CREDENTIALS[1] else _bearer(value)
            if not sent:
                continue
            if key is not None and sent != key:
                raise Denied(_unauthorized("The request carries two different API keys; send one."))
            key = sent
        if key is None:
            return None
        tenant = self._keys.get(sha256(key).digest())
        if tenant is None:
            raise Denied(_unauthorized("This API key is not known here."))
        return tenant

    def _named(self, value: bytes) -> Tenant:
        """The tenant that a trusted proxy names. One that is not configured is as anonymous, under its own name."""
        name = value.decode("latin-1")
        if len(name) > 100 or not name.isprintable() or not name.isascii():
            raise Denied(_unauthorized("x-forebay-tenant is not a name of at most 100 printable characters."))
        known = self._tenants.get(name)
        if known is not None:
            return known
        if self._anonymous is None:
            raise Denied(_unauthorized("This tenant is not known here."))
        return Tenant(name, self._anonymous.plan)

    def _trusts(self, address: str | None) -> bool:
        if address is None:
            return False
        try:
            parsed = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._trusted)


def _bearer(value: bytes) -> bytes:
    """The token of an Authorization field; empty if it is of another scheme."""
    return value[7:].strip() if value[:7].lower() == b"bearer " else b""


def _unauthorized(message: str) -> Answer:
    return plain_error(401, "invalid_api_key", message, headers=[(b"www-authenticate", b"Bearer")])
