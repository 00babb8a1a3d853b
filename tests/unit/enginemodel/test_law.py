from __future__ import annotations

import math

import pytest

from forebay.enginemodel import MisuseError, StepLaw
from tests.unit.enginemodel.builders import LAW


def test_a_step_below_the_knee_costs_the_low_slope() -> None:
    """Eight tokens at a knee of eight are charged s_lo each, and every other term once."""
    # 10 + 0.5 + 1.0*8 + 0.01*300 + 0.001*10 + 0.1*3 + 0.25*4 = 22.81 ms
    step_s = LAW.step_s(prefill_tokens=5, decoding=3, kv_tokens=300, prefill_attention=10.0, sequences=4)
    assert step_s == pytest.approx(22.81e-3, rel=1e-12)


def test_tokens_beyond_the_knee_cost_the_high_slope() -> None:
    """Of twelve tokens four lie beyond a knee of eight and are charged s_hi."""
    # 10 + 0.5 + 1.0*8 + 2.0*4 + 0 + 0.001*72 + 0 + 0.25 = 26.822 ms
    step_s = LAW.step_s(prefill_tokens=12, decoding=0, kv_tokens=0, prefill_attention=72.0, sequences=1)
    assert step_s == pytest.approx(26.822e-3, rel=1e-12)


def test_an_h100_step_is_what_its_profile_says() -> None:
    """64 sequences of 1,000 tokens each decode in 12.9 ms on the 8B H100 profile."""
    law = StepLaw(6.384, 512, 0.009591, 0.02032, 4.172e-05, 7.892e-07, 0.002297, 0.4, 0.04)
    # 6.384 + 0.4 + 0.009591*64 + 4.172e-5*64000 + 0.002297*64 + 0.04*64
    expected_ms = 6.384 + 0.4 + 0.613824 + 2.67008 + 0.147008 + 2.56
    step_s = law.step_s(prefill_tokens=0, decoding=64, kv_tokens=64_000, prefill_attention=0.0, sequences=64)
    assert step_s == pytest.approx(expected_ms * 1e-3, rel=1e-12)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_impossible_numbers_are_refused(bad: float) -> None:
    """A law with a negative or non-finite number names it."""
    with pytest.raises(MisuseError, match="c_kv"):
        StepLaw(10.0, 8, 1.0, 2.0, bad, 0.0, 0.0, 0.0, 0.0)


def test_a_law_without_a_fixed_part_is_refused() -> None:
    """A step always takes some time, or an engine could run forever in one instant."""
    with pytest.raises(MisuseError, match="t0"):
        StepLaw(0.0, 8, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0)
