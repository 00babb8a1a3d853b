from __future__ import annotations

from forebay.admission.model import EndpointState
from forebay.admission.placement import place
from tests.unit.admission.build import Site, pool_settings


def chosen(site: Site, number: int = 99, now: float = 0.0) -> str | None:
    """Where the next request goes."""
    found = place(site.ticket(number), site.pool.endpoints.values(), now)
    return None if found is None else found.id


def test_the_least_loaded_endpoint_is_chosen() -> None:
    """Load is work held: one request of two seconds weighs more than one of one."""
    site = Site(endpoints=("a", "b"))
    site.running(1, "a", max_output_tokens=199)
    site.running(2, "b")
    assert "b" == chosen(site)


def test_load_counts_in_the_endpoints_own_time() -> None:
    """The same work is twice the load on an endpoint of half the speed."""
    site = Site(endpoints=("a", "b"))
    site.endpoint("a").meter.speed = 0.5
    site.running(1, "a")
    site.running(2, "b", max_output_tokens=149)
    assert "b" == chosen(site)


def test_draining_work_is_load() -> None:
    """What an engine still does for clients that left counts."""
    site = Site(endpoints=("a", "b"))
    ticket = site.running(1, "a")
    site.life.ledger.abandon(ticket.booking, site.endpoint("a").id)
    assert "b" == chosen(site)


def test_ties_go_to_the_first_in_the_configuration() -> None:
    """Among equals the choice is the same in every run."""
    assert "a" == chosen(Site(endpoints=("a", "b", "c")))


def test_ties_follow_the_configuration_when_it_is_reordered() -> None:
    """The position in the configuration breaks ties, and not the order of discovery."""
    site = Site(endpoints=("a", "b", "c"))
    for order, name in enumerate(["c", "a", "b"]):
        site.endpoint(name).order = order
    assert "c" == chosen(site)


def test_endpoints_that_failed_this_request_are_passed_over() -> None:
    """A request is not sent again to where it has failed, however idle that is."""
    site = Site(endpoints=("a", "b"))
    site.running(1, "b")
    ticket = site.ticket(2)
    ticket.tried.add(site.endpoint("a").id)
    assert site.endpoint("b") is place(ticket, site.pool.endpoints.values(), 0.0)


def test_endpoints_without_room_are_passed_over() -> None:
    """Where nothing can be dispatched to is no choice, and with none left there is no place."""
    site = Site(pool_settings(max_inflight_requests=1), endpoints=("a", "b"))
    site.running(1, "a")
    assert "b" == chosen(site)
    site.endpoint("b").state = EndpointState.STALLED
    assert chosen(site) is None


def test_a_big_prompt_goes_where_it_fits() -> None:
    """An idle engine whose KV cache is too small for a prompt does not get it; a busy one that holds it does."""
    site = Site(pool_settings(law=None), endpoints=("small", "big"))
    site.describe("small", kv_tokens=1000)
    site.describe("big", kv_tokens=10_000)
    site.running(1, "big")
    ticket = site.ticket(2, prompt_tokens=5000)
    assert site.endpoint("big") is place(ticket, site.pool.endpoints.values(), 0.0)


def test_no_endpoints_no_place() -> None:
    """An empty pool has no place for anything."""
    assert chosen(Site(endpoints=())) is None
