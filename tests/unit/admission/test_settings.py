from __future__ import annotations

import pytest

from forebay.admission.settings import (
    OPTIMISTIC_LAW,
    ZERO_CONFIGURATION_CLASSES,
    ClassSettings,
    PoolSettings,
    Settings,
    SpeedLaw,
)


def test_gpu_seconds_are_endpoint_seconds_times_gpus() -> None:
    """One GPU-second on an endpoint of four GPUs is a quarter of an endpoint-second."""
    pool = PoolSettings("llama", gpus=4)
    assert 250_000 == pool.to_work_us(1.0)
    assert 1.0 == pool.to_gpu_s(250_000)


@pytest.mark.parametrize("gpus", [1, 2, 3, 7, 8])
def test_converting_there_and_back_loses_nothing(gpus: int) -> None:
    """The two conversions are inverse on whole micro-endpoint-seconds."""
    pool = PoolSettings("llama", gpus=gpus)
    for work_us in (0, 1, 999_999, 123_456_789):
        assert work_us == pool.to_work_us(pool.to_gpu_s(work_us))


def test_work_is_rounded_and_not_cut() -> None:
    """A conversion gives the nearest micro-endpoint-second."""
    assert 1 == PoolSettings("llama", gpus=2).to_work_us(1.9e-6)
    assert isinstance(PoolSettings("llama").to_work_us(0.5), int)


def test_zero_configuration_has_three_classes() -> None:
    """Without configuration there are realtime, standard and batch, in this rank, with these objectives."""
    assert [("realtime", 1.5, 0.08, 3, 3), ("standard", 5.0, 0.12, 5, 2), ("batch", 60.0, 0.2, 2, 1)] == [
        (c.name, c.ttft_s, c.tpot_s, c.weight, c.value) for c in ZERO_CONFIGURATION_CLASSES
    ]
    assert "standard" == Settings(pools=()).default_class


def test_the_default_wait_budget_is_the_ttft_objective() -> None:
    """Nobody waits longer than the first token may take, unless configured."""
    assert [c.ttft_s for c in ZERO_CONFIGURATION_CLASSES] == [
        c.wait_budget_s for c in ZERO_CONFIGURATION_CLASSES
    ]


def test_zero_configuration_bounds_nothing_by_count() -> None:
    """No count of requests is refused out of the box: a burst at an idle engine must pass."""
    pool = PoolSettings("llama")
    assert (None, None, None) == (pool.max_queue, pool.max_pool_requests, pool.max_gpu_s)
    assert {None} == {c.max_queue for c in ZERO_CONFIGURATION_CLASSES}


@pytest.mark.parametrize("kind", [ClassSettings, PoolSettings, Settings, SpeedLaw])
def test_settings_are_frozen(kind: type) -> None:
    """Settings are replaced whole and never changed in place."""
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_the_prior_is_cheap() -> None:
    """An ordinary chat costs less than a twentieth of an endpoint-second before anything is learned."""
    law = OPTIMISTIC_LAW
    step_s = law.c0_s / law.max_requests + law.c2_s + law.c3_s * 600
    assert step_s * 256 + law.c1_s * 500 < 0.05
