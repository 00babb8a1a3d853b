"""Who is served next in one pool: classes by weight or rank, tenants by fair share, requests by their class's order.

    class      `weighted`: the class with the smallest finish tag. `strict`: by rank, but a class below its floor first.
               A class above its `max_share` is passed over while another one has a waiter that could be served.
    tenant     the one with the smallest finish tag inside the class (`fairness`)
    request    the tenant's first (`tenant_queue`); its cost decides the tags of its tenant and its class

Everything is charged at dispatch with the expected cost and corrected when the request ends. Shares for caps and
floors count only work that was charged while another class had waiters that could use it, faded over ten seconds: what
nobody else wanted is held against nobody.

A class may be shut for a time (`set_shut`): then it is as if it had no waiters, to the walks and to the work ahead of
others, and it is lifted like one that could not be placed, so that being shut saves no share.

A dispatcher walks: `first`, then `take` it or `skip` it, and so on, and `restore` at the end. When it has skipped
enough and there is still room, `smallest_kv_waiter` gives those most likely to fit, so that nothing that fits is left.

Each step is O(log n) in requests and tenants, and linear in the few classes. Only the order lives here: whether a
request may start is asked of the endpoints, bounds and bookings are the ledger's, and the caller tells the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from forebay.admission.class_queue import ClassQueue, ClassRules, has_shares
from forebay.admission.errors import InvariantError
from forebay.admission.fairness import FairTime, ShareWindow
from forebay.admission.ranking import Ranking
from forebay.admission.tenant_queue import TenantQueue
from forebay.admission.waiter import Waiter
from forebay.admission.work_ahead import weight_units


class PoolQueue:
    """The waiters of one pool, and the accounts by which they are served.

    A waiter is filed by `add`; it leaves by `remove` (not served) or `take` (dispatched, which charges it). One that
    starts at once is charged by `charge` without having been filed. Whatever was charged is closed by exactly one
    `settle` (it has ended, with 0 if it took nothing) or `put_back` (it waits again).
    """

    __slots__ = (
        "_apart",
        "_kv",
        "_passed",
        "_shut",
        "_time",
        "_walk",
        "_walking",
        "classes",
        "count",
        "has_shares",
        "strict",
        "window",
    )

    def __init__(self, rules: tuple[ClassRules, ...], *, strict: bool = False) -> None:
        """`rules` by rank, most important class first."""
        self._kv = Ranking()
        """The waiters of all classes that are never shut, by their KV need; the others have rankings of their own."""
        self._apart: list[ClassQueue] = []
        """Those others."""
        self._shut = 0
        """How many of them are shut."""
        self.count = 0
        """Requests waiting."""
        self.classes = [
            ClassQueue(index, of_class, Ranking() if of_class.may_shut else self._kv)
            for index, of_class in enumerate(rules)
        ]
        self._find_apart()
        self.strict = strict
        self._time = FairTime()
        self.window = ShareWindow(len(rules))
        """What was charged to each class lately while others waited."""
        self.has_shares = has_shares(rules, strict=strict)
        """True if the window matters to anybody."""
        self._passed: list[TenantQueue] = []
        """Tenants with waiters passed over in this walk; some more than once."""
        self._walk = 1
        self._walking = False
        """True while somebody is skipped."""

    # In and out

    def add(self, waiter: Waiter) -> None:
        """File a waiter. Ends a walk. Raises: InvariantError if it waits already, or is charged."""
        if waiter.waiting or waiter.charged:
            raise InvariantError(f"waiter {waiter.sequence} waits already, or is in flight")
        self._enter(waiter, front=False)

    def put_back(self, waiter: Waiter) -> None:
        """The attempt of a charged request failed: nothing is charged for it, and it waits before all of its tenant.

        Its cost may be set anew before. Ends a walk. Raises: InvariantError if it is not charged.
        """
        change_us = -waiter.charged_us
        queue, tenant = self._close(waiter, change_us)
        # At once: the next of its tenant is this one, served as if it had been paid for.
        queue.time.correct(tenant, change_us / waiter.weight)
        self._enter(waiter, front=True)
        queue.reorder(tenant)

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out unserved, from wherever it stands. Raises: InvariantError if it does not wait."""
        queue, tenant = self._find(waiter)
        self._leave(queue, tenant, waiter)

    def take(self, waiter: Waiter, now: float) -> None:
        """A waiter is dispatched: it leaves and is charged. Raises: InvariantError if it does not wait."""
        queue, tenant = self._find(waiter)
        self._charge(queue, tenant, waiter, now)
        if self._shut:
            self._pass_over_shut()
        if not self._walking:
            # Nobody was passed over for it: nothing that was served until now gives reason to lift anybody.
            self._time.served = queue.time.served = 0.0
        self._leave(queue, tenant, waiter)

    def recost(self, waiter: Waiter, work_us: int, kv_tokens: int) -> None:
        """A waiter's cost is estimated anew. It keeps its arrival and its tenant's standing. Ends a walk.

        Raises:
            InvariantError: it does not wait.
        """
        queue, tenant = self._find(waiter)
        if self._walking:
            self.restore()
        queue.remove(tenant, waiter)
        queue.kv.remove(waiter.kv_tokens, waiter)
        waiter.work_us = work_us
        waiter.kv_tokens = kv_tokens
        queue.add(tenant, waiter)
        queue.kv.add(kv_tokens, waiter)
        queue.reorder(tenant)

    def reconfigure(self, rules: tuple[ClassRules, ...], *, strict: bool = False) -> None:
        """Serve the same classes by other rules. Waiters, and what was charged, stay. Ends a walk."""
        if self._walking:
            self.restore()
        self.strict = strict
        self.has_shares = has_shares(rules, strict=strict)
        for queue, new in zip(self.classes, rules, strict=True):
            old = queue.rules
            queue.rules = new
            queue.weight = new.weight
            queue.wants = True
            if new.may_shut is not old.may_shut:
                self._move_apart(queue, Ranking() if new.may_shut else self._kv)
            if not new.key_rule.same_as(old.key_rule):
                for waiter in list(queue):
                    self.recost(waiter, waiter.work_us, waiter.kv_tokens)

    def reclass(self, sources: list[int], rules: tuple[ClassRules, ...]) -> None:
        """Serve other classes: for each the place it had, or -1 for a new one. Those that go are empty. Ends a walk.

        `reconfigure` with the same rules comes next.
        """
        if self._walking:
            self.restore()
        for queue in self._apart:
            self.set_shut(queue.index, shut=False)
        before, self.classes = self.classes, []
        for index, (source, of_class) in enumerate(zip(sources, rules, strict=True)):
            if source < 0:
                queue = ClassQueue(index, of_class, Ranking() if of_class.may_shut else self._kv)
            else:
                queue = before[source]
                queue.index = index
                for waiter in queue:
                    waiter.class_index = index
            self.classes.append(queue)
        self.window.reclass(sources)
        self._find_apart()

    def set_shut(self, index: int, *, shut: bool) -> None:
        """A class may not start from now on, or may again. Only one that `may_shut`."""
        queue = self.classes[index]
        if queue.shut is not shut:
            queue.shut = shut
            self._shut += 1 if shut else -1

    def allow_bursts(self, us_per_s: float, seconds: tuple[float, ...]) -> None:
        """Let classes save what they do not use of their shares.

        Traffic comes in bursts, and a class of short waits cannot sit them out. So a class that had less than its share
        may catch up for so many seconds' worth of it, and classes share by weight over such times.

        Args:
            us_per_s: work that the pool gets through per second.
            seconds: for each class.
        """
        per_weight = us_per_s / sum(queue.weight for queue in self.classes)
        for queue, burst_s in zip(self.classes, seconds, strict=True):
            queue.burst = per_weight * burst_s

    # Accounts

    def charge(self, waiter: Waiter, now: float) -> None:
        """A request that did not wait is dispatched. Raises: InvariantError if it waits, or is charged already."""
        if waiter.waiting or waiter.charged:
            raise InvariantError(f"waiter {waiter.sequence} waits, or is in flight already")
        queue = self.classes[waiter.class_index]
        tenant = queue.tenant(waiter.tenant)
        if not self._walking:
            self._time.served = 0.0
        self._charge(queue, tenant, waiter, now)
        if tenant.waiters.count:
            queue.reorder(tenant)
        if self.count > queue.count and not self._walking:
            # Whoever waits could not be placed, or it would have been first: passed over, as in a walk.
            for other in self.classes:
                if other is not queue and other.count:
                    self._pass_over_class(other)

    def settle(self, waiter: Waiter, work_us: int) -> None:
        """A charged request has ended, and `work_us` is what it took. Raises: InvariantError if it is not charged."""
        change_us = work_us - waiter.charged_us
        queue, tenant = self._close(waiter, change_us)
        queue.time.owe(tenant, change_us / waiter.weight)
        queue.forget_if_idle(tenant)

    # Service

    def first(self) -> Waiter | None:
        """The waiter to serve next among those not skipped in this walk; None if there is none."""
        best: Waiter | None = None
        best_tag = 0.0
        capped: Waiter | None = None
        capped_tag = 0.0
        strict, has_shares = self.strict, self.has_shares
        for queue in self.classes:
            head = queue.head
            if head is None or queue.shut:
                continue
            # A strict order has two tags: below the floor, or not. Among equals it is by rank, else by arrival.
            tag = 0.0 if strict else queue.finish + head.work_us / queue.weight
            if has_shares:
                rules, index = queue.rules, queue.index
                if strict and self.window.is_below(index, rules.floor):
                    tag = -1.0
                if rules.max_share < 1.0 and self.window.is_above(index, rules.max_share):
                    if (
                        capped is None
                        or tag < capped_tag
                        or (tag == capped_tag and not strict and head.sequence < capped.sequence)
                    ):
                        capped, capped_tag = head, tag
                    continue
            if (
                best is None
                or tag < best_tag
                or (tag == best_tag and not strict and head.sequence < best.sequence)
            ):
                best, best_tag = head, tag
        return best if best is not None else capped

    def skip(self, waiter: Waiter) -> None:
        """This waiter cannot be placed now: pass it over until `restore`.

        Raises:
            InvariantError: it does not wait.
        """
        queue, tenant = self._find(waiter)
        self._walking = True
        waiter.walk = self._walk
        if waiter is tenant.head:
            self._pass_over(queue, tenant)

    def restore(self) -> None:
        """The walk is over: whoever was skipped stands where it stood. Nothing to do if nobody was.

        Tenants and classes that were passed over keep a claim to one request (`FairTime.pass_over`).
        """
        if self._walking:
            self._walking = False
            self._walk += 1
            self._kv.restore()
            for queue in self._apart:
                queue.kv.restore()
            self._restore_tenants()
            self._time.served = 0.0
            for queue in self.classes:
                queue.time.served = 0.0

    def smallest_kv_waiter(self) -> Waiter | None:
        """The waiter with the smallest KV need among those not skipped in this walk; None if there is none."""
        self._kv.pass_over(self._walk)
        smallest = self._kv.head
        for queue in self._apart:
            if not queue.shut:
                queue.kv.pass_over(self._walk)
                head = queue.kv.head
                if head is not None and (
                    smallest is None
                    or head.kv_tokens < smallest.kv_tokens
                    or (head.kv_tokens == smallest.kv_tokens and head.sequence < smallest.sequence)
                ):
                    smallest = head
        return smallest

    # What is known of it

    def work_ahead(self, waiter: Waiter) -> tuple[int, int]:
        """Work in µs, and requests, that will be served before this waiter, whether it is filed or not.

        Let A be the work of its own tenant up to and with it. Then the other tenants of its class are served what
        `work_ahead` says, A' in all with A, and of another class with backlog B and weight W min(B, A' · W ÷ own W);
        with `strict`, the backlog of the higher ranks, but together no more than this class's floor leaves them. The
        count is as many requests as that work has at the mean cost of each class.
        """
        queue = self.classes[waiter.class_index]
        tenant = queue.tenants.get(waiter.tenant)
        if not waiter.waiting:
            waiter.key = queue.rules.key_rule.key(waiter)
        own_us = waiter.work_us if waiter.work_us > 0 else 1
        ahead_us, count = 0, 0
        others, others_us = queue.count, queue.work_us
        if tenant is not None:
            ahead_us, count = tenant.waiters.before(waiter.key, waiter)
            others -= tenant.waiters.count
            others_us -= tenant.waiters.work_us
        upto_us = float(ahead_us + own_us)
        requests = float(count)
        if others_us:
            per_unit = upto_us / weight_units(waiter.weight)
            if tenant is None:
                more_us = queue.backlogs.ahead_us(per_unit, -1, 0, 0)
            else:
                more_us = queue.backlogs.ahead_us(
                    per_unit, tenant.bin, tenant.waiters.work_us, tenant.weight_units
                )
            upto_us += more_us
            requests += others * more_us / others_us
        before_us = upto_us - own_us
        floor = queue.rules.floor
        left_us = upto_us * (1.0 / floor - 1.0) if self.strict and floor else inf
        for other in self.classes:
            backlog_us = other.work_us
            if other is queue or not backlog_us or other.shut:
                continue
            if self.strict:
                if other.index > queue.index:
                    break
                more_us = min(float(backlog_us), left_us)
                left_us -= more_us
            else:
                more_us = upto_us * other.weight / queue.weight
                if more_us > backlog_us:
                    more_us = float(backlog_us)
            before_us += more_us
            requests += other.count * more_us / backlog_us
        return round(before_us), round(requests)

    def backlogged_weight(self, *, with_class: int = -1) -> float:
        """Weight of the classes that have waiters, and of one more: a class's share is its weight divided by this."""
        weight = 0.0
        for queue in self.classes:
            if (queue.count and not queue.shut) or queue.index == with_class:
                weight += queue.weight
        return weight

    def __iter__(self) -> Iterator[Waiter]:
        """All, in an order that depends on the history alone. Nothing may be filed or leave meanwhile."""
        for queue in self.classes:
            yield from queue

    def __len__(self) -> int:
        return self.count

    # Steps

    def _find(self, waiter: Waiter) -> tuple[ClassQueue, TenantQueue]:
        if not waiter.waiting:
            raise InvariantError(f"waiter {waiter.sequence} does not wait")
        queue = self.classes[waiter.class_index]
        return queue, queue.tenants[waiter.tenant]

    def _enter(self, waiter: Waiter, *, front: bool) -> None:
        if self._walking:
            self.restore()
        queue = self.classes[waiter.class_index]
        tenant = queue.tenant(waiter.tenant)
        weight = waiter.weight
        if not queue.count:
            self._time.enter(queue, max(queue.burst, waiter.work_us / queue.weight if front else 0.0))
        if not tenant.waiters.count:
            queue.time.enter(tenant, waiter.work_us / weight if front else 0.0)
        if weight != tenant.weight:
            queue.set_weight(tenant, weight)
        waiter.front = front
        head = tenant.head
        queue.add(tenant, waiter)
        queue.kv.add(waiter.kv_tokens, waiter)
        self.count += 1
        waiter.waiting = True
        if tenant.head is not head:
            queue.reorder(tenant)

    def _leave(self, queue: ClassQueue, tenant: TenantQueue, waiter: Waiter) -> None:
        queue.remove(tenant, waiter)
        queue.kv.remove(waiter.kv_tokens, waiter)
        self.count -= 1
        waiter.waiting = False
        if not queue.count:
            self._time.leave(queue)
        head = tenant.head
        if head is not None and head.walk == self._walk:
            self._pass_over(queue, tenant)  # skipped before, when it was not the head
        else:
            queue.reorder(tenant)
        if not tenant.waiters.count:
            queue.time.leave(tenant)
            queue.forget_if_idle(tenant)

    def _charge(self, queue: ClassQueue, tenant: TenantQueue, waiter: Waiter, now: float) -> None:
        work_us = waiter.work_us
        waiter.charged = True
        waiter.charged_us = work_us
        waiter.charged_s = now
        tenant.in_flight += 1
        queue.time.serve(tenant, work_us / waiter.weight)
        self._time.serve(queue, work_us / queue.weight, queue.burst)
        queue.sweep()
        waiter.in_window = self.has_shares and self.count > queue.count and self._others_want(queue)
        if waiter.in_window:
            self.window.add(queue.index, work_us, now)

    def _others_want(self, own: ClassQueue) -> bool:
        for queue in self.classes:  # noqa: SIM110 - a generator costs more than the whole loop
            if queue.count and queue.wants and queue is not own:
                return True
        return False

    def _close(self, waiter: Waiter, change_us: int) -> tuple[ClassQueue, TenantQueue]:
        """Close a charge, which was wrong by so much. Its tenant's account is the caller's."""
        if not waiter.charged:
            raise InvariantError(f"waiter {waiter.sequence} is not charged")
        waiter.charged = False
        queue = self.classes[waiter.class_index]
        tenant = queue.tenants[waiter.tenant]
        tenant.in_flight -= 1
        if change_us:
            self._time.correct(queue, change_us / queue.weight)
            if waiter.in_window:
                self.window.add(queue.index, change_us, waiter.charged_s)
            if waiter.member is not None:
                waiter.member.correct(waiter, change_us)
        waiter.charged_us = 0
        waiter.law_factor = 1.0
        return queue, tenant

    def _pass_over_shut(self) -> None:
        """Somebody was served: classes that may not start are lifted, or being shut would save them their share."""
        for queue in self._apart:
            if queue.shut:
                self._pass_over_class(queue)

    def _find_apart(self) -> None:
        self._apart = [queue for queue in self.classes if queue.rules.may_shut]

    def _move_apart(self, queue: ClassQueue, kv: Ranking) -> None:
        """Its rules have changed: its waiters stand by their KV need elsewhere."""
        self.set_shut(queue.index, shut=False)
        for waiter in queue:
            queue.kv.remove(waiter.kv_tokens, waiter)
            kv.add(waiter.kv_tokens, waiter)
        queue.kv = kv
        self._find_apart()

    def _pass_over(self, queue: ClassQueue, tenant: TenantQueue) -> None:
        tenant.pass_over(self._walk)
        self._passed.append(tenant)
        queue.reorder(tenant)

    def _restore_tenants(self) -> None:
        """See `restore`."""
        passed: list[ClassQueue] = []
        for tenant in self._passed:
            if not tenant.waiters.passed:
                continue
            tenant.restore()
            head = tenant.head
            if head is not None:
                queue = self.classes[head.class_index]
                queue.time.pass_over(tenant, head.work_us / head.weight)
                queue.reorder(tenant)
                passed.append(queue)
        self._passed.clear()
        for queue in passed:
            self._pass_over_class(queue)

    def _pass_over_class(self, queue: ClassQueue) -> None:
        """Others were served before it. It keeps a claim to one request, or to its burst."""
        first = queue.head
        if first is not None:
            self._time.pass_over(queue, max(first.work_us / queue.weight, queue.burst))
