"""Pools on the same GPUs: each has its part of their time, and what one does not use the others borrow.

A pool's part is its `share`; those without one have equal parts of what the shares leave. While one of them has less
than its part and waits for room, a pool that is ahead starts nothing, so that what it runs makes way. Ahead is one that
has something in flight, had more than its part of the GPU-seconds charged in the group lately while others of it
waited, and

    has more than its part of the requests in flight in the group, or
    is served more per second than that part of all that its own engines get through

The first holds at once, the second for pools of other sizes, whose requests are not alike. But where both hold up
somebody for the sake of a pool that waits and yet can make no use of more, since its engines take few requests, the
GPUs do less than they can. That is seen within a second (`Group.has_spare`), and then both must be so: the others keep
their own part of the GPUs, however little it had. Both must be so too while nobody knows what a pool's engines get
through, since that was not measured and there is no profile. Till it was measured it is no less than they were seen to.

Lately is as for the shares of classes, faded over ten seconds (`ShareWindow`), and here too what nobody else wanted is
held against nobody. A pool that waits at its own `max_pool_requests` or at a ceiling of a class wants nothing. One that
waits for engines that are away or silent holds up nobody either; for this, silence counts at a fifth of what makes an
engine a stalled one. One whose engines are full does: they get through more when the others make way.

Nobody is told when a pool is not ahead any more: after each event the controller asks (`Groups.opened`), and sets a
timer for what time alone opens (`Member.opens_s`).
"""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING, Final

from forebay.admission.endpoints import Endpoint
from forebay.admission.fairness import WINDOW_S, ShareWindow
from forebay.admission.model import MICRO, Check
from forebay.admission.settings import Settings
from forebay.admission.silence import silence_limit_s, silent_since_s

if TYPE_CHECKING:
    from forebay.admission.pools import Pool
    from forebay.admission.waiter import Waiter

LOOK_S: Final = 1.0
"""For so long it is counted what the GPUs do, before it is said that they have time to spare."""
FULL: Final = 0.7
"""Of what they can do: less is time to spare."""
SILENT_PART: Final = 0.2
"""Of what makes an engine a stalled one: after so long a silence others need not make way for what runs there."""


class Group:
    """The pools of one group, and what each had lately, in µs of GPU time."""

    __slots__ = ("_looked_s", "_since_s", "_spare_until_s", "contended", "members", "name", "served")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: list[Member] = []
        self.contended = ShareWindow(0)
        """Charged at starts, while another pool of the group waited."""
        self.served = ShareWindow(0)
        """Done by the engines, as it is seen."""
        self._since_s = self._looked_s = self._spare_until_s = 0.0

    def has_spare(self, now: float) -> bool:
        """True if the GPUs were seen to do less than they can while somebody was held for another's sake.

        Then that other one can make no use of more, since its engines take few requests. Asked whenever it matters;
        what was found holds for a while.
        """
        if now < self._spare_until_s:
            return True
        begins = now - self._looked_s > LOOK_S
        self._looked_s = now
        if not begins:
            if now - self._since_s < LOOK_S:
                return False
            # The pool that gets through most when it is alone has all of the GPUs then.
            most = max([member.drain() for member in self.members])
            if sum([member.seen_us for member in self.members]) < FULL * most * (now - self._since_s):
                self._spare_until_s = now + WINDOW_S
        self._since_s = now
        for member in self.members:
            member.seen_us = 0
        return now < self._spare_until_s


class Member:
    """One pool of a group."""

    __slots__ = ("gpus", "group", "held", "index", "most_us_per_s", "part", "pool", "seen_us")

    def __init__(self, pool: Pool, group: Group) -> None:
        self.pool = pool
        self.group = group
        self.gpus = pool.settings.gpus
        """Of an endpoint. If that changes, the pool is a new member: what it was charged was for others."""
        self.index = -1
        """Its place in the group; -1 once it has left."""
        self.part = 0.0
        """Of the group's GPU time, while others want the rest."""
        self.held = False
        """As of the last look."""
        self.most_us_per_s = 0.0
        """The most that it was served per second, as `ShareWindow` has it, in µs of GPU time."""
        self.seen_us = 0
        """Done by its engines since `Group.has_spare` began to count."""

    def charge(self, waiter: Waiter, now: float) -> None:
        """A request starts."""
        waiter.member = self if self._others_wait() else None
        if waiter.member is not None:
            self.group.contended.add(self.index, waiter.charged_us * self.gpus, now)

    def correct(self, waiter: Waiter, change_us: int) -> None:
        """What was charged for it was wrong by so much."""
        if waiter.law_factor != 1.0:  # that charge was scaled with the rest
            change_us += int(waiter.charged_us * (1.0 - waiter.law_factor))
        if self.index >= 0:
            self.group.contended.add(self.index, change_us * self.gpus, waiter.charged_s)

    def serve(self, work_us: int, now: float) -> None:
        """Its engines have done so much more."""
        self.seen_us += work_us * self.gpus
        self.group.served.add(self.index, work_us * self.gpus, now)

    def rescale(self, factor: float) -> None:
        """Its work is counted in a unit that is 1 ÷ `factor` of the old one from now on."""
        self.group.served.scale(self.index, factor)
        self.group.contended.scale(self.index, factor)
        self.most_us_per_s *= factor

    def is_held(self, now: float) -> bool:
        """True if it may start nothing now, for the sake of another pool."""
        self.held = self._is_ahead(now) and self._is_another_short(now)
        return self.held

    def what_holds(self) -> Check:
        """Why it is held."""
        return Check("group_share", self.group.contended.share_of(self.index), self.part, False)

    def opens_s(self, now: float) -> float:
        """When it is not held any more if nothing happens till then; infinite if time does not do it."""
        part, rate = self._own_us_per_s(), self.group.served.per_s(self.index, now)
        # A little later: at the moment itself it may still be held, and what it is served meanwhile puts it off.
        return now + WINDOW_S * log(rate / part) + 0.01 if 0.0 < part < rate else inf

    def share_of_group(self) -> float:
        """Its part of all that was done in the group lately."""
        return self.group.served.share_of(self.index)

    def drain_us_per_s(self, own_us_per_s: float) -> float:
        """What it gets through, if its engines would `own_us_per_s`: while others wait, at most its part of it all.

        All of it is the sum of what each gets through. Of pools that were last measured alone that is more than their
        GPUs can do together, so this is never too little, and what waits turn out to be corrects the rest.
        """
        if not self._others_wait():
            return own_us_per_s
        total = sum([member.drain() for member in self.group.members])
        return min(own_us_per_s, self.part * total / self.gpus)

    def is_short(self, now: float) -> bool:
        """True if it has less than its part, and waits for no other reason than that its engines are busy."""
        pool = self.pool
        if not self.wants_more() or not self.group.contended.is_below(self.index, self.part):
            return False
        for endpoint in pool.endpoints.values():
            if (
                endpoint.is_up
                and endpoint.share
                and not endpoint.trial
                and not endpoint.is_stale(now)
                and not _is_silent(endpoint, now)
            ):
                return True
        return False

    def wants_more(self) -> bool:
        """True if something of it waits, and not at its own `max_pool_requests` nor, all of it, at ceilings."""
        pool = self.pool
        if not pool.books.waiting.requests:
            return False
        cap = pool.settings.max_pool_requests
        if cap is not None and pool.books.in_flight.requests >= int(cap * pool.share):
            return False
        return pool.queue.backlogged_weight() > 0.0

    def drain(self) -> float:
        """µs of GPU time per second that its engines get through."""
        return own_us_per_s(self.pool) * self.gpus

    def _own_us_per_s(self) -> float:
        """Its part of what its engines get through. Until that was measured: no less than they were seen to."""
        pool, drain = self.pool, self.drain()
        if not _is_measured(pool) and (pool.settings.law is None or drain < self.most_us_per_s):
            drain = self.most_us_per_s
        return self.part * drain

    def _is_ahead(self, now: float) -> bool:
        in_flight = self.pool.books.in_flight.requests
        if not in_flight:
            return False
        group, index, part = self.group, self.index, self.part
        rate = group.served.per_s(index, now)
        if rate > self.most_us_per_s:
            self.most_us_per_s = rate
        if not group.contended.is_above(index, part):
            return False
        of_all = sum([member.pool.books.in_flight.requests for member in group.members])
        has_many, has_much = in_flight + 1 > part * (of_all + 1), rate > self._own_us_per_s()
        if (self.pool.settings.law is None and not _is_measured(self.pool)) or group.has_spare(now):
            return has_many and has_much
        return has_many or has_much

    def _is_another_short(self, now: float) -> bool:
        for member in self.group.members:  # noqa: SIM110 - a generator costs more than the whole loop
            if member is not self and member.is_short(now):
                return True
        return False

    def _others_wait(self) -> bool:
        for member in self.group.members:  # noqa: SIM110 - as above
            if member is not self and member.wants_more():
                return True
        return False


class Groups:
    """The groups of one controller's pools."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        """Of all groups."""

    def apply(self, settings: Settings, pools: dict[str, Pool]) -> None:
        """Group the pools so. Whoever stays in its group keeps what it was charged."""
        named: dict[str, list[Pool]] = {}
        for pool_settings in settings.pools:
            if pool_settings.group is not None:
                named.setdefault(pool_settings.group, []).append(pools[pool_settings.name])
        before, self.members = self.members, []
        groups = {member.group.name: member.group for member in before}
        for name, together in named.items():
            if len(together) > 1:  # alone, it has everything
                self._form(groups.get(name) or Group(name), together)
        for member in before:
            if member not in self.members:
                member.index = -1
                if member.pool.member is member:
                    member.pool.member = None

    def opened(self, now: float) -> Pool | None:
        """A pool with waiters that was held when last looked at, and is not any more; None if there is none."""
        for member in self.members:
            if member.held and not member.is_held(now) and member.pool.books.waiting.requests:
                return member.pool
        return None

    def _form(self, group: Group, pools: list[Pool]) -> None:
        sources: list[int] = []
        members: list[Member] = []
        without = 0
        left = 1.0
        for pool in pools:
            member = pool.member
            if (
                member is None
                or member.group is not group
                or member.index < 0
                or member.gpus != pool.settings.gpus
            ):
                member = Member(pool, group)
            sources.append(member.index)
            members.append(member)
            share = pool.settings.share
            if share is None:
                without += 1
            else:
                left -= share
        for index, member in enumerate(members):
            share = member.pool.settings.share
            member.index = index
            member.part = max(left, 0.0) / without if share is None else share
            member.pool.member = member
        group.members = members
        group.served.reclass(sources)
        group.contended.reclass(sources)
        self.members += members


def own_us_per_s(pool: Pool) -> float:
    """Work per second that a pool's engines get through as they were last measured, on the reference endpoint."""
    return sum([e.meter.speed for e in pool.endpoints.values() if e.is_up]) * pool.share * MICRO


def _is_measured(pool: Pool) -> bool:
    """False if the speed of some engine that is up is a guess, or its profile's: nothing ever waited for it."""
    for endpoint in pool.endpoints.values():  # noqa: SIM110 - as above
        if endpoint.is_up and not endpoint.meter.windows:
            return False
    return True


def _is_silent(endpoint: Endpoint, now: float) -> bool:
    """True if what runs there shows no sign that it is getting anywhere."""
    if not endpoint.running:
        return False
    limit_s = silence_limit_s(endpoint)
    return limit_s is not None and now - silent_since_s(endpoint) > SILENT_PART * limit_s
