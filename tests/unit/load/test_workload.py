from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from forebay.admission.settings import SpeedLaw
from forebay.load.workload import (
    DEMO_MIX,
    Lengths,
    Part,
    Phase,
    arrivals,
    capacity_rps,
    client_limit_tokens,
    mean_work_s,
    offered_work_s,
    request_work_s,
)

LAW = SpeedLaw(
    c0_s=0.012, c1_s=5.5e-5, c2_s=6.3e-5, c3_s=8.3e-8, c4_s=3.0e-9, kv_tokens=60_000, max_requests=256
)
OVERLOAD = (Phase(10, 0.5), Phase(40, 2.0, swing=0.5, period_s=10))


def test_the_demo_mix_has_the_shares_of_the_settled_demo() -> None:
    """The demo offers 60 % realtime, 25 % standard and 15 % batch requests."""
    assert {part.class_name: part.share for part in DEMO_MIX} == {
        "realtime": 0.60,
        "standard": 0.25,
        "batch": 0.15,
    }


def test_same_seed_same_requests_under_any_hash_seed() -> None:
    """A workload depends on its seed and on nothing else, not even on PYTHONHASHSEED."""
    code = "from tests.unit.load.test_workload import *; print(arrivals(DEMO_MIX, OVERLOAD, 10, 7))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        ).stdout
        for seed in ("0", "1")
    }

    assert len(said) == 1
    assert arrivals(DEMO_MIX, OVERLOAD, 10, 7) == arrivals(DEMO_MIX, OVERLOAD, 10, 7)
    assert arrivals(DEMO_MIX, OVERLOAD, 10, 7) != arrivals(DEMO_MIX, OVERLOAD, 10, 8)


def test_arrivals_are_numbered_and_in_order_within_their_phases() -> None:
    """Requests come in order of time, numbered from 0, none outside the phases."""
    planned = arrivals(DEMO_MIX, OVERLOAD, 10, 1)

    assert list(range(len(planned))) == [one.index for one in planned]
    assert all(first.at_s <= second.at_s for first, second in pairwise(planned))
    assert planned[0].at_s >= 0
    assert planned[-1].at_s < 50


def test_offered_load_is_the_multiple_of_capacity_asked_for() -> None:
    """Over a long phase the offered work is the stated multiple of what the engines can do in that time."""
    duration_s = 2_000.0
    planned = arrivals(DEMO_MIX, [Phase(duration_s, 2.0, swing=0.5)], capacity_rps(DEMO_MIX, LAW, 2), 3)
    offered_s = sum(offered_work_s(planned, LAW).values())

    assert pytest.approx(2.0 * 2 * duration_s, rel=0.05) == offered_s


def test_bursts_follow_the_square_wave() -> None:
    """With a swing of one half, three quarters of the requests come in the first half of each period."""
    planned = arrivals(DEMO_MIX, [Phase(1_000, 2.0, swing=0.5, period_s=10)], 10, 5)
    high = sum(one.at_s % 10 < 5 for one in planned)

    assert pytest.approx(0.75, abs=0.02) == high / len(planned)


def test_an_idle_phase_offers_nothing() -> None:
    """A phase without load has no requests, and the next one starts after it."""
    planned = arrivals(DEMO_MIX, [Phase(5, 0.0), Phase(5, 1.0)], 10, 1)

    assert planned
    assert all(one.at_s >= 5 for one in planned)


def test_capacity_is_the_inverse_of_the_mean_cost() -> None:
    """N engines serve n ÷ E[cost] requests a second, and E[cost] is close to the mean over drawn requests."""
    planned = arrivals(DEMO_MIX, [Phase(2_000, 1.0)], 10, 11)
    drawn_s = sum(offered_work_s(planned, LAW).values()) / len(planned)

    assert pytest.approx(mean_work_s(DEMO_MIX, LAW), rel=0.05) == drawn_s
    assert pytest.approx(2 / mean_work_s(DEMO_MIX, LAW)) == capacity_rps(DEMO_MIX, LAW, 2)


def test_a_longer_request_costs_more() -> None:
    """The cost of a request grows with its prompt and with its answer."""
    base_s = request_work_s(LAW, 1_000, 100)

    assert base_s < request_work_s(LAW, 2_000, 100)
    assert base_s < request_work_s(LAW, 1_000, 200)


def test_lengths_stay_in_their_range() -> None:
    """Quantiles rise from the lower to the upper bound, with the median in the middle."""
    lengths = Lengths(250, 0.6, 40, 1_500)

    assert lengths.at(1e-9) == 40
    assert lengths.at(0.5) == 250
    assert lengths.at(1 - 1e-9) == 1_500
    assert lengths.grid() == sorted(lengths.grid())


@pytest.mark.parametrize(
    ("output_tokens", "limit_tokens"), [(1, 256), (256, 256), (257, 512), (1_024, 1_024)]
)
def test_a_client_states_a_round_limit(output_tokens: int, limit_tokens: int) -> None:
    """The stated limit is the next power of two above the answer, and at least 256."""
    assert limit_tokens == client_limit_tokens(output_tokens)


def test_shares_that_do_not_add_up_are_refused() -> None:
    """A mix whose shares are not 1 together is an error that says so."""
    part = Part("realtime", 0.5, Lengths(10, 0.5, 1, 20), Lengths(10, 0.5, 1, 20))

    with pytest.raises(ValueError, match=r"add up to 1, not 0\.5"):
        arrivals((part,), [Phase(1, 1)], 1, 1)


def test_a_phase_that_makes_no_sense_is_refused() -> None:
    """A negative load, a swing above 1 or a phase without duration is an error that shows the phase."""
    for phase in (Phase(0, 1), Phase(1, -1), Phase(1, 1, swing=1.5), Phase(1, 1, period_s=0)):
        with pytest.raises(ValueError, match="a phase needs"):
            arrivals(DEMO_MIX, [phase], 1, 1)
