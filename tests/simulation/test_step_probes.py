"""The fit of a step law from what clients see, tried on the model engine itself, whose law is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.engines.fidelity import BASE, FITTED, HELD_OUT, drift, modelled
from benchmarks.engines.step_probes import Observation, Probe, fit, observations
from forebay.enginemodel.law import StepLaw
from forebay.enginemodel.profile import EngineConfig
from forebay.load.felt import End, Felt

LAW = StepLaw(t0=6.0, n0=64, s_lo=0.05, s_hi=0.4, c_kv=0.001, f_attn=2e-5, g_seq=0.1, h0=0.0, h1=0.0)
OUTSIDE_S = 0.004
CONFIG = EngineConfig.from_profile(BASE)


def seen(probes: Sequence[Probe], noise: float) -> list[Observation]:
    """What clients would see of an engine with that law, give or take."""
    stream = random.Random(3)
    found: list[Observation] = []
    for probe in probes:
        times = modelled(LAW, OUTSIDE_S, CONFIG, probe.arrivals()).times.values()
        felt = []
        for one in times:
            factor = stream.uniform(1 - noise, 1 + noise)
            felt.append(
                Felt(
                    "probe",
                    0.0,
                    True,
                    End.COMPLETED,
                    one.whole_s * factor,
                    one.ttft_s * factor,
                    one.whole_s * factor,
                )
            )
        found += observations(probe, felt, BASE, CONFIG)
    return found


def test_a_known_law_is_found_again() -> None:
    """Without noise within a thousandth, on probes that were not used for it too."""
    found = fit(seen(FITTED, 0.0))
    assert found.error(seen(HELD_OUT, 0.0)) < 0.001
    assert abs(found.outside_s - OUTSIDE_S) < 0.001


def test_answers_that_came_in_one_piece_are_left_out() -> None:
    """They say nothing of the steps between."""
    useless = [replace(one, seconds=0.0) for one in seen(HELD_OUT, 0.0)]
    found = fit([*seen(FITTED, 0.0), *useless])
    assert found.error([*seen(HELD_OUT, 0.0), *useless]) < 0.001
    assert 0.0 == drift(useless + seen(HELD_OUT, 0.0), seen(HELD_OUT, 0.0) * 2)


def test_noise_is_averaged_out() -> None:
    """Five per cent in each time leave less than that in the law."""
    found = fit(seen(FITTED, 0.05))
    assert found.error(seen(HELD_OUT, 0.0)) < 0.03
