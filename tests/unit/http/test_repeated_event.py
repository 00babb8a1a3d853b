"""Claims about events that are known again."""

from __future__ import annotations

import pytest

from forebay.http.repeated_event import KEPT_BYTES, TEXT_BYTES, VAIN_MAX, RepeatedEvent


def event(text: bytes, key: bytes = b"content", more: bytes = b"") -> bytes:
    """One event as it is sent."""
    return b'data: {"choices":[{"delta":{"%b":"%b"},"finish_reason":null}]%b}\n\n' % (key, text, more)


def kept(data: bytes) -> RepeatedEvent:
    """One that was looked into."""
    repeated = RepeatedEvent()
    assert not repeated.fits(data)
    repeated.keep(data)
    return repeated


@pytest.mark.parametrize(
    "key", [b"content", b"reasoning_content", b"text", b"delta", b"arguments", b"thinking"]
)
def test_another_text_fits(key: bytes) -> None:
    """Of any length up to a bound, in any language, also none."""
    repeated = kept(event(b" word", key))
    for text in (b" word", b"", b"{'usage': 1}", "水\U0001f600".encode(), b"x" * TEXT_BYTES):
        assert repeated.fits(event(text, key))
    assert not repeated.fits(event(b"x" * (TEXT_BYTES + 1), key))


@pytest.mark.parametrize(
    "other",
    [
        event(b'x","usage":{"completion_tokens":1},"y":"'),
        event(b"ends with a backslash\\"),
        event(b"two\n\ndata: events"),
        event(b"carriage\rreturn"),
        event(b"x", b"role"),
        event(b"x", more=b',"usage":{"completion_tokens":1}'),
        event(b"x")[:-1],
        event(b"x") + event(b"x"),
        event(b"x").replace(b"null", b'"stop"'),
        b"",
        b"data: [DONE]\n\n",
    ],
)
def test_anything_else_does_not(other: bytes) -> None:
    """It may have something in it."""
    assert not kept(event(b" word")).fits(other)


def test_only_the_value_of_a_text_is_a_text() -> None:
    """Of other keys the value may say what kind of event it is."""
    said = b'data: {"object":"chunk","message":"m"}\n\n'
    assert not kept(said).fits(said.replace(b"chunk", b"error"))
    assert not kept(event(b"")).fits(event(b"x"))


def test_long_events_are_not_kept() -> None:
    """There is one for each stream."""
    data = event(b" word", more=b" " * KEPT_BYTES)
    assert not kept(data).fits(data)


def test_streams_whose_events_differ_are_given_up() -> None:
    """Those that keep a number in each event; one that fits now and then is not."""
    repeated = RepeatedEvent()
    numbered = [event(b" word", more=b',"n":%d' % number) for number in range(2 * VAIN_MAX)]
    for data in numbered:
        assert not repeated.fits(data)
        repeated.keep(data)
    assert not repeated.fits(numbered[-1])
    repeated = RepeatedEvent()
    for data in numbered:
        repeated.keep(data)
        assert repeated.fits(data)
