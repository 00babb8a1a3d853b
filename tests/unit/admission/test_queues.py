from __future__ import annotations

from collections.abc import Iterable

import pytest

from forebay.admission.queues import ClassQueues
from forebay.admission.tickets import Ticket
from tests.unit.admission.build import Site

RANKS = ("realtime", "standard", "batch")


def numbers(tickets: Iterable[Ticket]) -> list[int]:
    """Ticket numbers in this order."""
    return [ticket.demand.ticket for ticket in tickets]


def filed(*classes: str) -> tuple[ClassQueues, list[Ticket]]:
    """Tickets 1, 2, 3, … of these classes, filed in this order."""
    site, queues = Site(), ClassQueues(RANKS)
    tickets = [site.ticket(number, class_name=name) for number, name in enumerate(classes, 1)]
    for ticket in tickets:
        queues.add(ticket)
    return queues, tickets


def test_classes_are_served_by_rank() -> None:
    """A realtime request that came last is before every standard one, and those before every batch one."""
    queues, _ = filed("batch", "standard", "batch", "standard", "realtime")
    assert [5, 2, 4, 1, 3] == numbers(queues.in_order(per_class=128))


def test_inside_a_class_first_come_is_first_served() -> None:
    """Arrival order is kept."""
    queues, _ = filed(*["standard"] * 6)
    assert [1, 2, 3, 4, 5, 6] == numbers(queues.in_order(per_class=128))


def test_one_that_came_back_is_first_of_its_class() -> None:
    """A request that was dispatched before stands before all others of its class, not before other classes."""
    queues, _ = filed("realtime", "standard", "standard")
    queues.add(Site().ticket(9), front=True)
    assert [1, 9, 2, 3] == numbers(queues.in_order(per_class=128))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_any_place_can_be_left(index: int) -> None:
    """First, middle or last: a ticket leaves and the others keep their order."""
    queues, tickets = filed("standard", "standard", "standard")
    queues.remove(tickets[index])
    rest = [ticket for ticket in tickets if ticket is not tickets[index]]
    assert numbers(rest) == numbers(queues)
    assert 2 == len(queues)


def test_removing_what_is_not_filed_is_an_error() -> None:
    """A ticket cannot leave twice."""
    queues, tickets = filed("standard")
    queues.remove(tickets[0])
    with pytest.raises(KeyError):
        queues.remove(tickets[0])


def test_a_look_at_a_long_queue_is_bounded_in_each_class() -> None:
    """A long queue of one class does not hide the classes below it."""
    queues, _ = filed(*["standard"] * 5, *["batch"] * 5)
    assert [1, 2, 6, 7] == numbers(queues.in_order(per_class=2))
    assert 10 == len(list(queues))


@pytest.mark.parametrize(
    ("name", "ahead"),
    [
        ("realtime", ["realtime"]),
        ("standard", ["realtime", "standard"]),
        ("batch", ["realtime", "standard", "batch"]),
    ],
)
def test_ahead_are_the_higher_ranks_and_the_own(name: str, ahead: list[str]) -> None:
    """An arrival waits for its own class and for those above it, and not for those below."""
    assert ahead == list(ClassQueues(RANKS).ahead(name))


def test_everybody_is_ahead_of_a_class_without_a_rank() -> None:
    """A class that is not served here waits for all that are."""
    assert list(RANKS) == list(ClassQueues(RANKS).ahead("nobody"))


def test_an_empty_queue_is_empty() -> None:
    """Nothing filed, nothing found."""
    queues = ClassQueues(RANKS)
    assert (0, []) == (len(queues), list(queues.in_order(per_class=1)))
