from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.admission.snapshot import ClassView, EndpointView, PoolView, Snapshot
from tests.unit.admission.build import Scenario, pool_settings


@pytest.mark.parametrize("kind", [Snapshot, PoolView, EndpointView, ClassView])
def test_views_are_frozen(kind: type) -> None:
    """Whoever gets a view cannot reach into the machine through it."""
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_snapshot_is_of_its_moment(begin: Callable[..., Scenario]) -> None:
    """What happens later does not show in a snapshot that was taken before."""
    scenario = begin(pool_settings(max_inflight_requests=1))
    scenario.arrive(1, 1.0)
    scenario.arrive(2, 2.0)
    before = scenario.controller.snapshot()
    scenario.end(1, 3.0)
    assert (2.0, 2, 1000, False) == (before.at_s, before.tickets, before.waiting_bytes, before.draining)
    assert 1 == before.pools[0].waiting_requests
    after = scenario.controller.snapshot()
    assert (3.0, 1, 0) == (after.at_s, after.tickets, after.waiting_bytes)


def test_two_snapshots_of_the_same_state_are_equal(begin: Callable[..., Scenario]) -> None:
    """Views compare by value, so checkers and tests can see that nothing changed."""
    scenario = begin()
    scenario.arrive(1, 1.0)
    assert scenario.controller.snapshot() == scenario.controller.snapshot()
