"""From what is seen of an engine to observations of its steps: engine samples and our own books, or streams alone.

Sources, in order:

1. `EngineClock`: between two samples of an engine that was never idle, time ÷ steps counted is the mean step. The
   engine's counters say what was in the steps (prefill = Δ step tokens − Δ output tokens − Δ cached tokens, decoding
   sequences = output tokens that were no first tokens ÷ steps); our books say how the prefill was cut up.
2. Streams (`StepSources.learn_gap`, `learn_first_token`): while nothing is being prefilled, the time between two events
   of a stream is that of one or more decode steps; from dispatch to the first token of a request that did not queue it
   is that of its prefill. Used while source 1 has nothing to say (no such counters, or an engine that is idle again and
   again).
3. Whole answers that are not streamed: `whole_answers`. Used while neither of these teaches.

Events are not steps, nor tokens. An engine may gather several steps into one event, or make several tokens in one step
(speculative decoding), or send one step's tokens as several events. `EventPace` learns tokens per event from usage, and
steps per event from source 1 wherever steps are counted; before either is known no gap is learned from. Streams alone
cannot tell the first two apart. There, a token is taken for a step: right for gathered steps; with speculative
decoding the "step" learned is the time of one token of each stream, below the true step by the tokens per step, and
still what a cost per token needs.

Owns the window that is open, and the ratios. It reads no clock, and learns nothing of how long a step takes: the
`StepLearner` does.
"""

from __future__ import annotations

import math
from typing import Final

from forebay.admission.model import EngineSample
from forebay.admission.quantiles import RatioHistogram
from forebay.admission.record import record
from forebay.admission.settings import SpeedLaw
from forebay.admission.steplaw import StepLearner

CHUNK_TOKENS: Final = 2048
"""Tokens that an engine computes in a step at most, where nobody says: vLLM's default on most devices."""
LONGEST_WINDOW_S: Final = 5.0
LEAST_STEPS: Final = 12
"""Steps in a window: the step that each of its ends cuts through must not matter. Windows of fewer are drawn out."""
SLOW_WINDOW_S: Final = 2.0
LEAST_SLOW_STEPS: Final = 5
"""Enough for a window that has become this long: a slow engine would not get to more."""
SPECULATION: Final = 1.3
"""With more output tokens per step than this times the sequences running, a step makes several tokens of each."""

PACE_DECAY: Final = 0.98
"""Per ended stream, and per window."""
LEAST_PACE_EVENTS: Final = 50.0
LEAST_STREAM_EVENTS: Final = 8
"""Of a stream that says something about others."""
PACE_LOOK_EVERY: Final = 8
PACE_LOOK_RARELY_FROM: Final = 32
LEAST_PACE_WINDOWS: Final = 3.5
ENOUGH_WITHOUT_USAGE: Final = 500
"""Events of ended streams without any usage after which an event is taken for a token."""
MOST_PER_EVENT: Final = 64.0


@record
class StepWindow:
    """Means over some steps of an engine: the arguments of `StepLearner.observe`."""

    step_s: float
    steps: int
    prefill_tokens: float
    prefill_steps: float
    sequences: float
    kv_tokens: float
    attention: float


class EngineClock:
    """Source 1: windows between samples.

    A window opens and closes at samples with something running, nothing waiting and no prompt half done: there, the
    counters have nothing behind them that is not in the steps counted. Other samples in between only draw it out,
    up to `LONGEST_WINDOW_S`. An idle moment, a restart, a preemption or a missing counter drops the open window.
    """

    __slots__ = (
        "_attention",
        "_chunks",
        "_fewest_running",
        "_kv_s",
        "_last",
        "_last_kv_tokens",
        "_last_sequences",
        "_opened",
        "_prompts",
        "_sequences_s",
        "_tokens",
        "chunk_tokens",
        "dropped",
    )

    def __init__(self, chunk_tokens: int = CHUNK_TOKENS) -> None:
        self.chunk_tokens = chunk_tokens
        self.dropped = 0
        """Windows that were given up."""
        self._opened: EngineSample | None = None
        self._last: EngineSample | None = None
        self._last_sequences = 0.0
        self._last_kv_tokens = 0.0
        self._sequences_s = 0.0
        """Integral of the sequences over the window; likewise of the KV tokens."""
        self._kv_s = 0.0
        self._fewest_running = 0
        self._prompts = 0
        self._tokens = 0.0
        self._chunks = 0.0
        self._attention = 0.0

    @property
    def is_open(self) -> bool:
        """True while a window is open."""
        return self._opened is not None

    def prompt_done(self, prompt_tokens: int, cached_tokens: int = 0) -> None:
        """A request of ours got its first token: its prefill lies in the window that is open."""
        fresh = prompt_tokens - cached_tokens
        if fresh <= 0 or self._opened is None:
            return
        self._prompts += 1
        self._tokens += fresh
        self._chunks += -(-fresh // self.chunk_tokens)
        self._attention += attention_of(prompt_tokens, cached_tokens)

    def sampled(
        self,
        sample: EngineSample,
        *,
        was_idle: bool,
        half_done: bool,
        sequences: float,
        kv_tokens: float,
        kv_capacity: int | None,
    ) -> StepWindow | None:
        """Take the next sample in. Returns the window that it closes, if it closes one.

        Args:
            was_idle: by our books the engine had nothing to do at some moment since the last sample.
            half_done: by our books there may be a prompt at the engine of which a part is computed: one longer than
                `chunk_tokens` that was dispatched and has no first token.
            sequences: ours there, by our books: taken where the sample does not say how many run.
            kv_tokens: the same of KV tokens.
            kv_capacity: the engine's KV tokens; None if nobody knows, and then `kv_tokens` is taken.
        """
        last = self._last
        running = sequences if sample.running is None else float(sample.running)
        kv = kv_tokens
        if sample.kv_usage is not None and kv_capacity is not None:
            kv = sample.kv_usage * kv_capacity
        opened = self._opened
        window: StepWindow | None = None
        if opened is not None and last is not None:
            elapsed = _middle(sample) - _middle(last)
            if (
                was_idle
                or not _continues(last, sample)
                or _middle(sample) - _middle(opened) > LONGEST_WINDOW_S
            ):
                self._opened = opened = None
                self.dropped += 1
            else:
                self._sequences_s += elapsed * 0.5 * (running + self._last_sequences)
                self._kv_s += elapsed * 0.5 * (kv + self._last_kv_tokens)
                if running < self._fewest_running:
                    self._fewest_running = int(running)
        clean = running > 0.0 and sample.waiting == 0 and not half_done and _counts(sample)
        if opened is not None and self._chunks > self._prompts and self._fewest_running < 2:
            # A chunk alone in its step that does not end its prompt gives no token, and vLLM does not count the step.
            opened = None
            self.dropped += 1
        if opened is not None and clean:
            window = self._close(opened, sample)
            if window is not None:
                opened = None
        if opened is None:
            self._opened = sample if clean else None
            self._sequences_s = self._kv_s = self._tokens = self._chunks = self._attention = 0.0
            self._prompts = 0
            self._fewest_running = int(running)
        self._last = sample
        self._last_sequences = running
        self._last_kv_tokens = kv
        return window

    def _close(self, opened: EngineSample, sample: EngineSample) -> StepWindow | None:
        """The means of the window that ends here; None if it says too little yet, or nothing that can be trusted."""
        steps = _risen(opened.steps_total, sample.steps_total)
        tokens = _risen(opened.step_tokens_total, sample.step_tokens_total)
        output = _risen(opened.output_tokens_total, sample.output_tokens_total)
        elapsed = _middle(sample) - _middle(opened)
        if elapsed <= 0.0 or steps < (LEAST_STEPS if elapsed < SLOW_WINDOW_S else LEAST_SLOW_STEPS):
            return None
        prefill = float(tokens - output - _risen(opened.cached_tokens_total, sample.cached_tokens_total))
        if prefill < 0.0:
            prefill = 0.0
        prefill_steps = attention = prompts = 0.0
        if prefill > 0.0:
            if not self._tokens:
                return None  # whoever sent it: we do not know yet how many prompts it was
            # The engine's count is exact and is everybody's; ours only says what a prompt is like.
            part = prefill / self._tokens
            attention = self._attention * part
            prompts = self._prompts * part
            prefill_steps = distinct_steps(self._chunks * part, steps)
        sequences = self._sequences_s / elapsed
        decoding = (output - prompts) / steps
        if 0.0 <= decoding <= SPECULATION * sequences + 1.0:
            sequences = decoding
        return StepWindow(
            elapsed / steps,
            steps,
            prefill / steps,
            prefill_steps,
            sequences,
            self._kv_s / elapsed,
            attention / steps,
        )


class EventPace:
    """How many tokens, and how many engine steps, one data event of a stream stands for."""

    __slots__ = (
        "_each",
        "_events",
        "_events_ended",
        "_ratios",
        "_until_look",
        "_windows",
        "tokens_per_event",
    )

    def __init__(self) -> None:
        self._each = RatioHistogram()
        """Tokens per event of ended streams with usage. Their median counts: some clients' streams are odd (a tool call
        comes in a few events), and must not change what those of others are taken for."""
        self._events = 0.0
        """Data events of ended streams with usage."""
        self._until_look = 0
        """Streams until the median is looked up anew."""
        self.tokens_per_event = 1.0
        """1 until some streams with usage have ended."""
        self._events_ended = 0
        """Data events of all ended streams."""
        self._ratios = 0.0
        self._windows = 0.0

    @property
    def is_known(self) -> bool:
        """True once streams have ended with usage, or enough have without that no usage will come."""
        return (
            self._events >= LEAST_PACE_EVENTS
            or self._events_ended >= ENOUGH_WITHOUT_USAGE
            or self._windows >= LEAST_PACE_WINDOWS
        )

    @property
    def steps_per_event(self) -> float:
        """Measured where steps are counted; elsewhere a token is taken for a step."""
        if self._windows < LEAST_PACE_WINDOWS:
            return self.tokens_per_event
        return _bounded(self._ratios / self._windows)

    @property
    def tokens_per_step(self) -> float:
        """Output tokens that one step gives each sequence: above 1 with speculative decoding, where that is known."""
        return self.tokens_per_event / self.steps_per_event

    def ended(self, output_tokens: int | None, events: int) -> None:
        """A stream ended well, after `events` data events; `output_tokens` is None if it carried no usage."""
        if events < 1:
            return
        self._events_ended += events
        if output_tokens is None or not 1 <= output_tokens <= MOST_PER_EVENT * events:
            return
        if events < LEAST_STREAM_EVENTS:
            return
        self._each.observe(output_tokens / events)
        self._events = self._events * PACE_DECAY + events
        self._until_look -= 1
        if self._until_look <= 0 and self._events >= LEAST_PACE_EVENTS:
            self._until_look = PACE_LOOK_EVERY if self._each.observations >= PACE_LOOK_RARELY_FROM else 1
            self.tokens_per_event = _bounded(self._each.quantile(0.5))

    def paced(self, gap_s: float, step_s: float) -> None:
        """Over the same time, events of a stream were `gap_s` apart and steps took `step_s`."""
        if not (step_s > 0.0 and step_s <= MOST_PER_EVENT * gap_s and gap_s <= MOST_PER_EVENT * step_s):
            return
        self._ratios = self._ratios * PACE_DECAY + gap_s / step_s
        self._windows = self._windows * PACE_DECAY + 1.0


class StepSources:
    """What a controller tells about one endpoint, and the `learner` that it ends in."""

    __slots__ = ("_gap_s", "_gaps", "_windows_until_s", "clock", "learner", "pace", "taught_until_s")

    def __init__(self, prior: SpeedLaw, chunk_tokens: int = CHUNK_TOKENS) -> None:
        self.learner = StepLearner(prior)
        self.clock = EngineClock(chunk_tokens)
        self.pace = EventPace()
        self._windows_until_s = -1.0
        """Until when source 1 is taken to speak, and streams are not learned from."""
        self.taught_until_s = -1.0
        """Until when source 1 or 2 is, and whole answers are not learned from."""
        self._gap_s = 0.0
        """Σ of the event gaps seen in the window that is open, and their number."""
        self._gaps = 0.0

    def prompt_done(self, prompt_tokens: int, cached_tokens: int = 0) -> None:
        """A request there got its first token, streamed or not. Call it for each, at once."""
        self.clock.prompt_done(prompt_tokens, cached_tokens)

    def ended(self, output_tokens: int | None, events: int) -> None:
        """A stream ended well: `output_tokens` by the engine's count (None: it did not say) in `events` data events."""
        self.pace.ended(output_tokens, events)

    def sampled(
        self,
        sample: EngineSample,
        *,
        was_idle: bool,
        half_done: bool,
        sequences: float,
        kv_tokens: float,
        kv_capacity: int | None,
    ) -> None:
        """The engine's metrics were read; the arguments are those of `EngineClock.sampled`."""
        window = self.clock.sampled(
            sample,
            was_idle=was_idle,
            half_done=half_done,
            sequences=sequences,
            kv_tokens=kv_tokens,
            kv_capacity=kv_capacity,
        )
        if window is not None:
            if self._gaps > 0.0:
                self.pace.paced(self._gap_s / self._gaps, window.step_s)
            self._windows_until_s = self.taught_until_s = sample.at_s + LONGEST_WINDOW_S
            self.learner.observe(
                window.step_s,
                steps=window.steps,
                prefill_tokens=window.prefill_tokens,
                prefill_steps=window.prefill_steps,
                sequences=window.sequences,
                kv_tokens=window.kv_tokens,
                attention=window.attention,
            )
        if window is not None or not self.clock.is_open:
            self._gap_s = self._gaps = 0.0

    def learn_gap(
        self, gap_s: float, now: float, *, events: int, quiet: bool, sequences: float, kv_tokens: float
    ) -> None:
        """Streams moved. Call it for each batch that has a mean gap; it decides what the batch is good for.

        Args:
            gap_s: mean time between two data events of one stream.
            events: most events that one stream had in the batch: how many gaps in a row the mean is of.
            quiet: nothing waits in the engine, and since the last batch no request was dispatched there or still
                waited for its first token: every step was a decode step.
            sequences: streams and other answers that are being generated there.
            kv_tokens: KV tokens that they hold now.
        """
        if not (0.0 < gap_s <= LONGEST_WINDOW_S) or events < 1:
            return
        self._gap_s += gap_s * events
        self._gaps += events
        if not quiet or now < self._windows_until_s or not self.pace.is_known:
            return
        self.taught_until_s = now + LONGEST_WINDOW_S
        steps = self.pace.steps_per_event
        self.learner.observe(
            gap_s / steps,
            steps=round(events * steps) or 1,
            prefill_tokens=0.0,
            prefill_steps=0.0,
            sequences=sequences,
            kv_tokens=kv_tokens,
            attention=0.0,
        )

    def learn_first_token(
        self,
        took_s: float,
        now: float,
        *,
        prompt_tokens: int,
        cached_tokens: int = 0,
        sequences: float,
        kv_tokens: float,
    ) -> None:
        """The first data event of a stream came. Call it only for one that had the engine's prefill to itself.

        That is: when it was dispatched nothing waited in the engine and nobody there was without a first token, and
        nothing was dispatched there since.

        Args:
            took_s: dispatch to first event.
            sequences: those that were decoding beside it; likewise `kv_tokens`.
        """
        fresh = prompt_tokens - cached_tokens
        if now < self._windows_until_s or fresh <= 0:
            return
        self.taught_until_s = now + LONGEST_WINDOW_S
        room = self.clock.chunk_tokens - int(sequences)
        steps = -(-fresh // room) if room > 0 else 1
        if sequences >= 1.0:
            # It came in the middle of a step, and waited for the rest of it.
            took_s -= 0.5 * self.learner.step_s(
                prefill_tokens=0.0, sequences=sequences, kv_tokens=kv_tokens, attention=0.0
            )
        self.learner.observe(
            took_s / steps,
            steps=steps,
            prefill_tokens=fresh / steps,
            prefill_steps=steps,
            sequences=sequences,
            kv_tokens=kv_tokens,
            attention=attention_of(prompt_tokens, cached_tokens) / steps,
        )


def attention_of(prompt_tokens: int, cached_tokens: int = 0) -> float:
    """Σ chunk · (context before it + chunk ÷ 2) over the chunks of a prompt, however it is cut."""
    return 0.5 * (float(prompt_tokens) * prompt_tokens - float(cached_tokens) * cached_tokens)


def _middle(sample: EngineSample) -> float:
    """When the engine was looked at: some time during the reading."""
    return sample.at_s + 0.5 * sample.took_s


def _counts(sample: EngineSample) -> bool:
    """True if it has the counters of source 1."""
    return (
        sample.steps_total is not None
        and sample.step_tokens_total is not None
        and sample.output_tokens_total is not None
    )


def _risen(before: int | None, after: int | None) -> int:
    """Growth of a counter; 0 if either reading lacks it."""
    return 0 if before is None or after is None else after - before


def _continues(before: EngineSample, after: EngineSample) -> bool:
    """True if the time between two samples can be part of a window: the same run of the engine, working all along."""
    return (
        0.0 <= _middle(after) - _middle(before) <= LONGEST_WINDOW_S
        and after.running != 0
        and _counts(after)
        and _risen(before.steps_total, after.steps_total) >= 0
        and _risen(before.step_tokens_total, after.step_tokens_total) >= 0
        and _risen(before.output_tokens_total, after.output_tokens_total) >= 0
        and _risen(before.cached_tokens_total, after.cached_tokens_total) >= 0
        # What a preemption makes the engine compute again is in no counter.
        and _risen(before.preemptions_total, after.preemptions_total) == 0
    )


def distinct_steps(chunks: float, steps: float) -> float:
    """Steps that had one of `chunks` in them, if these fell on `steps` steps at random."""
    return steps * -math.expm1(-chunks / steps)


def _bounded(ratio: float) -> float:
    """The ratio, within what can be believed."""
    return min(max(ratio, 1.0 / MOST_PER_EVENT), MOST_PER_EVENT)
