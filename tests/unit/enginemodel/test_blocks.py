from __future__ import annotations

import pytest

from forebay.enginemodel import BlockPool, InvariantError


def test_blank_blocks_are_taken_before_reusable_ones() -> None:
    """Taking blocks evicts nothing as long as there are blank ones."""
    pool = BlockPool(4)
    pool.take(1)
    pool.publish(7)
    pool.release(private=0, keys=[7])
    assert pool.take(3)
    assert pool.match([7], 1) == 1
    assert pool.take(1)
    assert pool.match([7], 1) == 0


def test_the_oldest_reusable_block_goes_first_and_the_end_of_a_chain_before_its_start() -> None:
    """Blocks are evicted in the order of their release, the last of a sequence first."""
    pool = BlockPool(3)
    pool.take(3)
    for key in (1, 2, 3):
        pool.publish(key)
    pool.release(private=0, keys=[1, 2, 3])
    pool.take(1)
    assert [1, 2] == [key for key in (1, 2, 3) if pool.match([key], 1)]


def test_nothing_is_taken_when_there_is_not_enough() -> None:
    """A request for more blocks than are free leaves the pool as it was."""
    pool = BlockPool(3)
    pool.take(1)
    assert not pool.take(3)
    assert (2, 1) == (pool.free, pool.used)


def test_a_shared_block_is_in_use_until_its_last_user_leaves() -> None:
    """Two users of a block count as one block in use; it becomes free when both have left."""
    pool = BlockPool(2)
    pool.take(1)
    pool.publish(9)
    assert pool.hold([9], 1) == [9]
    pool.release(private=0, keys=[9])
    assert (1, 1) == (pool.used, pool.shared)
    pool.release(private=0, keys=[9])
    assert (0, 2, 1) == (pool.used, pool.free, pool.idle)


def test_a_second_block_with_the_same_content_stays_private() -> None:
    """Publishing a key that exists is refused, and the block goes back blank."""
    pool = BlockPool(2)
    pool.take(2)
    assert pool.publish(5)
    assert not pool.publish(5)
    pool.release(private=1, keys=[5])
    assert (1, 2) == (pool.idle, pool.free)


def test_a_match_ends_at_the_first_block_that_is_missing() -> None:
    """A chain with a hole is only found up to the hole."""
    pool = BlockPool(3)
    pool.take(2)
    pool.publish(1)
    pool.publish(3)
    assert pool.match([1, 2, 3], 3) == 1


def test_books_that_do_not_balance_are_noticed() -> None:
    """`check` raises when the sequences claim more blocks than the pool gave."""
    pool = BlockPool(3)
    pool.take(1)
    pool.check(private=1)
    with pytest.raises(InvariantError):
        pool.check(private=2)
