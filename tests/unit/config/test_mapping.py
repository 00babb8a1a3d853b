"""What was written, as the core reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay.admission.model import Mode
from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES, OnStale, Settings
from forebay.config import ConfigError, Loaded, load, to_settings
from forebay.enginemodel.law import StepLaw
from forebay.enginemodel.profile import EngineProfile

LAW = StepLaw(t0=6.0, n0=512, s_lo=0.01, s_hi=0.02, c_kv=4e-5, f_attn=8e-7, g_seq=0.002, h0=0.4, h1=0.04)
PROFILE = EngineProfile(
    name="measured",
    model="m",
    gpu="g",
    gpus=4,
    weights="bf16",
    kv_dtype="bf16",
    law=LAW,
    kv_tokens=400_000,
    block_size=16,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    context_tokens=8192,
    source="made up",
)


def loaded_with(**keys: Any) -> Loaded:
    """A configuration with these top-level keys."""
    keys.setdefault("pools", [{"endpoints": ["http://a:1"]}])
    return load(None, environ={}, options={key: (f"--{key}", value) for key, value in keys.items()})


def no_profile(name: str) -> EngineProfile:
    """A reader that knows no profile."""
    raise ValueError(f"there is no engine profile {name!r}")


def test_zero_configuration_is_the_cores_own() -> None:
    """With endpoints alone the core gets its documented defaults and learns the speed."""
    settings = to_settings(loaded_with(), memory_limit_bytes=1 << 30, read_profile=no_profile)
    assert ZERO_CONFIGURATION_CLASSES == settings.classes
    assert 256 << 20 == settings.max_waiting_bytes
    (pool,) = settings.pools
    assert (None, None, None, None) == (pool.law, pool.max_gpu_s, pool.max_pool_requests, pool.max_queue)
    assert (1, 0.9, "backlog") == (pool.gpus, pool.headroom, pool.wait_predictor)


def test_modes_arrive() -> None:
    """Of everything and of a class; unsaid is no word of its own."""
    loaded = loaded_with(mode="bypass", classes={"realtime": {"mode": "enforce"}, "standard": None})
    settings = to_settings(loaded, memory_limit_bytes=1, read_profile=no_profile)
    assert (Mode.BYPASS, [Mode.ENFORCE, None], None) == (
        settings.mode, [c.mode for c in settings.classes], settings.pools[0].mode,
    )  # fmt: skip


def test_every_pool_setting_arrives() -> None:
    """Each key of a pool that concerns the core is in its settings."""
    pool = {
        "name": "p",
        "endpoints": ["http://a:1"],
        "gpus": 2,
        "max_gpu_seconds": 120,
        "headroom": 0.8,
        "max_inflight_requests": 48,
        "max_inflight_tokens": 18000,
        "max_pool_requests": 24,
        "max_queue": 7,
        "hold_without_endpoints": "5s",
        "wait_predictor": "plain",
        "mode": "shadow",
        "audio_gpu_seconds": 0.5,
        "image_gpu_seconds": 7,
    }
    (settings,) = to_settings(loaded_with(pools=[pool]), memory_limit_bytes=1, read_profile=no_profile).pools
    assert (Mode.SHADOW, 0.5, 7.0) == (settings.mode, settings.audio_gpu_s, settings.image_gpu_s)
    assert ("p", 2, 120.0, 0.8, 48) == (
        settings.name,
        settings.gpus,
        settings.max_gpu_s,
        settings.headroom,
        settings.max_inflight_requests,
    )
    assert (18000, 24, 7, 5.0, "plain") == (
        settings.max_inflight_tokens,
        settings.max_pool_requests,
        settings.max_queue,
        settings.hold_without_endpoints_s,
        settings.wait_predictor,
    )


def test_classes_keep_their_order_and_fill_in_their_defaults() -> None:
    """The order of the file is the rank; what a class leaves out comes from the default class of its name."""
    classes = {
        "fast": {"ttft": "500ms", "whole_answer": "2s"},
        "batch": None,
        "standard": {
            "ttft": "9s",
            "weight": 7,
            "max_queue": 3,
            "max_queue_gpu_seconds": 12,
            "idle_stream": "5s",
            "on_stale": "refuse",
        },
        "realtime": {"wait_budget": "100ms", "max_queue_gpu_seconds": "auto"},
    }
    settings = to_settings(loaded_with(classes=classes), memory_limit_bytes=1, read_profile=no_profile)
    fast, batch, standard, realtime = settings.classes
    assert ("fast", 0.5, 0.12, 0.5, 1.0, 1.0) == (
        fast.name,
        fast.ttft_s,
        fast.tpot_s,
        fast.wait_budget_s,
        fast.weight,
        fast.value,
    )
    assert (2.0, None) == (fast.whole_answer_s, batch.whole_answer_s)
    assert ZERO_CONFIGURATION_CLASSES[2] == batch
    assert (9.0, 9.0, 7.0, 2.0, 3, 12.0, 5.0) == (
        standard.ttft_s,
        standard.wait_budget_s,
        standard.weight,
        standard.value,
        standard.max_queue,
        standard.max_queue_gpu_s,
        standard.idle_stream_s,
    )
    assert (OnStale.REFUSE, None) == (standard.on_stale, realtime.on_stale)
    assert (1.5, 0.1, None) == (realtime.ttft_s, realtime.wait_budget_s, realtime.max_queue_gpu_s)


def test_profile_becomes_the_step_law() -> None:
    """A profile's nine numbers, in milliseconds, become the core's five, in seconds; its GPUs are the pool's."""
    asked: list[str] = []

    def read(name: str) -> EngineProfile:
        asked.append(name)
        return PROFILE

    pool = {"endpoints": ["http://a:1"], "profile": "measured"}
    (settings,) = to_settings(loaded_with(pools=[pool]), memory_limit_bytes=1, read_profile=read).pools
    law = settings.law
    assert law is not None
    assert [0.0064, 2e-5, 5.2e-5, 4e-8, 8e-10] == pytest.approx(
        [law.c0_s, law.c1_s, law.c2_s, law.c3_s, law.c4_s]
    )
    assert (400_000, 256, 4) == (law.kv_tokens, law.max_requests, settings.gpus)
    assert ["measured"] == asked


def test_gpus_as_written_beat_the_profiles() -> None:
    """An operator's number of GPUs is not overruled by a profile."""
    pool = {"endpoints": ["http://a:1"], "profile": "measured", "gpus": 8}
    (settings,) = to_settings(
        loaded_with(pools=[pool]), memory_limit_bytes=1, read_profile=lambda _: PROFILE
    ).pools
    assert 8 == settings.gpus


def test_tokens_per_gpu_second_is_a_law() -> None:
    """With N tokens per GPU-second a request of T tokens costs T ÷ N GPU-seconds, whatever the number of GPUs."""
    pool = {"endpoints": ["http://a:1"], "gpus": 4, "profile": {"tokens_per_gpu_second": 250}}
    (settings,) = to_settings(loaded_with(pools=[pool]), memory_limit_bytes=1, read_profile=no_profile).pools
    law = settings.law
    assert law is not None
    endpoint_s = 600 * law.c1_s + 400 * law.c2_s
    assert 4.0 == pytest.approx(endpoint_s * settings.gpus)
    assert (0.0, 0.0, 0.0) == (law.c0_s, law.c3_s, law.c4_s)


def test_profile_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    """A file name in a configuration is looked up beside it; a bare name is a profile's name."""
    asked: list[str] = []

    def read(name: str) -> EngineProfile:
        asked.append(name)
        return PROFILE

    path = tmp_path / "forebay.yaml"
    path.write_text(
        "pools:\n"
        "- {name: a, endpoints: [http://a], profile: mine.json}\n"
        "- {name: b, endpoints: [http://b], profile: sub/other}\n"
        "- {name: c, endpoints: [http://c], profile: llama3-8b-h100x1-bf16}\n"
    )
    to_settings(load(path, environ={}), memory_limit_bytes=1, read_profile=read)
    assert [str(tmp_path / "mine.json"), str(tmp_path / "sub/other"), "llama3-8b-h100x1-bf16"] == asked


def test_profile_that_cannot_be_read_is_a_located_problem(tmp_path: Path) -> None:
    """An unknown profile is told with its line, together with the other pools' problems."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "pools:\n- {name: a, endpoints: [http://a], profile: x}\n- {name: b, endpoints: [http://b], profile: y}\n"
    )
    with pytest.raises(ConfigError) as caught:
        to_settings(load(path, environ={}), memory_limit_bytes=1, read_profile=no_profile)
    assert [
        f"{path}:2:36: pools[0].profile: there is no engine profile 'x'",
        f"{path}:3:36: pools[1].profile: there is no engine profile 'y'",
    ] == [str(problem) for problem in caught.value.problems]


def test_waiting_bytes_as_written_beat_the_default() -> None:
    """A written bound on waiting bodies is taken as it is."""
    settings = to_settings(
        loaded_with(limits={"max_waiting_bytes": "10MiB"}),
        memory_limit_bytes=1 << 40,
        read_profile=no_profile,
    )
    assert 10 << 20 == settings.max_waiting_bytes


def test_waiting_bodies_may_have_a_quarter_of_the_memory_that_is_said() -> None:
    """`memory` stands for the limit that the process lives under."""
    settings = to_settings(
        loaded_with(limits={"memory": "512MiB"}), memory_limit_bytes=1 << 40, read_profile=no_profile
    )
    assert 128 << 20 == settings.max_waiting_bytes


def test_time_limits_towards_engines_are_taken_over() -> None:
    """How long connecting may take, and the first byte of an answer that is not streamed."""
    settings = to_settings(
        loaded_with(limits={"connect_timeout": "500ms", "answer_timeout": "90s"}),
        memory_limit_bytes=1,
        read_profile=no_profile,
    )
    assert (0.5, 90.0) == (settings.connect_timeout_s, settings.unstreamed_timeout_s)
    assert (2.0, 600.0) == (Settings(()).connect_timeout_s, Settings(()).unstreamed_timeout_s)
