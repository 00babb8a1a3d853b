from __future__ import annotations

from forebay.admission.homes import BEGINNINGS, HOMES, PrefixHomes
from forebay.admission.model import EndpointId

A, B = EndpointId("a"), EndpointId("b")


def test_a_beginning_is_where_it_was_sent() -> None:
    """And nowhere else; of one that was never sent nothing is known."""
    homes = PrefixHomes()
    assert (homes.knows(7), homes.are_at(7, A, None)) == (False, False)
    homes.sent(7, A, 100)
    assert homes.knows(7)
    assert (homes.are_at(7, A, 1000), homes.are_at(7, B, 1000)) == (True, False)
    homes.sent(7, B, 100)
    assert (homes.are_at(7, A, 1000), homes.are_at(7, B, 1000)) == (True, True)


def test_it_is_gone_once_as_many_tokens_as_the_cache_holds_came_since() -> None:
    """Tokens of other prompts at the same endpoint push it out; those elsewhere do not; to use it keeps it."""
    homes = PrefixHomes()
    homes.sent(7, A, 100)
    homes.sent(None, A, 900)
    homes.sent(8, B, 5000)
    assert homes.are_at(7, A, 900)
    homes.sent(9, A, 1)
    assert not homes.are_at(7, A, 900)
    assert homes.are_at(7, A, None)
    homes.sent(7, A, 100)
    homes.sent(None, A, 850)
    assert homes.are_at(7, A, 900)


def test_another_process_has_an_empty_cache() -> None:
    """Whatever the size of the cache; what is sent there from then on is there."""
    homes = PrefixHomes()
    homes.sent(7, A, 100)
    for _ in range(5):
        homes.forget(A)
    homes.forget(B)
    assert not homes.are_at(7, A, None)
    homes.sent(7, A, 100)
    assert homes.are_at(7, A, 50)


def test_an_endpoint_that_comes_back_has_nothing() -> None:
    """One that was gone for good and has the same name is another one."""
    homes = PrefixHomes()
    homes.sent(None, A, 500)
    homes.sent(7, A, 100)
    homes.drop(A)
    homes.drop(B)
    assert not homes.are_at(7, A, None)


def test_nothing_grows() -> None:
    """The beginnings used last are kept, and of each the endpoints that had it last."""
    homes = PrefixHomes()
    for number in range(BEGINNINGS + 10):
        homes.sent(number, A, 1)
    assert (BEGINNINGS, False, True) == (len(homes), homes.knows(9), homes.knows(10))
    for number in range(HOMES + 3):
        homes.sent(10, EndpointId(f"e{number}"), number + 2)
    at = [homes.are_at(10, EndpointId(f"e{number}"), None) for number in range(HOMES + 3)]
    assert sum(at) <= HOMES
    assert at[-1]
