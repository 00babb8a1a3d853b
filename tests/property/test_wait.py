"""Predicted waits under random histories: quantiles are ordered and honest, and nothing refuses that may not."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.arrival_rates import ArrivalRate
from forebay.admission.learning import CAUTIOUS_QUANTILE, GUARD_S, LEARNING, UNLEARNED_ERROR, Learning
from forebay.admission.quantiles import LARGEST, SMALLEST, RatioHistogram
from forebay.admission.wait import Forecast, WaitModel, backlog_wait_s

ratios = st.one_of(st.floats(1e-3, 1e3), st.sampled_from([0.0, SMALLEST, 1.0, LARGEST, math.inf]))
sightings = st.lists(st.tuples(ratios, st.booleans()), max_size=80)
quantiles = st.floats(0.0, 1.0)
bases = st.floats(0.0, 100.0)


def histogram_of(seen: list[tuple[float, bool]]) -> RatioHistogram:
    """What was seen, whole or cut off."""
    histogram = RatioHistogram()
    for ratio, whole in seen:
        if whole:
            histogram.observe(ratio)
        else:
            histogram.observe_at_least(ratio)
    return histogram


# Distributions


@given(sightings, quantiles, quantiles)
def test_quantiles_grow_with_q(seen: list[tuple[float, bool]], one: float, other: float) -> None:
    """A higher quantile is never a smaller ratio, and all lie within the range of the histogram."""
    histogram = histogram_of(seen)
    low, high = sorted((one, other))
    assert histogram.quantile(low) <= histogram.quantile(high)
    assert SMALLEST / 1.1 <= histogram.quantile(low)
    assert histogram.quantile(high) <= LARGEST * 1.1


@given(sightings, ratios, st.floats(0.001, 0.999))
def test_what_is_cut_off_only_raises(seen: list[tuple[float, bool]], ratio: float, q: float) -> None:
    """One more observation of at least so much lowers no quantile and raises no part of the distribution."""
    histogram = histogram_of([*seen, (1.0, True)])
    quantile, below = histogram.quantile(q), histogram.cdf(ratio)
    histogram.observe_at_least(ratio)
    assert histogram.quantile(q) >= quantile * (1 - 1e-6)
    assert histogram.cdf(ratio) <= below + 1e-9


@given(st.lists(ratios, min_size=1, max_size=80), st.floats(0.01, 0.99))
def test_quantiles_are_those_of_the_weights(seen: list[float], q: float) -> None:
    """Against a sorted list with the same fading weights, a quantile is right to within its bin."""
    histogram = histogram_of([(ratio, True) for ratio in seen])
    weighted = sorted((min(max(r, SMALLEST), LARGEST), 0.995**-n) for n, r in enumerate(seen))
    total, below, index = sum(weight for _, weight in weighted), 0.0, 0
    while index < len(weighted) - 1 and below + weighted[index][1] < q * total * (1 - 1e-9):
        below += weighted[index][1]
        index += 1
    found = histogram.quantile(q)
    # At the border between two of them rounding may choose either.
    close = [weighted[k][0] for k in (index - 1, index, index + 1) if 0 <= k < len(weighted)]
    assert min(close) / 1.1 <= found <= max(close) * 1.1


# The model


@st.composite
def models(draw: st.DrawFn) -> WaitModel:
    """A model after any history."""
    model = WaitModel(draw(st.sampled_from([0.05, 0.1, 0.5, 0.9, 0.99])))
    for base_s, waited_s, whole in draw(st.lists(st.tuples(bases, bases, st.booleans()), max_size=60)):
        if whole:
            model.served(model.forecast(base_s), waited_s)
        else:
            model.cut_short(model.forecast(base_s), waited_s)
    return model


@given(models(), quantiles, quantiles, bases)
def test_predicted_quantiles_grow_with_q(model: WaitModel, one: float, other: float, base_s: float) -> None:
    """Also with corrected levels, a surer statement is never a shorter wait."""
    low, high = sorted((one, other))
    assert model.at_quantile(base_s, low) <= model.at_quantile(base_s, high) * (1 + 1e-9)
    forecast = model.forecast(base_s)
    assert forecast.cautious_s <= forecast.confident_s
    assert 0.5 * forecast.base_s <= forecast.expected_s <= 2.0 * forecast.base_s
    assert forecast.computed_s == base_s <= forecast.base_s


@given(models())
def test_a_model_taken_up_again_says_the_same(model: WaitModel) -> None:
    """Export and restore change no prediction."""
    again = WaitModel(model._confident.nominal)
    assert again.restore(model.export())
    assert model.kappa == again.kappa
    assert pytest.approx(model.predict(1.0)) == again.predict(1.0)
    for q in (0.02, 0.1, 0.5, 0.9, 0.97):
        assert pytest.approx(model.quantile_factor(q), rel=0.01) == again.quantile_factor(q)


def stream(kind: str, rng: random.Random, count: int) -> Iterator[float]:
    """Ratios of real to predicted wait, lognormal around something that may move."""
    for n in range(count):
        middle = {
            "steady": 0.0,
            "waves": math.sin(n / 400),
            "ramp": 3 * n / count - 1.5,
            "jumps": math.log(3) * (n // 500 % 2),
        }[kind]
        yield rng.lognormvariate(middle, 0.5)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("waiting", [0, 20])
@pytest.mark.parametrize("confidence", [0.9, 0.5])
@pytest.mark.parametrize("kind", ["steady", "waves", "ramp", "jumps"])
def test_stated_quantiles_hold_in_the_long_run(kind: str, confidence: float, waiting: int, seed: int) -> None:
    """Within 5 points of their share, with ratios that stay, move and jump, judged at once or twenty requests later."""
    model, rng = WaitModel(confidence), random.Random(seed)
    pending: deque[tuple[Forecast, float]] = deque()
    held = careful = judged = 0
    for ratio in stream(kind, rng, 4000):
        base_s = rng.uniform(0.5, 5.0)
        pending.append((model.forecast(base_s), base_s * ratio))
        if len(pending) > waiting:
            forecast, waited_s = pending.popleft()
            model.served(forecast, waited_s)
            judged += 1
            careful += waited_s <= forecast.cautious_s
            held += waited_s <= forecast.confident_s
    assert pytest.approx(confidence, abs=0.05) == held / judged
    assert pytest.approx(CAUTIOUS_QUANTILE, abs=0.05) == careful / judged
    assert pytest.approx(confidence, abs=0.12) == model.coverage(confidence)


def test_without_correction_the_jumps_are_not_covered() -> None:
    """The streams above are no easy ones: the quantile that held for one half of the jumps misses in the other."""
    rng = random.Random(1)
    fixed = WaitModel(0.9)
    for ratio in stream("steady", rng, 500):
        fixed.served(fixed.forecast(2.0), 2.0 * ratio)
    stated_s = fixed.at_quantile(2.0, 0.9)
    held = sum(2.0 * ratio <= stated_s for ratio in stream("jumps", rng, 4000))
    assert held / 4000 < 0.8


@given(
    st.lists(st.floats(0.0, 1e7), min_size=5, max_size=5),
    st.lists(st.floats(0.0, 1e6), min_size=5, max_size=5),
)
def test_more_in_front_never_shortens_the_wait(less: list[float], more: list[float]) -> None:
    """The backlog grows with each of its parts, and shrinks with the drain rate."""

    def wait_s(parts: list[float]) -> float:
        ahead, engine, release, arriving, drain = parts
        return backlog_wait_s(
            ahead_us=ahead,
            in_engine_us=engine,
            drain_us_per_s=1e6 + drain,
            first_release_s=release / 1e6,
            arriving_us_per_s=arriving,
        )

    first = wait_s(less)
    for part in range(4):
        grown = [v + more[k] * (k == part) for k, v in enumerate(less)]
        assert wait_s(grown) >= first * (1 - 1e-9)
    assert wait_s([*less[:4], less[4] + more[4]]) <= first * (1 + 1e-9)


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 1e7)), max_size=40), st.floats(0.0, 60.0))
def test_arrival_rates_are_the_sum_of_fading_arrivals(
    arrivals: list[tuple[float, float]], later: float
) -> None:
    """One number kept up to date says the same as all arrivals added up by the formula."""
    rate, now = ArrivalRate(), 0.0
    came = []
    for gap, work_us in arrivals:
        now += gap
        rate.add(now, work_us)
        came.append((now, work_us))
    at = now + later
    expected = sum(work_us * math.exp(-(at - came_s) / 10.0) for came_s, work_us in came) / 10.0
    assert pytest.approx(expected, rel=1e-9, abs=1e-6) == rate.per_s(at)


# Learning

COUNT = 4
"""Endpoints of the pool that the guard watches here."""

happenings = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.one_of(
            st.tuples(st.just("refuse"), st.just(0)),
            st.tuples(st.sampled_from(["busy", "idle"]), st.integers(0, COUNT - 1)),
            st.tuples(st.just("timer"), st.just(0)),
        ),
    ),
    max_size=60,
)


def longest_idle(idle_since: list[float | None]) -> float | None:
    """Since when the longest idle endpoint has been idle."""
    known = [since for since in idle_since if since is not None]
    return min(known) if known else None


@given(happenings)
def test_the_guard_trips_exactly_when_an_endpoint_stood_idle_while_requests_were_refused(
    history: list[tuple[float, tuple[str, int]]],
) -> None:
    """Against all idle times of all endpoints, looked through one by one: at that moment, and at no other."""
    learning = Learning(speed_known=True)
    learning.observed(0, 30, 0.1, True, 0.0)
    idle_since: list[float | None] = [None] * COUNT
    refusals: list[float] = []
    now = 0.0

    def trips_by(at: float) -> float | None:
        """The earliest time up to `at` at which some idle time had both."""
        found = []
        for since in idle_since:
            inside = [r for r in refusals if since is not None and r > since]
            if since is not None and inside:
                found.append(max(since + GUARD_S, min(inside)))
        return min((time for time in found if time <= at), default=None)

    for gap, (what, number) in history:
        # As a driver does: whatever is due before the next event is done at its own time.
        due = learning.guard_due_s()
        if due is not None and due <= now + gap:
            assert due == trips_by(due)
            assert learning.check_guard(due)
            break
        now += gap
        assert trips_by(now) is None
        if what == "refuse":
            refusals.append(now)
            tripped = learning.refused_on_prediction(now)
        elif what == "timer":
            tripped = learning.check_guard(now)
        else:
            if what == "busy":
                idle_since[number] = None
            elif idle_since[number] is None:
                idle_since[number] = now
            tripped = learning.endpoint_idle_since(now, longest_idle(idle_since))
        assert tripped is (trips_by(now) is not None)
        if tripped:
            break
    else:
        assert (0, True) == (learning.guard_trips, learning.may_refuse)
        return
    assert (1, LEARNING, False) == (learning.guard_trips, learning.phase, learning.may_refuse)


observations = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 60),
        st.one_of(st.none(), st.floats(0.0, 1.0)),
        st.booleans(),
        st.sampled_from(["observe", "refuse", "idle", "busy", "guard"]),
    ),
    max_size=40,
)


@given(observations, st.booleans())
def test_it_refuses_only_on_what_was_learned(
    history: list[tuple[int, int, float | None, bool, str]], speed_known: bool
) -> None:
    """Against the rules written down again: refusing needs steps, answers and a small error since the last return."""
    learning, other = Learning(speed_known=speed_known), Learning(speed_known=speed_known)
    steps_since = finished_since = 0
    may_refuse = False
    for n, (more_steps, more_finished, error, in_order, what) in enumerate(history):
        now = float(n)
        outcomes = []
        for machine in (learning, other):
            if what == "observe":
                outcomes.append(machine.observed(more_steps, more_finished, error, in_order, now))
            elif what == "refuse":
                outcomes.append(machine.refused_on_prediction(now))
            elif what == "guard":
                outcomes.append(machine.check_guard(now))
            else:
                outcomes.append(
                    machine.endpoint_idle_since(now, max(now - 1, 0.0) if what == "idle" else None)
                )
        if what == "observe":
            steps_since, finished_since = steps_since + more_steps, finished_since + more_finished
            if may_refuse:
                may_refuse = error is None or error <= UNLEARNED_ERROR
            elif error is not None and error < 0.3 and finished_since >= 30:
                may_refuse = speed_known or steps_since >= 200
        elif outcomes[0]:
            may_refuse = False
        if outcomes[0]:
            steps_since = finished_since = 0
        assert may_refuse is learning.may_refuse
        assert outcomes[0] is outcomes[1]
        assert learning.view() == other.view()
        # The careful quantile, whatever is asked for, unless it is confident.
        if not may_refuse:
            assert CAUTIOUS_QUANTILE == learning.quantile_for(0.9)


@given(st.lists(st.tuples(bases, bases, st.sampled_from(["served", "cut", "refused"])), max_size=60))
def test_the_same_history_gives_the_same_model(history: list[tuple[float, float, str]]) -> None:
    """Nothing but what it was told decides."""
    exported = []
    for _ in range(2):
        model = WaitModel(0.9)
        for base_s, waited_s, what in history:
            if what == "served":
                model.served(model.forecast(base_s), waited_s)
            elif what == "cut":
                model.cut_short(model.forecast(base_s), waited_s)
            else:
                model.refused(round(waited_s) % 2)
        exported.append(model.export())
    assert exported[0] == exported[1]
