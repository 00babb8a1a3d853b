"""Synthetic workloads: who asks for what, and when.

Owns the demo's mix of requests, its bursty arrivals, and the closed form that turns "twice what the engines
can serve" into requests per second. It is pure: the same seed gives the same requests under any hash seed.
It never sends anything and never reads a clock.

Lengths are log-normal, clipped to a range: that is how prompts and answers of real services are spread, to a
first look (many short, few very long). Arrivals are a Poisson process whose rate is a square wave around the
mean: half of each period above it, half below.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from forebay.admission.cost import decode_us, prefill_us
from forebay.admission.model import MICRO
from forebay.admission.settings import SpeedLaw

_QUANTILES = 64
"""Points per length distribution when an expected cost is taken: within 1 % of a fine grid."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A clipped log-normal distribution of token counts."""

    median_tokens: int
    sigma: float
    """Spread of the logarithm: 0.5 puts the 84th percentile at 1.65 times the median."""
    low_tokens: int
    high_tokens: int

    def at(self, quantile: float) -> int:
        """The length at a quantile strictly between 0 and 1."""
        deviation = NormalDist().inv_cdf(quantile)
        drawn = self.median_tokens * math.exp(self.sigma * deviation)
        return max(self.low_tokens, min(self.high_tokens, round(drawn)))

    def draw(self, stream: random.Random) -> int:
        """One length."""
        # Uniform draws lie in [0, 1); the distribution has no length at exactly 0.
        return self.at(max(stream.random(), 1e-9))

    def grid(self) -> list[int]:
        """Equally likely lengths that stand for the whole distribution."""
        return [self.at((point + 0.5) / _QUANTILES) for point in range(_QUANTILES)]


@dataclass(frozen=True, slots=True)
class Part:
    """The requests of one class in a mix."""

    class_name: str
    share: float
    """Part of all requests, 0 to 1."""
    prompt: Lengths
    output: Lengths
    stream: bool = True


Mix = tuple[Part, ...]

DEMO_MIX: Mix = (
    Part("realtime", 0.60, Lengths(300, 0.6, 40, 1_500), Lengths(60, 0.5, 8, 160)),
    Part("standard", 0.25, Lengths(1_200, 0.7, 80, 4_500), Lengths(260, 0.6, 16, 800)),
    Part("batch", 0.15, Lengths(3_000, 0.4, 1_000, 6_500), Lengths(250, 0.5, 60, 600)),
)
"""Short chats, ordinary requests, and documents. On the demo's engines the chats are an eighth of the work, and chats
and ordinary requests together a little more than half: at twice capacity not even they all fit."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time with one mean rate of arrivals."""

    duration_s: float
    load: float
    """Offered work over what the engines can serve."""
    swing: float = 0.0
    """Height of the square wave: 0.5 alternates between 1.5 and 0.5 times the mean."""
    period_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come."""

    index: int
    at_s: float
    """From the start of the workload."""
    class_name: str
    prompt_tokens: int
    output_tokens: int
    """How long the answer is going to be; the server is not told."""
    limit_tokens: int
    """The limit that the client states: the next power of two above the answer, at least 256."""
    stream: bool


def client_limit_tokens(output_tokens: int) -> int:
    """The round number that a client which does not know its answer's length would state."""
    return max(256, 1 << (output_tokens - 1).bit_length())


def request_work_s(law: SpeedLaw, prompt_tokens: int, output_tokens: int) -> float:
    """Endpoint-seconds that one request takes of a full engine: the closed form of `admission.cost`."""
    decode = decode_us(law, prompt_tokens, output_tokens, output_tokens * output_tokens)
    return (prefill_us(law, prompt_tokens) + decode) / MICRO


def mean_work_s(mix: Mix, law: SpeedLaw) -> float:
    """Expected endpoint-seconds of one request of the mix."""
    total_s = 0.0
    for part in mix:
        prompts, outputs = part.prompt.grid(), part.output.grid()
        part_s = sum(request_work_s(law, prompt, output) for prompt in prompts for output in outputs)
        total_s += part.share * part_s / (len(prompts) * len(outputs))
    return total_s


def capacity_rps(mix: Mix, law: SpeedLaw, endpoints: int) -> float:
    """Requests of the mix that this many engines can serve in a second, all slots and KV cache in use."""
    return endpoints / mean_work_s(mix, law)


def arrivals(mix: Mix, phases: Sequence[Phase], capacity_per_s: float, seed: int) -> list[Arrival]:
    """Every request of the phases, in order of arrival."""
    _check(mix, phases)
    times = random.Random(f"{seed}/arrival times")
    classes = random.Random(f"{seed}/classes")
    prompts = random.Random(f"{seed}/prompt lengths")
    outputs = random.Random(f"{seed}/output lengths")
    weights = [part.share for part in mix]
    made: list[Arrival] = []
    start_s = 0.0
    for phase in phases:
        for at_s in _phase_times(phase, capacity_per_s, times):
            part = classes.choices(mix, weights)[0]
            output_tokens = part.output.draw(outputs)
            made.append(
                Arrival(
                    index=len(made),
                    at_s=start_s + at_s,
                    class_name=part.class_name,
                    prompt_tokens=part.prompt.draw(prompts),
                    output_tokens=output_tokens,
                    limit_tokens=client_limit_tokens(output_tokens),
                    stream=part.stream,
                )
            )
        start_s += phase.duration_s
    return made


def offered_work_s(planned: Sequence[Arrival], law: SpeedLaw) -> Mapping[str, float]:
    """Endpoint-seconds asked for, per class."""
    work_s: dict[str, float] = {}
    for arrival in planned:
        own_s = request_work_s(law, arrival.prompt_tokens, arrival.output_tokens)
        work_s[arrival.class_name] = work_s.get(arrival.class_name, 0.0) + own_s
    return work_s


def _phase_times(phase: Phase, capacity_per_s: float, stream: random.Random) -> list[float]:
    """Arrival times within a phase: a Poisson process at the highest rate, thinned to the wave."""
    mean_per_s = phase.load * capacity_per_s
    highest_per_s = mean_per_s * (1 + phase.swing)
    times_s: list[float] = []
    if highest_per_s <= 0:
        return times_s
    at_s = stream.expovariate(highest_per_s)
    while at_s < phase.duration_s:
        high = at_s % phase.period_s < phase.period_s / 2
        rate_per_s = mean_per_s * (1 + phase.swing if high else 1 - phase.swing)
        if stream.random() * highest_per_s < rate_per_s:
            times_s.append(at_s)
        at_s += stream.expovariate(highest_per_s)
    return times_s


def _check(mix: Mix, phases: Sequence[Phase]) -> None:
    share = sum(part.share for part in mix)
    if not math.isclose(share, 1.0, abs_tol=1e-6):
        raise ValueError(f"the shares of a mix must add up to 1, not {share:g}")
    for phase in phases:
        if phase.duration_s <= 0 or phase.load < 0 or not 0 <= phase.swing <= 1 or phase.period_s <= 0:
            raise ValueError(f"a phase needs a duration and period above 0, load >= 0, swing 0 to 1: {phase}")
