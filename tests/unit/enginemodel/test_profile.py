from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.enginemodel import EngineConfig, MisuseError
from tests.unit.enginemodel.builders import profile


def test_a_config_takes_what_is_left_out_from_the_profile() -> None:
    """Without further values the config is the profile's."""
    assert EngineConfig.from_profile(profile()) == EngineConfig(
        kv_blocks=100, block_size=4, max_num_seqs=8, max_num_batched_tokens=16, context_tokens=200
    )


def test_kv_tokens_are_rounded_down_to_whole_blocks() -> None:
    """A cache of 43 tokens has ten blocks of four."""
    config = EngineConfig.from_profile(profile(), kv_tokens=43)
    assert (10, 40) == (config.kv_blocks, config.kv_tokens)


def test_the_context_shrinks_with_the_cache_unless_it_was_asked_for() -> None:
    """A model's context that exceeds the cache is cut to it; an explicit one is refused."""
    assert EngineConfig.from_profile(profile(), kv_tokens=80).context_tokens == 80
    with pytest.raises(MisuseError, match="does not fit the KV cache of 80 tokens"):
        EngineConfig.from_profile(profile(), kv_tokens=80, context_tokens=81)


def test_more_sequences_than_tokens_per_step_are_refused() -> None:
    """Each running sequence computes a token per step, so the token budget cannot be below their number."""
    with pytest.raises(MisuseError, match="max_num_seqs"):
        EngineConfig.from_profile(profile(), max_num_seqs=9, max_num_batched_tokens=8)


def test_the_token_budget_follows_a_larger_number_of_sequences() -> None:
    """Raising max_num_seqs alone raises the profile's token budget where it must."""
    assert EngineConfig.from_profile(profile(), max_num_seqs=40).max_num_batched_tokens == 40


@pytest.mark.parametrize(
    ("field", "value"),
    [("kv_blocks", 0), ("block_size", 0), ("max_num_seqs", 0), ("context_tokens", 0), ("watermark", 1.0)],
)
def test_a_config_names_the_value_that_cannot_be(field: str, value: float) -> None:
    """Values out of range are refused with their name."""
    good = EngineConfig.from_profile(profile())
    with pytest.raises(MisuseError, match=field):
        replace(good, **{field: value})  # type: ignore[arg-type]


def test_a_cache_below_one_block_is_refused() -> None:
    """Three tokens are less than a block of four."""
    with pytest.raises(MisuseError, match="at least one block"):
        EngineConfig.from_profile(profile(), kv_tokens=3)


def test_a_profile_without_gpus_is_refused() -> None:
    """Counts in a profile are at least one."""
    with pytest.raises(MisuseError, match="gpus"):
        replace(profile(), gpus=0)
