"""Second pools: what one pool turns away because it is overloaded or has no engine is tried at the pool it names.

Only what others share the blame for: a request that can never fit, or whose tenant is over its own limit, is not tried
elsewhere. An arrival is asked of the next pool as if it had come there, and may wait there; nobody is displaced for it.
A waiter whose time is over, or who had to make room, is taken only where an engine has room at once. Nobody takes more
than three steps, none to a pool that has been tried, and none to a model that its plan does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from forebay.admission.gate import Verdict
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.model import Check, Demand, Mode
from forebay.admission.model_names import asked_at
from forebay.admission.outcomes import Outcome
from forebay.admission.patterns import fits_any
from forebay.admission.pools import Pool
from forebay.admission.tickets import Ticket
from forebay.admission.wording import FALLBACK

HOPS: Final = 3

SHARED: Final = (
    Outcome.QUEUE_FULL,
    Outcome.DEADLINE_UNREACHABLE,
    Outcome.RULE_REFUSED,
    Outcome.QUEUE_TIMEOUT,
    Outcome.DISPLACED,
    Outcome.NO_ENDPOINTS,
    Outcome.STALE_ENGINE,
)
"""Refusals that another pool need not share."""


class Fallback:
    """The way of requests to second pools."""

    def __init__(
        self,
        life: Lifecycle,
        pools: dict[str, Pool],
        receive: Callable[[Demand, Ticket, float], Ticket],
        examine: Callable[[Ticket, float], Verdict],
        begin: Callable[[Ticket, Verdict, float], None],
        *,
        granted: Callable[[str], tuple[str, ...] | None],
    ) -> None:
        """See the module.

        Args:
            receive: makes the ticket of a request at a pool to which it did not come, from the one that it has.
            examine: what the gate says to it.
            begin: starts it, or lets it wait.
            granted: the models that a plan has; None for all.
        """
        self._life = life
        self._pools = pools
        self._receive = receive
        self._examine = examine
        self._begin = begin
        self._granted = granted
        life.fall_back = self.of_waiter

    def of_arrival(self, ticket: Ticket, verdict: Verdict, now: float) -> bool:
        """Another pool takes an arrival that is refused. If none does, the verdict says which were asked."""
        if verdict.outcome not in SHARED:
            return False
        checks = list(verdict.checks)
        found = self._find(ticket, checks, now, at_once=False)
        if found is None:
            verdict.checks = checks
            return False
        ticket.pool.fell_back += 1
        self._begin(*found, now)
        return True

    def of_waiter(self, ticket: Ticket, outcome: Outcome, check: Check, now: float) -> bool:
        """Another pool takes a waiter that is turned away."""
        demand = ticket.demand
        if outcome not in SHARED or ticket.attempts >= self._life.settings.max_attempts:
            return False
        for until_s in (demand.patience_until_s, demand.first_token_by_s):
            if until_s is not None and until_s <= now:
                return False  # nobody waits for the answer any more
        found = self._find(ticket, [*ticket.checks, check], now, at_once=True)
        if found is None:
            return False
        guest, verdict = found
        self._life.move_on(ticket, guest, now)
        ticket.pool.fell_back += 1
        self._begin(guest, verdict, now)
        return True

    def _find(
        self, ticket: Ticket, checks: list[Check], now: float, *, at_once: bool
    ) -> tuple[Ticket, Verdict] | None:
        """The first pool on the way that takes it; `checks` grows by what was compared."""
        pool = ticket.pool
        tried = [pool]
        granted = self._granted(ticket.demand.plan)
        for _ in range(HOPS):
            name = pool.settings.fallback
            following = None if name is None else self._pools.get(name)
            if following is None or following in tried:
                return None
            pool = following
            tried.append(pool)
            demand = asked_at(replace(ticket.demand, pool=pool.settings.name), pool, granted)
            if (
                granted is not None
                and demand.model != ticket.demand.model
                and not fits_any(demand.model, granted)
            ):
                checks.append(Check(f"{FALLBACK}{pool.settings.name}", 1, None, False))
                checks.append(Check("plan_models", 1, 0, False))
                continue
            guest = self._receive(demand, ticket, now)
            if at_once:
                guest.debit = None  # it has paid its quota, and goes on with that
            verdict = self._examine(guest, now)
            checks.append(Check(f"{FALLBACK}{pool.settings.name}", 1, None, verdict.outcome is None))
            checks.extend(verdict.checks)
            # Nobody waits where nothing is enforced.
            may_wait = not at_once and pool.classes[demand.class_name].mode is Mode.ENFORCE
            if verdict.outcome is None and (may_wait or verdict.endpoint is not None):
                verdict.checks = checks
                return guest, verdict
        return None
