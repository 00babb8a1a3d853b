"""From a demand to its ticket: the pool and class that it names, or those that an operator's rules give it.

Owns the rules, and which classes and plans there are; it finds the account of each tenant. It decides nothing: whom the
rules refuse is noted in the ticket, for the gate.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from forebay.admission.billing import put_on_plan
from forebay.admission.deadlines import start_by_s
from forebay.admission.errors import MisuseError
from forebay.admission.events import Sampled
from forebay.admission.ledger import booking_for
from forebay.admission.model import Demand, Mode
from forebay.admission.model_names import asked_at
from forebay.admission.pools import Pool
from forebay.admission.quota import Quota
from forebay.admission.rules import Rules, Ruling
from forebay.admission.settings import Order, PlanSettings, Retries, Settings
from forebay.admission.snapshot import RuleView
from forebay.admission.tickets import Ticket

_ENFORCE: Final = Mode.ENFORCE
_EDF: Final = Order.EDF
_SHIFTS: Final = {Retries.PREFER: -1.0, Retries.EQUAL: 0.0, Retries.PENALISE: 1.0}
"""By how many wait budgets a retry counts as later than it came."""
_BYPASS: Final = Mode.BYPASS


class Reception:
    """Where requests become tickets."""

    def __init__(self, settings: Settings, pools: dict[str, Pool], quota: Quota, now: float) -> None:
        self._pools = pools
        self._quota = quota
        self._rules: Rules | None = None
        self.reconfigure(settings, now)

    def reconfigure(self, settings: Settings, now: float) -> None:
        """These classes, plans and rules are there from now on; what rules have counted and seen goes on."""
        self._classes = {entry.name: entry for entry in settings.classes}
        self._plans = {plan.name: plan for plan in settings.plans}
        self._granted_classes = {
            plan.name: [name for name in plan.classes if name in self._classes]
            for plan in settings.plans
            if plan.classes is not None
        }
        self._retry_shift = _SHIFTS[settings.retries]
        self._quota.reconfigure(self._plans, now)
        pools = tuple([pool.name for pool in settings.pools])
        self._rules = None if settings.rules is None else Rules(settings.rules, self._rules, pools)

    def sampled(self, event: Sampled, pool: Pool | None) -> None:
        """An engine of this pool was read."""
        if self._rules is not None and pool is not None:
            self._rules.sampled(pool, event.endpoint, event.sample)

    def plan(self, name: str) -> PlanSettings | None:
        """The plan of this name; None if there is none."""
        return self._plans.get(name)

    def granted(self, plan: str) -> tuple[str, ...] | None:
        """Models that the tenants of a plan may have; None: all. With a plan that is gone, none but what it has."""
        if not plan:
            return None
        known = self._plans.get(plan)
        return () if known is None else known.models

    def classes_of(self, plan: str) -> Container[str]:
        """Classes that the tenants of a plan may use; with a plan that is gone, none but what they come with."""
        if plan and plan not in self._plans:
            return ()
        return self._granted_classes.get(plan, self._classes)

    def rule_views(self) -> tuple[RuleView, ...]:
        """For the snapshot."""
        return () if self._rules is None else self._rules.views()

    def arrived(self, demand: Demand, now: float) -> Ticket:
        """The ticket of a request that has come, where the rules want it. Raises: MisuseError."""
        ticket = self._ticket(demand, now)
        return ticket if self._rules is None else self._ruled(ticket, self._rules, now)

    def guest(self, demand: Demand, host: Ticket, now: float) -> Ticket:
        """The ticket of a request at a pool that it falls back to: rules refuse and accept there, and route no more.

        Args:
            host: its ticket where it came to.
        """
        ticket = self._bare(demand, now)
        plan = self._plans.get(demand.plan)
        if plan is not None:
            put_on_plan(ticket, plan, self._quota, now)
        else:  # none, or one that was taken out of the configuration while it waited
            ticket.weight, ticket.never_refuse = host.weight, host.never_refuse
        if self._rules is not None:
            ticket.ruling = Ruling()
            self._judge(ticket, self._rules, ticket.ruling, now)
        if host.ruling is not None and host.ruling.class_before:
            ticket.ruling = ticket.ruling or Ruling()
            ticket.ruling.class_before = host.ruling.class_before
        return ticket

    def _ticket(self, demand: Demand, now: float) -> Ticket:
        ticket = self._bare(demand, now)
        if demand.plan:
            put_on_plan(ticket, self._plans.get(demand.plan), self._quota, now)
        return ticket

    def _bare(self, demand: Demand, now: float) -> Ticket:
        """The ticket without its tenant's plan."""
        pool = self._pools.get(demand.pool)
        class_settings = self._classes.get(demand.class_name)
        if pool is None or class_settings is None:
            raise MisuseError(f"no pool {demand.pool!r} with class {demand.class_name!r} is configured")
        price = pool.price(demand)
        booking = booking_for(demand, price.cost)
        rank = pool.classes[demand.class_name].index
        ticket = Ticket(demand, pool, class_settings, price, booking, now, rank)
        if demand.retry_count and self._retry_shift:
            ticket.shift_s = self._retry_shift * class_settings.wait_budget_s
        if class_settings.order is _EDF and not demand.stream:
            ticket.start_by_s = start_by_s(ticket)
        return ticket

    def _ruled(self, ticket: Ticket, rules: Rules, now: float) -> Ticket:
        """What the rules make of it. In `shadow` it stays where it is and they are recorded, in `bypass` not asked."""
        mode = ticket.pool.classes[ticket.demand.class_name].mode
        if mode is _BYPASS:
            return ticket
        ruling = Ruling()
        demand = rules.route(ticket.demand, ticket.cost, ticket.pool, ruling, now)
        if mode is _ENFORCE and demand is not ticket.demand:
            if demand.pool != ticket.demand.pool and not ruling.model_given and demand.pool in self._pools:
                demand = asked_at(demand, self._pools[demand.pool], self.granted(demand.plan))
            if demand.class_name != ticket.demand.class_name:
                ruling.class_before = ticket.demand.class_name
            ticket = self._ticket(demand, now)
        ticket.ruling = ruling
        self._judge(ticket, rules, ruling, now)
        return ticket

    @staticmethod
    def _judge(ticket: Ticket, rules: Rules, ruling: Ruling, now: float) -> None:
        rules.judge(ticket.demand, ticket.cost, ticket.pool, ruling, now, rank=ticket.rank)
