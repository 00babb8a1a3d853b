from __future__ import annotations

from typing import Any

import pytest

from forebay.admission.holding import what_holds, what_holds_at
from forebay.admission.model import Check, EndpointState
from tests.unit.admission.build import Site, pool_settings

LATE = 500


def reason(site: Site, now: float = 0.0, **demand: Any) -> Check | None:
    """Why the next request would wait."""
    return what_holds(site.ticket(LATE, **demand), site.pool, now)


def test_nothing_holds_where_there_is_room() -> None:
    """And nothing is said of a pool of which nothing is up."""
    site = Site()
    assert reason(site) is None
    site.endpoint().state = EndpointState.DOWN
    assert reason(site) is None
    down = what_holds_at(site.ticket(LATE), site.endpoint(), 0.0)
    assert Check("endpoint_down", 1, 0, False) == down


def test_slots() -> None:
    """As many run as may."""
    site = Site(pool_settings(max_inflight_requests=1))
    site.running(1, "a")
    assert Check("endpoint_requests", 2, 1, False) == reason(site)


def test_the_cap_over_all_endpoints() -> None:
    """It comes before any endpoint."""
    site = Site(pool_settings(max_pool_requests=1), endpoints=("a", "b"))
    site.running(1, "a")
    assert Check("pool_requests", 2, 1, False) == reason(site)


def test_kv_tokens() -> None:
    """The cache is booked: so many tokens with this request, of so many."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    site.running(1, "a", prompt_tokens=700)
    found = reason(site, prompt_tokens=300)
    assert found is not None
    assert ("kv_tokens", 1000, False) == (found.name, found.limit, found.passed)
    assert found.value > 1000


def test_an_endpoint_that_is_kept() -> None:
    """For one of the same rank: those of the first rank do not wait for it."""
    site = Site()
    site.endpoint().reserved_for = site.ticket(1).demand.ticket
    site.endpoint().reserved_rank = 1
    assert Check("endpoint_reserved", 1, 0, False) == reason(site)
    assert reason(site, class_name="realtime") is None


def test_prefill_under_way() -> None:
    """More prefill was sent than the window allows."""
    site = Site()
    site.running(1, "a", prompt_tokens=1000, stream=True)
    site.endpoint().prefill_window_s = 0.05
    found = reason(site)
    assert found is not None
    assert "prefill_window" == found.name
    assert [0.1, 0.05] == pytest.approx([found.value, found.limit])


def test_a_trial() -> None:
    """After a stall one request at a time tries the engine."""
    site = Site()
    site.endpoint().trial = True
    assert reason(site) is None
    site.running(1, "a")
    assert Check("endpoint_trial", 2, 1, False) == reason(site)


def test_it_speaks_of_the_endpoint_with_the_least_work() -> None:
    """The one that has much more to do is not what the request waits for."""
    site = Site(pool_settings(max_inflight_requests=2), endpoints=("a", "b"))
    for number, endpoint in enumerate("aabb"):
        site.running(number + 1, endpoint, prompt_tokens=5000 if endpoint == "a" else 10)
    site.endpoint("a").trial = True
    assert Check("endpoint_requests", 3, 2, False) == reason(site)
