"""Who a request comes from: keys, proxies, plans, and what of it ever leaves."""

from __future__ import annotations

from hashlib import sha256
from ipaddress import ip_network

import pytest

from forebay.admission.model import ANONYMOUS
from forebay.gateway.asks import Ask, BadRequest
from forebay.gateway.headers import read_claims
from forebay.gateway.identity import NOBODY, Access, Denied, Plan, Tenant, nearest_classes

CLASSES = ("realtime", "standard", "batch")
FREE = Plan("free", nearest_classes(CLASSES, ("batch",)), ("small-*",), requires_limit=True)
ACME, BIG = Tenant("acme", FREE), Tenant("big")
KEY, OTHER = b"sk-acme-secret", b"sk-big-secret"


def access(
    anonymous: Tenant | None = None, *, trusted: tuple[str, ...] = (), passes_credentials: bool = False
) -> Access:
    """Two tenants with a key each."""
    return Access(
        CLASSES,
        tenants={"acme": ACME, "big": BIG},
        keys={sha256(KEY).digest(): ACME, sha256(OTHER).digest(): BIG},
        anonymous=anonymous,
        trusted=tuple(ip_network(network) for network in trusted),
        passes_credentials=passes_credentials,
    )


def denial(*headers: tuple[bytes, bytes], to: Access | None = None, address: str | None = None) -> bytes:
    """The whole answer to somebody who is not let in."""
    with pytest.raises(Denied) as caught:
        (to or access()).identify(list(headers), address)
    answer = caught.value.answer
    assert (401, "invalid_api_key") == (answer.status, answer.code)
    return repr(answer.headers).encode() + answer.body


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer " + KEY),
        (b"authorization", b"bearer  " + KEY),
        (b"x-api-key", KEY),
    ],
)
def test_a_key_is_its_tenant(header: tuple[bytes, bytes]) -> None:
    """Both headers that SDKs use are read."""
    assert ACME is access().identify([header], None)


def test_same_key_twice_is_one_key_and_two_keys_are_none() -> None:
    """Some clients send their key in both headers; two different keys would leave open who pays."""
    assert ACME is access().identify([(b"authorization", b"Bearer " + KEY), (b"x-api-key", KEY)], None)
    assert b"two different" in denial((b"authorization", b"Bearer " + KEY), (b"x-api-key", OTHER))


@pytest.mark.parametrize(
    "value", [b"Bearer sk-acme-secret2", b"Bearer sk-acme-secre", b"Bearer " + KEY.upper()]
)
def test_unknown_keys_are_refused_and_not_repeated(value: bytes) -> None:
    """A key that is nearly right is wrong, and no part of it is in the answer."""
    said = denial((b"authorization", value))
    assert b"acme" not in said.lower()
    assert b"Bearer" in said  # the scheme that is asked for


@pytest.mark.parametrize(
    "header", [(b"authorization", b"Basic " + KEY), (b"authorization", b"Bearer "), (b"a", b"b")]
)
def test_without_a_key_it_is_the_policy_for_anonymous_requests(header: tuple[bytes, bytes]) -> None:
    """Refused, or the account of all who have none."""
    assert b"Authorization: Bearer KEY" in denial(header)
    guests = Tenant(ANONYMOUS, FREE)
    assert guests is access(guests).identify([header], None)


def test_a_wrong_key_is_refused_even_where_none_is_needed() -> None:
    """A misspelt key must not quietly become the plan of strangers."""
    denial((b"x-api-key", b"nope"), to=access(Tenant(ANONYMOUS, FREE)))


def test_tenant_header_counts_from_trusted_proxies_only() -> None:
    """From anybody else it says nothing, not even in place of a key."""
    named = (b"x-forebay-tenant", b"big")
    proxied = access(trusted=("10.0.0.0/8", "fd00::/8"))
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7", "fd00::7%eth0"):
        assert BIG is proxied.identify([named, (b"x-api-key", KEY)], address)
    others: tuple[str | None, ...] = ("11.0.0.1", "fe80::1", "", "nonsense", None)
    for other in others:
        denial(named, to=proxied, address=other)
        assert ACME is proxied.identify([named, (b"x-api-key", KEY)], other)
    denial(named, to=access(), address="10.1.2.3")


def test_unlisted_tenants_of_a_proxy_are_as_anonymous_ones_under_their_names() -> None:
    """They have the plan of anonymous requests, each for itself, or are refused with them."""
    named = (b"x-forebay-tenant", b"new one")
    proxied = access(Tenant(ANONYMOUS, FREE), trusted=("10.0.0.0/8",))
    assert Tenant("new one", FREE) == proxied.identify([named], "10.0.0.1")
    denial(named, to=access(trusted=("10.0.0.0/8",)), address="10.0.0.1")
    for value in (b"x" * 101, b"caf\xc3\xa9", b"a\tb"):
        denial((b"x-forebay-tenant", value), to=proxied, address="10.0.0.1")


def test_with_nothing_configured_everybody_is_one() -> None:
    """Whatever they send."""
    assert NOBODY is Access().identify([(b"x-forebay-tenant", b"acme"), (b"x-api-key", b"x")], "10.0.0.1")


def test_classes_are_clamped_down_to_the_nearest() -> None:
    """The next less important one that the plan has; where none is, the least important that it has."""
    assert {"realtime": "standard", "standard": "standard", "batch": "standard"} == nearest_classes(
        CLASSES, ("realtime", "standard")
    ) | {"realtime": "standard"}
    assert {"realtime": "realtime", "standard": "batch", "batch": "batch"} == nearest_classes(
        CLASSES, ("batch", "realtime")
    )
    assert {"realtime": "realtime", "standard": "realtime", "batch": "realtime"} == nearest_classes(
        CLASSES, ("realtime",)
    )


def test_claim_and_default_are_clamped() -> None:
    """Who claims more than the plan has gets what it has, and so does who claims nothing."""
    key = (b"x-api-key", KEY)
    assert "batch" == read_claims([key, (b"x-forebay-class", b"realtime")], access()).class_name
    assert "batch" == read_claims([key], access()).class_name
    assert (
        "realtime"
        == read_claims([(b"x-api-key", OTHER), (b"x-forebay-class", b"realtime")], access()).class_name
    )
    assert "standard" == read_claims([(b"x-api-key", OTHER)], access()).class_name


def test_credentials_are_kept_apart_where_not_every_pool_gets_them() -> None:
    """What goes to every engine holds no key; what engines that take it are sent is the same as came."""
    headers = [(b"authorization", b"Bearer " + KEY), (b"a", b"b"), (b"x-api-key", KEY)]
    claims = read_claims(headers, access())
    assert b"a: b\r\n" == claims.forward
    assert b"authorization: Bearer %b\r\nx-api-key: %b\r\n" % (KEY, KEY) == claims.credentials
    passed = read_claims(headers, access(passes_credentials=True))
    assert (3, b"") == (passed.forward.count(b"\r\n"), passed.credentials)
    named = read_claims([*headers, (b"connection", b"authorization")], access())
    assert b"x-api-key: %b\r\n" % KEY == named.credentials


def test_a_plan_may_ask_for_a_limit_and_names_its_models() -> None:
    """400 names the field, 403 the models."""
    served = ("large", "small-8b")
    assert FREE.check(Ask("small-8b", stream=False, prompt_bytes=1, max_output_tokens=5), served) is None
    assert Plan("all", {}).check(Ask(None, stream=False, prompt_bytes=1), served) is None
    with pytest.raises(BadRequest) as bad:
        FREE.check(Ask("small-8b", stream=False, prompt_bytes=1), served)
    assert "max_tokens" == bad.value.param
    with pytest.raises(BadRequest) as bad:
        FREE.check(Ask("small-8b", stream=False, prompt_bytes=1), served, "max_output_tokens")
    assert "max_output_tokens" == bad.value.param
    FREE.check(Ask("small-8b", stream=False, prompt_bytes=1, generates=False), served)
    FREE.check(Ask("small-8b", stream=False, prompt_bytes=1), served, "")
    with pytest.raises(Denied) as denied:
        FREE.check(Ask("large", stream=False, prompt_bytes=1, max_output_tokens=5), served)
    assert (403, "model_not_allowed") == (denied.value.answer.status, denied.value.answer.code)
    assert b"small-*" in denied.value.answer.body


def test_who_names_no_model_gets_the_first_that_the_plan_has() -> None:
    """Said to the engine, which might serve another one by itself; 403 if there is none, 400 if nobody knows."""
    ask = Ask(None, stream=False, prompt_bytes=1, max_output_tokens=5)
    assert "small-8b" == FREE.check(ask, ("large", "small-8b", "small-3b"))
    assert "small-8b" == FREE.check(ask, ("small-*", "small-8b"))
    with pytest.raises(Denied) as denied:
        FREE.check(ask, ("large",))
    assert (403, "model_not_allowed") == (denied.value.answer.status, denied.value.answer.code)
    for unknown in ((), ("*",)):
        with pytest.raises(BadRequest) as bad:
            FREE.check(ask, unknown)
        assert "model" == bad.value.param
        assert "small-*" in bad.value.message


def test_a_tenant_named_twice_is_nobody() -> None:
    """A proxy that adds its header behind its client's own would let the client choose: neither is believed."""
    proxied = access(trusted=("10.0.0.0/8",))
    headers = [(b"x-forebay-tenant", b"acme"), (b"x-forebay-tenant", b"big")]
    with pytest.raises(Denied) as caught:
        proxied.identify(headers, "10.0.0.1")
    assert 400 == caught.value.answer.status
    assert b"acme" not in caught.value.answer.body
    with pytest.raises(Denied) as caught:
        proxied.identify(headers, "192.0.2.1")  # from elsewhere they say nothing, as ever
    assert 401 == caught.value.answer.status
