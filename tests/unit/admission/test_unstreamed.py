from __future__ import annotations

import pytest

from forebay.admission.unstreamed import advance_unstreamed
from tests.unit.admission.build import Site, pool_settings


def test_an_answer_that_is_not_streamed_comes_on_with_time() -> None:
    """100 prompt tokens take 10 ms, each token 10 ms: after a second it holds 99 of its 99 tokens, less the last."""
    site = Site()
    endpoint = site.endpoint()
    site.running(1, "a", stream=False)
    assert 100 == endpoint.forecast.held_tokens
    advance_unstreamed(endpoint, 0.5)
    assert pytest.approx(149, abs=1) == endpoint.forecast.held_tokens
    advance_unstreamed(endpoint, 100.0)
    assert 198 == endpoint.forecast.held_tokens


def test_streams_tell_themselves_and_guesses_tell_nothing() -> None:
    """A stream's tokens are seen; and of an engine of which nothing is known nobody knows how far it is."""
    site = Site()
    site.running(1, "a", stream=True)
    advance_unstreamed(site.endpoint(), 0.5)
    assert 100 == site.endpoint().forecast.held_tokens
    site = Site(pool_settings(law=None))
    site.running(1, "a", stream=False)
    advance_unstreamed(site.endpoint(), 0.5)
    assert 100 == site.endpoint().forecast.held_tokens
