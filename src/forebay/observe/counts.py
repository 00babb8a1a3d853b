"""What is counted by the way: plain integers and sums, put together as metrics only when somebody scrapes.

One settlement per ticket comes through here, on the path of a request, so there are no locks and no label objects.
Tenants are bounded: those after the first overflow into `other`. Knows nothing of the exposition (`metrics`).
"""

from __future__ import annotations

from typing import Final

from forebay.admission.model import DecisionRecord, Mode, Settlement
from forebay.admission.outcomes import Group, Outcome
from forebay.observe.histograms import Histogram
from forebay.observe.labels import BoundedLabels

__all__ = ["MAX_TENANTS", "ClassCounts", "Counts", "TenantCounts"]

_QUEUE_TIMEOUT: Final = Outcome.QUEUE_TIMEOUT
_REJECTED: Final = Outcome.ENGINE_REJECTED
_CONTENDED: Final = Group.CONTENDED
_ABSENT: Final = Group.ABSENT
MAX_TENANTS: Final = 100
"""Distinct tenants with a series of their own."""

# Typed as boxed: the compiled build keeps a long tuple of floats by value and mistakes it for one not set.
_WAIT_BOUNDS_S: Final[tuple[float, ...]] = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    1.5,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
_DURATION_BOUNDS_S: Final[tuple[float, ...]] = (
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
_ERROR_BOUNDS_S: Final[tuple[float, ...]] = (
    -30.0,
    -10.0,
    -3.0,
    -1.0,
    -0.3,
    -0.1,
    0.0,
    0.1,
    0.3,
    1.0,
    3.0,
    10.0,
    30.0,
)
_DECISION_BOUNDS_S: Final[tuple[float, ...]] = (
    5e-6,
    1e-5,
    2.5e-5,
    5e-5,
    1e-4,
    2.5e-4,
    5e-4,
    1e-3,
    5e-3,
    2.5e-2,
)


class TenantCounts:
    """What has settled of one tenant in one class of one pool."""

    __slots__ = ("gpu_s", "met", "offered", "refused_gpu_s", "rejected")

    def __init__(self) -> None:
        self.offered = 0
        self.met = 0
        self.rejected = 0
        """By an engine, for what they asked: the clients' to mend, so no part of attainment."""
        self.gpu_s = 0.0
        self.refused_gpu_s = 0.0
        """Expected work of those that might have been served and were not."""


class ClassCounts:
    """What has settled in one class of one pool. Plain integers and sums, only ever growing."""

    __slots__ = ("admitted", "duration", "met", "outcomes", "tenants", "ttft", "wait", "wait_error")

    def __init__(self) -> None:
        self.outcomes: dict[Outcome, int] = {}
        self.met = 0
        self.admitted = 0
        """Those that were dispatched."""
        self.tenants: dict[str, TenantCounts] = {}
        self.wait = Histogram(_WAIT_BOUNDS_S)
        self.ttft = Histogram(_WAIT_BOUNDS_S)
        self.duration = Histogram(_DURATION_BOUNDS_S)
        self.wait_error = Histogram(_ERROR_BOUNDS_S)


class Counts:
    """The counters of one process."""

    def __init__(self, *, show_tenants: bool) -> None:
        """See the class.

        Args:
            show_tenants: False puts everybody's work under the tenant `all`.
        """
        self.by_class: dict[tuple[str, str], ClassCounts] = {}
        """By pool and class."""
        self.unenforced: dict[tuple[str, str, str], int] = {}
        """What shadow mode did not carry out, by pool, class, and code of the refusal or `hold`."""
        self.errors: dict[str, int] = {}
        """Failures of our own code, by place."""
        self.decision_s = Histogram(_DECISION_BOUNDS_S)
        self._show_tenants = show_tenants
        self._tenants = BoundedLabels(MAX_TENANTS)

    def on_settlement(self, settlement: Settlement) -> None:
        """Count one closed ticket. Runs once per request on the hot path."""
        counts = self.by_class.get((settlement.pool, settlement.class_name))
        if counts is None:
            counts = self.by_class[settlement.pool, settlement.class_name] = ClassCounts()
        outcome = settlement.outcome
        outcomes = counts.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        tenant = counts.tenants.get(settlement.tenant if self._show_tenants else "all")
        if tenant is None:
            tenant = self._tenant(counts, settlement.tenant)
        tenant.offered += 1
        tenant.gpu_s += settlement.charged_gpu_s
        if settlement.met_objective:
            counts.met += 1
            tenant.met += 1
        elif outcome.group is _CONTENDED or outcome.group is _ABSENT:
            tenant.refused_gpu_s += settlement.estimated_gpu_s
        elif outcome is _REJECTED:
            tenant.rejected += 1
        waited_s = settlement.waited_s
        if settlement.endpoint is not None:
            counts.admitted += 1
            counts.wait.observe(waited_s)
            counts.duration.observe(settlement.duration_s)
            if settlement.ttft_s is not None:
                counts.ttft.observe(settlement.ttft_s)
            if waited_s > 0 and settlement.predicted_wait_s > 0 and settlement.attempts == 1:
                counts.wait_error.observe(waited_s - settlement.predicted_wait_s)
        elif waited_s > 0:
            counts.wait.observe(waited_s)
            if outcome is _QUEUE_TIMEOUT and settlement.predicted_wait_s > 0:
                # It would have waited for longer: at least this error. Left out, only good predictions would count.
                counts.wait_error.observe(waited_s - settlement.predicted_wait_s)

    def on_early_refusal(self, pool: str, class_name: str, tenant_name: str, outcome: Outcome) -> None:
        """Count a request that was refused before the core was asked: it was offered as well."""
        counts = self.by_class.get((pool, class_name))
        if counts is None:
            counts = self.by_class[pool, class_name] = ClassCounts()
        counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
        self._tenant(counts, tenant_name).offered += 1

    def on_unenforced(self, record: DecisionRecord) -> None:
        """Count a decision of shadow mode that would have kept the request from starting."""
        if record.mode is Mode.SHADOW and record.action != "dispatch":
            reason = record.action if record.outcome is None else record.outcome.value
            key = (record.pool, record.class_name, reason)
            self.unenforced[key] = self.unenforced.get(key, 0) + 1

    def count_error(self, where: str) -> None:
        """Count one of our own failures; `where` is a name in our code."""
        self.errors[where] = self.errors.get(where, 0) + 1

    def _tenant(self, counts: ClassCounts, name: str) -> TenantCounts:
        """The counts that a tenant without its own in this class goes to, which may be those of all others."""
        label = self._tenants.label(name if self._show_tenants else "all")
        found = counts.tenants.get(label)
        if found is None:
            found = counts.tenants[label] = TenantCounts()
        return found
