"""Claims about heads as values."""

from __future__ import annotations

import pytest

from forebay.http.message import (
    STATUS_LINES,
    connection_options,
    encode_headers,
    encode_request_head,
    end_to_end_headers,
    get_header,
    status_line,
)


def test_get_header_finds_the_first_value() -> None:
    """The first field of a name is found, and a missing one is None."""
    headers = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]
    assert get_header(headers, b"a") == b"1"
    assert get_header(headers, b"c") is None


def test_hop_by_hop_fields_are_not_passed_on() -> None:
    """Fields about the connection, those that Connection names, and the caller's own list are left out."""
    headers = [
        (b"host", b"h"),
        (b"connection", b"Keep-Alive, X-Secret"),
        (b"keep-alive", b"timeout=5"),
        (b"x-secret", b"s"),
        (b"te", b"trailers"),
        (b"upgrade", b"h2c"),
        (b"transfer-encoding", b"chunked"),
        (b"proxy-authorization", b"p"),
        (b"content-type", b"application/json"),
    ]
    assert [(b"content-type", b"application/json")] == end_to_end_headers(headers, (b"host",))


@pytest.mark.parametrize("options", [b"keep-alive", b"close"])
def test_plain_connection_fields_name_nothing(options: bytes) -> None:
    """The two usual values of Connection remove nothing but the field itself."""
    assert [(b"a", b"1")] == end_to_end_headers([(b"connection", options), (b"a", b"1")])


def test_connection_options_are_joined_over_fields() -> None:
    """Options of several Connection fields are one list, lower case."""
    headers = [(b"connection", b"Close , a"), (b"x", b"y"), (b"connection", b"B")]
    assert [b"close", b"a", b"b"] == connection_options(headers)


@pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb", b"a\rb", b"a\0b", b"\r\n"])
def test_a_value_cannot_end_its_line(value: bytes) -> None:
    """A header value with a line break or NUL is refused instead of being sent."""
    with pytest.raises(ValueError, match="line break or NUL"):
        encode_headers([(b"a", b"1"), (b"x", value)])


def test_headers_are_encoded_in_order() -> None:
    """Fields go on the wire one line each, in their order."""
    assert encode_headers([(b"b", b"2"), (b"a", b"")]) == b"b: 2\r\na: \r\n"
    assert encode_headers([]) == b""


def test_every_status_has_a_line() -> None:
    """Well-known statuses carry their phrase; others an empty one."""
    assert STATUS_LINES[429] == b"HTTP/1.1 429 Too Many Requests\r\n"
    assert status_line(503) == b"HTTP/1.1 503 Service Unavailable\r\n"
    assert status_line(599) == b"HTTP/1.1 599 \r\n"


def test_request_head_is_complete() -> None:
    """A request head ends with the empty line, and declares its body if there is one."""
    headers = [(b"host", b"h:1")]
    assert (
        encode_request_head(b"GET", b"/a", headers, content_length=None)
        == b"GET /a HTTP/1.1\r\nhost: h:1\r\n\r\n"
    )
    with_body = encode_request_head(b"POST", b"/a?b", headers, content_length=0)
    assert with_body == b"POST /a?b HTTP/1.1\r\nhost: h:1\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize("target", [b"/a b", b"/a\r\nx: y", b"/a\n"])
def test_a_target_cannot_break_the_request_line(target: bytes) -> None:
    """A target with a blank or a line break is refused instead of being sent."""
    with pytest.raises(ValueError, match="encode it"):
        encode_request_head(b"GET", target, [], content_length=None)
