from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Final

import pytest

from forebay.admission.errors import InvariantError
from forebay.admission.forecast import CURVES_MAX, GRID, LAWS_MAX, REBUILT_EVERY, Curve, Curves, KvForecast
from forebay.admission.length_law import BINS, KNOTS, PRIOR, LengthLaw


def law_of(survival: Callable[[int], float], *, evidence: float = 1e6) -> LengthLaw:
    """A law with this survival function at the borders of its bins."""
    at_knots = [survival(tokens) for tokens in KNOTS[:BINS]] + [0.0]
    return LengthLaw(at_knots, at_knots, evidence)


ENDLESS: Final = law_of(lambda tokens: 1.0)
"""Answers that only end at their limit: every length is known."""
HALF: Final = law_of(lambda tokens: 0.5 if tokens else 1.0)
"""Half of the answers have one token, the others end at their limit."""
SHORT: Final = law_of(lambda tokens: 1.0 if tokens < 64 else 0.0)
"""No answer is longer than 64 tokens."""


def at(forecast: KvForecast, offset: float) -> tuple[float, float]:
    """(expected KV tokens, standard deviation) at a point of the grid."""
    return forecast.points()[GRID.index(offset)][1:]


def test_an_empty_endpoint_holds_nothing() -> None:
    """With nothing running there is no peak."""
    forecast = KvForecast()
    assert (0, 0.0, 0.0) == (len(forecast), forecast.held_tokens, forecast.peak())


@pytest.mark.parametrize("cap", [1, 2, 5, 100, 256, 1000, 1024, 1500, 16384])
def test_a_request_alone_grows_up_to_its_limit(cap: int) -> None:
    """Where lengths are known the peak is exact, whether or not the limit is near a point of the grid."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, cap)
    assert (100.0, 100.0 + cap - 1) == (forecast.held_tokens, forecast.peak())


def test_the_last_block_of_each_answer_is_half_empty() -> None:
    """With blocks of 17 tokens two samples of one prompt hold 16 more, now and at the peak; leaving frees them too."""
    forecast = KvForecast()
    forecast.block_tokens = 17.0
    assert 100.0 + 16.0 + 2 * 64 == forecast.peak_with(100, 2, ENDLESS, 65)
    fits = [forecast.fits(100, 2, ENDLESS, 65, limit) for limit in (243.0, 244.0)]
    forecast.add(1, 100, 2, ENDLESS, 65)
    assert (116.0, 244.0) == (forecast.held_tokens, forecast.peak())
    assert fits == [False, True]
    forecast.add(2, 50, 1, ENDLESS, 65)
    forecast.remove(1)
    assert (58.0, 122.0) == (forecast.held_tokens, forecast.peak())


def test_nothing_is_foreseen_beyond_the_grid() -> None:
    """A limit beyond the last point counts as far as the grid goes."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, 100_000)
    assert 100.0 + GRID[-1] == forecast.peak()


def test_the_peak_is_the_most_at_one_time() -> None:
    """Those that grow use the room of those that end: by hand, three hold 164 each when the first ends."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, 65)
    forecast.add(2, 100, 1, ENDLESS, 129)
    assert 2 * 164.0 == forecast.peak()
    forecast.add(3, 100, 1, ENDLESS, 257)
    assert 3 * 164.0 == forecast.peak()
    forecast.remove(1)
    assert 2 * 228.0 == forecast.peak()
    forecast.remove(2)
    assert 356.0 == forecast.peak()


def test_what_was_generated_is_held_and_no_longer_to_come() -> None:
    """With 40 of 65 tokens out, a request holds 140 and ends in 24 steps, when the other holds 124."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, 65, generated=40)
    forecast.add(2, 100, 1, ENDLESS, 129)
    assert (240.0, 164.0 + 124.0) == (forecast.held_tokens, forecast.peak())


def test_samples_grow_together() -> None:
    """Four answers to one prompt hold the prompt once and grow by four tokens a step."""
    forecast = KvForecast()
    forecast.add(1, 100, 4, ENDLESS, 65, generated=10)
    assert (140.0, 100.0 + 4 * 64) == (forecast.held_tokens, forecast.peak())


def test_chances_become_a_mean_and_a_spread() -> None:
    """Two requests of 164 tokens that are there with a half each: 164 ± √2·82, and the peak is two σ above."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, HALF, 65)
    forecast.add(2, 100, 1, HALF, 65)
    assert (200.0, 0.0) == at(forecast, 0.0)
    assert pytest.approx((164.0, sqrt(2) * 82)) == at(forecast, 64.0)
    assert 164.0 + 2 * sqrt(2) * 82 == pytest.approx(forecast.peak())


def test_the_length_so_far_says_how_much_is_to_come() -> None:
    """Of answers that have got past their first token, none of this law ends before its limit."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, HALF, 65, generated=1)
    assert (101.0 + 32.0, 0.0) == at(forecast, 32.0)
    assert 164.0 == forecast.peak()


def test_a_request_beyond_its_limit_holds_what_it_holds() -> None:
    """A count that ran past the client's limit (events are not tokens) is cut there: nothing more comes."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, 50, generated=80)
    assert (150.0, 150.0) == (forecast.held_tokens, forecast.peak())


def test_an_answer_longer_than_any_seen_goes_on() -> None:
    """Where the law knows no such length, as much again is expected: it is neither over nor endless."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, SHORT, 100_000, generated=1024)
    mean, sigma = at(forecast, 1024.0)
    assert pytest.approx((100 + 2048) / 4) == mean
    assert pytest.approx((100 + 2048) * sqrt(3 / 16)) == sigma


def test_what_cannot_be_any_more_is_left_out() -> None:
    """A curve ends where nobody is left, so that short answers cost less to count."""
    assert GRID.index(64.0) == len(Curve(SHORT, 0).alive)
    assert len(GRID) == len(Curve(PRIOR, 0).alive)


def test_who_is_in_it_is_told_apart() -> None:
    """A request is in the forecast once, and only what is in it can go or advance."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, 65)
    with pytest.raises(InvariantError, match="ticket 1 is in the forecast already"):
        forecast.add(1, 100, 1, ENDLESS, 65)
    with pytest.raises(KeyError):
        forecast.remove(2)
    with pytest.raises(KeyError):
        forecast.advance(2, 1)
    assert (1, 164.0) == (len(forecast), forecast.peak())


def test_removing_leaves_nothing_behind() -> None:
    """After the last request the sums are zero, and not nearly so."""
    forecast = KvForecast()
    for key in range(50):
        forecast.add(key, 1000 + 7 * key, 1, PRIOR, 300 + key)
    for key in range(50):
        forecast.remove(key)
    assert (0, 0.0) == (len(forecast), forecast.peak())
    assert {(0.0, 0.0)} == {(mean, sigma) for _, mean, sigma in forecast.points()}


def test_rounding_does_not_pile_up() -> None:
    """Every 256 removals all is added up anew: then nothing is left of thousands that came and went."""
    forecast, alone = KvForecast(), KvForecast()
    for each in (forecast, alone):
        each.add(0, 3, 1, PRIOR, 200)
    for key in range(1, 16 * REBUILT_EVERY + 1):
        forecast.add(key, 100_003 + 7 * key, 1, PRIOR, 100_000)
        if key > 20:
            forecast.remove(key - 20)
    for key in range(16 * REBUILT_EVERY - 19, 16 * REBUILT_EVERY + 1):
        forecast.remove(key)
    assert alone.points() == forecast.points()


def test_progress_counts_from_the_next_refresh() -> None:
    """Marking progress is cheap and changes nothing; a refresh takes it in."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, 65)
    forecast.advance(1, 40)
    assert 100.0 == forecast.held_tokens
    assert forecast.refresh(10.0)
    assert (140.0, 164.0) == (forecast.held_tokens, forecast.peak())


def test_it_refreshes_four_times_a_second() -> None:
    """A refresh less than 250 ms after the last is put off, and without progress there is none."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, 65)
    assert not forecast.refresh(10.0)
    forecast.advance(1, 10)
    assert forecast.refresh(10.1)
    forecast.advance(1, 20)
    assert not forecast.refresh(10.34)
    assert 110.0 == forecast.held_tokens
    assert forecast.refresh(10.35)
    assert 120.0 == forecast.held_tokens
    assert not forecast.refresh(11.0)


def test_a_request_that_advanced_is_taken_out_as_it_was_counted() -> None:
    """Progress that no refresh has taken in yet is not in what is removed either."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, PRIOR, 650)
    forecast.add(2, 100, 1, ENDLESS, 65)
    forecast.advance(1, 500)
    forecast.remove(1)
    assert pytest.approx((100.0, 164.0)) == (forecast.held_tokens, forecast.peak())


def test_a_candidate_is_tested_as_if_it_ran() -> None:
    """`peak_with` is the peak that there would be, and changes nothing."""
    forecast, with_it = KvForecast(), KvForecast()
    for each in (forecast, with_it):
        each.add(1, 700, 1, PRIOR, 1000, generated=100)
        each.add(2, 40, 2, HALF, 5000)
    before = forecast.peak()
    foreseen = forecast.peak_with(300, 3, PRIOR, 400)
    with_it.add(3, 300, 3, PRIOR, 400)
    assert pytest.approx(with_it.peak()) == foreseen
    assert before == forecast.peak()


def test_a_short_candidate_does_not_hide_a_later_peak() -> None:
    """Where what runs peaks after the candidate has ended, that peak counts."""
    forecast = KvForecast()
    forecast.add(1, 100, 1, ENDLESS, 4097)
    assert 4196.0 == forecast.peak_with(10, 1, ENDLESS, 5)
    assert 4196.0 == forecast.peak_with(10, 1, SHORT, 100_000)
    assert not forecast.fits(10, 1, ENDLESS, 5, 4195.0)
    assert forecast.fits(10, 1, ENDLESS, 5, 4196.0)


@pytest.mark.parametrize(("law", "cap"), [(ENDLESS, 65), (HALF, 300), (PRIOR, 100_000), (SHORT, 9)])
def test_it_fits_up_to_the_limit_and_not_beyond(law: LengthLaw, cap: int) -> None:
    """`fits` says what comparing `peak_with` with the limit would say."""
    forecast = KvForecast()
    forecast.add(1, 700, 1, PRIOR, 1000, generated=100)
    peak = forecast.peak_with(300, 1, law, cap)
    assert forecast.fits(300, 1, law, cap, peak + 1e-6)
    assert not forecast.fits(300, 1, law, cap, peak - 1e-6)
    assert forecast.fits(300, 1, law, cap, 1e9)


def test_removals_do_not_loosen_the_test() -> None:
    """The quick yes rests on a bound that holds after removals and refreshes as well."""
    forecast = KvForecast()
    for key in range(10):
        forecast.add(key, 1000, 1, HALF, 2000)
    for key in range(5):
        forecast.advance(key, 1000)
    forecast.refresh(1.0)
    for key in range(5, 9):
        forecast.remove(key)
    peak = forecast.peak_with(10, 1, HALF, 50)
    assert forecast.fits(10, 1, HALF, 50, peak + 1e-6)
    assert not forecast.fits(10, 1, HALF, 50, peak - 1e-6)


def test_curves_may_be_shared_and_are_bounded() -> None:
    """Forecasts of one pool use the same curves; those of old laws are forgotten by time and by number."""
    curves = Curves()
    first, second = KvForecast(curves), KvForecast(curves)
    first.add(1, 100, 1, PRIOR, 500)
    second.add(1, 100, 1, PRIOR, 500)
    assert 0 == len(curves)  # nobody has asked yet
    assert first.peak() == second.peak() > 100
    assert 1 == len(curves)
    curves.expire(100.0)
    assert 0 == len(curves)
    assert curves.curve(PRIOR, 288) is curves.curve(PRIOR, 319)
    curves.expire(104.9)
    assert 1 == len(curves)
    assert curves.curve(PRIOR, 287) is not curves.curve(PRIOR, 288)
    for _ in range(120):
        law = law_of(lambda tokens: 1.0)
        for generated in range(0, 30_000, 100):
            curves.curve(law, generated)
            assert len(curves) <= CURVES_MAX
    assert Curve(PRIOR, 320).alive == curves.curve(PRIOR, 330).alive


def test_curves_of_few_laws_are_kept() -> None:
    """A law is large, and where nothing is streamed nothing is ever expired."""
    curves = Curves()
    for number in range(3 * LAWS_MAX):
        curves.curve(law_of(lambda tokens: 1.0), 0)
        assert len(curves) <= min(number + 1, LAWS_MAX)


def test_who_comes_and_goes_unasked_leaves_nothing() -> None:
    """The sums are brought up to date only for those who ask, and then hold exactly those who run."""
    lazy, asked = KvForecast(), KvForecast()
    for forecast in (lazy, asked):
        for key in range(50):
            forecast.add(key, 100 + key, 1, PRIOR, 400)
            if forecast is asked:
                forecast.peak()
            if key >= 10:
                forecast.remove(key - 10)
    assert asked.peak() == pytest.approx(lazy.peak())
    assert sum(100 + key for key in range(40, 50)) == lazy.held_tokens == asked.held_tokens
    for forecast in (lazy, asked):
        for key in range(40, 50):
            forecast.remove(key)
        assert (0.0, 0.0) == (forecast.peak(), forecast.held_tokens)
        assert all(mean == 0.0 == spread for _, mean, spread in forecast.points())
