"""Speed from data sheets, against the measured profiles."""

from __future__ import annotations

import pytest

from forebay.load.workload import request_work_s
from forebay.profiles import list_profiles, load_profile
from forebay.runtime.sizing import engine_of_profile, law_of_engine
from forebay.sizing.gpus import find_gpu
from forebay.sizing.memory import SHAPES
from forebay.sizing.roofline import roofline_engine


@pytest.mark.parametrize("name", list_profiles())
def test_costs_are_near_the_measured_ones(name: str) -> None:
    """A chat within 20 %, a long prompt within 30 %."""
    profile = load_profile(name)
    _, law = engine_of_profile(name)
    engine = roofline_engine(
        SHAPES[profile.model],
        find_gpu(profile.gpu.removesuffix("_sxm")),
        weights=profile.weights,
        kv_dtype=profile.kv_dtype,
        tensor_parallel=profile.gpus,
    )
    guess = law_of_engine(engine)
    for prompt, output, within in ((300, 200, 0.2), (1000, 200, 0.2), (4000, 50, 0.3)):
        assert request_work_s(guess, prompt, output) == pytest.approx(
            request_work_s(law, prompt, output), rel=within
        )


def test_fp8_weights_on_a_gpu_without_fp8_are_only_smaller() -> None:
    """On an A100 prompts take as long as in bf16; steps are shorter, since less is read."""
    gpu, shape = find_gpu("a100"), SHAPES["llama3-8b"]
    wide, narrow = (roofline_engine(shape, gpu, weights=weights) for weights in ("bf16", "fp8"))
    assert wide.c1_s == narrow.c1_s
    assert narrow.c0_s < wide.c0_s
