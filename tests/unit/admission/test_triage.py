from __future__ import annotations

from math import inf
from typing import Any

import pytest

from forebay.admission.deadlines import file_waiter
from forebay.admission.gate import examine
from forebay.admission.learning import CONFIDENT
from forebay.admission.model import Check, TicketId
from forebay.admission.settings import ClassOrder, Displace
from forebay.admission.tickets import Ticket
from forebay.admission.triage import SOONEST_MAX, in_vain, late_ones, lost_from_s, room_for, waits_in_vain
from tests.unit.admission.build import Site, pool_settings, settings_for, with_class

FULL = pool_settings(max_inflight_requests=1, max_queue=2)


def filed(site: Site, number: int, now: float = 0.0, *, protected: bool = False, **changes: Any) -> Ticket:
    """A waiter with its deadline known."""
    ticket = site.queued(number, now, **changes)
    file_waiter(ticket, now, protected=protected)
    return ticket


def victims(site: Site, newcomer: Ticket, displace: Displace, now: float = 0.0) -> list[int]:
    """Who would go for an arrival that a bound refuses."""
    verdict = examine(newcomer, site.life.ledger, site.settings, now, draining=False)
    return [ticket.sequence for ticket in room_for(newcomer, verdict, displace, now)]


def crowded(pool: Any = FULL) -> Site:
    """One place, which is taken."""
    site = Site(pool)
    site.running(1)
    return site


def test_at_a_bound_the_least_important_goes() -> None:
    """A standard request takes the place of the batch request, whatever waits beside it."""
    site = crowded()
    filed(site, 2, class_name="batch")
    filed(site, 3)
    assert [2] == victims(site, site.ticket(9), Displace.LOWER)
    assert [2] == victims(site, site.ticket(9), Displace.SAME)
    assert [] == victims(site, site.ticket(9), Displace.OFF)


def test_its_own_class_gives_way_only_to_more_value_for_the_work() -> None:
    """With `same` a short request pushes out a long one of its class, and not the other way round."""
    site = crowded()
    filed(site, 2, max_output_tokens=500)
    filed(site, 3, max_output_tokens=400)
    assert [] == victims(site, site.ticket(9, max_output_tokens=50), Displace.LOWER)
    assert [2] == victims(site, site.ticket(9, max_output_tokens=50), Displace.SAME)
    assert [] == victims(site, site.ticket(9, max_output_tokens=900), Displace.SAME)


def test_nobody_goes_for_a_less_important_request() -> None:
    """Batch pushes out nobody of a better class."""
    site = crowded()
    filed(site, 2)
    filed(site, 3, class_name="realtime")
    for displace in Displace:
        assert [] == victims(site, site.ticket(9, class_name="batch"), displace)


def test_the_protected_and_those_past_half_their_budget_stay() -> None:
    """Both are passed over; with nobody else the newcomer is refused."""
    site = crowded()
    filed(site, 2, class_name="batch", protected=True)
    filed(site, 3, class_name="batch")
    assert [3] == victims(site, site.ticket(9, 29.0), Displace.LOWER, 29.0)
    assert [] == victims(site, site.ticket(9, 31.0), Displace.LOWER, 31.0)


def test_as_many_go_as_the_bound_needs_and_none_if_four_are_not_enough() -> None:
    """Work is freed one victim after the other; if that does not suffice nobody goes in vain."""
    site = crowded(pool_settings(max_inflight_requests=1, max_gpu_s=7.0))
    for number in range(2, 8):
        filed(site, number, class_name="batch")
    assert 3 == len(victims(site, site.ticket(9, max_output_tokens=299), Displace.LOWER))
    assert [] == victims(site, site.ticket(9, max_output_tokens=500), Displace.LOWER)


def test_a_class_at_its_own_bound_is_helped_by_nobody_else() -> None:
    """Room in the class's queue comes from the class."""
    settings = with_class("standard", settings_for(pool_settings(max_inflight_requests=1)), max_queue=1)
    site = Site(settings=settings)
    site.running(1)
    filed(site, 2, max_output_tokens=500)
    filed(site, 3, class_name="batch")
    newcomer = site.ticket(9, max_output_tokens=50)
    assert [] == victims(site, newcomer, Displace.LOWER)
    assert [2] == victims(site, newcomer, Displace.SAME)


def flooded(site: Site, class_name: str = "standard", first: int = 10) -> None:
    """Three waiters of one tenant, one of a modest one that is worth less for its work."""
    for number in range(first, first + 3):
        filed(site, number, tenant="flood", class_name=class_name)
    filed(site, first + 3, tenant="modest", class_name=class_name, max_output_tokens=120)


def test_tenants_above_their_share_lose_theirs_first() -> None:
    """Of the class that gives way the flooding tenant's youngest goes, though a modest one's is worth less."""
    site = crowded(pool_settings(max_inflight_requests=1, max_queue=4))
    flooded(site, "batch")
    assert [12] == victims(site, site.ticket(99), Displace.LOWER)


def test_a_tenant_is_above_its_share_without_those_that_are_chosen() -> None:
    """Of three and one the first two go of the three; then both have the same, and value decides."""
    site = crowded(pool_settings(max_inflight_requests=1, max_queue=2))
    flooded(site, "batch")
    assert [12, 11, 13] == victims(site, site.ticket(99), Displace.LOWER)
    site.pool.classes["batch"].deadlines.verify()
    assert [12, 11, 13] == victims(site, site.ticket(99), Displace.LOWER)
    assert [] == victims(site, site.ticket(99, class_name="batch"), Displace.LOWER)


def test_a_share_comes_before_a_rank() -> None:
    """Above its share in a more important class a tenant goes before one within it in a less important class."""
    site = crowded(pool_settings(max_inflight_requests=1, max_queue=6))
    flooded(site)
    filed(site, 20, class_name="batch", tenant="one")
    filed(site, 21, class_name="batch", tenant="two")
    assert [12] == victims(site, site.ticket(99, class_name="realtime"), Displace.LOWER)
    assert [21] == victims(site, site.ticket(99), Displace.LOWER)
    assert [] == victims(site, site.ticket(99, class_name="batch"), Displace.LOWER)


def test_a_modest_tenant_gets_in_whatever_its_request_is_worth() -> None:
    """With `same` it takes the place of one of a tenant above its share; a flooding one takes nobody's in turn."""
    site = crowded(pool_settings(max_inflight_requests=1, max_queue=4))
    flooded(site)
    assert [12] == victims(site, site.ticket(99, tenant="new", max_output_tokens=110), Displace.SAME)
    assert [] == victims(site, site.ticket(99, tenant="flood"), Displace.SAME)
    assert [12] == victims(site, site.ticket(99, tenant="flood", max_output_tokens=50), Displace.SAME)
    assert [] == victims(site, site.ticket(99, tenant="new", max_output_tokens=110), Displace.LOWER)


def test_nobody_grows_above_its_share_by_pushing_others_out() -> None:
    """With its own request a tenant would be above: then it has to be worth more, and only than those above."""
    site = crowded(pool_settings(max_inflight_requests=1, max_queue=4))
    flooded(site)
    assert [] == victims(site, site.ticket(99, tenant="modest", max_output_tokens=300), Displace.SAME)
    assert [] == victims(site, site.ticket(99, tenant="new", max_output_tokens=500), Displace.SAME)


def learned(site: Site) -> Site:
    """A pool past its learning."""
    site.pool.learning.observed(1000, 1000, 0.1, True, 0.0)
    return site


def test_of_a_set_that_cannot_be_on_time_the_least_worth_goes() -> None:
    """Eleven seconds of work, to start within 5 s: with `same` the long one goes, and then the rest can be on time."""
    site = learned(Site())
    for number in range(10, 20):
        filed(site, number, max_output_tokens=50)
    filed(site, 7, max_output_tokens=650)
    state = site.pool.classes["standard"]
    assert [] == late_ones(state, site.pool, Displace.LOWER, 0.0)
    assert [7] == [ticket.sequence for ticket in late_ones(state, site.pool, Displace.SAME, 0.0)]


def test_of_a_set_that_cannot_be_on_time_tenants_above_their_share_go_first() -> None:
    """The flooding tenant's short requests go before the modest one's long one."""
    site = learned(Site())
    for number in range(10, 20):
        filed(site, number, max_output_tokens=50, tenant="flood")
    filed(site, 7, max_output_tokens=150, tenant="modest")
    state = site.pool.classes["standard"]
    gone = [ticket.sequence for ticket in late_ones(state, site.pool, Displace.SAME, 0.0)]
    assert gone
    assert gone == [19, 18, 17, 16][: len(gone)]


def test_a_learning_pool_gives_up_nobody_for_a_prediction() -> None:
    """What is not known to drain is not held against anybody."""
    site = Site()
    for number in range(2, 12):
        filed(site, number)
    state = site.pool.classes["standard"]
    assert [] == late_ones(state, site.pool, Displace.SAME, 0.0)
    assert {None} == {waits_in_vain(ticket, 4.9) for ticket in site.life.tickets.values()}


def test_a_waiter_without_a_chance_waits_in_vain() -> None:
    """With nine seconds of work before it even a lucky wait is 4.6 s: too long with one second left, not with five."""
    site = learned(Site())
    long = filed(site, 2, max_output_tokens=990)
    for number in range(3, 12):
        filed(site, number)
    assert waits_in_vain(long, 0.0) is None
    check = waits_in_vain(long, 4.0)
    assert check is not None
    assert ("least_wait", 1.0, False) == (check.name, check.limit, check.passed)
    assert check.value > 1.0


def test_a_stream_is_lost_when_its_prompt_takes_longer_than_is_left() -> None:
    """Half a second of prefill before a first token due at 5 s: from 4.5 s on there is no chance."""
    site = learned(Site())
    ticket = filed(site, 1, prompt_tokens=5000)
    assert pytest.approx(4.5) == lost_from_s(ticket)
    check = waits_in_vain(ticket, 4.6)
    assert check is not None
    assert ("own_prefill", 0.5) == (check.name, check.value)
    assert inf == lost_from_s(site.ticket(2, stream=False))


def test_an_answer_that_cannot_be_whole_in_time_waits_in_vain() -> None:
    """Where its client waits for the whole of it, and it will surely be long; a stream is worth its first tokens."""

    def looked_at(patience_s: float, limit: int, *, stream: bool = False) -> Check | None:
        ticket = filed(
            learned(Site()), 1, stream=stream, max_output_tokens=limit, patience_until_s=patience_s
        )
        return waits_in_vain(ticket, 0.0)

    hopeless = looked_at(1.0, 4000)
    assert hopeless is not None
    assert ("whole_answer", 1.0, False) == (hopeless.name, hopeless.limit, hopeless.passed)
    assert looked_at(1.0, 4000, stream=True) is None
    assert looked_at(600.0, 4000) is None
    assert looked_at(1.0, 1) is None


def test_an_answer_that_waiting_made_late_for_its_class_waits_in_vain() -> None:
    """By `whole_answer` of its class; not where the class may wait longer, nor for its own length."""

    def looked_at(whole_s: float, *, now: float = 4.0, stream: bool = False, **changes: Any) -> Check | None:
        settings = with_class("standard", settings_for(), whole_answer_s=whole_s, **changes)
        ticket = filed(learned(Site(settings=settings)), 1, stream=stream, max_output_tokens=450)
        assert waits_in_vain(ticket, 0.0) is None
        return waits_in_vain(ticket, now)

    hopeless = looked_at(5.0)
    assert hopeless is not None
    assert ("whole_answer", 1.0, False) == (hopeless.name, hopeless.limit, hopeless.passed)
    assert looked_at(5.0, stream=True) is None
    assert looked_at(600.0) is None
    assert looked_at(5.0, wait_budget_s=6.0) is None
    assert looked_at(0.1, now=0.05, wait_budget_s=0.05) is None  # nobody could have done it in that time


def test_a_long_prompt_is_not_held_against_a_request() -> None:
    """A prompt of more than a fifth of the objective may wait to the end of its budget: its own time is its own."""
    site = learned(Site())
    assert inf == lost_from_s(site.ticket(1, prompt_tokens=10_001))


def test_a_class_that_may_be_late_is_not_given_up_for_it() -> None:
    """Where the wait budget is longer than the objective, a late answer is what the operator wants."""
    site = Site(settings=with_class("standard", settings_for(), wait_budget_s=30.0))
    assert inf == lost_from_s(site.ticket(1, prompt_tokens=5000))


def test_nobody_is_given_up_where_the_whole_pool_serves_the_class() -> None:
    """In strict order the first class gets all that drains: twenty that all start in time stay, whatever else waits."""
    settings = settings_for(
        pool_settings(max_inflight_requests=1), class_order=ClassOrder.STRICT, displace=Displace.SAME
    )
    site = Site(settings=with_class("realtime", settings, wait_budget_s=1.5))
    site.pool.learning._enter(CONFIDENT, 0.0)
    site.queued(1, class_name="standard")
    site.queued(2, class_name="batch")
    for number in range(10, 30):  # 70 ms each
        ticket = site.queued(number, class_name="realtime", prompt_tokens=100, max_output_tokens=6)
        ticket.deadline_s = 1.5
        file_waiter(ticket, 0.0, protected=False)
    assert [] == late_ones(site.pool.classes["realtime"], site.pool, Displace.SAME, 0.0)
    for number in range(30, 40):
        ticket = site.queued(number, class_name="realtime", prompt_tokens=100, max_output_tokens=6)
        ticket.deadline_s = 1.5
        file_waiter(ticket, 0.0, protected=False)
    assert late_ones(site.pool.classes["realtime"], site.pool, Displace.SAME, 0.0)


def hopeless(site: Site, newcomer: Ticket, now: float) -> list[int]:
    """Who is found to wait in vain when a bound refuses an arrival."""
    verdict = examine(newcomer, site.life.ledger, site.settings, now, draining=False)
    return [ticket.sequence for ticket, check in in_vain(newcomer, verdict, now) if not check.passed]


def one_in_vain(class_name: str = "standard", **changes: Any) -> Site:
    """A full pool in which number 2 must start by 5 s, with three seconds of work before it."""
    site = learned(crowded(pool_settings(max_inflight_requests=1, max_queue=4)))
    filed(site, 2, max_output_tokens=990, class_name=class_name, **changes)
    for number in range(3, 6):
        filed(site, number, 1.0)
    return site


def test_who_waits_in_vain_is_found_when_a_bound_refuses() -> None:
    """R26: between two looks at it, for any arrival, and not before it has no chance."""
    site = one_in_vain()
    assert [] == hopeless(site, site.ticket(9, 2.6), 2.6)
    for class_name in ("realtime", "standard", "batch"):
        assert [2] == hopeless(site, site.ticket(9, 3.5, class_name=class_name), 3.5)


def test_whom_a_bound_cannot_use_is_not_looked_for() -> None:
    """Of another class none where only the bound of its own class refuses; nobody of those never refused."""
    site = one_in_vain()
    classes = with_class("batch", settings_for(pool_settings(max_inflight_requests=1)), max_queue=0)
    newcomer = site.ticket(9, 3.5, class_name="batch")
    newcomer.settings = classes.classes[2]
    site.pool.settings = pool_settings(max_inflight_requests=1)
    assert [] == hopeless(site, newcomer, 3.5)
    site = one_in_vain()
    site.life.tickets[TicketId(2)].never_refuse = True
    assert [] == hopeless(site, site.ticket(9, 3.5), 3.5)


def test_a_class_in_which_all_have_a_chance_is_left_alone_for_a_while() -> None:
    """Looking costs something at each arrival, and chances go by and by: a sixty-fourth of the budget is no time."""
    site = one_in_vain()
    assert [] == hopeless(site, site.ticket(9, 2.6), 2.6)
    assert 2.6 < site.pool.classes["standard"].hopeful_until_s < 2.7
    assert [] == hopeless(site, site.ticket(10, 2.65), 2.65)
    assert [2] == hopeless(site, site.ticket(11, 3.5), 3.5)


def test_a_few_are_looked_at_for_it() -> None:
    """However many wait."""
    site = one_in_vain()
    for number in range(20, 60):
        filed(site, number, 0.5)
    assert SOONEST_MAX == len(site.pool.classes["standard"].deadlines.soonest(SOONEST_MAX))
    assert len(hopeless(site, site.ticket(9, 3.5), 3.5)) <= 4


def test_the_head_of_the_line_stays_when_what_runs_is_about_to_end() -> None:
    """Two of 4.6 s each with a tenth left: its place comes in time, and by whole works it would not."""
    site = learned(Site(pool_settings(max_inflight_requests=2)))
    running = [site.running(number, max_output_tokens=229) for number in (1, 2)]
    head = filed(site, 3)
    early = waits_in_vain(head, 4.0)
    assert early is not None and "least_wait" == early.name
    for ticket in running:
        site.life.first_token(ticket, 0.1)
        site.life.progress(ticket, 205, 4.0)
    assert waits_in_vain(head, 4.0) is None
