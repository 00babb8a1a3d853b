"""What a browser is told, by where its page comes from."""

from __future__ import annotations

import pytest

from forebay.gateway.cors import CorsPolicy

PAGE = b"https://chat.example.com"
ONE = CorsPolicy((PAGE.decode(),))
ANY = CorsPolicy(("*",))


def test_who_may_read_is_told_to_pages_only() -> None:
    """A page that may is named, any other is not, and who is no page gets no lines at all."""
    assert ONE.lines_for([(b"origin", PAGE)]).startswith(
        b"access-control-allow-origin: https://chat.example.com\r\n"
    )
    assert b"vary: origin\r\n" == ONE.lines_for([(b"origin", b"https://evil.example")])
    assert b"vary: origin\r\n" == ONE.lines_for([(b"origin", b"null")])
    assert b"" == ONE.lines_for([(b"accept", b"*/*")])
    assert ANY.lines_for([(b"origin", b"https://evil.example")]).startswith(
        b"access-control-allow-origin: *\r\n"
    )
    assert not CorsPolicy(()).is_open


def test_refusals_can_be_read_by_scripts() -> None:
    """When to come back is among what is exposed."""
    lines = ONE.lines_for([(b"origin", PAGE)])
    for name in (b"retry-after", b"retry-after-ms", b"x-forebay-id", b"x-ratelimit-remaining-tokens"):
        assert name in lines


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (b"authorization,content-type", True),
        (b"authorization, x-stainless-retry-count", True),
        (b"", False),
        (b"a b", False),
        (b"authorization,", False),
        (b"x: y", False),
        (b"a" * 3000, False),
    ],
)
def test_a_preflight_may_send_any_fields_that_are_names(wanted: bytes, allowed: bool) -> None:
    """They are repeated, since a star would leave out Authorization; nothing else is."""
    answer = ONE.preflight([(b"access-control-request-headers", wanted)], b"POST, OPTIONS")
    said = dict(answer.headers)
    assert 204 == answer.status
    assert b"POST, OPTIONS" == said[b"access-control-allow-methods"]
    assert (wanted if allowed else None) == said.get(b"access-control-allow-headers")
