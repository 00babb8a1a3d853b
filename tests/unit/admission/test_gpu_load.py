from __future__ import annotations

from forebay.admission.events import GpusSampled
from forebay.admission.gpu_load import GpuLoad
from tests.unit.admission.build import Scenario


def test_a_reading_counts_until_it_is_stale() -> None:
    """And the next one in its place."""
    load = GpuLoad()
    assert None is load.value(0.0, 5.0)
    load.read(0.5, 1.0)
    assert (0.5, 0.5, None) == (load.value(1.0, 5.0), load.value(6.0, 5.0), load.value(6.5, 5.0))
    load.read(0.7, 7.0)
    assert 0.7 == load.value(7.0, 5.0)


def test_the_core_is_told_of_pools_that_it_has() -> None:
    """Of another it is late news."""
    scenario = Scenario()
    assert None is scenario.pool_view().gpu_utilization
    assert [] == scenario.tell(GpusSampled("llama", 1.5, 1.0), 1.0)
    scenario.tell(GpusSampled("gone", 0.1, 1.0), 1.0)
    assert 1.0 == scenario.pool_view().gpu_utilization
    scenario.sample("a", 10.0)
    assert None is scenario.pool_view().gpu_utilization
