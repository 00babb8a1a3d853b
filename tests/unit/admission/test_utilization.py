from __future__ import annotations

from math import exp

import pytest

from forebay.admission.utilization import Utilization, rho_of, target_of


@pytest.mark.parametrize(
    ("policy", "target"), [("latency", 0.7), ("balanced", 0.85), ("throughput", 0.95), (None, None)]
)
def test_a_policy_names_a_target(policy: str | None, target: float | None) -> None:
    """The three policies, and none for a pool without one."""
    assert target == target_of(policy)


def test_an_unknown_policy_is_refused() -> None:
    """The error names those that exist."""
    with pytest.raises(ValueError, match="one of latency, balanced, throughput, not 'fast'"):
        target_of("fast")


def test_rho_is_the_share_above_the_empty_step() -> None:
    """A step twice as long as the empty one is half used; unknown or shorter steps are not in use."""
    assert (0.5, 0.75) == (rho_of(0.02, 0.01), rho_of(0.04, 0.01))
    assert (0.0, 0.0, 0.0, 0.0) == (
        rho_of(0.01, 0.01),
        rho_of(0.005, 0.01),
        rho_of(0.0, 0.01),
        rho_of(0.01, 0.0),
    )


def test_nothing_is_used_at_first() -> None:
    """An endpoint that was never observed is idle."""
    assert 0.0 == Utilization().value(5.0)


@pytest.mark.parametrize("shares", [(0.6, 0.1, 0.2), (0.1, 0.6, 0.2), (0.1, 0.2, 0.6)])
def test_the_scarcest_counts(shares: tuple[float, float, float]) -> None:
    """The level is the largest of slots, KV and step time."""
    used = Utilization()
    used.observe(0.0, *shares)
    assert 0.6 == used.level


def test_it_is_a_mean_over_ten_seconds() -> None:
    """From idle to a level, the mean has gone 63 % of the way after 10 s and nearly all of it after 60 s."""
    used = Utilization()
    used.observe(100.0, 0.8, 0.0, 0.0)
    assert 0.0 == used.value(100.0)
    assert pytest.approx(0.8 * (1 - exp(-1))) == used.value(110.0)
    assert pytest.approx(0.8, abs=0.003) == used.value(160.0)


def test_a_level_counts_for_as_long_as_it_lasts() -> None:
    """How often the same level is observed, and how often it is asked for, changes nothing."""
    often, once = Utilization(), Utilization()
    once.observe(0.0, 0.5, 0.0, 0.0)
    for tenths in range(200):
        often.observe(tenths / 10, 0.5, 0.0, 0.0)
        often.value(tenths / 10)
    assert pytest.approx(once.value(20.0)) == often.value(20.0)


def test_a_moment_at_full_is_no_utilisation() -> None:
    """A level that lasts no time has no weight; afterwards the mean falls by e in ten seconds."""
    used = Utilization()
    used.observe(0.0, 0.4, 0.0, 0.0)
    used.observe(50.0, 1.0, 0.0, 0.0)
    used.observe(50.0, 0.0, 0.0, 0.0)
    before = used.value(50.0)
    assert pytest.approx(0.4, abs=0.003) == before
    assert pytest.approx(before * exp(-1)) == used.value(60.0)


def test_full_is_full() -> None:
    """Where a limit was lowered under what runs, the level is 1 and not more; below 0 is 0."""
    used = Utilization()
    used.observe(0.0, 60.0, 0.0, 0.0)
    assert 1.0 == used.level
    used.observe(1.0, -0.1, -0.2, -3.0)
    assert 0.0 == used.level
