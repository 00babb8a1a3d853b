"""What each tenant may use, and has used: buckets of tokens and of requests, and caps on what it has in flight.

A bucket holds what was **spent** and not yet refilled, so a full one has spent nothing:

    level = capacity − spent        spent falls by rate × time, never below 0, and may exceed the capacity (a debt)

A changed rate or capacity therefore takes effect at once and keeps what was used. Sums are integers, in millionths of a
token or a request.

One `Debit` is what one request takes. `checks` compares all limits and changes nothing; `book` takes from all of them
at once, when the request is dispatched or held; `close` gives back all that it did not use, but for the place in flight
of one that an engine is still at. So what one limit refuses
costs nothing elsewhere, and a request that an engine fails and another one serves pays once. With N the sum of what the
requests in flight come to take over their estimates, a tenant has never used more than rate × time + capacity + N.

Of the requests that a bucket of tokens refuses, the first has a place kept (`promises`), so that large ones are not put
off for ever by small ones.

A request that costs more than the whole bucket passes when the bucket is full, and leaves a debt that is repaid before
anything else passes. So does one of more GPU-seconds than the cap, when nothing else is in flight. A capacity of 0
lets nothing pass.

The table of accounts is bounded. One that has nothing in flight and full buckets is as good as none, and goes when its
place is needed; where there is none to go, newcomers of a plan share one account. Nothing here knows a queue, an engine
or a clock.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Final

from forebay.admission.errors import invariant
from forebay.admission.model import MICRO, Amount, Check, Exhausted, QuotaView
from forebay.admission.promises import Promise
from forebay.admission.retry_after import LONGEST_S, known_s
from forebay.admission.settings import PlanSettings

ACCOUNTS_MAX: Final = 16_384
LOOKED_AT: Final = 8
"""Accounts that are looked at for one that may go: a newcomer must not cost a look at all."""
TURNS_MAX: Final = 16
"""Requests of a tenant that are told to come one after another; more than that are told the time of the last."""
SOON_S: Final = 1.0
"""When to come back to a cap on what is in flight: nobody knows when one of one's own requests ends."""

GRAIN_S: Final = 0.001
"""Later than the exact moment: what rounding leaves out must not refuse whoever comes back on time."""

INPUT: Final = "quota_input_tokens"
REQUESTS: Final = "quota_requests"
TOKENS: Final = "quota_tokens"
IN_FLIGHT: Final = "quota_inflight_requests"
GPU_SECONDS: Final = "quota_inflight_gpu_seconds"


class Bucket:
    """One bucket. Amounts are in millionths."""

    __slots__ = ("at_s", "spent")

    def __init__(self, now: float) -> None:
        self.spent = 0
        self.at_s = now

    def refill(self, per_s: float, now: float) -> None:
        """Bring it up to now. What is less than a millionth stays for the next time."""
        if self.spent:
            back = int((now - self.at_s) * per_s * MICRO)
            if back <= 0:
                return
            if back < self.spent:
                self.spent -= back
                self.at_s += back / (per_s * MICRO)
                return
            self.spent = 0
        self.at_s = now

    def lacks(self, cost: int, capacity: int, kept: int = 0) -> int:
        """How much has to be refilled before this cost passes and leaves what is kept; 0 if it passes now."""
        need = cost if cost < capacity else capacity
        over = self.spent + (need if need > 0 else 1) + kept - capacity
        return over if over > 0 else 0

    def change(self, amount: int) -> None:
        """Take, or give back. What is given back above the brim is lost."""
        self.spent = self.spent + amount if self.spent + amount > 0 else 0


class Account:
    """What one tenant has used of its plan."""

    __slots__ = ("in_flight", "in_flight_gpu_us", "plan", "promise", "requests", "tokens", "told_until_s")

    def __init__(self, plan: PlanSettings, now: float) -> None:
        self.plan = plan
        self.tokens = Bucket(now)
        self.requests = Bucket(now)
        self.promise = Promise()
        self.in_flight = 0
        """Requests that are held or running, or that an engine has not let go of yet."""
        self.in_flight_gpu_us = 0
        """Their expected work, in millionths of a GPU-second."""
        self.told_until_s = 0.0
        """When it will have refilled what those that were told to come back are to get."""

    def refill(self, now: float) -> None:
        """Bring both buckets up to now."""
        plan = self.plan
        if plan.tokens_per_s is not None:
            self.tokens.refill(plan.tokens_per_s, now)
        if plan.requests_per_s is not None:
            self.requests.refill(plan.requests_per_s, now)

    def adopt(self, plan: PlanSettings, now: float) -> None:
        """Go by this plan from now on. What was used stays used.

        Also over a time without a limit, so that who gives back what it took before that gives back what is there: the
        bucket refills for that time at the rate that comes after it.
        """
        self.refill(now)
        if self.plan.tokens_per_s is not None:
            self.tokens.at_s = now
        if self.plan.requests_per_s is not None:
            self.requests.at_s = now
        self.plan = plan

    def turn_s(self, wait_s: float, each_s: float, now: float) -> float:
        """In how long one that is refused now has its turn: after such a wait, and after others that were told to come.

        Whether they come or not, a turn is over by itself.

        Args:
            each_s: how long it takes to refill what this one is to get.
        """
        at_s = min(max(now + wait_s, self.told_until_s), now + wait_s + TURNS_MAX * each_s)
        self.told_until_s = at_s + each_s
        return at_s - now

    def is_fresh(self, now: float) -> bool:
        """True if it is as if it had never been used."""
        if self.in_flight:
            return False
        self.refill(now)
        return not self.tokens.spent and not self.requests.spent

    def view(self, now: float) -> QuotaView | None:
        """What is left in the buckets; None if there are none."""
        plan = self.plan
        if plan.tokens_per_s is None and plan.requests_per_s is None:
            return None
        self.refill(now)
        requests, tokens = plan.requests_capacity, plan.tokens_capacity
        return QuotaView(
            requests,
            _left(self.requests, requests),
            _full_in_s(self.requests, plan.requests_per_s),
            tokens,
            _left(self.tokens, tokens),
            _full_in_s(self.tokens, plan.tokens_per_s),
        )


class Debit:
    """What one request takes from its tenant's account."""

    __slots__ = (
        "_booked_requests",
        "_booked_tokens",
        "account",
        "booked",
        "gpu_us",
        "input_tokens",
        "key",
        "lingers",
        "output_cap",
        "tokens",
    )

    def __init__(
        self,
        account: Account,
        *,
        tokens: int,
        input_tokens: int,
        gpu_us: int,
        output_cap: int | None = None,
        key: int = 0,
    ) -> None:
        """See the class.

        Args:
            tokens: expected input, and expected output or the most that it may be.
            input_tokens: those that its input has for certain.
            gpu_us: expected work, in millionths of a GPU-second.
            output_cap: the most output that there may be, where that is what counts.
            key: by which it is known again when it comes back.
        """
        self.account = account
        self.tokens = tokens
        self.input_tokens = input_tokens
        self.gpu_us = gpu_us
        self.output_cap = output_cap
        self.key = key
        self.booked = False
        self.lingers = False
        """It is over for its client, and an engine is still at it: its place is taken until `leave`."""
        self._booked_tokens = 0
        self._booked_requests = 0

    def checks(self, now: float) -> list[Check]:
        """What all limits say. Changes nothing but the time."""
        account = self.account
        plan = account.plan
        account.refill(now)
        found: list[Check] = []
        per_s, capacity = plan.tokens_per_s, plan.tokens_capacity
        if per_s is not None and capacity is not None:
            if capacity > 0:
                found.append(Check(INPUT, self.input_tokens, capacity, self.input_tokens <= capacity))
            kept = account.promise.left_for_it(self.key, per_s, now)
            found.append(_compare(TOKENS, account.tokens, self.tokens * MICRO, capacity, kept))
        per_s, capacity = plan.requests_per_s, plan.requests_capacity
        if per_s is not None and capacity is not None:
            found.append(_compare(REQUESTS, account.requests, MICRO, capacity))
        most = plan.max_inflight
        if most is not None:
            found.append(Check(IN_FLIGHT, account.in_flight + 1, most, account.in_flight < most))
        most_gpu_us = plan.max_inflight_gpu_us
        if most_gpu_us is not None:
            with_it = account.in_flight_gpu_us + self.gpu_us
            passed = most_gpu_us > 0 and (not account.in_flight or with_it <= most_gpu_us)
            found.append(Check(GPU_SECONDS, with_it / MICRO, most_gpu_us / MICRO, passed))
        return found

    def wait_s(self, now: float) -> float:
        """How long until all limits let it pass, as far as can be known; infinite if they never will."""
        account = self.account
        plan = account.plan
        if plan.max_inflight == 0 or plan.max_inflight_gpu_us == 0:
            return inf
        account.refill(now)
        wait_s = _refilled_s(account.requests, MICRO, plan.requests_per_s, plan.requests_capacity)
        tokens_s = self._tokens_wait_s(now)
        if tokens_s > wait_s:
            wait_s = tokens_s
        if wait_s < SOON_S and self._is_held_up():
            return SOON_S
        return wait_s

    def refill_s(self) -> float:
        """How long it takes to refill what it takes of the buckets that do not let it pass."""
        account, plan = self.account, self.account.plan
        refill_s = 0.0
        per_s, capacity = plan.requests_per_s, plan.requests_capacity
        if per_s and capacity and account.requests.lacks(MICRO, capacity * MICRO):
            refill_s = 1.0 / per_s
        per_s, capacity = plan.tokens_per_s, plan.tokens_capacity
        if per_s and capacity and account.tokens.lacks(self.tokens * MICRO, capacity * MICRO):
            refill_s = max(refill_s, min(self.tokens, capacity) / per_s)
        return refill_s

    def _is_held_up(self) -> bool:
        """True if what its tenant has in flight does not let it pass."""
        account, plan = self.account, self.account.plan
        if plan.max_inflight is not None and account.in_flight >= plan.max_inflight:
            return True
        most_gpu_us = plan.max_inflight_gpu_us
        return most_gpu_us is not None and (
            account.in_flight > 0 and account.in_flight_gpu_us + self.gpu_us > most_gpu_us
        )

    def _tokens_wait_s(self, now: float) -> float:
        account, cost = self.account, self.tokens * MICRO
        per_s, capacity = account.plan.tokens_per_s, account.plan.tokens_capacity
        wait_s = _refilled_s(account.tokens, cost, per_s, capacity)
        if per_s and capacity:
            kept = account.promise.left_for_it(self.key, per_s, now)
            if kept and account.tokens.lacks(cost, capacity * MICRO, kept):
                # After the one that has the promise, which leaves the bucket as good as empty.
                after_s = account.promise.wait_s(now) + min(self.tokens, capacity) / per_s + GRAIN_S
                return max(wait_s, after_s)
        return wait_s

    def refused(self, wait_s: float, told_s: float, now: float) -> bool:
        """It was refused, to be let in after such a wait. True if a place is kept for it."""
        account = self.account
        per_s, capacity = account.plan.tokens_per_s, account.plan.tokens_capacity
        if not per_s or not capacity:
            return False
        need = min(self.tokens, capacity) * MICRO
        if not account.tokens.lacks(need, capacity * MICRO):
            return False
        return account.promise.give(self.key, need, now + wait_s, told_s, now)

    def book(self, now: float) -> None:
        """Take from all limits at once. A second time changes nothing."""
        if self.booked:
            return
        self.booked = True
        account = self.account
        account.refill(now)
        account.promise.keep(self.key)
        account.in_flight += 1
        account.in_flight_gpu_us += self.gpu_us
        # What is not limited is not counted either: it would be a debt on the day when it is.
        if account.plan.tokens_per_s is not None:
            self._booked_tokens = self.tokens
            account.tokens.change(self.tokens * MICRO)
        if account.plan.requests_per_s is not None:
            self._booked_requests = 1
            account.requests.change(MICRO)

    def close(self, tokens: int, now: float, *, was_request: bool) -> None:
        """The request is over: give back what it did not use, or take what it used on top.

        Args:
            tokens: those that it pays for.
            was_request: it pays for being one.
        """
        if not self.booked:
            return
        self.booked = False
        account = self.account
        account.refill(now)
        if not self.lingers:
            self._give_place_back()
        if account.plan.tokens_per_s is not None:
            account.tokens.change((tokens - self._booked_tokens) * MICRO)
        if account.plan.requests_per_s is not None:
            account.requests.change((int(was_request) - self._booked_requests) * MICRO)

    def linger(self) -> bool:
        """An engine goes on with the request, which is about to be closed. False if it has no place to keep."""
        self.lingers = self.booked
        return self.booked

    def leave(self) -> None:
        """The engine has let go of one that lingered: another may take its place."""
        self.lingers = False
        self._give_place_back()

    def _give_place_back(self) -> None:
        account = self.account
        account.in_flight -= 1
        account.in_flight_gpu_us -= self.gpu_us
        if account.in_flight < 0 or account.in_flight_gpu_us < 0:
            invariant(False, "a tenant gave back more than it had in flight")


class Quota:
    """The accounts of one controller."""

    __slots__ = ("_accounts", "_accounts_max", "_refusals", "_shared")

    def __init__(self, accounts_max: int = ACCOUNTS_MAX) -> None:
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        """By tenant, the least recently used first."""
        self._accounts_max = accounts_max
        self._shared: dict[str, Account] = {}
        """By plan, of those for whom there was no place."""
        self._refusals = 0

    def account(self, tenant: str, plan: PlanSettings, now: float) -> Account:
        """The account of a tenant, which goes by this plan from now on."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._new(tenant, plan, now)
        else:
            self._accounts.move_to_end(tenant)
        if account.plan is not plan:
            account.adopt(plan, now)
        return account

    def reconfigure(self, plans: dict[str, PlanSettings], now: float) -> None:
        """Plans have changed: until now by the old ones, from now on by the new ones."""
        for account in (*self._accounts.values(), *self._shared.values()):
            plan = plans.get(account.plan.name)
            if plan is not None:
                account.adopt(plan, now)
        for name in [
            name for name, account in self._shared.items() if name not in plans and not account.in_flight
        ]:
            del self._shared[name]

    def retry_after_s(self, debit: Debit, wait_s: float, now: float) -> float | None:
        """When a request that its limits let pass after such a wait should come back; None if it need not try."""
        if wait_s == inf:
            return None
        told_s = wait_s if wait_s < LONGEST_S else LONGEST_S
        if debit.refused(wait_s, told_s, now):
            return told_s  # nobody else is told to come for this place, so there is nobody to be spread from
        return self._told_s(debit, wait_s, now)

    def exhausted(self, tenant: str, plan: PlanSettings, now: float) -> Exhausted | None:
        """What a tenant has used up whatever it asks for; None if it may ask. Takes nothing."""
        account = self._accounts.get(tenant)
        if account is None or not plan.limits:
            return None
        if account.plan is not plan:
            account.adopt(plan, now)
        # It may be the one for which a place is kept.
        least = Debit(account, tokens=0, input_tokens=0, gpu_us=0, key=account.promise.holder)
        wait_s = least.wait_s(now)
        failed = [check.name for check in least.checks(now) if not check.passed]
        if not failed or wait_s == inf:
            return None
        return Exhausted(failed[0], wait_s, self._told_s(least, wait_s, now), account.view(now))

    def _told_s(self, debit: Debit, wait_s: float, now: float) -> float:
        self._refusals += 1
        return known_s(wait_s, debit.account.turn_s(wait_s, debit.refill_s(), now), self._refusals)

    def __len__(self) -> int:
        return len(self._accounts)

    def _new(self, tenant: str, plan: PlanSettings, now: float) -> Account:
        accounts = self._accounts
        if len(accounts) >= self._accounts_max:
            for _ in range(LOOKED_AT):
                name, oldest = accounts.popitem(last=False)
                if not oldest.is_fresh(now):
                    accounts[name] = oldest
        if len(accounts) >= self._accounts_max:
            shared = self._shared.get(plan.name)
            if shared is None:
                shared = self._shared[plan.name] = Account(plan, now)
            return shared
        account = accounts[tenant] = Account(plan, now)
        return account


def _compare(name: str, bucket: Bucket, cost: int, capacity: int, kept: int = 0) -> Check:
    """Of a bucket: what is spent and kept with this cost, and what may be."""
    passed = not bucket.lacks(cost, capacity * MICRO, kept)
    value: Amount = (bucket.spent + kept + cost) / MICRO
    return Check(name, value, capacity, passed)


def _refilled_s(bucket: Bucket, cost: int, per_s: float | None, capacity: int | None) -> float:
    """Until a bucket lets this cost pass; infinite if it never will."""
    if per_s is None or capacity is None:
        return 0.0
    if per_s <= 0.0 or capacity <= 0:
        return inf
    return bucket.lacks(cost, capacity * MICRO) / (per_s * MICRO) + GRAIN_S


def _left(bucket: Bucket, capacity: int | None) -> int:
    left = 0 if capacity is None else capacity - -(-bucket.spent // MICRO)
    return left if left > 0 else 0


def _full_in_s(bucket: Bucket, per_s: float | None) -> float:
    return bucket.spent / (per_s * MICRO) if per_s else 0.0
