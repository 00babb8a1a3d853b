from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.admission.errors import InvariantError
from forebay.admission.ledger import Account, Booking, EndpointBooks, Ledger, PoolBooks, booking_for
from forebay.admission.model import Cost, EndpointId
from tests.unit.admission.build import demand

A, B = EndpointId("a"), EndpointId("b")
ONE = Booking("llama", "standard", work_us=1_000_000, kv_tokens=199, body_bytes=1000)
TWO = Booking("llama", "batch", work_us=300_000, kv_tokens=50, body_bytes=70)


def new_ledger() -> Ledger:
    """A ledger with one pool of two endpoints and two classes."""
    ledger = Ledger()
    books = ledger.pools["llama"] = PoolBooks(("standard", "batch"))
    books.endpoints[A], books.endpoints[B] = EndpointBooks(), EndpointBooks()
    return ledger


def held(account: Account) -> tuple[int, int, int]:
    """What an account holds."""
    return account.requests, account.work_us, account.kv_tokens


def test_a_booking_is_made_of_demand_and_cost() -> None:
    """What is booked is the estimated work and KV, and the bytes of the body."""
    cost = Cost(work_us=5, prefill_us=1, kv_tokens=7, prompt_tokens=3, output_tokens=4)
    assert Booking("llama", "batch", 5, 7, 11) == booking_for(
        demand(1, class_name="batch", body_bytes=11), cost
    )


def test_waiting_is_booked_in_pool_class_and_bytes() -> None:
    """A request that waits is in its pool's and its class's books, and in nobody else's."""
    ledger = new_ledger()
    ledger.wait(ONE)
    ledger.wait(TWO)
    books = ledger.pools["llama"]
    assert (2, 1_300_000, 249) == held(books.waiting)
    assert (1, 1_000_000, 199) == held(books.classes["standard"])
    assert (1, 300_000, 50) == held(books.classes["batch"])
    assert (0, 0, 0) == held(books.in_flight)
    assert 1070 == ledger.waiting_bytes
    assert 1_300_000 == books.work_us
    ledger.verify()


def test_running_is_booked_in_pool_and_endpoint() -> None:
    """A request that runs is in its endpoint's books, and its body is no longer held."""
    ledger = new_ledger()
    ledger.wait(ONE)
    ledger.leave(ONE)
    ledger.start(ONE, A)
    books = ledger.pools["llama"]
    assert (0, 0, 0) == held(books.waiting)
    assert (1, 1_000_000, 199) == held(books.in_flight)
    assert (1, 199, 1_000_000) == (
        books.endpoints[A].requests,
        books.endpoints[A].kv_tokens,
        books.endpoints[A].work_us,
    )
    assert 0 == books.endpoints[B].requests
    assert 0 == ledger.waiting_bytes
    ledger.verify()


def test_an_abandoned_request_still_fills_its_endpoint() -> None:
    """Draining work keeps its place, its KV and its work, in the endpoint and in the pool."""
    ledger = new_ledger()
    ledger.start(ONE, A)
    ledger.start(TWO, A)
    ledger.abandon(ONE, A)
    books = ledger.pools["llama"]
    assert (1, 300_000, 50) == held(books.endpoints[A].running)
    assert (1, 1_000_000, 199) == held(books.endpoints[A].draining)
    assert (2, 1_300_000, 249) == held(books.in_flight)
    assert 2 == books.endpoints[A].requests
    ledger.verify()


def test_every_way_out_empties_the_books() -> None:
    """Whether released or drained, exactly what was booked comes off."""
    ledger = new_ledger()
    ledger.wait(ONE)
    ledger.leave(ONE)
    ledger.start(ONE, A)
    ledger.abandon(ONE, A)
    ledger.start(TWO, B)
    ledger.release_draining(ONE, A)
    ledger.release(TWO, B)
    books = ledger.pools["llama"]
    for account in (books.waiting, books.in_flight, *books.classes.values()):
        assert (0, 0, 0) == held(account)
    for endpoint in books.endpoints.values():
        assert (0, 0, 0) == held(endpoint.running)
        assert (0, 0, 0) == held(endpoint.draining)
    ledger.verify()


@pytest.mark.parametrize(
    "release",
    [
        lambda ledger: ledger.leave(ONE),
        lambda ledger: ledger.release(ONE, A),
        lambda ledger: ledger.abandon(ONE, A),
        lambda ledger: ledger.release_draining(ONE, A),
    ],
    ids=["leave", "release", "abandon", "release_draining"],
)
def test_releasing_what_is_not_held_is_an_error(release: Callable[[Ledger], None]) -> None:
    """A second release of anything is caught where it happens."""
    with pytest.raises(InvariantError):
        release(new_ledger())


def test_a_release_at_the_wrong_endpoint_is_an_error() -> None:
    """What runs at one endpoint cannot be released at another."""
    ledger = new_ledger()
    ledger.start(ONE, A)
    with pytest.raises(InvariantError):
        ledger.release(ONE, B)


def test_a_smaller_booking_cannot_be_released_as_a_larger_one() -> None:
    """An account that would go negative in any of its parts says so."""
    account = Account()
    account.add(TWO)
    with pytest.raises(InvariantError, match="released more than was booked"):
        account.remove(ONE)


@pytest.mark.parametrize("spoil", ["requests", "work_us", "kv_tokens"])
def test_verify_finds_totals_that_are_not_the_sum_of_their_parts(spoil: str) -> None:
    """Books that were changed on one side only do not pass, in whichever field."""
    for kind in ("waiting", "in_flight"):
        ledger = new_ledger()
        ledger.wait(ONE)
        ledger.start(TWO, A)
        ledger.verify()
        setattr(getattr(ledger.pools["llama"], kind), spoil, 12345)
        with pytest.raises(InvariantError, match="llama"):
            ledger.verify()


def test_waiting_bytes_cannot_go_below_zero() -> None:
    """The bytes of bodies are guarded on their own: the counts could still look right."""
    ledger = new_ledger()
    ledger.wait(TWO)
    with pytest.raises(InvariantError, match="bytes"):
        ledger.leave(Booking("llama", "batch", 300_000, 50, body_bytes=71))


def test_an_account_shows_what_it_holds() -> None:
    """The text of an account, which errors carry, names its parts."""
    account = Account()
    account.add(TWO)
    assert "Account(requests=1, work_us=300000, kv_tokens=50)" == repr(account)
