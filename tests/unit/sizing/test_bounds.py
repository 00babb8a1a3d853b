"""Bounds as published and as corrected, against figures worked by hand."""

from __future__ import annotations

import pytest

from forebay.sizing.bounds import (
    bucket,
    depth_by_drain,
    depth_by_service,
    pool_gpu_seconds,
    pool_gpu_seconds_by_drain,
    scale_up_gpu_seconds,
)
from forebay.sizing.errors import SizingError


def test_published_depth() -> None:
    """A budget of 6 s, a service of 2 s, 10 at once: 6 ÷ 2 × 10 × 1.5 = 45."""
    assert depth_by_service(6, 2, 10) == 45


def test_depth_by_drain() -> None:
    """An engine that finishes 4 a second gets through 24 in 6 s."""
    assert depth_by_drain(6, 4) == 24


def test_both_depths_agree_but_for_the_factor_at_full_concurrency() -> None:
    """With the service time of a full batch, concurrency ÷ S is the drain rate: what differs is 1.5."""
    service_s, concurrency = 2.5, 10
    assert depth_by_service(6, service_s, concurrency) == pytest.approx(
        1.5 * depth_by_drain(6, concurrency / service_s)
    )


def test_published_bucket() -> None:
    """1,000 tokens/s per GPU, 4 GPUs: 2,800 tokens/s, and 4 s of that at once."""
    assert bucket(1000, 4) == (2800, 11_200)


def test_bucket_with_something_behind_it() -> None:
    """A factor above 1 lets more through than is served."""
    assert bucket(10, 2, factor=1.2, seconds=2) == (24, 48)


def test_published_pool_bound() -> None:
    """5 s on 4 GPUs, halved: 10 GPU-seconds."""
    assert pool_gpu_seconds(5, 4) == 10


def test_pool_bound_with_what_runs() -> None:
    """5 s on 4 GPUs, and 50 running of 0.2 GPU-seconds each: 30. The published form would not even let those run."""
    assert pool_gpu_seconds_by_drain(5, 4, running=50, cost_gpu_s=0.2) == 30


def test_scaling_begins_below_refusing() -> None:
    """5 s on 4 GPUs are refused from 20 GPU-seconds on; half of that asks for more."""
    assert scale_up_gpu_seconds(5, 4) == 10
    with pytest.raises(SizingError, match="below the bound"):
        scale_up_gpu_seconds(5, 4, part=1.0)


def test_a_service_that_takes_no_time_is_refused() -> None:
    """It would make the queue endless."""
    with pytest.raises(SizingError, match="above 0"):
        depth_by_service(1, 0, 1)
