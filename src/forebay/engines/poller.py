"""Watches one engine: finds out what it is, then samples it, for as long as it is configured.

One scrape at a time, never on the path of a request. A scrape runs on the engine's own API loop (13 ms in the middle,
70 ms at worst, on vLLM), so it is not free: samples are at least 20 scrape times apart, and while the books and the
samples agree they are a second apart.

Owns: the rhythm and its jitter, which is why randomness may live here; what is known of the engine; when to find out
anew. Must never: judge a sample, keep a history, or decide about traffic. All that goes to `feed`, as events:

* `Described`: at first, after an outage or a restart, and when a later look finds something else.
* `Sampled`: each reading, also one in which the engine says nothing about its load.
* `SampleMissed`: `unreachable` if no connection could be made, not if the engine was merely slow or unwell.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from forebay.admission.events import Described, Event, Sampled, SampleMissed
from forebay.admission.model import EndpointId, EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading, Reading
from forebay.engines.detect import Finding, find_out
from forebay.engines.health import HealthWatch
from forebay.engines.mapped import MetricMap
from forebay.engines.reading import ANSWER_BYTES, EngineReader, ReadFailed

__all__ = ["EndpointPoller", "Rhythm"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """When an engine is looked at. All in seconds."""

    interval_s: float = 0.2
    """Between the starts of two samples, while there is something to see."""
    quiet_interval_s: float = 1.0
    """What the interval grows to while books and samples agree."""
    scrape_multiple: float = 20.0
    """An interval is at least this many times the last scrape: 20 keeps it at 5 % of the engine's time."""
    longest_interval_s: float = 4.0
    """Bound on the above. A scrape that took long has mostly waited behind a long step, and samples that come further
    apart than this would no longer be believed."""
    timeout_s: float = 2.0
    """A scrape that takes longer is a missed sample."""
    retry_s: float = 0.5
    """After a missed sample."""
    slow_retry_s: float = 1.0
    """After a sample that was missed by running into `timeout_s`."""
    look_again_s: float = 30.0
    """Models and settings are looked at anew this often."""
    look_again_soon_s: float = 5.0
    """The same, when the last look had questions without an answer."""
    jitter: float = 0.1
    """Each interval is made longer by up to this share, so that many pollers do not fall into step."""


DEFAULT_RHYTHM: Final = Rhythm()
_DOUBT_AGAIN_S: Final = 60.0
"""Other series with values that cannot be used are told of this often at most: some come and go with the load."""


class EndpointPoller:
    """Polls one endpoint from `start` to `stop`."""

    def __init__(
        self,
        endpoint: EndpointId,
        reader: EngineReader,
        feed: Callable[[Event], None],
        *,
        kind: EngineKind | None = None,
        names: MetricMap | None = None,
        rhythm: Rhythm = DEFAULT_RHYTHM,
        quiet: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        """Makes a poller that does nothing yet.

        Args:
            endpoint: whom the events are about.
            reader: asks this engine; see `EngineReader` for what it has to keep to.
            feed: takes each event; called on the loop, must not block.
            kind: what the engine is, where configuration says so; None finds out.
            names: which series to read, where configuration says so.
            rhythm: when to sample.
            quiet: True while books and samples agree, so that samples may be rarer.
            clock: the driver's clock; decides only about intervals. The times in samples are the reader's.
            seed: of the jitter.
        """
        self._endpoint = endpoint
        self._reader = reader
        self._feed = feed
        self._kind = kind
        self._names = names
        self._rhythm = rhythm
        self._quiet = quiet
        self._clock = clock
        self._random = random.Random(seed)  # noqa: S311  (spreads polls, guards nothing)
        self._task: asyncio.Task[None] | None = None
        self._finding: Finding | None = None
        self._described: EngineInfo | None = None
        self._must_look = True
        """The next turn is to find out what the engine is."""
        self._must_describe = True
        """What is found is to be told even if it is what was told before: the process is another one."""
        self._has_restarted = False
        """That is still to be told."""
        self._look_at_s = 0.0
        self._last_reading: Reading | None = None
        self._interval_s = rhythm.interval_s
        self._floor_s = rhythm.interval_s
        """What the interval may not be hurried below: set by the engine's kind and its last scrape."""
        self._began_s = 0.0
        self._rest: asyncio.Future[None] | None = None
        self._trouble = ""
        self._health = HealthWatch(reader, rhythm.timeout_s, self._look_sooner)
        self._doubtful: tuple[str, ...] = ()
        """Series that were told of last."""
        self._doubt_again_s = -inf
        self._doubted = False
        """Somebody was told already that this may be no engine."""

    @property
    def info(self) -> EngineInfo | None:
        """What the engine was last found to be; None before that."""
        return self._described

    @property
    def trouble(self) -> str:
        """Why the last turn gave no sample, for people; empty when it gave one."""
        return self._trouble

    def start(self) -> None:
        """Starts polling, the first time at once. To be called on the loop; not again after `stop`."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Ends polling; returns when the scrape in flight, if any, is given up."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._health.stop()

    def hurry(self) -> None:
        """Books and samples no longer agree: do not sit out the rest of an interval that had grown."""
        if self._interval_s <= self._rhythm.interval_s:
            return
        self._interval_s = self._rhythm.interval_s
        if self._rest is not None:
            due_in_s = self._began_s + self._floor_s - self._clock()
            asyncio.get_running_loop().call_later(max(0.0, due_in_s), _finish, self._rest)

    def _look_sooner(self) -> None:
        """The health check has changed: the next sample, which tells it, is taken now."""
        if self._rest is not None:
            _finish(self._rest)

    async def _run(self) -> None:
        while True:
            self._began_s = self._clock()
            try:
                pause_s = await self._turn()
            except Exception:
                # One endpoint's poller must outlive whatever an odd engine, or its consumer, makes of one turn.
                logger.exception("polling %s failed; it goes on", self._endpoint)
                pause_s = self._rhythm.slow_retry_s
            pause_s *= 1.0 + self._random.random() * self._rhythm.jitter
            await self._pause(self._began_s + pause_s - self._clock())

    async def _pause(self, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        rest: asyncio.Future[None] = loop.create_future()
        self._rest = rest
        timer = loop.call_later(max(0.0, pause_s), _finish, rest)
        try:
            await rest
        finally:
            timer.cancel()
            self._rest = None

    async def _turn(self) -> float:
        """One look or sample, or both; returns after how long, from its beginning, the next is due."""
        try:
            if self._finding is None or self._must_look or self._clock() >= self._look_at_s:
                reading = await self._look()
            else:
                reading = await self._sample(self._finding)
        except ReadFailed as failure:
            return self._missed(str(failure), unreachable=failure.unreachable)
        except NoReading as fault:
            return self._missed(str(fault), unreachable=False)
        self._took(reading)
        return self._next_interval_s(reading.sample.took_s)

    async def _look(self) -> Reading:
        """Finds out what the engine is, tells it if it is news, and uses the sample that fell out of it."""
        finding = await find_out(
            self._reader, kind=self._kind, names=self._names, timeout_s=self._rhythm.timeout_s
        )
        again_s = self._rhythm.look_again_soon_s if finding.has_holes else self._rhythm.look_again_s
        self._look_at_s = self._clock() + again_s
        self._must_look = False
        if finding.doubt and not self._doubted:
            self._doubted = True
            logger.warning(
                "%s does not look like an inference engine: %s; check the URL", self._endpoint, finding.doubt
            )
        # A look with holes must not make us forget what a whole one told.
        if self._finding is None or not finding.has_holes:
            self._finding = finding
            if self._must_describe or finding.info != self._described:
                self._must_describe = False
                self._described = finding.info
                logger.info("%s is %s", self._endpoint, _in_words(finding.info))
                self._feed(Described(self._endpoint, finding.info, self._has_restarted))
                self._has_restarted = False
        self._health.follow(finding.family.health_interval_s)
        if finding.sample is None or finding.sample_path != self._finding.sample_path:
            return await self._sample(self._finding)
        return self._finding.family.read(finding.sample_path, finding.sample)

    async def _sample(self, finding: Finding) -> Reading:
        answer = await self._reader.get(
            finding.sample_path, timeout_s=self._rhythm.timeout_s, max_bytes=ANSWER_BYTES
        )
        if answer.status == 404:  # another program listens there now
            self._must_look = True
        reading = finding.family.read(finding.sample_path, answer)
        if self._last_reading is not None and _restarted(self._last_reading, reading):
            logger.warning("%s has restarted", self._endpoint)
            self._last_reading = None
            self._has_restarted = True
            self._health.forget()
            self._must_look = self._must_describe = True
            return await self._look()
        return reading

    def _took(self, reading: Reading) -> None:
        self._last_reading = reading
        if self._trouble:
            logger.info("%s can be read again", self._endpoint)
            self._trouble = ""
            if self._finding is not None and self._finding.has_holes:  # what was missing may be there now
                self._must_look = True
        doubtful = reading.sample.doubtful
        if doubtful and doubtful != self._doubtful and self._clock() >= self._doubt_again_s:
            self._doubtful = doubtful
            self._doubt_again_s = self._clock() + _DOUBT_AGAIN_S
            logger.warning("%s reports what cannot be used: %s", self._endpoint, "; ".join(reading.doubts))
        sample = reading.sample
        if self._health.unready and not sample.unready:
            sample = replace(sample, unready=self._health.unready)
        self._feed(Sampled(self._endpoint, sample))

    def _missed(self, detail: str, *, unreachable: bool) -> float:
        if not self._trouble:
            logger.warning("%s cannot be read: %s", self._endpoint, detail)
        self._trouble = detail
        if unreachable:  # whatever answers there next may be another engine
            self._finding = None
            self._last_reading = None
            self._health.forget()
            self._must_look = self._must_describe = True
        self._interval_s = self._floor_s = self._rhythm.interval_s
        self._feed(SampleMissed(self._endpoint, unreachable))
        spent_s = self._clock() - self._began_s
        if spent_s >= self._rhythm.timeout_s:
            return spent_s + self._rhythm.slow_retry_s
        return max(self._rhythm.retry_s, self._rhythm.interval_s)

    def _next_interval_s(self, took_s: float) -> float:
        rhythm = self._rhythm
        family_s = self._finding.family.least_interval_s if self._finding is not None else 0.0
        multiple_s = min(rhythm.scrape_multiple * took_s, rhythm.longest_interval_s)
        self._floor_s = max(rhythm.interval_s, multiple_s, family_s)
        if self._quiet():
            self._interval_s = min(2 * self._interval_s, max(rhythm.quiet_interval_s, rhythm.interval_s))
        else:
            self._interval_s = rhythm.interval_s
        return max(self._interval_s, self._floor_s)


def _in_words(info: EngineInfo) -> str:
    """What was found, for people. At most a few of its models are named."""
    said = [f"{info.kind.value}, models {', '.join(map(repr, info.models[:5])) or 'not told'}"]
    if len(info.models) > 5:
        said[0] += f" and {len(info.models) - 5} more"
    for words, value in (("context", info.context_tokens), ("KV cache", info.kv_tokens)):
        said.append(f"{words} {'not told' if value is None else f'{value} tokens'}")
    if info.max_requests is not None:
        said.append(f"{info.max_requests} requests at once")
    return ", ".join(said)


_COUNTERS: Final = ("prompt_tokens_total", "output_tokens_total", "steps_total", "preemptions_total")


def _restarted(before: Reading, after: Reading) -> bool:
    """True if the two readings cannot be of the same process: its mark changed, or a counter fell."""
    if before.process is not None and after.process is not None:
        return before.process != after.process
    return any(_fell(before.sample, after.sample, counter) for counter in _COUNTERS)


def _fell(before: EngineSample, after: EngineSample, counter: str) -> bool:
    old, new = getattr(before, counter), getattr(after, counter)
    return old is not None and new is not None and new < old


def _finish(rest: asyncio.Future[None]) -> None:
    if not rest.done():
        rest.set_result(None)
