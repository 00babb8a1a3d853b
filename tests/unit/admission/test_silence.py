from __future__ import annotations

from forebay.admission.model import EndpointState
from forebay.admission.silence import silence_limit_s, silent_since_s, stands_still
from tests.unit.admission.build import LLAMACPP, VLLM, Site, reading


def test_an_idle_endpoint_may_be_silent() -> None:
    """With nothing in flight silence proves nothing."""
    assert silence_limit_s(Site().endpoint()) is None


def test_a_stream_may_be_silent_for_ten_seconds() -> None:
    """That is the least, however short the prompts are."""
    site = Site()
    site.running(1)
    assert 10.0 == silence_limit_s(site.endpoint())


def test_a_long_prefill_earns_a_longer_silence() -> None:
    """Twenty times the longest prefill in hand, in the endpoint's own time."""
    site = Site()
    site.running(1)
    long = site.running(2, prompt_tokens=20_000)
    assert 40.0 == silence_limit_s(site.endpoint())
    site.endpoint().meter.speed = 0.5
    assert 80.0 == silence_limit_s(site.endpoint())
    site.life.first_token(long, 3.0)
    assert 10.0 == silence_limit_s(site.endpoint())


def test_a_slow_engine_earns_a_longer_silence() -> None:
    """Twenty times its usual step, where that is more: a large model on a CPU takes a second for each token."""
    site = Site()
    site.running(1)
    site.endpoint().step_gap_s = 0.4
    assert 10.0 == silence_limit_s(site.endpoint())
    site.endpoint().step_gap_s = 1.5
    assert 30.0 == silence_limit_s(site.endpoint())


def test_unstreamed_answers_prove_nothing_by_silence() -> None:
    """They give no byte until they are whole; an engine whose counters move while it works is judged by those."""
    site = Site()
    site.running(1, stream=False)
    site.endpoint().info = LLAMACPP
    assert silence_limit_s(site.endpoint()) is None
    site.endpoint().info = VLLM
    assert 10.0 == silence_limit_s(site.endpoint())
    site.endpoint().info = LLAMACPP
    site.running(2)
    assert 10.0 == silence_limit_s(site.endpoint())


def test_silence_begins_with_the_first_stream_where_counters_stand_still_while_working() -> None:
    """An engine that counts only what is finished gives no sign before a stream could; one that counts on has to."""
    site = Site()
    site.running(1, "a", 3.0)
    endpoint = site.endpoint()
    endpoint.last_life_s = 2.0
    endpoint.info = LLAMACPP
    assert 3.0 == silent_since_s(endpoint)
    endpoint.info = VLLM
    assert 2.0 == silent_since_s(endpoint)


def test_only_an_engine_that_goes_on_telling_stands_still() -> None:
    """Stalled, counting while it works, and its readings fresh: all three."""
    site = Site()
    endpoint = site.endpoint()
    endpoint.info = VLLM
    endpoint.take_sample(reading(1.0, running=1), 1.0)
    assert not stands_still(endpoint, 1.0)
    endpoint.state = EndpointState.STALLED
    assert stands_still(endpoint, 1.0)
    assert not stands_still(endpoint, 1.0 + endpoint.stale_after_s + 1.0)
