from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.enginemodel import MisuseError, chain_keys, token_keys


def test_chain_keys_cover_full_blocks_only() -> None:
    """Eleven tokens of a chain have two full blocks of four."""
    assert len(chain_keys(3, 11, 4)) == 2


def test_chains_share_no_keys() -> None:
    """Blocks of two chains never have the same name."""
    assert set(chain_keys(1, 10_000, 4)).isdisjoint(chain_keys(2, 10_000, 4))


def test_a_negative_chain_is_refused() -> None:
    """Negative keys are the engine's own, so a chain cannot have them."""
    with pytest.raises(MisuseError, match="at least 0"):
        chain_keys(-1, 8, 4)


def test_a_longer_stretch_of_a_chain_starts_with_the_shorter_one() -> None:
    """The first blocks of a chain have the same names whatever its length."""
    assert list(chain_keys(5, 100, 4))[:10] == list(chain_keys(5, 40, 4))


@given(
    common=st.lists(st.integers(0, 5), max_size=20),
    left=st.lists(st.integers(0, 5), max_size=20),
    right=st.lists(st.integers(0, 5), max_size=20),
)
def test_token_keys_agree_exactly_as_far_as_the_blocks_do(
    common: list[int], left: list[int], right: list[int]
) -> None:
    """Two prompts have equal keys for the blocks up to the first block that differs, and none after it."""
    first, second = common + left, common + right
    keys_first, keys_second = token_keys(first, 4), token_keys(second, 4)
    equal = True
    for index in range(min(len(keys_first), len(keys_second))):
        end = 4 * (index + 1)
        equal = equal and first[:end] == second[:end]
        assert equal == (keys_first[index] == keys_second[index])


def test_token_keys_are_the_same_in_every_process() -> None:
    """The names are fixed numbers: they do not depend on the hash seed, and are not negative."""
    assert all(key >= 0 for key in token_keys(range(64), 4))
    assert token_keys([1, 2, 3, 4], 4) == token_keys((1, 2, 3, 4), 4)
