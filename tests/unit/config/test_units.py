"""Durations, sizes, addresses and URLs as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.units import (
    Address,
    EndpointUrl,
    parse_address,
    parse_duration_s,
    parse_endpoint_url,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("250 us", 0.00025),
        ("10µs", 0.00001),
        ("2 min", 120.0),
        ("2m", 120.0),
        ("1h30m", 5400.0),
        ("1d", 86400.0),
        ("0", 0.0),
        (0, 0.0),
        (" 3S ", 3.0),
    ],
)
def test_durations_are_read(text: object, seconds: float) -> None:
    """Durations in the usual spellings come out as seconds."""
    assert seconds == pytest.approx(parse_duration_s(text))


@pytest.mark.parametrize(
    "text", ["", "s", "5", "-5s", "5 parsecs", "1.5.5s", "1e3s", True, None, [1], 200, 1.5]
)
def test_durations_that_could_be_misread_are_refused(text: object) -> None:
    """A bare number or an unknown unit is an error that shows how to write it."""
    with pytest.raises(ValueError, match=r"ms"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("value", "fix"), [("30", "write 30s or 30ms"), (30, "write 30s or 30ms"), ("1.5", "1.5s")]
)
def test_a_number_without_unit_is_told_so(value: object, fix: str) -> None:
    """Text from an option and a number from a file get the same advice."""
    with pytest.raises(ValueError, match=f"has no unit; .*{fix}"):
        parse_duration_s(value)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32MiB", 32 << 20),
        ("2 MB", 2_000_000),
        ("512k", 512_000),
        ("512Ki", 512 << 10),
        (77, 77),
        ("1.5 GiB", 3 << 29),
    ],
)
def test_sizes_are_read(text: object, size: int) -> None:
    """Sizes with decimal and binary units, or as bytes, come out as bytes."""
    assert size == parse_size_bytes(text)


@pytest.mark.parametrize("text", ["", "MiB", "32 miles", "-1", -1, 1.5, True, None])
def test_sizes_that_are_none_are_refused(text: object) -> None:
    """What is no size is an error."""
    with pytest.raises(ValueError, match=r"size|unit"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        (":8080", Address("0.0.0.0", 8080)),
        ("8080", Address("127.0.0.1", 8080)),
        (8080, Address("127.0.0.1", 8080)),
        ("[::1]:9321", Address("::1", 9321)),
        ("forebay.svc:0", Address("forebay.svc", 0)),
    ],
)
def test_addresses_are_read(text: object, address: Address) -> None:
    """Listening addresses may leave out the host and may be IPv6 in brackets."""
    assert address == parse_address(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("127.0.0.1", "127.0.0.1:8080"),
        ("http://127.0.0.1:8080", "without a scheme"),
        ("::1:8080", "brackets"),
        ("[host]:80", "IPv6"),
        ("127.0.0.1:65536", "port"),
        ("127.0.0.1:", "port"),
        ("a b:80", "host"),
        (None, "HOST:PORT"),
    ],
)
def test_addresses_that_are_none_are_refused_with_the_fix(text: object, hint: str) -> None:
    """A wrong address is an error that says what is missing."""
    with pytest.raises(ValueError, match=hint.replace("[", r"\[")):
        parse_address(text)


def test_address_knows_whether_it_is_open_to_the_network() -> None:
    """Only loopback addresses count as loopback."""
    inside = [
        parse_address(text).is_loopback for text in ("127.0.0.1:1", "127.8.0.1:1", "[::1]:1", "localhost:1")
    ]
    outside = [parse_address(text).is_loopback for text in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", ":1")]
    assert [True] * 4 == inside
    assert [False] * 4 == outside


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.1:8000", EndpointUrl("10.0.0.1", 8000)),
        ("http://engine.svc/", EndpointUrl("engine.svc", 80)),
        ("http://localhost:8000/v1", EndpointUrl("localhost", 8000)),
        ("HTTP://[::1]:8000/v1/", EndpointUrl("::1", 8000)),
    ],
)
def test_endpoint_urls_are_read(text: str, url: EndpointUrl) -> None:
    """An endpoint is an origin; a base URL with /v1 means the same."""
    assert url == parse_endpoint_url(text)
    assert url == parse_endpoint_url(str(url))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("10.0.0.1:8000", "write http://10.0.0.1:8000"),
        ("wss://10.0.0.1:8000", "by http:// or https://"),
        ("ftp://10.0.0.1", "http://"),
        ("http://user:secret@host", "no user or password"),
        ("http://host/api/v1", "only scheme, host and port"),
        ("http://host?x=1", "only scheme, host and port"),
        ("http://host:0", "port 0"),
        ("http://host:99999", "cannot read"),
        ("http://", "names no host"),
        (5, "URL"),
    ],
)
def test_endpoint_urls_that_cannot_be_used_are_refused_with_the_fix(text: object, hint: str) -> None:
    """A wrong endpoint is an error that says what to write, and a password in it is not repeated."""
    with pytest.raises(ValueError, match=hint.replace("?", r"\?")) as caught:
        parse_endpoint_url(text)
    assert "secret" not in str(caught.value)


@given(st.one_of(st.text(max_size=40), st.integers(), st.floats(), st.none(), st.binary(max_size=10)))
def test_any_input_is_read_or_refused(value: object) -> None:
    """Whatever is given, a parser answers with a value or a ValueError."""
    for parse in (parse_duration_s, parse_size_bytes, parse_address, parse_endpoint_url):
        with contextlib.suppress(ValueError):
            parse(value)


@pytest.mark.parametrize(
    ("listen", "host", "port", "same"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80, True),
        ("127.0.0.1:80", "LOCALHOST", 80, True),
        ("127.0.0.1:80", "0.0.0.0", 80, True),
        ("localhost:80", "127.0.0.1", 80, True),
        ("0.0.0.0:80", "127.0.0.9", 80, True),
        ("0.0.0.0:80", "localhost", 80, True),
        ("[::]:80", "::1", 80, True),
        ("gateway.example:80", "Gateway.example.", 80, True),
        ("127.0.0.1:80", "127.0.0.1", 81, False),
        ("127.0.0.1:80", "127.0.0.2", 80, False),
        ("0.0.0.0:80", "10.0.0.1", 80, False),
        ("127.0.0.1:0", "127.0.0.1", 80, False),
    ],
)
def test_a_listener_knows_its_own_address(listen: str, host: str, port: int, same: bool) -> None:
    """A host and port that surely lead to a listener are known in all their spellings; others are not taken for it."""
    assert same == parse_address(listen).is_reached_at(host, port)
