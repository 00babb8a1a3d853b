"""Who makes room at a bound: the rules of `triage` against a plain reading of them over all that wait."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from forebay.admission.class_state import ClassState
from forebay.admission.deadlines import file_waiter
from forebay.admission.gate import Verdict, examine
from forebay.admission.settings import Displace
from forebay.admission.tickets import WAITING, Ticket
from forebay.admission.triage import SOONEST_MAX, VICTIMS_MAX, in_vain, room_for, waits_in_vain
from tests.unit.admission.build import Site, pool_settings

CLASSES = ("realtime", "standard", "batch")


class Crowd:
    """Waiters of a few tenants in three classes, of all sizes, some of whom may not be displaced."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.now = 20.0
        self.tenants = [f"t{n}" for n in range(draw.choice([1, 2, 3, 8]))]
        self.weights = {tenant: draw.choice([1.0, 1.0, 4.0]) for tenant in self.tenants}
        self.site = Site(pool_settings(max_inflight_requests=1, max_queue=30))
        self.site.running(1)
        self.protected: set[int] = set()
        self.waiting = [self.wait(number) for number in range(10, 30 + draw.randrange(15))]
        """The bound is passed by one to five when one more comes, or not at all."""

    def request(self, number: int, now: float) -> Ticket:
        """Of anybody, for anything."""
        draw = self.draw
        ticket = self.site.ticket(
            number,
            now,
            tenant=draw.choice([self.tenants[0], *self.tenants]),
            class_name=draw.choice(CLASSES),
            max_output_tokens=draw.choice([50, 99, 99, 300, draw.randrange(1, 1000)]),
        )
        ticket.weight = self.weights[ticket.tenant]
        return ticket

    def wait(self, number: int) -> Ticket:
        """One that waits since some time, too long to be displaced as the case may be."""
        site, queued_s = self.site, self.draw.choice([0.0, 17.0, 19.5, 20.0])
        ticket = self.request(number, queued_s)
        ticket.queued_s = queued_s
        site.life.tickets[ticket.demand.ticket] = ticket
        site.life.ledger.wait(ticket.booking)
        site.pool.queue.add(ticket)
        protected = self.draw.random() < 0.1
        if protected:
            self.protected.add(number)
        file_waiter(ticket, queued_s, protected=protected)
        return ticket

    def may_be_displaced(self, ticket: Ticket) -> bool:
        """Neither protected nor past half of its budget."""
        half_s = (ticket.deadline_s - ticket.queued_s) / 2
        return ticket.sequence not in self.protected and self.now <= ticket.queued_s + half_s

    def is_above(self, ticket: Ticket, waiting: Sequence[Ticket]) -> bool:
        """More of its tenant waits in the class than its weight's part."""
        own = [other for other in waiting if other.rank == ticket.rank]
        weight = sum(self.weights[tenant] for tenant in {other.tenant for other in own})
        work_us = sum(other.work_us for other in own if other.tenant == ticket.tenant)
        return work_us * weight > self.weights[ticket.tenant] * sum(other.work_us for other in own)

    def key(self, ticket: Ticket, waiting: Sequence[Ticket]) -> tuple[bool, int, float, int]:
        """Place in the order of going."""
        density = ticket.settings.value / ticket.work_us
        return not self.is_above(ticket, waiting), -ticket.rank, density, -ticket.sequence

    def victims(self, newcomer: Ticket, displace: Displace) -> list[int]:
        """Who should go."""
        left, chosen = list(self.waiting), list[int]()
        while len(left) >= 30:
            all_then = [*left, newcomer]
            before = self.key(newcomer, all_then)[:3]
            may_go = [
                ticket
                for ticket in left
                if self.may_be_displaced(ticket)
                and (
                    (ticket.rank > newcomer.rank and displace is not Displace.OFF)
                    or (
                        ticket.rank == newcomer.rank
                        and displace is Displace.SAME
                        and self.key(ticket, all_then)[:3] < before
                    )
                )
            ]
            if not may_go or len(chosen) == VICTIMS_MAX:
                return []
            first = min(may_go, key=lambda ticket: self.key(ticket, all_then))
            left.remove(first)
            chosen.append(first.sequence)
        return chosen


@pytest.mark.parametrize("displace", list(Displace))
def test_victims_are_those_that_the_rules_name(displace: Displace) -> None:
    """Above their share, less important, worth less, younger: each time, and counted without those already chosen."""
    seen: set[int] = set()
    for number in range(250):
        crowd = Crowd(random.Random(f"crowd {number}"))
        for other in range(4):
            newcomer = crowd.request(100 + other, crowd.now)
            verdict = examine(
                newcomer, crowd.site.life.ledger, crowd.site.settings, crowd.now, draining=False
            )
            chosen = room_for(newcomer, verdict, displace, crowd.now)
            assert crowd.victims(newcomer, displace) == [ticket.sequence for ticket in chosen]
            seen.add(len(chosen))
            for state in crowd.site.pool.classes.values():
                state.deadlines.verify()
    assert seen == ({0} if displace is Displace.OFF else {0, 1, 2, 3, 4})


def relevant(crowd: Crowd, newcomer: Ticket, verdict: Verdict) -> list[ClassState]:
    """The classes in which somebody's going helps: with the pool's bound all."""
    full = any(not check.passed and check.name == "pool_queue_requests" for check in verdict.checks)
    return [state for state in crowd.site.pool.classes.values() if full or state.index == newcomer.rank]


def first_to_start(crowd: Crowd, state: ClassState) -> list[Ticket]:
    """The few of a class that must start first; to within a slot, in which they are not in order."""
    own = [ticket for ticket in crowd.waiting if ticket.rank == state.index]
    soonest = [entry.owner for entry in state.deadlines.soonest(SOONEST_MAX)]
    found = [ticket for ticket in own if ticket in soonest]
    assert len(found) == min(len(own), SOONEST_MAX)
    latest_s = max((ticket.deadline_s for ticket in found), default=0.0)
    slot_s = state.settings.wait_budget_s / 32
    assert all(ticket.deadline_s >= latest_s - slot_s for ticket in own if ticket not in found)
    return found


def test_those_who_wait_in_vain_are_found_among_the_first_to_start() -> None:
    """R26: nobody with a chance is named; where they go, a few calls later nobody without one is among those."""
    found = set[int]()
    for number in range(250):
        draw = random.Random(f"in vain {number}")
        crowd = Crowd(draw)
        site, now = crowd.site, crowd.now
        site.pool.learning.observed(1000, 1000, 0.1, True, 0.0)
        for ticket in crowd.waiting:
            ticket.phase = WAITING
            ticket.never_refuse = draw.random() < 0.1
        newcomer = crowd.request(100, now)
        verdict = examine(newcomer, site.life.ledger, site.settings, now, draining=False)
        gone = 0
        while True:
            named = in_vain(newcomer, verdict, now)
            found.add(len(named))
            if not named and all(now < state.hopeful_until_s for state in relevant(crowd, newcomer, verdict)):
                break
            for ticket, check in named:
                assert not check.passed
                assert not ticket.never_refuse
                assert waits_in_vain(ticket, now) is not None
                crowd.waiting.remove(ticket)
                assert ticket.entry is not None
                site.pool.classes[ticket.demand.class_name].deadlines.remove(ticket.entry)
            gone += 1
            assert gone < 20
        for state in relevant(crowd, newcomer, verdict):
            for ticket in first_to_start(crowd, state):
                assert ticket.never_refuse or waits_in_vain(ticket, now) is None
    assert {0, 1, VICTIMS_MAX} <= found
