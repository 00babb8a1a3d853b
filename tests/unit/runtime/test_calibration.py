"""What is measured of an engine, and within which bounds."""

from __future__ import annotations

import pytest

from forebay.runtime.calibration import (
    CONTEXTS,
    HELD_OUT_PROMPTS,
    KV_PART,
    PROMPT_TOKENS,
    Calibration,
    Facts,
    _allowed,
    _counts,
    _most_at_once,
    mean_error,
)
from forebay.sizing.fitting import FittedLaw

FACTS = Facts("m", kv_tokens=10_000, block_size=16, context_tokens=4_000, max_num_seqs=None, busy=0)
LAW = FittedLaw(10.0, 64, 0.1, 0.2, 0.0, 0.0, 0.1, 1.0, 2048)


@pytest.mark.parametrize(
    ("most", "counts"),
    [(4, [1, 2, 3, 4]), (8, [1, 2, 3, 4, 6, 8]), (10, [1, 2, 3, 4, 6, 8, 10])],
)
def test_counts_of_streams(most: int, counts: list[int]) -> None:
    """Powers of two, three quarters of them, and the most."""
    assert counts == _counts(most)


def test_cells_stay_within_cache_and_context() -> None:
    """Nothing is sent that could fill the KV cache, or be refused as too long."""
    for sequences in range(1, 65):
        for context in CONTEXTS:
            if _allowed(FACTS, sequences, context):
                assert sequences * context < KV_PART * FACTS.kv_tokens
                assert context < FACTS.context_tokens
    assert _allowed(FACTS, 1, 1024)
    assert not _allowed(FACTS, 64, 1024)


def test_nothing_held_out_is_fitted_to() -> None:
    """The lengths that the law is held against are others."""
    assert not set(PROMPT_TOKENS) & set(HELD_OUT_PROMPTS)


def test_most_at_once() -> None:
    """Of four streams, one after the three others, three overlap."""
    assert 3 == _most_at_once([(0, 5), (1, 6), (2, 7), (8, 9)])


def test_knee_by_hand() -> None:
    """10 ms fixed and 0.2 for each: half of the first's gain is left at 50 × 0.414 sequences."""
    result = Calibration(FACTS, LAW, None, 8, [], [])
    assert 21 == result.knee


def test_mean_error_is_absolute() -> None:
    """Errors in both directions do not cancel."""
    assert (0.02, 0.0) == (mean_error([0.02, -0.02]), mean_error([]))
