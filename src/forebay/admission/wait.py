"""Predicted wait: how long an arriving request will queue before it starts, and how sure that is.

Two predictors, chosen by `wait_predictor`, as plain arithmetic over what the caller has summed up:

- `backlog` (default). While the endpoints are full they drain work at a known rate, so whatever is before the
  newcomer is gone after that work ÷ rate:

      base = ((E + ahead) ÷ rate + first release) ÷ (1 − min(arriving ÷ rate, ½))

  `ahead` is the work queued before it in our order, E the prefill that was sent and whose first token has not come
  back, the first release the time until something is freed.
  The last factor is the work that will still arrive before it starts and is served first (the busy period
  of a preemptive priority queue, M/G/1): at most 2, since the formula explodes long before real queues do.
- `plain`: all work in flight and ahead, divided by the drain rate. It takes an engine for a pipe that must run
  empty first, and so predicts too long a wait for a continuous batch, where a place is freed at every ending.

What either gets wrong is learned per pool and class by a `WaitModel`, from the ratio of real to predicted wait:

- κ, the bias: wait ≈ κ · base. A slow geometric mean over those who were served, at most 2 either way. It
  multiplies the whole: one ratio per request cannot tell which part of the sum was wrong.
- the distribution of that ratio (`quantiles`). Who was turned away or left while waiting waited *at least* so long.
- the level of each quantile in use. A stated quantile q is looked up at a level α, which is corrected after each wait
  that was judged, α += γ · (q − covered), covered being 1 if the wait was no longer than stated. In the
  long run a share q is covered whatever the distribution does, as long as α does not lie at a bound of its range
  (adaptive conformal inference: Gibbs and Candès, "Adaptive conformal inference under distribution shift", 2021).
  What counts is what was stated when the request arrived, which is why that is kept with it (`Forecast`).

Who is refused at arrival teaches nothing, so a model that has become too gloomy to let anybody wait would stay so for
ever, with endpoints too busy for the guard of `learning` to notice. Trust therefore runs out without evidence: see
`WaitModel.refused`.

A wait is counted if it took 0.1 s or was foretold to take 0.5 s: of nothing, a relative error says nothing.
It never refuses anybody: `learning` says which quantile may, `gate` compares.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import Final

from forebay.admission.errors import MisuseError
from forebay.admission.first_in_line import FirstInLine
from forebay.admission.learning import CAUTIOUS_QUANTILE
from forebay.admission.quantiles import RatioHistogram, finite
from forebay.admission.record import record

COUNTED_FROM_S: Final = 0.1
"""Waits shorter than this are not judged: a relative error of nothing says nothing."""
FORETOLD_FROM_S: Final = 0.5
"""Except where this was predicted: a long wait that did not come is what refuses wrongly."""
REFRESHED_EVERY: Final = 8
"""Waits judged from one look-up of the quantiles to the next, once"""
REFRESHED_RARELY_FROM: Final = 64
"""so many ratios make them up: one more hardly moves them."""
REMEMBERED: Final = 64
ENOUGH_ERRORS: Final = 16

MOST_ARRIVING: Final = 0.5
"""Part of the drain rate that later arrivals may be taken to use: the wait is doubled at most. κ learns the rest."""

KAPPA_MEMORY: Final = 200
KAPPA_PRIOR: Final = 50
"""Weight of κ = 1, in waits. The memory grows from this to the above."""
KAPPA_MOST_OCTAVES: Final = 1.0
"""κ is at most 2 and at least ½."""
RATIO_MOST_OCTAVES: Final = 2.0
"""What one wait may claim."""
LEAST_BASE_S: Final = 0.01
"""A prediction below teaches no ratio: what it leaves out is a sum, which no factor mends."""
PRIOR_RATIOS: Final[tuple[float, ...]] = (0.5, 0.71, 0.84, 1.0, 1.0, 1.19, 1.41, 2.0)
"""The distribution of the ratio before any was seen, each worth one observation."""

LEVEL_GAIN: Final = 0.02
"""γ: a level moves over its whole range in 50 misses, and wanders by about 0.03 when all is well."""
LEVEL_LEAST: Final = 0.01
LEVEL_MOST: Final = 0.99
COVERAGE_DECAY: Final = 0.99
"""Per judged wait: as steady as the mean of the last 200, (1 + d) ÷ (1 − d)."""
JUDGED_ENOUGH: Final = 30
COVERAGE_SLACK: Final = 0.15
"""Coverage is in order within so much of the quantile."""
UNPROVED: Final = 30
"""Refusals in a row with nobody waiting and no wait judged after which what was learned is no longer believed."""

_INFINITE: Final = float("inf")


# The predictors


def backlog_wait_s(
    *,
    ahead_us: float,
    in_engine_us: float,
    drain_us_per_s: float,
    first_release_s: float = 0.0,
    arriving_us_per_s: float = 0.0,
) -> float:
    """Seconds until a request that cannot start at once would start, κ not applied. Infinite if nothing drains.

    Args:
        ahead_us: work queued before it in our order.
        in_engine_us: E, over the pool.
        first_release_s: time until something frees room.
        arriving_us_per_s: work arriving in classes served before or beside it, limited to their share.
    """
    if drain_us_per_s <= 0.0:
        return _INFINITE
    base = (in_engine_us + ahead_us) / drain_us_per_s + first_release_s
    if arriving_us_per_s <= 0.0:
        return base
    return base * inflation(arriving_us_per_s, drain_us_per_s)


def plain_wait_s(*, ahead_us: float, in_flight_us: float, drain_us_per_s: float) -> float:
    """Seconds until all that is in flight or queued before it is done. Infinite if nothing drains."""
    if drain_us_per_s <= 0.0:
        return _INFINITE
    return (in_flight_us + ahead_us) / drain_us_per_s


def inflation(arriving_us_per_s: float, drain_us_per_s: float) -> float:
    """How much longer a wait gets by what arrives meanwhile and is served first, 1 to 2."""
    if drain_us_per_s <= 0.0 or arriving_us_per_s <= 0.0:
        return 1.0
    part = arriving_us_per_s / drain_us_per_s
    return 1.0 / (1.0 - (part if part < MOST_ARRIVING else MOST_ARRIVING))


# What is learned


@record
class Forecast:
    """What was said of one request's wait when it began. Kept with the request, to be judged by."""

    base_s: float
    expected_s: float
    cautious_s: float
    """The lower quantile."""
    confident_s: float
    """The quantile of the class's confidence."""
    computed_s: float = 0.0
    """The base without what was learned of the first in line."""


class _Level:
    """One quantile in use: the level at which it is looked up, and how often it held."""

    __slots__ = ("_covered", "_weight", "factor", "judged", "level", "nominal")

    def __init__(self, nominal: float) -> None:
        self.nominal = nominal
        self.level = nominal
        self.factor = 1.0
        """What the base is multiplied by for this quantile."""
        self.judged = 0
        self._covered = 0.0
        self._weight = 0.0

    def judge(self, covered: bool) -> None:
        hit = 1.0 if covered else 0.0
        self.judged += 1
        self._covered = self._covered * COVERAGE_DECAY + hit
        self._weight = self._weight * COVERAGE_DECAY + 1.0
        level = self.level + LEVEL_GAIN * (self.nominal - hit)
        self.level = min(max(level, LEVEL_LEAST), LEVEL_MOST)

    def forget(self) -> None:
        self.judged = 0
        self._covered = self._weight = 0.0

    @property
    def coverage(self) -> float | None:
        return self._covered / self._weight if self.judged else None

    @property
    def in_order(self) -> bool:
        if self.judged < JUDGED_ENOUGH:
            return False
        return abs(self._covered / self._weight - self.nominal) <= COVERAGE_SLACK


class WaitModel:
    """What the waits of one class in one pool have taught about predictions."""

    __slots__ = (
        "_cautious",
        "_confident",
        "_first",
        "_log_kappa",
        "_ratios",
        "_survivors",
        "_unproved",
        "_until_refresh",
        "corrects",
        "kappa",
        "trusted",
    )

    def __init__(self, confidence: float, *, corrects: bool = True) -> None:
        """Know nothing yet: κ = 1, and the prior distribution.

        Args:
            confidence: the class's quantile, between 0 and 1.
            corrects: False leaves predictions as they are, at every quantile, and only judges them: for `plain`.

        Raises:
            MisuseError: the confidence is no quantile.
        """
        if not 0.0 < confidence < 1.0:
            raise MisuseError(f"confidence is {confidence}, and must be between 0 and 1")
        self.corrects = corrects
        self.kappa = 1.0
        self.trusted = False
        """True once coverage has been in order, until `doubt`."""
        self._first = FirstInLine()
        self._log_kappa = 0.0
        self._survivors = 0
        self._unproved = 0
        self._until_refresh = 0
        """Waits until the factors are worked out anew."""
        self._ratios = _prior()
        self._cautious = _Level(min(CAUTIOUS_QUANTILE, confidence))
        self._confident = _Level(confidence)
        self._refresh()

    # Predictions

    def predict(self, base_s: float) -> float:
        """The expected wait."""
        return self.kappa * (base_s + self._first.seconds)

    def at_quantile(self, base_s: float, q: float) -> float:
        """The wait that is not exceeded with probability q."""
        return self.quantile_factor(q) * (base_s + self._first.seconds)

    def quantile_factor(self, q: float) -> float:
        """What to multiply the base by for the quantile q. Grows with q; corrected levels between those in use too."""
        if q == self._confident.nominal:
            return self._confident.factor
        if q == self._cautious.nominal:
            return self._cautious.factor
        if not self.corrects:
            return 1.0
        return self._ratios.quantile(self._level_of(q))

    def forecast(self, base_s: float) -> Forecast:
        """All that is said of a wait which begins now; give it back to `served` or `cut_short`."""
        whole_s = base_s + self._first.seconds
        return Forecast(
            whole_s,
            self.kappa * whole_s,
            self._cautious.factor * whole_s,
            self._confident.factor * whole_s,
            base_s,
        )

    # Learning

    def served(self, forecast: Forecast, waited_s: float) -> None:
        """A request that had to wait was dispatched."""
        if not _matters(forecast, waited_s):
            return
        ratio = waited_s / forecast.base_s
        self._ratios.observe(ratio)
        self._learn_kappa(ratio)
        if self.corrects:
            self._first.observe(forecast.computed_s, waited_s)
        self._cautious.judge(waited_s <= forecast.cautious_s)
        self._confident.judge(waited_s <= forecast.confident_s)
        self._judged()

    def cut_short(self, forecast: Forecast, waited_s: float) -> None:
        """A waiting request was turned away, displaced or given up: it would have waited longer.

        Raises the distribution, and leaves κ to those who were served. A quantile that it outlasted is a
        miss; of one that it did not reach, nobody knows, so that is not judged.
        """
        if not _matters(forecast, waited_s):
            return
        self._ratios.observe_at_least(waited_s / forecast.base_s)
        if waited_s > forecast.cautious_s:
            self._cautious.judge(False)
        if waited_s > forecast.confident_s:
            self._confident.judge(False)
        self._judged()

    def refused(self, waiting: int) -> None:
        """A request was refused at arrival on its predicted wait, with so many of its class waiting.

        Nobody waits and nobody is let wait: 30 times in a row, and the class is back at the careful quantile. If
        that refuses 30 more, all that was learned but κ gives way to the prior.
        """
        self._unproved += 1
        if waiting > 0:
            self._unproved = 0  # they will tell
        if self._unproved < UNPROVED:
            return
        if not self.trusted:
            self._ratios = _prior()
            self._first = FirstInLine()
            self._cautious.level = self._cautious.nominal
            self._confident.level = self._confident.nominal
            self._refresh()
        self.doubt()

    def doubt(self) -> None:
        """The pool went back to learning: quantiles must prove themselves again. What they are made of stays."""
        self.trusted = False
        self._unproved = 0
        self._cautious.forget()
        self._confident.forget()

    # How honest it is

    @property
    def judged(self) -> int:
        """Waits by which the class's own quantile was judged, since the last doubt."""
        return self._confident.judged

    def coverage(self, q: float) -> float | None:
        """Share of the last 200 or so judged waits that were no longer than stated at q, a quantile in use.

        None before any was judged, and for any other quantile.
        """
        if q == self._confident.nominal:
            return self._confident.coverage
        return self._cautious.coverage if q == self._cautious.nominal else None

    @property
    def coverage_in_order(self) -> bool:
        """True if, of 30 judged waits or more, both quantiles in use covered their share within 0.15."""
        return self._confident.in_order and self._cautious.in_order

    # Keeping

    def export(self) -> dict[str, object]:
        """What a next start may take up, as plain data (JSON). Coverage is judged anew there."""
        return {
            "log_kappa": self._log_kappa,
            "survivors": self._survivors,
            "trusted": self.trusted,
            "ratios": self._ratios.export(),
            "first": self._first.export(),
            "levels": [self._cautious.level, self._confident.level],
            "confidence": self._confident.nominal,
        }

    def restore(self, data: object) -> bool:
        """Take up what `export` gave. False, and nothing changed, if it is not of that form.

        Levels belong to a confidence: under another one they begin anew, and so does trust.
        """
        if not isinstance(data, dict):
            return False
        log_kappa, survivors = finite(data.get("log_kappa")), data.get("survivors")
        trusted, levels = data.get("trusted"), data.get("levels")
        if log_kappa is None or type(survivors) is not int or survivors < 0 or not isinstance(trusted, bool):
            return False
        if not isinstance(levels, list) or len(levels) != 2:
            return False
        cautious, confident = finite(levels[0]), finite(levels[1])
        first = FirstInLine()
        if not first.restore(data.get("first")):
            return False
        if cautious is None or confident is None or not self._ratios.restore(data.get("ratios")):
            return False
        self._first = first
        self._log_kappa = log_kappa
        self._survivors = survivors
        if data.get("confidence") == self._confident.nominal:
            self._cautious.level = min(max(cautious, LEVEL_LEAST), LEVEL_MOST)
            self._confident.level = min(max(confident, LEVEL_LEAST), LEVEL_MOST)
            self.trusted = trusted
        self._set_kappa(log_kappa)
        self._refresh()
        return True

    # Steps

    def _learn_kappa(self, ratio: float) -> None:
        octaves = math.log2(ratio) if ratio > 0.0 else -RATIO_MOST_OCTAVES
        octaves = min(max(octaves, -RATIO_MOST_OCTAVES), RATIO_MOST_OCTAVES)
        self._survivors += 1
        memory = KAPPA_PRIOR + self._survivors
        gain = 1.0 / (memory if memory < KAPPA_MEMORY else KAPPA_MEMORY)
        self._set_kappa(self._log_kappa + gain * (octaves - self._log_kappa))

    def _set_kappa(self, log_kappa: float) -> None:
        # The logarithm itself is bounded, or it would have to come back a long way first.
        self._log_kappa = min(max(log_kappa, -KAPPA_MOST_OCTAVES), KAPPA_MOST_OCTAVES)
        if self.corrects:
            self.kappa = math.exp2(self._log_kappa)

    def _judged(self) -> None:
        self._unproved = 0
        cautious, confident = self._cautious, self._confident
        if cautious.level > confident.level:
            # Only where the two are close: quantiles must not cross.
            cautious.level = confident.level = (cautious.level + confident.level) / 2.0
        self._until_refresh -= 1
        if self._until_refresh <= 0:
            self._refresh()
        if not self.trusted and self.coverage_in_order:
            self.trusted = True

    def _refresh(self) -> None:
        self._until_refresh = REFRESHED_EVERY if self._ratios.observations >= REFRESHED_RARELY_FROM else 1
        if self.corrects:
            self._cautious.factor = self._ratios.quantile(self._cautious.level)
            self._confident.factor = self._ratios.quantile(self._confident.level)

    def _level_of(self, q: float) -> float:
        """The level for any quantile: straight lines through 0, the two that are corrected, and 1."""
        low, high = self._cautious, self._confident
        if q <= low.nominal:
            return low.level * q / low.nominal
        if q >= high.nominal:
            return high.level + (1.0 - high.level) * (q - high.nominal) / (1.0 - high.nominal)
        return low.level + (high.level - low.level) * (q - low.nominal) / (high.nominal - low.nominal)


def coverage_in_order(models: Iterable[WaitModel]) -> bool:
    """Whether a pool's stated quantiles are honest: some class has proved it, and no class shows the contrary."""
    proved = False
    for model in models:
        if model.coverage_in_order:
            proved = True
        elif model.judged >= JUDGED_ENOUGH:
            return False
    return proved


def _prior() -> RatioHistogram:
    ratios = RatioHistogram()
    for ratio in PRIOR_RATIOS:
        ratios.seed(ratio, 1.0)
    return ratios


def _matters(forecast: Forecast, waited_s: float) -> bool:
    if not LEAST_BASE_S <= forecast.base_s < _INFINITE:
        return False
    return waited_s >= COUNTED_FROM_S or forecast.expected_s >= FORETOLD_FROM_S


class WaitErrors:
    """How far predictions were off, over the last waits that mattered."""

    __slots__ = ("_relative", "_sorted", "count")

    def __init__(self) -> None:
        self._relative: deque[float] = deque()
        self._sorted: list[float] = []
        """The same in order of size: the median is asked for after every wait."""
        self.count = 0

    def observe(self, predicted_s: float, actual_s: float, *, least_s: float = 0.0) -> None:
        """One request that had to wait was dispatched.

        Args:
            least_s: the error is a part of the wait, or of this if it is more.
        """
        if actual_s < FORETOLD_FROM_S:
            return  # nobody is refused over so little, and a relative error of it says little
        if len(self._relative) == REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._relative.popleft())]
        off_s = predicted_s - actual_s
        error = (off_s if off_s > 0.0 else -off_s) / (actual_s if actual_s > least_s else least_s)
        self._relative.append(error)
        insort(self._sorted, error)
        self.count += 1

    def forget(self) -> None:
        """The pool went back to learning: only waits that begin to be judged now may end that."""
        self._relative.clear()
        self._sorted.clear()

    @property
    def median(self) -> float | None:
        """Median relative error; None while fewer than 16 waits were seen."""
        if len(self._sorted) < ENOUGH_ERRORS:
            return None
        return self._sorted[len(self._sorted) // 2]
