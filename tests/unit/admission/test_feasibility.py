from __future__ import annotations

import math
from heapq import heappop, heappush

import pytest

from forebay.admission.errors import InvariantError, MisuseError
from forebay.admission.feasibility import (
    BUCKETS_MAX,
    PASSED_OVER_MAX,
    TENANTS_MAX,
    VICTIMS_PER_EVENT,
    DeadlineBuckets,
)
from forebay.admission.victims import Entry
from forebay.admission.work_ahead import weight_units

NOW = 1000.0
RATE = 1_000_000.0
"""One endpoint-second a second."""
SECOND_US = 1_000_000


@pytest.fixture
def buckets() -> DeadlineBuckets:
    """A class with a budget of ten seconds."""
    return DeadlineBuckets(10.0)


class Waiters:
    """Files waiters, by the name given."""

    def __init__(self, buckets: DeadlineBuckets) -> None:
        self.buckets = buckets
        self.sequence = 0

    def add(
        self,
        name: str,
        in_s: float,
        work_s: float,
        value: float = 1.0,
        *,
        protected: bool = False,
        tenant: str = "t",
        weight: float = 1.0,
        firm_from_s: float = math.inf,
        now: float = NOW,
    ) -> Entry:
        self.sequence += 1
        work_us = round(work_s * SECOND_US)
        entry = Entry(
            now + in_s,
            work_us,
            value,
            self.sequence,
            protected,
            tenant,
            name,
            firm_from_s,
            weight_units(weight),
        )
        self.buckets.add(entry, now)
        return entry


@pytest.fixture
def waiters(buckets: DeadlineBuckets) -> Waiters:
    """Nobody yet."""
    return Waiters(buckets)


def names(entries: list[Entry]) -> list[object]:
    """Who they are."""
    return [entry.owner for entry in entries]


# What is overload


def test_nobody_waiting_is_no_overload(buckets: DeadlineBuckets) -> None:
    """Without waiters nothing is late."""
    assert buckets.overload(NOW, RATE) is None
    assert [] == buckets.take_victims(NOW, RATE)
    assert buckets.least_valuable(NOW) is None


def test_own_work_never_counts_against_a_waiter(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """A request of an hour that must start within a second is fine when nobody stands before it."""
    waiters.add("long", 1.0, 3600.0)
    assert buckets.overload(NOW, RATE) is None


def test_the_largest_may_start_last(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Five of a second each and one of an hour fit into five seconds, and one more short one does not."""
    for n in range(5):
        waiters.add(f"short {n}", 5.0, 1.0)
    waiters.add("long", 5.0, 3600.0)
    assert buckets.overload(NOW, RATE) is None
    waiters.add("short 5", 5.0, 1.0)
    assert 0 == buckets.overload(NOW, RATE)


def test_overload_is_exact_where_all_must_start_at_one_time(
    buckets: DeadlineBuckets, waiters: Waiters
) -> None:
    """Of equal waiters that must start within five seconds eleven of half a second fit, and twelve do not."""
    for n in range(11):
        waiters.add(f"{n}", 5.0, 0.5)
    assert buckets.overload(NOW, RATE) is None
    assert buckets.overload(NOW + 0.01, RATE) is not None
    waiters.add("11", 5.0, 0.5)
    assert buckets.overload(NOW, RATE) is not None
    assert buckets.overload(NOW, 1.2 * RATE) is None


def test_only_work_that_must_come_before_counts(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Any amount of work with time until later makes nobody late who must start soon."""
    waiters.add("soon", 1.0, 0.5)
    for n in range(100):
        waiters.add(f"later {n}", 9.0, 1.0)
    assert 1 == buckets.overload(NOW, RATE)


def test_work_ahead_of_all_counts(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """What is served before them takes their time."""
    waiters.add("one", 2.0, 1.0)
    waiters.add("two", 2.0, 1.0)
    assert buckets.overload(NOW, RATE, ahead_us=1 * SECOND_US) is None
    assert 0 == buckets.overload(NOW, RATE, ahead_us=1 * SECOND_US + 2)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_where_nothing_drains_nothing_is_reported(
    buckets: DeadlineBuckets, waiters: Waiters, rate: float
) -> None:
    """Without a rate nothing is known, and nobody is turned away for it."""
    for n in range(10):
        waiters.add(f"{n}", 0.1, 10.0)
    assert buckets.overload(NOW, rate) is None
    assert [] == buckets.take_victims(NOW, rate)


def test_who_may_wait_for_ever_is_never_late(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Waiters without any deadline make no overload."""
    for n in range(10):
        waiters.add(f"{n}", math.inf, 1e6)
    assert buckets.overload(NOW, RATE) is None


def test_time_makes_overload(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """What fitted is reported when time has passed and nothing was served; nothing is filed anew for that."""
    waiters.add("one", 4.0, 3.0)
    waiters.add("two", 4.0, 3.0)
    assert buckets.overload(NOW + 1.0, RATE) is None
    assert buckets.overload(NOW + 1.01, RATE) is not None


# Whom


def test_the_lowest_value_per_work_goes_first(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Not the lowest value and not the largest: the lowest quotient, until all others fit."""
    waiters.add("worth it", 1.0, 1.0, 3.0)
    waiters.add("cheap", 1.0, 0.1, 0.5)
    waiters.add("dear", 1.0, 1.5, 1.0)
    waiters.add("low", 1.0, 0.4, 0.5)
    assert ["dear"] == names(buckets.take_victims(NOW, RATE))
    assert 3 == len(buckets)
    assert buckets.overload(NOW, RATE) is None


def test_tenants_above_their_share_go_first(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """A waiter of a tenant above its share goes before one of lower value per work; then its tenant is within it."""
    waiters.add("within", 1.0, 1.5, 0.1, tenant="modest")
    waiters.add("above", 1.0, 1.0, 100.0, tenant="large")
    waiters.add("also above", 1.0, 1.0, 200.0, tenant="large")
    assert "above" == getattr(buckets.first_above_share(NOW), "owner", None)
    assert "within" == getattr(buckets.least_valuable(NOW), "owner", None)
    assert ["above", "within"] == names(buckets.take_victims(NOW, 0.5 * RATE))
    assert buckets.first_above_share(NOW) is None


def test_where_none_of_those_above_may_go_others_do(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Protected waiters of a large tenant are no reason to spare anybody, and it comes first again with the next."""
    for n in range(3):
        waiters.add(f"protected {n}", 1.0, 1.0, 0.1, tenant="large", protected=True)
    waiters.add("modest", 1.0, 1.0, 5.0, tenant="modest")
    assert buckets.first_above_share(NOW) is None
    assert ["modest"] == names(buckets.take_victims(NOW, RATE))
    waiters.add("modest too", 1.0, 1.0, 5.0, tenant="modest")
    waiters.add("large", 1.0, 1.0, 9.0, tenant="large", firm_from_s=NOW + 1.0)
    assert "large" == getattr(buckets.first_above_share(NOW), "owner", None)
    assert buckets.first_above_share(NOW + 1.1) is None
    waiters.add("large too", 1.0, 1.0, 9.0, tenant="large")
    assert "large too" == getattr(buckets.first_above_share(NOW + 1.1), "owner", None)
    buckets.verify()


def test_of_tenants_above_only_those_up_to_the_overload_help(
    buckets: DeadlineBuckets, waiters: Waiters
) -> None:
    """Whoever must start later than the overload stays, whatever its tenant has."""
    for n in range(5):
        waiters.add(f"later {n}", 9.0, 1.0, 0.1, tenant="large")
    waiters.add("soon", 1.0, 1.0, 3.0, tenant="large")
    waiters.add("one", 1.0, 2.0, tenant="modest")
    waiters.add("two", 1.0, 1.0, tenant="other")
    assert ["soon"] == names(buckets.take_victims(NOW, RATE))


def test_many_tenants_above_their_share_are_compared_in_part(
    buckets: DeadlineBuckets, waiters: Waiters
) -> None:
    """Of 17 above, the least valuable of the 16 furthest above; of those turned down the next."""
    for n in range(TENANTS_MAX + 1):
        waiters.add(f"{n:02}", 1.0, 2.0 + 0.5 * n, 1.0 + n, tenant=f"large {n}")
    for n in range(90):
        waiters.add(f"modest {n}", 1.0, 0.1, tenant=f"modest {n}")
    assert "01" == getattr(buckets.first_above_share(NOW), "owner", None)
    assert "05" == getattr(buckets.first_above_share(NOW, lambda e: str(e.owner) > "04"), "owner", None)
    assert buckets.first_above_share(NOW, None, 1e-7) is None
    buckets.verify()


def test_weights_tell_what_a_fair_share_is(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Three times the weight is three times the work before a tenant is above its share."""
    waiters.add("heavy", 1.0, 3.0, tenant="heavy", weight=3.0)
    waiters.add("light", 1.0, 1.0, tenant="light")
    assert buckets.first_above_share(NOW) is None
    waiters.add("light too", 1.0, 0.5, tenant="light")
    assert "light" == getattr(buckets.first_above_share(NOW), "owner", None)


def test_turning_down_those_above_is_bounded_and_leaves_no_trace(
    buckets: DeadlineBuckets, waiters: Waiters
) -> None:
    """Where nobody is allowed to go, few are asked about, and they may go another time."""
    asked: list[Entry] = []

    def refuse(entry: Entry) -> bool:
        asked.append(entry)
        return False

    for n in range(100):
        waiters.add(f"{n}", 1.0 + 0.08 * n, 1.0, tenant="large")
    waiters.add("modest", 1.0, 1.0, tenant="modest")
    assert buckets.first_above_share(NOW, refuse) is None
    assert [] == buckets.take_victims(NOW, 0.01 * RATE, allowed=refuse)
    assert len(asked) <= 2 * (PASSED_OVER_MAX + 1)
    assert "99" == getattr(buckets.first_above_share(NOW), "owner", None)
    buckets.verify()


def test_other_horizons_keep_what_tenants_have(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Filed for another budget, the same tenants are above their share."""
    waiters.add("modest", 1.0, 1.0, tenant="modest")
    waiters.add("large", 3.0, 2.0, tenant="large")
    others = buckets.with_horizon(5.0, NOW)
    others.verify()
    assert "large" == getattr(others.first_above_share(NOW), "owner", None)


def test_of_equals_the_youngest_goes(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Whoever has waited longer stays."""
    for name in ("first", "second", "third"):
        waiters.add(name, 1.0, 1.0)
    assert ["third"] == names(buckets.take_victims(NOW, RATE))


def test_a_request_without_work_goes_last(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Nothing is gained by giving up what costs nothing."""
    waiters.add("free", 1.0, 0.0, 0.0)
    waiters.add("one", 1.0, 2.0)
    waiters.add("two", 1.0, 2.0)
    assert ["two"] == names(buckets.take_victims(NOW, RATE))


def test_who_must_start_later_than_the_overload_stays(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Giving up those behind helps nobody before them."""
    waiters.add("worthless, later", 9.0, 1.0, 0.001)
    waiters.add("one", 1.0, 2.0)
    waiters.add("two", 1.0, 2.0)
    assert ["two"] == names(buckets.take_victims(NOW, RATE))


def test_a_few_at_a_time(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """One call gives up four; further calls give up the rest, and then nobody is late."""
    for n in range(12):
        waiters.add(f"{n}", 1.0, 0.5)
    assert ["11", "10", "9", "8"] == names(buckets.take_victims(NOW, RATE))
    assert 4 == VICTIMS_PER_EVENT
    assert ["7", "6"] == names(buckets.take_victims(NOW, RATE, limit=2))
    assert ["5", "4", "3"] == names(buckets.take_victims(NOW, RATE))
    assert [] == buckets.take_victims(NOW, RATE)
    assert buckets.overload(NOW, RATE) is None


def test_protected_ones_stay(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Who is protected, from the start or later, is not given up whatever it is worth."""
    waiters.add("protected", 1.0, 9.0, 0.0, protected=True)
    later = waiters.add("protected later", 1.0, 5.0, 0.0)
    waiters.add("one", 1.0, 1.0)
    waiters.add("two", 1.0, 1.0)
    later.protected = True
    assert ["two", "one"] == names(buckets.take_victims(NOW, RATE))
    assert 2 == len(buckets)
    buckets.verify()


def test_who_is_past_half_its_budget_stays(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """From its firm time on a waiter is not given up, until then it is."""
    waiters.add("old", 1.0, 5.0, firm_from_s=NOW + 0.5)
    waiters.add("new", 1.0, 2.0)
    assert "new" == getattr(buckets.least_valuable(NOW + 0.51), "owner", None)
    assert ["new"] == names(buckets.take_victims(NOW + 0.51, RATE))


def test_until_then_it_goes(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """At its firm time, which is half its budget and not past it, a waiter may go."""
    waiters.add("old", 1.0, 5.0, firm_from_s=NOW + 0.5)
    waiters.add("new", 1.0, 2.0)
    assert ["old"] == names(buckets.take_victims(NOW + 0.5, RATE))


def test_where_nobody_may_go_the_next_overload_is_looked_at(
    buckets: DeadlineBuckets, waiters: Waiters
) -> None:
    """Protected waiters that are late among themselves do not keep the others from being sorted out."""
    waiters.add("protected one", 1.0, 2.0, protected=True)
    waiters.add("protected two", 1.0, 2.0, protected=True)
    waiters.add("soon", 4.5, 0.5, 5.0)
    waiters.add("later one", 5.0, 1.0)
    waiters.add("later two", 5.0, 1.1)
    assert 0 == buckets.overload(NOW, RATE)
    assert ["later two"] == names(buckets.take_victims(NOW, RATE))
    assert 0 == buckets.overload(NOW, RATE)
    assert [] == buckets.take_victims(NOW, RATE)


def test_who_is_turned_down_now_may_go_another_time(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """A caller's own rule chooses among the candidates, and leaves no trace."""
    for name in ("a", "b", "c"):
        waiters.add(name, 1.0, 1.0)
    assert ["b"] == names(buckets.take_victims(NOW, RATE, allowed=lambda entry: entry.owner == "b"))
    waiters.add("d", 1.0, 1.0)
    assert ["d"] == names(buckets.take_victims(NOW, RATE))
    assert "c" == getattr(buckets.least_valuable(NOW), "owner", None)
    assert "a" == getattr(buckets.least_valuable(NOW, lambda entry: entry.owner == "a"), "owner", None)
    buckets.verify()


def test_turning_down_is_bounded(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Where nobody is allowed to go, few are asked about."""
    asked: list[Entry] = []

    def refuse(entry: Entry) -> bool:
        asked.append(entry)
        return False

    for n in range(200):
        waiters.add(f"{n}", 1.0 + 0.04 * n, 1.0)
    assert [] == buckets.take_victims(NOW, RATE, allowed=refuse)
    assert 0 < len(asked) <= PASSED_OVER_MAX + 1
    buckets.verify()


def test_least_valuable_stays(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """For a bound the first to go is named without overload, over all buckets, and is still there."""
    waiters.add("one", 1.0, 0.1)
    waiters.add("dear", 9.0, 0.5)
    waiters.add("two", 3.0, 0.1)
    assert "dear" == getattr(buckets.least_valuable(NOW), "owner", None)
    assert 3 == len(buckets)


# Books


def test_an_entry_is_filed_once(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Filing it twice, or again after it left, is a misuse."""
    entry = waiters.add("one", 1.0, 1.0)
    with pytest.raises(MisuseError):
        buckets.add(entry, NOW)
    buckets.remove(entry)
    with pytest.raises(MisuseError):
        buckets.add(entry, NOW)


def test_removing_twice_is_harmless(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Who was given up already has left: the caller's own path out need not know."""
    entries = [waiters.add(f"{n}", 1.0, 2.0) for n in range(3)]
    taken = buckets.take_victims(NOW, RATE)
    assert [False, False] == [buckets.remove(entry) for entry in taken]
    assert [True] == [buckets.remove(entry) for entry in entries if entry not in taken]
    assert (0, 0) == (len(buckets), buckets.work_us)
    buckets.verify()


@pytest.mark.parametrize("horizon", [0.0, -1.0, math.inf, math.nan])
def test_the_horizon_is_a_time(horizon: float) -> None:
    """Without a finite positive horizon there are no slots."""
    with pytest.raises(MisuseError):
        DeadlineBuckets(horizon)


def test_work_that_changes_while_filed_is_found_out(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Releasing more than was filed is our own bug and is not passed over."""
    entry = waiters.add("one", 1.0, 1.0)
    entry.work_us += 1
    with pytest.raises(InvariantError):
        buckets.remove(entry)


def test_broken_books_are_found_out(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """`verify` compares each total with its parts."""
    waiters.add("one", 1.0, 1.0)
    buckets.verify()
    buckets.work_us += 1
    with pytest.raises(InvariantError):
        buckets.verify()


def test_the_largest_is_known_when_it_leaves(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Overload that a large waiter could explain is reported once it is gone."""
    large = waiters.add("large", 1.0, 3.0, protected=True)
    for n in range(4):
        waiters.add(f"{n}", 1.0, 0.5)
    assert buckets.overload(NOW, RATE) is not None
    assert buckets.overload(NOW, 2 * RATE) is None
    buckets.remove(large)
    assert buckets.overload(NOW, 2 * RATE) is None
    assert buckets.overload(NOW, 1.49 * RATE) is not None


@pytest.mark.parametrize("horizon", [1.5, 60.0])
def test_about_64_buckets_are_open(horizon: float) -> None:
    """Whatever the deadlines and however time passes, about 64 buckets hold all that wait."""
    buckets = DeadlineBuckets(horizon)
    waiters = Waiters(buckets)
    now = NOW
    alive: list[tuple[float, int, Entry]] = []
    most = 0
    for n in range(16_000):
        now += horizon / 8000
        while alive and alive[0][0] < now:
            buckets.remove(heappop(alive)[2])
        entry = waiters.add("", horizon * 2 ** -(n * 0.618 % 1 * 9), 0.01, now=now)
        heappush(alive, (entry.start_by_s, entry.sequence, entry))
        most = max(most, len(buckets._order))
    assert 50 < most <= 68
    buckets.verify()


def test_overdue_waiters_share_buckets(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Even if nobody takes the overdue out, buckets do not pile up, and everybody can still leave."""
    now = NOW
    entries = []
    for n in range(2000):
        now += 0.05
        entries.append(waiters.add(f"{n}", 0.1 if n % 2 else 9.0, 0.01, protected=n % 3 == 0, now=now))
    assert len(buckets._order) <= BUCKETS_MAX + 1
    buckets.verify()
    assert buckets.overload(now, RATE) is not None
    assert all(buckets.remove(entry) for entry in entries)
    buckets.verify()
    assert 0 == len(buckets._order)


def test_whoever_comes_late_is_filed_under_now(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Deadlines long past open no buckets of their own; the waiters count as late."""
    for in_s in (-math.inf, -1e6, -1.0, 0.0):
        waiters.add(f"{in_s}", in_s, 1.0)
    assert 1 == len(buckets._order)
    assert 3 == len(buckets.take_victims(NOW, RATE))


def test_what_has_left_is_not_kept_for_long(buckets: DeadlineBuckets, waiters: Waiters) -> None:
    """Heaps hold at most about twice as many as wait, however many came and went."""
    for n in range(20):
        waiters.add(f"stays {n}", 5.0, 5.0)
    for n in range(3000):
        buckets.remove(waiters.add(f"goes {n}", 5.0, 0.001))
    buckets.verify()
    assert sum(len(bucket.sizes) + len(bucket.victims) for bucket in buckets._order) <= 2 * (2 * 20 + 16)
