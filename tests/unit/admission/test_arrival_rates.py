from __future__ import annotations

import math

import pytest

from forebay.admission.arrival_rates import (
    AGINGS_MAX,
    TIME_CONSTANT_S,
    ArrivalRate,
    ArrivalSizes,
    wait_among_smaller_s,
)

SECOND_US = 1_000_000


def sizes_of(*works_us: int) -> ArrivalSizes:
    """What arrived: one request of each work."""
    sizes = ArrivalSizes()
    for work_us in works_us:
        sizes.add(work_us)
    return sizes


def wait_s(
    base_s: float,
    sizes: ArrivalSizes,
    *,
    arriving: float,
    work_us: int = SECOND_US,
    aging_s: float = 1.0,
    rate: float = 1.0,
) -> float:
    """The wait in a class that gets `rate` endpoint-seconds a second, while `arriving` come to it."""
    return wait_among_smaller_s(
        base_s,
        rate_us_per_s=rate * SECOND_US,
        arriving_us_per_s=arriving * SECOND_US,
        sizes=sizes,
        work_us=work_us,
        aging_s=aging_s,
    )


def test_nothing_arrives_at_first() -> None:
    """Before any arrival the rate is zero."""
    assert 0.0 == ArrivalRate().per_s(100.0)


def test_one_arrival_is_spread_over_the_time_constant() -> None:
    """Ten seconds of work that arrive at once are one per second, and 1/e of it a time constant later."""
    rate = ArrivalRate()
    rate.add(50.0, 10e6)
    assert pytest.approx(1e6) == rate.per_s(50.0)
    assert pytest.approx(1e6 / math.e) == rate.per_s(50.0 + TIME_CONSTANT_S)


def test_steady_arrivals_are_found() -> None:
    """Four requests of 0.1 endpoint-seconds each second are 0.4 endpoint-seconds per second, within 2 %."""
    rate = ArrivalRate()
    for n in range(400):
        rate.add(n / 4, 100_000)
    # Between arrivals the sum fades by up to a fortieth; in the middle it is the mean.
    assert pytest.approx(400_000, rel=0.02) == rate.per_s(399 / 4 + 1 / 8)


def test_it_rises_as_the_time_constant_says() -> None:
    """After one time constant of steady arrivals the estimate is 1 − 1/e of the rate: too low, never too high."""
    rate = ArrivalRate()
    for n in range(1001):
        rate.add(n / 100, 10_000)
    assert pytest.approx((1 - 1 / math.e) * 1e6, rel=0.01) == rate.per_s(10.0)


def test_a_change_is_followed() -> None:
    """Three time constants after arrivals stop, a twentieth is left."""
    rate = ArrivalRate()
    for n in range(1000):
        rate.add(n / 10, 100_000)
    before = rate.per_s(99.9)
    assert pytest.approx(before * math.exp(-3)) == rate.per_s(99.9 + 3 * TIME_CONSTANT_S)


def test_asking_changes_nothing() -> None:
    """A rate that was asked for at odd times is the same as one that was not."""
    asked, unasked = ArrivalRate(), ArrivalRate()
    for n in range(100):
        for rate in (asked, unasked):
            rate.add(float(n), 1000.0 * n)
        asked.per_s(n + 0.3)
        asked.per_s(n + 0.9)
    assert unasked.per_s(200.0) == asked.per_s(200.0)


def test_arrivals_of_one_instant_add_up() -> None:
    """Two requests at the same time count both, at that time too."""
    rate = ArrivalRate(5.0)
    rate.add(3.0, 1e6)
    rate.add(3.0, 2e6)
    assert pytest.approx(0.6e6) == rate.per_s(3.0)


def test_a_very_long_pause_is_no_error() -> None:
    """After weeks nothing is left, and nothing underflows."""
    rate = ArrivalRate()
    rate.add(0.0, 1e6)
    assert 0.0 == rate.per_s(1e7)
    rate.add(1e7, 1e6)
    assert pytest.approx(1e5) == rate.per_s(1e7)


# Sizes


def test_before_any_arrival_nothing_is_smaller() -> None:
    """Where nothing came, nothing is expected to come."""
    assert 0.0 == ArrivalSizes().part_below(SECOND_US)


def test_parts_are_of_the_work_and_not_of_the_requests() -> None:
    """Ten requests of a tenth of a second are as much work as one of a second."""
    sizes = sizes_of(*[100_000] * 10, 1_000_000)
    assert pytest.approx(0.5) == sizes.part_below(300_000)
    assert pytest.approx(1.0) == sizes.part_below(4_000_000)
    assert 0.0 == sizes.part_below(50_000)


def test_of_its_own_doubling_half_is_smaller() -> None:
    """Sizes within a factor of two are not told apart."""
    sizes = sizes_of(600_000, 700_000, 1_000_000)
    assert [0.5] * 3 == [sizes.part_below(work_us) for work_us in (600_000, 800_000, 1_000_000)]


@pytest.mark.parametrize(
    ("halvings", "part"), [(0, 1.0), (1, 1.0), (2, 0.75), (3, 0.25), (4, 0.0), (19, 0.0), (99, 0.0)]
)
def test_each_halving_asks_for_half_the_size(halvings: int, part: float) -> None:
    """1.0 s halved: to a half nothing is there, the doublings below hold half the work each, and below is nothing."""
    sizes = sizes_of(*[150_000] * 2, *[75_000] * 4)
    assert part == sizes.part_below(1_000_000, halvings)


def test_sizes_follow_a_change() -> None:
    """After a thousand requests of another size hardly anything is left of a thousand before."""
    sizes = sizes_of(*[SECOND_US] * 1000, *[4 * SECOND_US] * 1000)
    assert 0.0 < sizes.part_below(2 * SECOND_US) < 0.02
    assert pytest.approx(0.5, abs=0.02) == sizes.part_below(4 * SECOND_US)


def test_some_hundred_requests_are_remembered() -> None:
    """Hundred larger ones do not yet outweigh two hundred of a fourth of the size: 50 s of 450."""
    sizes = sizes_of(*[SECOND_US // 4] * 200, *[SECOND_US] * 100)
    assert pytest.approx(50 / 150) == sizes.part_below(SECOND_US // 2)


@pytest.mark.parametrize("work_us", [0, 1, 1 << 60])
def test_no_size_is_beyond_the_bins(work_us: int) -> None:
    """A request of no work, or of thirty thousand years, is counted like others."""
    sizes = sizes_of(*[work_us] * 1000)
    assert 0.0 <= sizes.part_below(work_us) <= 0.5
    assert 0.0 <= sizes.part_below(SECOND_US) <= 1.0


# The wait among smaller ones


def test_where_nobody_comes_the_wait_is_what_is_ahead() -> None:
    """Without arrivals, and with arrivals that are all larger, the base is the wait."""
    for base_s in (0.3, 2.5, 400.0):
        assert pytest.approx(base_s) == wait_s(base_s, ArrivalSizes(), arriving=0.0)
        assert pytest.approx(base_s) == wait_s(base_s, sizes_of(SECOND_US * 9), arriving=5.0)


def test_where_nothing_drains_the_base_stays() -> None:
    """An infinite wait does not become a number."""
    assert math.inf == wait_s(math.inf, sizes_of(1000), arriving=0.5)
    assert math.inf == wait_s(math.inf, sizes_of(1000), arriving=0.5, rate=0.0)


def test_smaller_ones_take_their_part_of_the_rate() -> None:
    """Half the rate goes to later and smaller requests: a second becomes two."""
    assert pytest.approx(2.0) == wait_s(1.0, sizes_of(1000), arriving=0.5, aging_s=10.0)
    assert pytest.approx(2.0) == wait_s(1.0, sizes_of(1000), arriving=2.0, aging_s=10.0, rate=4.0)


def test_with_each_aging_time_only_half_the_size_is_served_first() -> None:
    """Requests of 0.4 s before one of 1 s: all for the first second, half of them for the next, then none."""
    assert pytest.approx(2.75) == wait_s(2.0, sizes_of(400_000), arriving=0.5)


def test_more_than_is_drained_may_come_and_the_wait_ends() -> None:
    """Smaller ones at three times the rate hold up a request only until it has aged past them."""
    # Two seconds of work are added in the first second, half a one in the second, and nothing from then on.
    assert pytest.approx(2.0 + 1.0 + 2.0 + 0.5) == wait_s(1.0, sizes_of(300_000), arriving=3.0)
    longest_s = wait_s(1.0, sizes_of(1), arriving=3.0, work_us=1 << 50)
    assert pytest.approx(AGINGS_MAX + 1.0 + 2.0 * AGINGS_MAX) == longest_s


def test_the_larger_the_request_the_longer_it_waits() -> None:
    """And the more arrives, and the slower one ages."""
    sizes = sizes_of(*(SECOND_US >> n for n in range(8)))
    for grows in (
        [wait_s(1.0, sizes, arriving=0.9, work_us=SECOND_US >> n) for n in (4, 3, 2, 1, 0)],
        [wait_s(1.0, sizes, arriving=arriving) for arriving in (0.1, 0.3, 0.9, 2.0)],
        [wait_s(1.0, sizes, arriving=0.9, aging_s=aging_s) for aging_s in (0.1, 0.5, 2.0)],
    ):
        assert sorted(set(grows)) == grows
        assert grows[0] >= 1.0


@pytest.mark.parametrize("arriving", [0.3, 0.8, 1.3])
@pytest.mark.parametrize("base_s", [0.4, 3.0])
def test_the_wait_solves_its_equation(base_s: float, arriving: float) -> None:
    """rate · W = rate · base + the smaller work that arrives in W, added up in small steps."""
    sizes = sizes_of(*(n * 30_000 for n in range(1, 60)))
    waited_s = wait_s(base_s, sizes, arriving=arriving, aging_s=0.7)
    steps = 20_000
    served = 0.0
    for n in range(steps):
        halvings = int((n + 0.5) / steps * waited_s / 0.7)
        served += arriving * sizes.part_below(SECOND_US, halvings) * waited_s / steps
    assert pytest.approx(base_s + served, rel=1e-3) == waited_s


def test_who_has_nobody_before_it_does_not_wait_for_those_who_come_later() -> None:
    """With nothing ahead the wait is over at once, however much arrives: nobody can come in no time."""
    for arriving in (0.5, 3.0):
        assert 0.0 == wait_s(0.0, sizes_of(1000), arriving=arriving)
