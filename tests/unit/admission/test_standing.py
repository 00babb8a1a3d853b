from __future__ import annotations

from dataclasses import replace

from forebay.admission.model import TicketId
from forebay.admission.rules import Ruling
from forebay.admission.shedding import RETRIES_MAX, SESSIONS_MAX
from forebay.admission.standing import Standing
from forebay.admission.tickets import Phase, Ticket
from tests.unit.admission.build import Site, demand


def test_the_retry_of_a_displaced_request_is_protected_once() -> None:
    """Who was pushed out and comes back is left alone; the next retry of it is like any other."""
    site, standing = Site(), Standing({})
    standing.displaced(site.ticket(1), 10.0)
    assert not standing.is_protected(site.ticket(2), 11.0)
    assert standing.is_protected(site.ticket(3, retry_count=1), 12.0)
    assert not standing.is_protected(site.ticket(4, retry_count=1), 13.0)


def test_another_request_of_the_tenant_is_not_its_retry() -> None:
    """A retry has the same sizes and the same limit."""
    site, standing = Site(), Standing({})
    standing.displaced(site.ticket(1), 10.0)
    for changes in ({"body_bytes": 1001}, {"prompt_bytes": 401}, {"max_output_tokens": 98}, {"tenant": "u"}):
        assert not standing.is_protected(site.ticket(2, retry_count=1, **changes), 11.0)


def test_later_calls_of_an_admitted_session_are_protected() -> None:
    """Once a call of a session was dispatched the others of the same tenant are; ten idle minutes end it."""
    site, standing = Site(), Standing({})
    assert not standing.is_protected(site.ticket(1, session="s"), 0.0)
    standing.started(site.ticket(1, session="s"), 1.0)
    assert standing.is_protected(site.ticket(2, session="s"), 100.0)
    assert not standing.is_protected(site.ticket(3, session="s", tenant="other"), 100.0)
    assert not standing.is_protected(site.ticket(4, session="t"), 100.0)
    assert not standing.is_protected(site.ticket(5, session="s"), 602.0)


def test_of_the_calls_of_a_session_that_wait_one_is_protected() -> None:
    """The first; when it waits no more, the next one that comes. Other sessions, of other tenants too, have theirs."""
    site, tickets = Site(), dict[TicketId, Ticket]()
    standing = Standing(tickets)
    for session, tenant in (("s", "t"), ("s", "u"), ("x", "t")):
        standing.started(site.ticket(1, session=session, tenant=tenant), 0.0)

    def waits(number: int, session: str = "s", tenant: str = "t") -> bool:
        ticket = site.ticket(number, session=session, tenant=tenant)
        tickets[ticket.demand.ticket] = ticket
        ticket.phase = Phase.WAITING
        return standing.is_protected(ticket, 1.0)

    assert [True, False, False] == [waits(number) for number in (2, 3, 4)]
    assert [True, True] == [waits(5, session="x"), waits(6, tenant="u")]
    tickets[TicketId(2)].phase = Phase.RUNNING
    assert [True, False] == [waits(number) for number in (7, 8)]
    del tickets[TicketId(7)]
    assert [True, False] == [waits(number) for number in (9, 10)]


def test_a_request_without_a_session_leaves_nothing_behind() -> None:
    """Only named sessions are remembered."""
    site, standing = Site(), Standing({})
    standing.started(site.ticket(1), 1.0)
    assert not standing.is_protected(site.ticket(2), 1.0)


def test_a_session_survives_a_flood_of_another_tenants_sessions() -> None:
    """A tenant that starts as many sessions as are remembered of all makes no other one's be forgotten."""
    site, standing = Site(), Standing({})
    for number in range(10):
        standing.started(site.ticket(1, session=f"{number}", tenant="modest"), 0.0)
    flooding = site.ticket(2, session="s", tenant="flood")
    for number in range(SESSIONS_MAX + 1000):
        flooding.demand = replace(flooding.demand, session=f"{number}")
        standing.started(flooding, number / 1000)
    assert standing.is_protected(flooding, 20.0)
    for number in range(10):
        assert standing.is_protected(site.ticket(3, session=f"{number}", tenant="modest"), 20.0)


def test_a_retry_survives_a_flood_of_another_tenants_displacements() -> None:
    """However many requests of one tenant are pushed out, the retry of another's is still known."""
    site, standing = Site(), Standing({})
    standing.displaced(site.ticket(1, tenant="modest"), 0.0)
    flooding = site.ticket(2, tenant="flood")
    for number in range(RETRIES_MAX + 1000):
        flooding.demand = replace(flooding.demand, body_bytes=number)
        standing.displaced(flooding, number / 1000)
    assert standing.is_protected(site.ticket(3, tenant="modest", retry_count=1), 10.0)


def test_a_later_call_that_names_no_class_keeps_that_of_its_session() -> None:
    """Under any rank that the class has since; not a call that names another, nor of a class that is gone."""
    site, standing = Site(), Standing({})
    standing.started(site.ticket(1, session="s", class_name="realtime"), 1.0)
    standing.started(site.ticket(2, session="t", class_name="batch"), 1.0)
    later = demand(3, session="s", class_claimed=False)
    names = ("batch", "realtime", "standard")
    assert "realtime" == standing.in_its_class(later, names, 2.0).class_name
    assert "standard" == standing.in_its_class(replace(later, class_claimed=True), names, 2.0).class_name
    assert "standard" == standing.in_its_class(later, ("batch", "standard"), 2.0).class_name
    assert "standard" == standing.in_its_class(replace(later, tenant="other"), names, 2.0).class_name
    assert "standard" == standing.in_its_class(later, names, 700.0).class_name
    assert "batch" == standing.in_its_class(replace(later, session="t"), names, 2.0).class_name
    standing.started(site.ticket(4, session="s", class_name="batch"), 3.0)
    assert "batch" == standing.in_its_class(later, names, 4.0).class_name


def test_a_class_that_a_rule_gave_is_not_kept() -> None:
    """The session stays in the class in which the call came."""
    site, standing = Site(), Standing({})
    call = site.ticket(1, session="s", class_name="realtime")
    call.ruling = Ruling()
    call.ruling.class_before = "batch"
    standing.started(call, 1.0)
    later = demand(2, session="s", class_claimed=False)
    assert "batch" == standing.in_its_class(later, ("realtime", "standard", "batch"), 2.0).class_name
