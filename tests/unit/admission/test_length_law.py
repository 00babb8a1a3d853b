from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import fsum
from random import Random

import pytest

from forebay.admission.length_law import (
    BINS,
    KNOTS,
    PRIOR,
    PRIOR_OUTPUT_TOKENS,
    LengthLaw,
    learned_law,
)

FAINT = 1e-9
"""Answers that the parent counts for where it should not show."""
FAR = 10**9
CAPS = (1, 2, 3, 7, 8, 9, 50, 100, 257, 999, 2000)


def counted(lengths: list[int]) -> list[float]:
    """Answers in each bin."""
    counts = [0.0] * BINS
    for length in lengths:
        counts[bisect_left(KNOTS, length) - 1] += 1
    return counts


def law_of(*ended: int, cut: tuple[int, ...] = (), pseudo_count: float = FAINT) -> LengthLaw:
    """The law of answers that ended, and of others cut off after so many tokens (borders of bins)."""
    cuts = [0.0] * (BINS + 1)
    for length in cut:
        cuts[KNOTS.index(length)] += 1
    return learned_law(PRIOR, counted(list(ended)), cuts, 1.0, pseudo_count)


def some_laws() -> list[LengthLaw]:
    """The prior, narrow, wide and heavy-tailed laws, with and without answers that were cut off."""
    draw = Random("laws")
    wide = [int(draw.lognormvariate(5, 1.2)) + 1 for _ in range(300)]
    heavy = [int(10 * draw.paretovariate(1.1)) for _ in range(300)]
    return [
        PRIOR,
        law_of(*[100] * 50),
        law_of(*wide),
        law_of(*heavy, pseudo_count=50.0),
        law_of(*wide, cut=(64, 256, 256, 1024), pseudo_count=10.0),
        law_of(cut=(128,) * 40, pseudo_count=50.0),
    ]


LAWS = pytest.mark.parametrize("law", some_laws(), ids=["prior", "narrow", "wide", "heavy", "cut", "all cut"])


def survivals(law: LengthLaw, to: int) -> list[float]:
    """S(0), S(1), … below `to`."""
    return [law.survival(x) for x in range(to)]


# One law


@LAWS
def test_survival_falls_from_one_to_nothing(law: LengthLaw) -> None:
    """Every answer has a token, longer ones are never more likely than shorter ones, and none is endless."""
    values = [law.survival(x) for x in (-5, 0, *KNOTS[1:], FAR)]
    assert [1.0, 1.0] == values[:2]
    assert [0.0, 0.0] == values[-2:]
    assert all(before >= after for before, after in pairwise(values))


def test_survival_falls_in_a_straight_line_inside_a_bin() -> None:
    """Of answers between 92 and 108 tokens half are longer than 99.5."""
    law = law_of(*[100] * 50)
    assert pytest.approx(1.0) == law.survival(91)
    assert pytest.approx(0.5) == law.survival(99.5)
    assert pytest.approx(0.0, abs=1e-9) == law.survival(108)


@LAWS
def test_the_mean_is_the_sum_of_the_survivals(law: LengthLaw) -> None:
    """E[min(L, c)] = Σ P(L > x) for 0 <= x < c, whatever the limit."""
    for cap in CAPS:
        assert pytest.approx(fsum(survivals(law, cap))) == law.mean(cap)


@LAWS
def test_the_second_moment_is_the_weighted_sum_of_the_survivals(law: LengthLaw) -> None:
    """E[min(L, c)²] = Σ (2x + 1)·P(L > x) for 0 <= x < c."""
    for cap in CAPS:
        expected = fsum((2 * x + 1) * s for x, s in enumerate(survivals(law, cap)))
        assert pytest.approx(expected) == law.second_moment(cap)
        assert (law.mean(cap), law.second_moment(cap)) == law.moments(cap)


def test_moments_of_known_lengths() -> None:
    """Answers of 2 and of 4 tokens, half and half: mean 3, square 10; cut at 3 it is 2.5 and 6.5."""
    law = law_of(*[2, 4] * 20)
    assert pytest.approx((3.0, 10.0)) == law.moments(100)
    assert pytest.approx((2.5, 6.5)) == law.moments(3)


def test_a_limit_below_all_answers_is_their_length() -> None:
    """What would be longer than the limit is a spike at the limit."""
    law = law_of(*[1000] * 50)
    assert pytest.approx((60.0, 3600.0)) == law.moments(60)
    assert 60 == law.quantile(0.5, 60)


@pytest.mark.parametrize("cap", [1, 0, -3])
def test_an_answer_has_at_least_one_token(cap: int) -> None:
    """A limit below one token is taken for one."""
    assert (1.0, 1.0) == PRIOR.moments(cap)
    assert (1.0, 1.0, 1) == (PRIOR.mean(cap), PRIOR.second_moment(cap), PRIOR.quantile(0.9, cap))


@LAWS
def test_a_limit_beyond_everything_changes_nothing(law: LengthLaw) -> None:
    """With the limit out of reach the moments are those of the whole law."""
    assert law.moments(KNOTS[-1]) == law.moments(KNOTS[-1] + 1) == law.moments(FAR)


@LAWS
def test_a_quantile_is_the_least_length_that_holds_the_share(law: LengthLaw) -> None:
    """P(L <= x) is at least q at the quantile, and less than q one token before."""
    for q in (0.01, 0.1, 0.25, 0.5, 0.77, 0.9, 0.99):
        tokens = law.quantile(q, FAR)
        assert 1 - law.survival(tokens) >= q - 1e-12
        assert tokens == 1 or 1 - law.survival(tokens - 1) < q + 1e-12
        assert min(tokens, 40) == law.quantile(q, 40)


@pytest.mark.parametrize(("q", "tokens"), [(-1.0, 1), (0.0, 1), (1e-20, 1), (1.0, 2**19), (2.0, 2**19)])
def test_quantiles_at_the_ends(q: float, tokens: int) -> None:
    """No share is one token, all of it the end of the last bin, and nothing outside of these comes out."""
    assert tokens == PRIOR.quantile(q, FAR)


# What a running answer has before it


@LAWS
def test_what_remains_is_the_mean_of_those_that_came_so_far(law: LengthLaw) -> None:
    """E[min(L, c) − g | L > g] = Σ P(L > x) ÷ P(L > g) for g <= x < c, as long as g is known ground."""
    for generated in (1, 5, 60, 97, 127):
        if generated >= law.known_tokens:
            continue
        for cap in (generated + 1, 130, 700, 2000):
            expected = fsum(survivals(law, cap)[generated:]) / law.survival(generated)
            assert pytest.approx(expected) == law.remaining_mean(generated, cap)


@LAWS
def test_before_the_first_token_all_remains(law: LengthLaw) -> None:
    """With nothing generated what remains is the mean; at the limit nothing does."""
    assert law.mean(700) == law.remaining_mean(0, 700)
    assert 0.0 == law.remaining_mean(700, 700) == law.remaining_mean(701, 700)


@LAWS
@pytest.mark.parametrize("generated", [5000, 2**19 - 1, 2**19, 10**12])
def test_who_outlives_all_evidence_is_expected_to_do_it_again(law: LengthLaw, generated: int) -> None:
    """Beyond what was ever seen as many tokens again are expected, up to the limit, and nothing is divided by 0."""
    if generated < law.known_tokens:
        assert law.remaining_mean(generated, FAR) > 0
        return
    assert float(generated) == law.remaining_mean(generated, 10**15)
    assert 7.0 == law.remaining_mean(generated, generated + 7)
    assert pytest.approx(0.25) == law.survival_after(generated, generated)


def test_known_ground_ends_where_less_than_one_answer_went() -> None:
    """Fifty answers of 100 tokens are known up to the end of their bin; the prior for its own few answers."""
    assert 108 == law_of(*[100] * 50).known_tokens
    assert 609 == PRIOR.known_tokens
    assert 128 == law_of(cut=(128,) * 40, pseudo_count=1.0).known_tokens


@LAWS
def test_survival_of_a_running_answer_adds_up_to_what_remains(law: LengthLaw) -> None:
    """Σ P(L > g + x | L > g) is what remains of it."""
    for generated in (0, 1, 50, 100):
        if generated < law.known_tokens:
            total = fsum(law.survival_after(generated, x) for x in range(1500 - generated))
            assert pytest.approx(total) == law.remaining_mean(generated, 1500)
    assert 1.0 == law.survival_after(50, 0) == law.survival_after(50, -1)


# The estimator


def test_the_prior_expects_its_mean() -> None:
    """Before anything was seen an answer has 256 tokens on average, half of them less than 180."""
    assert pytest.approx(PRIOR_OUTPUT_TOKENS, abs=0.1) == PRIOR.mean(FAR)
    assert 170 <= PRIOR.quantile(0.5, FAR) <= 180


def test_the_prior_goes_on_at_any_length() -> None:
    """Nobody knows how long is too long: a chance is left at each length, and memory of the past does not matter."""
    assert all(survival > 0 for survival in PRIOR.knots()[:BINS])
    assert pytest.approx(PRIOR.mean(FAR), rel=0.05) == PRIOR.remaining_mean(400, FAR)


def test_without_cuts_the_law_is_the_mixture() -> None:
    """With n answers and κ from above: (n·S_observed + κ·S_above) ÷ (n + κ), at every border."""
    answers = [3, 9, 40, 40, 41, 300, 2000]
    law = law_of(*answers, pseudo_count=5.0)
    for knot, survival in zip(KNOTS, law.knots(), strict=False):
        seen = sum(answer > knot for answer in answers)
        assert pytest.approx((seen + 5 * PRIOR.survival(knot)) / 12) == survival


def test_cuts_enter_as_kaplan_and_meier_have_it() -> None:
    """Ended at 1, cut after 2, ended at 3 and 4: S(1) = 3/4, S(3) = 3/4 · 1/2, and nothing is left after 4."""
    law = law_of(1, 3, 4, cut=(2,))
    expected = [1.0, 0.75, 0.75, 0.375, 0.0]
    assert pytest.approx(expected, abs=1e-6) == [law.survival(x) for x in range(5)]


def test_behind_the_last_cut_the_law_above_goes_on() -> None:
    """Where all answers were cut off at 64 tokens, nobody is taken to end before, and then all as the parent has it."""
    law = law_of(cut=(64,) * 100)
    assert pytest.approx(1.0) == law.survival(64)
    for tokens in (100, 500, 3000):
        assert pytest.approx(PRIOR.survival(tokens) / PRIOR.survival(64)) == law.survival(tokens)


def test_those_who_were_cut_off_stand_beside_the_law_above() -> None:
    """Ten answers that passed 64 tokens stand beside κ of the parent's: (10 + κ·S) ÷ (10 + κ) pass."""
    law = law_of(cut=(64,) * 10, pseudo_count=30.0)
    assert pytest.approx((10 + 30 * PRIOR.survival(64)) / 40) == law.survival(64)


def test_only_ratios_of_counts_matter() -> None:
    """The same answers in another unit give the same law: decayed counts need no rescaling for it."""
    ended, cut = counted([5, 50, 500]), [0.0] * (BINS + 1)
    cut[12] = 2.0
    once = learned_law(PRIOR, ended, cut, 1.0, 7.0)
    scaled = learned_law(PRIOR, [1e9 * n for n in ended], [1e9 * n for n in cut], 1e9, 7.0)
    assert pytest.approx(once.knots()) == scaled.knots()
    assert once.known_tokens == scaled.known_tokens
