"""How full an engine's KV cache will get: the forecast that says whether one more request may start there.

The requests of one endpoint grow by a token a step until each ends, so what matters is not the KV in use now but
the most that will be in use. For τ steps from now, over the running requests i with g tokens generated, prompt p,
n samples, and S the survival function of the answer's length (`LengthLaw`, cut at the client's limit),

    q_i(τ)  = S_i(g_i + τ) / S_i(g_i)                   chance that it still runs
    kv_i(τ) = p_i + n_i·(g_i + τ)                       what it holds then
    mean(τ) = Σ kv_i·q_i        variance(τ) = Σ q_i·(1 − q_i)·kv_i²
    peak    = max over τ of mean + z·√variance, z = 2

which is the Past-Future test (Gong et al., ASPLOS 2025) with survival in place of a drawn or mean residual length:
the mean is far too cautious on heavy tails. The samples of one prompt count as ending together. An engine gives its
cache out in blocks, and the last one of each answer is half empty on average: it counts as held.

`KvForecast` keeps the two sums on a grid of τ, so that a candidate is tested in one pass over the grid however many
run. They are exact for all that run; how far each one has come is marked by `advance` and taken in by `refresh`, after
which everything is added up anew, so that rounding errors do not pile up. The sums are brought up to date when somebody
asks for them: where a bound that costs nothing says that all fits, most requests come and go without being added.

What the grid and the buckets cost in accuracy: τ stands on half octaves, but the last point before a client's limit is
moved to the last token under it, so that requests with a limit are counted at their full size; and of the tokens
generated only the conditional survival is looked up by a bucket (eight an octave), the KV held is exact. In simulation,
mixed requests that end at known limits peaked within 2 % of the forecast; with heavy-tailed lengths the true peak was
91 to 93 % of the forecast on average at 20 running and 99 % at 256, and above it in at most 4 cases of 100. Many that
start together and end together, with no limit to tell when, can come out a step of the grid low.

It books nothing and decides nothing. A request that runs alone must be let in by the caller whenever its prompt fits.
"""

from __future__ import annotations

from bisect import bisect_right
from math import sqrt
from typing import Final

from forebay.admission.errors import invariant
from forebay.admission.length_law import LengthLaw

GRID: Final[tuple[float, ...]] = (
    *(0.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0),
    *(1024.0, 1536.0, 2048.0, 3072.0, 4096.0, 6144.0, 8192.0, 12288.0, 16384.0),
)
"""Steps from now. Beyond the last one nothing is foreseen."""
Z: Final = 2.0
"""Standard deviations above the mean."""
WORST_SHARE: Final = 1.6180340
"""mean + z·σ of a single request is at most this times all that it may hold: max over q of q + 2·√(q(1 − q))."""
REFRESH_S: Final = 0.25
REBUILT_EVERY: Final = 256
"""Removals after which the sums are added up anew even if nobody refreshes."""
CURVES_KEPT_S: Final = 5.0
"""Curves of laws that have been learned anew meanwhile are of no use any more; all are forgotten so often."""
CURVES_MAX: Final = 4096
LAWS_MAX: Final = 256
"""A law takes some 10 KiB."""
_GRID_END: Final = 16384.0
ALMOST_NEVER: Final = 1e-6
"""A chance that does not count."""


class Curve:
    """Chance to be running still at the points of the grid, up to where it vanishes."""

    __slots__ = ("alive", "doubt")

    def __init__(self, law: LengthLaw, generated: int) -> None:
        alive: list[float] = []
        doubt: list[float] = []
        is_known = generated < law.known_tokens
        reached = law.survival(generated) if is_known else 1.0
        for offset in GRID:
            # As `survival_after` has it, but how many got so far need not be looked up for each point.
            chance = (
                law.survival(generated + offset) / reached
                if is_known
                else law.survival_after(generated, offset)
            )
            if chance < ALMOST_NEVER:
                break
            alive.append(chance)
            doubt.append(chance * (1.0 - chance))
        self.alive: tuple[float, ...] = tuple(alive)
        self.doubt: tuple[float, ...] = tuple(doubt)
        """`alive` times what is left of 1: the variance of being there."""


class Curves:
    """Curves and offsets already worked out. One may serve all forecasts of a pool: laws never change."""

    __slots__ = ("_by_law", "_count", "_offsets", "_until_s")

    def __init__(self) -> None:
        self._by_law: dict[LengthLaw, dict[int, Curve]] = {}
        self._offsets: dict[int, tuple[float, ...]] = {}
        self._count = 0
        self._until_s = 0.0

    def __len__(self) -> int:
        return self._count

    def expire(self, now: float) -> None:
        """Forget all curves if they are old."""
        if now >= self._until_s:
            self._until_s = now + CURVES_KEPT_S
            self._forget()

    def _forget(self) -> None:
        self._by_law.clear()
        self._offsets.clear()
        self._count = 0

    def curve(self, law: LengthLaw, generated: int) -> Curve:
        """The curve of an answer that has come so far."""
        if generated >= 16:
            shift = generated.bit_length() - 4
            generated = generated >> shift << shift
        by_start = self._by_law.get(law)
        if by_start is None:
            if len(self._by_law) >= LAWS_MAX:
                self._forget()
            by_start = self._by_law[law] = {}
        found = by_start.get(generated)
        if found is None:
            if self._count >= CURVES_MAX:
                self._forget()
                by_start = self._by_law[law] = {}
            self._count += 1
            found = by_start[generated] = Curve(law, generated)
        return found

    def offsets(self, left: int) -> tuple[float, ...]:
        """The grid for an answer of which at most `left` tokens are to come: it ends with the last under its limit."""
        last = left - 1 if left > 1 else 0
        if last >= GRID[-1]:
            return GRID
        found = self._offsets.get(last)
        if found is None:
            if len(self._offsets) >= CURVES_MAX:
                self._offsets.clear()
            # The first point stays, whatever is left: it says what is held now.
            under = bisect_right(GRID, float(last)) - 1 or min(last, 1)
            found = self._offsets[last] = (*GRID[:under], float(last))
        return found


class _Running:
    """One request, with what the sums hold for it."""

    __slots__ = (
        "alive",
        "cap",
        "counted",
        "doubt",
        "generated",
        "held",
        "law",
        "most",
        "offsets",
        "prompt_tokens",
        "samples",
    )

    def __init__(self, prompt_tokens: float, samples: int, law: LengthLaw, cap: int, generated: int) -> None:
        self.prompt_tokens = prompt_tokens
        """With what its last blocks hold nothing in."""
        self.samples = float(samples)
        self.law = law
        self.cap = cap
        self.generated = generated
        """The latest that is known."""
        self.counted = generated
        """What was known when it was last taken over."""
        self.held = 0.0
        """KV tokens then."""
        self.most = 0.0
        """What it adds to the peak is not above this."""
        self.alive: tuple[float, ...] = ()
        """As its `Curve`; empty while it is in no sum."""
        self.doubt: tuple[float, ...] = ()
        self.offsets: tuple[float, ...] = ()
        self.take_over()

    def take_over(self) -> None:
        """Go by the latest progress. What was added before must be out of the sums by now."""
        generated = self.counted = min(self.generated, self.cap)
        self.held = self.prompt_tokens + self.samples * generated
        self.most = WORST_SHARE * (self.held + self.samples * _last_offset(self.cap - generated))
        self.alive = self.doubt = self.offsets = ()


def _last_offset(left: int) -> float:
    """The last point of the grid for an answer of which at most `left` tokens are to come."""
    last = float(left - 1) if left > 1 else 0.0
    return last if last < _GRID_END else _GRID_END


class KvForecast:
    """What the requests of one endpoint will hold of its KV cache, in tokens."""

    __slots__ = (
        "_bound",
        "_bound_is_peak",
        "_curves",
        "_due_s",
        "_fresh",
        "_gone",
        "_is_old",
        "_loose",
        "_mean",
        "_moved",
        "_removed",
        "_running",
        "_variance",
        "block_tokens",
        "held_tokens",
    )

    def __init__(self, curves: Curves | None = None) -> None:
        self._curves = Curves() if curves is None else curves
        self._running: dict[int, _Running] = {}
        self._fresh: dict[int, _Running] = {}
        """Those of them that the sums do not know yet."""
        self._gone: list[_Running] = []
        """Those not there any more that the sums still know."""
        self._is_old = False
        """The sums go by what was known before the last refresh."""
        self._mean = [0.0] * len(GRID)
        self._variance = [0.0] * len(GRID)
        self._bound = 0.0
        """The peak is not above this,"""
        self._loose = 0.0
        """nor above this: the most of each, added up."""
        self._bound_is_peak = True
        self._moved = False
        """Somebody advanced since the last refresh."""
        self._removed = 0
        self._due_s = 0.0
        self.held_tokens = 0.0
        """KV tokens held now."""
        self.block_tokens = 1.0
        """The engine gives its cache out in blocks of so many."""

    def __len__(self) -> int:
        return len(self._running)

    def add(
        self, key: int, prompt_tokens: int, samples: int, law: LengthLaw, cap: int, *, generated: int = 0
    ) -> None:
        """A request starts.

        Args:
            key: its ticket; must not be in the forecast yet.
            samples: answers generated for the one prompt.
            law: how long one answer gets, without the cap.
            cap: the most output tokens of one answer: the client's limit or what the context leaves.
            generated: output tokens of one answer so far.
        """
        if key in self._running:
            invariant(False, f"ticket {key} is in the forecast already")
        entry = _Running(self._with_spare(prompt_tokens, samples), samples, law, cap, generated)
        self._running[key] = self._fresh[key] = entry
        self.held_tokens += entry.held
        self._loose += entry.most
        self._bound += entry.most
        self._bound_is_peak = False

    def remove(self, key: int) -> None:
        """A request is over: what was added for it is taken out. KeyError if it is not there."""
        entry = self._running[key]
        del self._running[key]
        if not self._running:
            self._empty()
            return
        self.held_tokens -= entry.held
        self._loose -= entry.most
        self._bound_is_peak = False
        if key in self._fresh:
            del self._fresh[key]
        elif not self._is_old:
            self._gone.append(entry)
            self._removed += 1
            if self._removed >= REBUILT_EVERY:
                self._is_old = True

    def advance(self, key: int, generated: int) -> None:
        """So many output tokens of one answer have come by now. KeyError if it is not there."""
        self._running[key].generated = generated
        self._moved = True

    def refresh(self, now: float) -> bool:
        """Take the progress in, at most every `REFRESH_S`: to be called with each batch of progress.

        Returns:
            True if the forecast goes by it from now on.
        """
        if not self._moved or now < self._due_s:
            return False
        self._due_s = now + REFRESH_S
        self._moved = False
        self._curves.expire(now)
        held, loose = 0.0, 0.0
        for entry in self._running.values():
            if entry.generated != entry.counted:
                entry.take_over()
            held += entry.held
            loose += entry.most
        self.held_tokens, self._loose = held, loose
        self._is_old = True
        # Who has come further than was expected of it may hold more than was.
        self._bound = loose
        self._bound_is_peak = False
        return True

    def points(self) -> list[tuple[float, float, float]]:
        """(steps from now, expected KV tokens, their standard deviation) over the grid: for dumps and tests."""
        self._bring_up_to_date()
        return [
            (offset, self._mean[index], sqrt(max(self._variance[index], 0.0)))
            for index, offset in enumerate(GRID)
        ]

    def peak(self) -> float:
        """The most KV tokens that what runs will hold: max over τ of mean + z·σ."""
        if not self._bound_is_peak:
            self._bring_up_to_date()
            self._bound = self._alone_from(0)
            self._bound_is_peak = True
        return self._bound

    def peak_with(self, prompt_tokens: int, samples: int, law: LengthLaw, cap: int) -> float:
        """The same with one more request (see `add`) that starts now."""
        self._bring_up_to_date()
        peak = 0.0
        answers = float(samples)
        prompt = self._with_spare(prompt_tokens, samples)
        curve, offsets = self._curves.curve(law, 0), self._curves.offsets(cap)
        for offset, alive, doubt, mean, variance in zip(
            offsets, curve.alive, curve.doubt, self._mean, self._variance, strict=False
        ):
            kv = prompt + answers * offset
            high = mean + kv * alive
            spread = variance + kv * kv * doubt
            if spread > 0.0:
                high += Z * sqrt(spread)
            if high > peak:
                peak = high
        rest = self._alone_from(min(len(offsets), len(curve.alive)))
        return rest if rest > peak else peak

    def fits(self, prompt_tokens: int, samples: int, law: LengthLaw, cap: int, limit_tokens: float) -> bool:
        """True if `peak_with` the same request is at most `limit_tokens`; stops at the first point above it."""
        answers = float(samples)
        prompt = self._with_spare(prompt_tokens, samples)
        left_tokens = limit_tokens - WORST_SHARE * (prompt + answers * _last_offset(cap))
        if self._loose <= left_tokens or self._bound <= left_tokens:
            return True
        self._bring_up_to_date()
        curve, offsets = self._curves.curve(law, 0), self._curves.offsets(cap)
        for offset, alive, doubt, mean, variance in zip(
            offsets, curve.alive, curve.doubt, self._mean, self._variance, strict=False
        ):
            kv = prompt + answers * offset
            room = limit_tokens - mean - kv * alive
            if room < 0.0 or Z * Z * (variance + kv * kv * doubt) > room * room:
                return False
        return self._alone_from(min(len(offsets), len(curve.alive))) <= limit_tokens

    def _with_spare(self, prompt_tokens: int, samples: int) -> float:
        """Prompt tokens, and the half block that stays empty at the end of each answer."""
        return prompt_tokens + 0.5 * (self.block_tokens - 1.0) * samples

    def _alone_from(self, index: int) -> float:
        """Peak of what runs, from this point of the grid on."""
        peak = 0.0
        means, variances = self._mean, self._variance
        for point in range(index, len(GRID)):
            high, variance = means[point], variances[point]
            if variance > 0.0:
                high += Z * sqrt(variance)
            if high > peak:
                peak = high
        return peak

    def _bring_up_to_date(self) -> None:
        """Add up what the sums do not know yet."""
        if self._is_old:
            self._clear_sums()
            for entry in self._running.values():
                self._join(entry)
            return
        if self._gone:
            for entry in self._gone:
                self._count(entry, -1.0)
            self._gone.clear()
        if self._fresh:
            for entry in self._fresh.values():
                self._join(entry)
            self._fresh.clear()

    def _join(self, entry: _Running) -> None:
        """Add a request to both sums."""
        if not entry.alive:
            curve = self._curves.curve(entry.law, entry.counted)
            entry.alive, entry.doubt = curve.alive, curve.doubt
            entry.offsets = self._curves.offsets(entry.cap - entry.counted)
        self._count(entry, 1.0)

    def _count(self, entry: _Running, times: float) -> None:
        """Add what `_join` found to both sums, or with `times` −1 take exactly that out again."""
        mean, variance = self._mean, self._variance
        held, samples = entry.held, entry.samples
        offsets, alive, doubt = entry.offsets, entry.alive, entry.doubt
        for index in range(min(len(offsets), len(alive))):
            kv = times * (held + samples * offsets[index])
            mean[index] += kv * alive[index]
            variance[index] += times * kv * kv * doubt[index]

    def _clear_sums(self) -> None:
        """Both sums from nothing, which leaves no rounding error of earlier removals."""
        self._removed = 0
        self._fresh.clear()
        self._gone.clear()
        self._is_old = False
        self._mean = [0.0] * len(GRID)
        self._variance = [0.0] * len(GRID)

    def _empty(self) -> None:
        """The last one has gone."""
        self.held_tokens = self._loose = self._bound = 0.0
        self._bound_is_peak = True
        self._fresh.clear()
        self._gone.clear()
        self._is_old = True
