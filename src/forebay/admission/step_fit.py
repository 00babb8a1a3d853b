"""The regression behind the step law: weighted least squares over seven columns, kept as sums of products.

For: `steplaw`, which says what the columns are and which observations come. A `StepFit` is the regression for one knee;
all but two of its rows are the same for all knees and shared. Each coefficient is a multiple of the prior's, none is
below 0, and their spread about their own mean is penalised (ridge regression).

Loops run by index: compiled, `zip` and comprehensions take several times as long, and an end of a request may be what
teaches.
"""

from __future__ import annotations

from typing import Final

USUAL_NOISE: Final = 0.015
"""Squared relative error of a step: 3 % in a mean over 16. A guess worth `NOISE_KNOWN` observations."""
NOISE_KNOWN: Final = 10.0

# Places in a row; what stands at that of the time is not used where there is none. The first `SHARED` are the same
# for all knees.
TIME: Final = 0
BASE: Final = 1
EACH: Final = 2
KV: Final = 3
ATTENTION: Final = 4
LOW: Final = 5
HIGH: Final = 6
SHARED: Final = 5
SIZE: Final = 7


class StepFit:
    """The regression for one knee."""

    __slots__ = ("beta", "knee", "misfit", "own", "rows")

    def __init__(self, knee: float, shared: list[list[float]]) -> None:
        self.knee = knee
        self.beta = [0.0] + [1.0] * (SIZE - 1)
        """Coefficients as multiples of the prior's, by place."""
        self.own = [[0.0] * (LOW + 1), [0.0] * (HIGH + 1)]
        self.rows = [*shared, *self.own]
        """Faded sums of products, lower triangle, time first. All but the rows in `own` are the same for all knees."""
        self.misfit = 0.0
        """Faded squared error of `beta`."""

    def predict(self, row: list[float]) -> float:
        """Seconds for a row."""
        seconds, beta = 0.0, self.beta
        for place in range(BASE, SIZE):
            seconds += row[place] * beta[place]
        return seconds

    def solve(self, spread: float, observations: float) -> None:
        """Least squares, with the spread of the coefficients penalised, and none of them below 0."""
        rows = self.rows
        # The best single scale for all of the prior sets what a spread is relative to.
        with_time = whole = 0.0
        for place in range(BASE, SIZE):
            row = rows[place]
            with_time += row[TIME]
            for other in range(BASE, place):
                whole += 2.0 * row[other]
            whole += row[place]
        if not (with_time > 0.0 and whole > 0.0):
            return
        noise = (self.misfit + NOISE_KNOWN * USUAL_NOISE) / (observations + NOISE_KNOWN)
        # More than usual may be the misfit of a wrong prior, which must not strengthen it.
        noise = noise if noise < USUAL_NOISE else USUAL_NOISE
        scale = with_time / whole
        penalty = noise / (spread * scale * scale)
        free = list(range(BASE, SIZE))
        while True:
            solved = _solve(rows, free, penalty)
            lowest = min(solved)
            if lowest >= 0.0:
                break
            del free[solved.index(lowest)]
        beta = [0.0] * SIZE
        for place, value in zip(free, solved, strict=True):
            beta[place] = value
        self.beta = beta
        misfit = rows[TIME][TIME]
        for place in free:
            row = rows[place]
            inner = 0.5 * row[place] * beta[place] - row[TIME]
            for other in range(BASE, place):
                inner += row[other] * beta[other]
            misfit += 2.0 * beta[place] * inner
        self.misfit = misfit if misfit > 0.0 else 0.0


def add_row(rows: list[list[float]], row: list[float], weight: float, decay: float) -> None:
    """Let sums of products fade, and add those of a row. A row of sums of length k is that of place k − 1."""
    for sums in rows:
        count = len(sums)
        heavy = weight * row[count - 1]
        for place in range(count):
            sums[place] = sums[place] * decay + heavy * row[place]


def _solve(rows: list[list[float]], free: list[int], penalty: float) -> list[float]:
    """Solve for the coefficients at the places in `free`, the others being 0, by L·D·Lᵀ without pivoting.

    The penalty is that of Σ (β − mean β)², of weight `penalty`. With it the matrix is positive definite as soon as
    there is one observation: its only null direction, all coefficients alike, is one that every row sees.
    """
    between = penalty / (SIZE - 1)
    size = len(free)
    lower: list[list[float]] = []
    pivots: list[float] = []
    solved: list[float] = []
    for place in free:
        sums = rows[place]
        line: list[float] = []
        # First times the pivot, as the next entries need it.
        for number in range(len(lower)):
            done = lower[number]
            inner = sums[free[number]] - between
            for before in range(number):
                inner -= line[before] * done[before]
            line.append(inner)
        pivot = sums[place] + penalty - between
        least = 1e-12 * (sums[place] + penalty)
        value = sums[TIME]
        for number in range(len(line)):
            inner = line[number]
            part = inner / pivots[number]
            pivot -= inner * part
            value -= inner * solved[number]
            line[number] = part
        # Rounding must not turn a pivot of almost nothing into less than nothing.
        pivot = pivot if pivot > least else least
        pivots.append(pivot)
        solved.append(value / pivot)
        lower.append(line)
    for number in range(size - 1, 0, -1):
        value = solved[number]
        line = lower[number]
        for other in range(number):
            solved[other] -= line[other] * value
    return solved
