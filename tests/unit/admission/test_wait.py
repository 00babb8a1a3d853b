from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable

import pytest

from forebay.admission.errors import MisuseError
from forebay.admission.first_in_line import LINE_ENOUGH, LINE_MOST_S, FirstInLine
from forebay.admission.learning import CAUTIOUS_QUANTILE
from forebay.admission.wait import (
    JUDGED_ENOUGH,
    REFRESHED_EVERY,
    REMEMBERED,
    UNPROVED,
    WaitErrors,
    WaitModel,
    backlog_wait_s,
    coverage_in_order,
    inflation,
    plain_wait_s,
)

SECOND_US = 1_000_000
LOG_STEPS = (-0.5, -0.25, 0.0, 0.25, 0.5)


def after(ratio: float, times: int) -> WaitModel:
    """A model that has seen as many waits, each of the ratio times what was computed."""
    model = WaitModel(0.5)
    return prolonged(model, ratio, times)


def prolonged(model: WaitModel, ratio: float, times: int) -> WaitModel:
    """The same model after more such waits. They differ in length, so that the ratio is seen to be one."""
    for n in range(times):
        computed_s = 0.5 * 2 ** (n * 3 % 4)
        model.served(model.forecast(computed_s), computed_s * ratio)
    return model


def spread(model: WaitModel, times: int, scale: float = 1.0, seed: int = 1) -> WaitModel:
    """The same model after waits whose ratio to the foretold is lognormal around `scale`."""
    rng = random.Random(seed)
    for _ in range(times):
        base_s = rng.uniform(0.5, 5.0)
        model.served(model.forecast(base_s), base_s * scale * rng.lognormvariate(0.0, 0.5))
    return model


# The predictors


def test_backlog_counts_prefill_on_its_way_and_inflates_by_what_arrives() -> None:
    """(1 + 3) endpoint-seconds at 2 a second and 0.5 s to a release are 2.5 s; a quarter arriving makes it 10/3."""
    base_s = backlog_wait_s(
        ahead_us=3 * SECOND_US, in_engine_us=SECOND_US, drain_us_per_s=2 * SECOND_US, first_release_s=0.5
    )
    assert 2.5 == base_s
    inflated_s = backlog_wait_s(
        ahead_us=3 * SECOND_US,
        in_engine_us=SECOND_US,
        drain_us_per_s=2 * SECOND_US,
        first_release_s=0.5,
        arriving_us_per_s=SECOND_US / 2,
    )
    assert pytest.approx(2.5 / 0.75) == inflated_s


@pytest.mark.parametrize(
    ("arriving", "factor"), [(0.0, 1.0), (-1.0, 1.0), (0.25, 4 / 3), (0.5, 2.0), (0.9, 2.0), (7.0, 2.0)]
)
def test_inflation_is_two_at_most(arriving: float, factor: float) -> None:
    """What arrives meanwhile lengthens a wait by 1 ÷ (1 − ρ), never more than twice, though ρ be over 1."""
    assert pytest.approx(factor) == inflation(arriving * SECOND_US, SECOND_US)


def test_inflation_of_nothing_that_drains_is_none() -> None:
    """The wait is infinite already."""
    assert 1.0 == inflation(1.0, 0.0)


def test_plain_adds_all_up() -> None:
    """Three endpoint-seconds ahead and four in flight at two a second take 3.5 s."""
    assert 3.5 == plain_wait_s(
        ahead_us=3 * SECOND_US, in_flight_us=4 * SECOND_US, drain_us_per_s=2 * SECOND_US
    )


@pytest.mark.parametrize(("ahead_us", "in_flight_us"), [(0, 0), (SECOND_US, 0), (SECOND_US, SECOND_US)])
def test_where_nothing_drains_the_wait_is_endless(ahead_us: int, in_flight_us: int) -> None:
    """No endpoint that is up means an infinite wait and not a division by zero, with both predictors."""
    assert math.inf == backlog_wait_s(ahead_us=ahead_us, in_engine_us=in_flight_us, drain_us_per_s=0.0)
    assert math.inf == plain_wait_s(ahead_us=ahead_us, in_flight_us=in_flight_us, drain_us_per_s=0.0)


def test_an_idle_pool_has_no_wait() -> None:
    """With nothing running and nothing ahead both predictions are zero, whatever arrives."""
    assert 0.0 == backlog_wait_s(
        ahead_us=0, in_engine_us=0, drain_us_per_s=SECOND_US, arriving_us_per_s=9 * SECOND_US
    )
    assert 0.0 == plain_wait_s(ahead_us=0, in_flight_us=0, drain_us_per_s=SECOND_US)


# How far predictions are off


def test_the_median_needs_sixteen_waits() -> None:
    """A few waits are no evidence about predictions."""
    errors = WaitErrors()
    for _ in range(15):
        errors.observe(1.0, 2.0)
    assert errors.median is None
    errors.observe(1.0, 2.0)
    assert 0.5 == errors.median


def test_errors_are_relative_and_have_no_sign() -> None:
    """Predicting twice the wait is an error of 100 %, half of it one of 50 %."""
    errors = WaitErrors()
    for predicted in [4.0] * 9 + [1.0] * 8:
        errors.observe(predicted, 2.0)
    assert 1.0 == errors.median


def test_short_waits_are_not_judged() -> None:
    """A wait of under half a second counts neither for nor against: over so little nobody is refused."""
    errors = WaitErrors()
    for _ in range(40):
        errors.observe(5.0, 0.499)
    assert (0, None) == (errors.count, errors.median)
    errors.observe(5.0, 0.5)
    assert 1 == errors.count


def test_only_the_last_waits_count() -> None:
    """Old errors are forgotten after as many new ones as are remembered."""
    errors = WaitErrors()
    for _ in range(1000):
        errors.observe(10.0, 1.0)
    for _ in range(REMEMBERED):
        errors.observe(1.0, 1.0)
    assert 0.0 == errors.median
    assert 1064 == errors.count


def test_the_median_is_that_of_the_last_ones_in_any_order() -> None:
    """Kept in order of size as they come and go, the errors have the median of the last 64."""
    errors, rng = WaitErrors(), random.Random(3)
    seen = []
    for _ in range(500):
        predicted_s, actual_s = rng.uniform(0, 9), rng.choice([0.5, 1.0, 2.0])
        errors.observe(predicted_s, actual_s)
        seen.append(abs(predicted_s - actual_s) / actual_s)
        last = sorted(seen[-REMEMBERED:])
        assert errors.median == (last[len(last) // 2] if len(last) >= 16 else None)


def test_forgotten_errors_do_not_count() -> None:
    """After a return to learning sixteen new waits are needed."""
    errors = WaitErrors()
    for _ in range(20):
        errors.observe(9.0, 1.0)
    errors.forget()
    assert errors.median is None
    for _ in range(16):
        errors.observe(1.0, 1.0)
    assert 0.0 == errors.median


# The model


def test_a_new_model_believes_the_base() -> None:
    """With nothing seen κ is 1, the median the base, and the outer quantiles about half and twice of it."""
    model = WaitModel(0.9)
    assert (1.0, 3.0) == (model.kappa, model.predict(3.0))
    assert pytest.approx(3.0, rel=0.1) == model.at_quantile(3.0, 0.5)
    assert 1.4 < model.at_quantile(3.0, 0.1) < 2.0
    assert 4.5 < model.at_quantile(3.0, 0.9) < 6.3


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 90.0])
def test_a_confidence_is_a_quantile(confidence: float) -> None:
    """Zero, one and percentages are refused."""
    with pytest.raises(MisuseError, match="between 0 and 1"):
        WaitModel(confidence)


def test_bias_is_learned_slowly() -> None:
    """Waits of 1.5 times the base move κ to half of that (in octaves) in fifty, and near it in six hundred."""
    assert pytest.approx(1.5**0.5, rel=0.01) == after(1.5, 50).kappa
    assert pytest.approx(1.5, rel=0.02) == after(1.5, 600).kappa


def test_bias_has_a_memory_of_two_hundred() -> None:
    """After a change, two hundred waits bring κ about 63 % of the way, however long it was before."""
    model = after(1.0, 5000)
    prolonged(model, 2**0.9, 200)
    assert pytest.approx(0.9 * (1 - math.exp(-1)), rel=0.01) == math.log2(model.kappa)


@pytest.mark.parametrize(("ratio", "kappa"), [(50.0, 2.0), (0.01, 0.5), (0.0, 0.5)])
def test_bias_is_at_most_two_either_way(ratio: float, kappa: float) -> None:
    """Whatever waits turn out to be, κ stays between ½ and 2, and comes back without delay."""
    model = after(ratio, 2000)
    assert kappa == model.kappa
    model.served(model.forecast(2.0), 2.0)
    assert kappa != model.kappa


def test_quantiles_are_those_of_the_ratio() -> None:
    """Of ratios between 2 to the ±½ the median is near 1, and 0.9 near the upper end."""
    model = WaitModel(0.9)
    for n in range(1000):
        model.served(model.forecast(2.0), 2.0 * 2 ** LOG_STEPS[n * 7 % 5])
    assert pytest.approx(1.0, rel=0.1) == model.quantile_factor(0.5)
    assert pytest.approx(2**0.5, rel=0.1) == model.quantile_factor(0.9)
    assert pytest.approx(2**-0.5, rel=0.1) == model.quantile_factor(0.1)


def test_quantiles_follow_a_bias() -> None:
    """Quantiles multiply the base, so that κ is in them: of waits twice as long as the base, all are near two."""
    model = spread(WaitModel(0.5), 1500, scale=2.0)
    assert pytest.approx(4.0, rel=0.15) == model.at_quantile(2.0, 0.5)
    assert pytest.approx(4.0, rel=0.1) == model.predict(2.0)


def test_a_forecast_says_what_the_model_says() -> None:
    """What is kept with a request are the expected wait and the two quantiles in use."""
    model = spread(WaitModel(0.9), 100)
    forecast = model.forecast(3.0)
    assert (3.0, model.predict(3.0)) == (forecast.base_s, forecast.expected_s)
    assert model.at_quantile(3.0, CAUTIOUS_QUANTILE) == forecast.cautious_s
    assert model.at_quantile(3.0, 0.9) == forecast.confident_s


@pytest.mark.parametrize(
    ("base_s", "waited_s", "judged"),
    [
        (0.2, 0.1, 1),
        (0.2, 0.099, 0),
        (0.5, 0.0, 1),
        (0.499, 0.0, 0),
        (0.009, 3.0, 0),
        (0.0, 3.0, 0),
        (math.inf, 3.0, 0),
    ],
)
def test_which_waits_are_judged(base_s: float, waited_s: float, judged: int) -> None:
    """Those of a tenth of a second and those foretold as half of one, unless nothing or infinity was foretold."""
    model = WaitModel(0.9)
    before = model.export()
    model.served(model.forecast(base_s), waited_s)
    assert judged == model.judged
    assert (before == model.export()) is not bool(judged)


def test_waits_cut_short_only_raise() -> None:
    """Those who were turned away after any time leave every quantile as it is or raise it, and κ as it is."""
    model = spread(WaitModel(0.9), 200)
    kappa = model.kappa
    for waited_s in (0.2, 1.0, 2.0, 5.0, 30.0):
        before = [model.quantile_factor(q) for q in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95)]
        model.cut_short(model.forecast(2.0), waited_s)
        after_it = [model.quantile_factor(q) for q in (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95)]
        assert all(new >= old * (1 - 1e-9) for old, new in zip(before, after_it, strict=True))
    assert kappa == model.kappa


def test_a_wait_cut_short_counts_as_a_miss_only_where_it_outlasted_what_was_stated() -> None:
    """Of a quantile that was not reached nobody knows whether it would have held."""
    model = spread(WaitModel(0.9), 100)
    judged, coverage = model.judged, model.coverage(0.9)
    assert coverage is not None
    low = model.coverage(CAUTIOUS_QUANTILE)
    forecast = model.forecast(2.0)
    model.cut_short(forecast, forecast.cautious_s * 0.9)
    assert low == model.coverage(CAUTIOUS_QUANTILE)
    model.cut_short(forecast, (forecast.cautious_s + forecast.confident_s) / 2)
    assert (judged, coverage) == (model.judged, model.coverage(0.9))
    once = model.coverage(CAUTIOUS_QUANTILE)
    assert (once or 0.0) < (low or 0.0)
    model.cut_short(forecast, forecast.confident_s * 1.01)
    assert judged + 1 == model.judged
    assert (model.coverage(0.9) or 0.0) < coverage
    assert (model.coverage(CAUTIOUS_QUANTILE) or 0.0) < (once or 0.0)


def test_short_times_cut_short_are_no_evidence() -> None:
    """Who leaves after a moment says nothing."""
    model = WaitModel(0.9)
    before = model.export()
    model.cut_short(model.forecast(0.3), 0.05)
    assert before == model.export()


def test_coverage_is_the_share_that_was_no_longer_than_stated() -> None:
    """Judged by what was stated at arrival: three of four that kept within it are three quarters."""
    model = WaitModel(0.9)
    assert model.coverage(0.9) is None
    stated = [model.forecast(2.0) for _ in range(4)]
    for forecast in stated[:3]:
        model.served(forecast, forecast.confident_s)
    model.served(stated[3], stated[3].confident_s * 1.001)
    assert pytest.approx(0.75, abs=0.01) == model.coverage(0.9)
    assert 0.0 == model.coverage(CAUTIOUS_QUANTILE)
    assert model.coverage(0.7) is None


def test_coverage_is_in_order_after_thirty_waits_as_stated() -> None:
    """Thirty judged waits near their share make a class trusted, and it stays so until doubted."""
    model = WaitModel(0.5)
    for n in range(JUDGED_ENOUGH):
        assert not model.coverage_in_order
        assert not model.trusted
        forecast = model.forecast(2.0)
        model.served(forecast, forecast.confident_s * (0.9 if n % 2 else 1.1))
    assert (True, True) == (model.coverage_in_order, model.trusted)
    for _ in range(100):
        forecast = model.forecast(2.0)
        model.served(forecast, forecast.confident_s * 1.1)
    assert (False, True) == (model.coverage_in_order, model.trusted)
    model.doubt()
    assert (False, 0, None) == (model.trusted, model.judged, model.coverage(0.5))


def test_coverage_too_far_off_is_not_in_order() -> None:
    """A median that all waits keep within is as wrong as one that none does."""
    for factor in (0.2, 5.0):
        model = WaitModel(0.5)
        for n in range(JUDGED_ENOUGH):
            forecast = model.forecast(2.0 + n)
            model.served(forecast, forecast.confident_s * factor)
        assert JUDGED_ENOUGH == model.judged
        assert not model.coverage_in_order


def test_a_pool_is_in_order_if_some_class_is_and_none_is_not() -> None:
    """Classes that hardly waited have no say."""
    good, bad, new = spread(WaitModel(0.9), 300), WaitModel(0.9), WaitModel(0.5)
    for _ in range(JUDGED_ENOUGH):
        forecast = bad.forecast(2.0)
        bad.served(forecast, forecast.confident_s * 1.1)
    assert good.coverage_in_order
    assert not bad.coverage_in_order
    assert not coverage_in_order([])
    assert not coverage_in_order([new])
    assert coverage_in_order([new, good, new])
    assert not coverage_in_order([good, bad])


def test_quantiles_in_use_do_not_cross() -> None:
    """With a confidence next to the careful quantile both stay in order, whatever happens."""
    model, rng = WaitModel(0.12), random.Random(5)
    for n in range(3000):
        base_s = 1.0 + n % 3
        model.served(model.forecast(base_s), base_s * rng.lognormvariate(0.0, 1.0))
        assert model.quantile_factor(CAUTIOUS_QUANTILE) <= model.quantile_factor(0.12)


def test_a_low_confidence_is_its_own_careful_quantile() -> None:
    """A class that would refuse at its 0.05 quantile is never less careful than that."""
    model = spread(WaitModel(0.05), 500)
    forecast = model.forecast(2.0)
    assert forecast.cautious_s == forecast.confident_s == model.at_quantile(2.0, 0.05)


def test_an_uncorrected_model_only_judges() -> None:
    """For the plain predictor every quantile is the base itself, and how often that holds is seen."""
    model = spread(WaitModel(0.9, corrects=False), 300, scale=3.0)
    assert [7.0] * 4 == [model.predict(7.0), *(model.at_quantile(7.0, q) for q in (0.1, 0.5, 0.9))]
    assert (model.coverage(0.9) or 0.0) < 0.1
    assert not model.trusted


# The first in line


def drawn(line: FirstInLine, waits: Iterable[tuple[float, float]]) -> float:
    """Seconds of the first in line, after waits of so long where so long was computed."""
    for computed_s, waited_s in waits:
        line.observe(computed_s, waited_s)
    return line.seconds


def along(alpha_s: float, beta: float, times: int = 100) -> list[tuple[float, float]]:
    """Waits that lie on a straight line, computed as 0.5 to 4 s."""
    return [(0.5 * (1 + n % 8), alpha_s + beta * 0.5 * (1 + n % 8)) for n in range(times)]


def test_the_first_in_line_is_not_taken_to_wait_before_sixteen_have() -> None:
    """A few waits draw no line."""
    line = FirstInLine()
    assert 0.0 == drawn(line, along(0.8, 1.0, LINE_ENOUGH - 1))
    assert pytest.approx(0.8) == drawn(line, along(0.8, 1.0, 1))


@pytest.mark.parametrize("beta", [0.6, 1.0, 1.9])
def test_what_is_added_is_alpha_over_beta(beta: float) -> None:
    """Of waits α + β · computed, κ is to make up for β: so that κ · (computed + what is added) is the wait."""
    added_s = drawn(FirstInLine(), along(0.9, beta))
    assert pytest.approx(0.9 / beta) == added_s
    assert pytest.approx(0.9 + beta * 3.0) == beta * (3.0 + added_s)


def test_what_was_computed_too_long_is_left_to_the_bias() -> None:
    """Nobody waits for less than nothing: a line that meets the axis below 0 adds nothing."""
    assert 0.0 == drawn(FirstInLine(), along(-0.4, 1.0))


def test_without_spread_the_line_goes_through_the_bias_of_one() -> None:
    """Waits that were all computed alike tell no slope: what they waited longer is taken for the first in line's."""
    assert pytest.approx(1.5) == drawn(FirstInLine(), [(2.0, 3.5)] * 50)


@pytest.mark.parametrize(("beta", "taken"), [(0.1, 0.5), (7.0, 2.0)])
def test_no_slope_beyond_what_the_bias_may_be(beta: float, taken: float) -> None:
    """κ is between a half and two, so a steeper or flatter line is drawn with such a slope through the same middle."""
    line = FirstInLine()
    added_s = drawn(line, along(1.0, beta, 800))
    middle_s = line._x / line._weight
    expected_s = (1.0 + beta * middle_s) / taken - middle_s
    assert pytest.approx(min(max(expected_s, 0.0), LINE_MOST_S)) == added_s


def test_the_first_in_line_waits_ten_seconds_at_most() -> None:
    """However long waits get, no more than that is added."""
    assert LINE_MOST_S == drawn(FirstInLine(), along(500.0, 1.0))


def test_errors_weigh_as_parts_of_what_was_computed() -> None:
    """Waits that lie on no line: it is the one with the least squares of errors ÷ (computed + 0.2 s)."""
    waits = [(0.1, 0.6), (1.0, 1.5), (30.0, 40.0)]
    weights = [1.0 / (x + 0.2) ** 2 for x, _ in waits]
    mean_x = sum(w * x for w, (x, _) in zip(weights, waits, strict=True)) / sum(weights)
    mean_y = sum(w * y for w, (_, y) in zip(weights, waits, strict=True)) / sum(weights)
    both = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, waits, strict=True))
    beta = both / sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, waits, strict=True))
    assert pytest.approx(mean_y / beta - mean_x, rel=0.02) == drawn(FirstInLine(), waits * 100)


def test_the_line_is_drawn_anew_when_engines_change() -> None:
    """What was long ago is forgotten within some hundreds of waits."""
    line = FirstInLine()
    assert pytest.approx(3.0) == drawn(line, along(3.0, 1.0, 400))
    assert pytest.approx(0.2, abs=0.06) == drawn(line, along(0.2, 1.0, 400))


def test_a_model_adds_what_it_learned_of_the_first_in_line() -> None:
    """Waits of 1 s and the computed: at a base of nothing a second is predicted, and κ has nothing left to do."""
    model = WaitModel(0.5)
    for n in range(400):
        computed_s = 0.5 * (1 + n % 8)
        model.served(model.forecast(computed_s), 1.0 + computed_s)
    assert pytest.approx(1.0, rel=0.05) == model.predict(0.0)
    assert pytest.approx(6.0, rel=0.05) == model.predict(5.0)
    forecast = model.forecast(5.0)
    assert (5.0, model.predict(5.0)) == (forecast.computed_s, forecast.expected_s)
    assert pytest.approx(6.0, rel=0.05) == forecast.base_s


def test_the_plain_predictor_adds_nothing() -> None:
    """It is left as it is, also where its waits lie on a line."""
    model = WaitModel(0.5, corrects=False)
    for n in range(100):
        computed_s = 0.5 * (1 + n % 8)
        model.served(model.forecast(computed_s), 1.0 + computed_s)
    assert 5.0 == model.predict(5.0)


# Trust runs out


def test_a_gloomy_model_lets_somebody_wait_again() -> None:
    """When waits took sixfold and do no more, refusals alone bring it to let requests wait again, and it relearns."""
    model = spread(WaitModel(0.9), 300, scale=6.0)
    model.trusted = True
    let_in = 0
    for n in range(400):
        quantile = 0.9 if model.trusted else CAUTIOUS_QUANTILE
        if model.at_quantile(0.6, quantile) > 1.5:
            model.refused(0)
            continue
        let_in += 1
        assert n >= 2 * UNPROVED
        model.served(model.forecast(0.6), 0.6)
    assert let_in > 300
    assert pytest.approx(1.0, rel=0.1) == model.quantile_factor(0.9)


def test_while_somebody_waits_trust_does_not_run_out() -> None:
    """They will tell; and each wait that was judged counts for proof."""
    model = spread(WaitModel(0.9), 300)
    assert model.trusted
    for _ in range(10 * UNPROVED):
        model.refused(1)
    for n in range(10 * UNPROVED):
        model.refused(0)
        if n % (UNPROVED - 1) == 0:
            model.served(model.forecast(2.0), 2.0)
    assert model.trusted


def test_trust_runs_out_in_two_steps() -> None:
    """Thirty refusals without evidence cost the confidence, thirty more what was learned; κ stays."""
    model = spread(WaitModel(0.9), 300, scale=3.0)
    learned, kappa, careful = model.quantile_factor(0.9), model.kappa, model.quantile_factor(0.1)
    for _ in range(UNPROVED - 1):
        model.refused(0)
    assert model.trusted
    model.refused(0)
    assert (False, learned, careful) == (
        model.trusted,
        model.quantile_factor(0.9),
        model.quantile_factor(0.1),
    )
    for _ in range(UNPROVED):
        model.refused(0)
    assert WaitModel(0.9).quantile_factor(0.9) == model.quantile_factor(0.9)
    assert kappa == model.kappa


# Keeping


def test_what_was_exported_can_be_taken_up() -> None:
    """Through JSON and back, predictions, trust and their further course are the same; coverage begins anew."""
    first = spread(WaitModel(0.9), 38 * REFRESHED_EVERY, scale=1.4)
    second = WaitModel(0.9)
    assert second.restore(json.loads(json.dumps(first.export())))
    assert (first.kappa, first.trusted, 0) == (second.kappa, second.trusted, second.judged)
    for model in (first, second):
        spread(model, 6 * REFRESHED_EVERY, scale=1.2, seed=9)
    for q in (0.1, 0.4, 0.9):
        assert pytest.approx(first.quantile_factor(q), rel=1e-4) == second.quantile_factor(q)
    assert pytest.approx(first.kappa) == second.kappa


def test_what_is_taken_up_says_the_same() -> None:
    """What a wait has besides the work ahead, and how far predictions are off, outlive a restart."""
    first, second = WaitModel(0.9), WaitModel(0.9)
    for n in range(200):
        computed_s = 0.5 * (1 + n % 8)
        first.served(first.forecast(computed_s), 1.0 + computed_s)
    assert second.restore(json.loads(json.dumps(first.export())))
    for base_s in (0.0, 0.5, 5.0):
        assert pytest.approx(first.predict(base_s)) == second.predict(base_s)
        for q in (CAUTIOUS_QUANTILE, 0.9):
            assert pytest.approx(first.at_quantile(base_s, q)) == second.at_quantile(base_s, q)


def test_under_another_confidence_levels_begin_anew() -> None:
    """The distribution and κ are of use to any confidence; how far it was corrected, and trust, are not."""
    first, second = spread(WaitModel(0.9), 300), WaitModel(0.5)
    assert first.trusted
    assert second.restore(first.export())
    assert not second.trusted
    assert first.kappa == second.kappa
    assert pytest.approx(1.0, rel=0.15) == second.quantile_factor(0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"log_kappa": "1"},
        {"log_kappa": math.nan},
        {"survivors": -1},
        {"survivors": 2.5},
        {"trusted": 1},
        {"levels": [0.1]},
        {"levels": None},
        {"levels": [0.1, None]},
        {"ratios": {}},
    ],
    ids=str,
)
def test_nonsense_is_not_taken_up(change: dict[str, object]) -> None:
    """Saved data of another form changes nothing."""
    model = WaitModel(0.9)
    before = model.export()
    assert not model.restore({**spread(WaitModel(0.9), 100).export(), **change})
    assert before == model.export()


def test_what_is_no_mapping_is_not_taken_up() -> None:
    """Nor does a list in its place."""
    assert not WaitModel(0.9).restore([1.0])


def test_saved_numbers_out_of_range_are_brought_back_into_it() -> None:
    """A state file that somebody edited gives no κ and no level that could not have been learned."""
    model = WaitModel(0.9)
    assert model.restore({**model.export(), "log_kappa": 40.0, "levels": [-3.0, 7.0]})
    assert 2.0 == model.kappa
    assert 0.0 < model.quantile_factor(0.1) <= model.quantile_factor(0.9) < 3.0
