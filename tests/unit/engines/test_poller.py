from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from forebay.admission.events import Described, Event, Sampled, SampleMissed
from forebay.admission.model import EndpointId, EngineKind
from forebay.engines.poller import EndpointPoller, Rhythm
from forebay.engines.reading import ANSWER_BYTES, Answer
from tests.unit.engines.pages import answer, llamacpp_page, llamacpp_slots, vllm_models, vllm_page
from tests.unit.engines.scripted import HANGS, REFUSED, ScriptedEngine, run

ENDPOINT = EndpointId("engine-1")
STEADY = Rhythm(jitter=0.0)


class Watch:
    """A scripted engine and a poller on it, in virtual time."""

    def __init__(self, **options: Any) -> None:
        self.engine = ScriptedEngine(
            **{"/metrics": answer(vllm_page()), "/v1/models": answer(vllm_models("tiny"))}
        )
        self.events: list[tuple[float, Event]] = []
        self.is_quiet = False
        options.setdefault("rhythm", STEADY)
        options.setdefault("quiet", lambda: self.is_quiet)
        self.poller = EndpointPoller(ENDPOINT, self.engine, self._took, clock=self._now, **options)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _took(self, event: Event) -> None:
        self.events.append((round(self._now() - 100.0, 6), event))

    def run(self, seconds: float, *changes: tuple[float, Callable[[], None]]) -> None:
        """Polls for this long, with changes at their times, from second 0."""

        async def story() -> None:
            loop = asyncio.get_running_loop()
            for at_s, change in changes:
                loop.call_at(100.0 + at_s, change)
            self.poller.start()
            await asyncio.sleep(seconds)
            await self.poller.stop()

        run(story())

    def kinds(self) -> list[type[Event]]:
        return [type(event) for _, event in self.events]

    def samples(self) -> list[float]:
        return [at_s for at_s, event in self.events if isinstance(event, Sampled)]

    def missed(self) -> list[tuple[float, bool]]:
        return [(at_s, event.unreachable) for at_s, event in self.events if isinstance(event, SampleMissed)]

    def unready(self) -> list[str]:
        return [event.sample.unready for _, event in self.events if isinstance(event, Sampled)]

    def described(self) -> list[tuple[float, EngineKind]]:
        return [(at_s, event.info.kind) for at_s, event in self.events if isinstance(event, Described)]


def test_describes_then_samples_at_once() -> None:
    """The first turn tells what the engine is and gives its first sample, from one look."""
    watch = Watch()
    watch.run(0.1)
    (at_s, described), (_, sampled) = watch.events
    assert isinstance(described, Described)
    assert isinstance(sampled, Sampled)
    assert (at_s, described.endpoint, described.info.models) == (0.005, ENDPOINT, ("tiny",))
    assert (sampled.endpoint, sampled.sample.running, sampled.sample.at_s) == (ENDPOINT, 6, 100.0)
    assert watch.engine.times("/metrics") == [0.0]
    assert watch.poller.info == described.info


def test_samples_at_the_interval() -> None:
    """A healthy engine is sampled at the configured interval, from start to start."""
    watch = Watch()
    watch.run(1.1)
    assert watch.engine.times("/metrics") == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert len(watch.samples()) == 6


def test_slow_scrapes_are_rarer() -> None:
    """The interval is at least twenty times the last scrape, so that scrapes take at most 5 % of the engine's time."""
    watch = Watch()
    watch.engine.delays_s["/metrics"] = 0.05
    watch.run(3.5)
    assert watch.engine.times("/metrics") == [0.0, 1.0, 2.0, 3.0]


def test_the_multiple_is_bounded() -> None:
    """One very slow scrape does not put the next off beyond the age at which a sample is still believed."""
    watch = Watch()
    watch.engine.delays_s["/metrics"] = 0.4
    watch.run(9)
    assert watch.engine.times("/metrics") == [0.0, 4.0, 8.0]


def test_one_scrape_in_flight() -> None:
    """A scrape that takes longer than the interval is never overtaken by another."""
    watch = Watch(rhythm=Rhythm(jitter=0.0, scrape_multiple=0.0))
    watch.run(0.1)
    watch.engine.most_in_flight = 0
    watch.engine.delays_s["/metrics"] = 1.0
    watch.run(10)
    assert watch.engine.most_in_flight <= 2  # the two questions of the first look
    gaps = [late - early for early, late in pairwise(watch.engine.times("/metrics"))]
    assert min(gaps[2:]) >= 1.0


def test_jitter_lengthens_only() -> None:
    """Intervals are spread upwards, by no more than the jitter, and alike under one seed."""

    def gaps(seed: int) -> list[float]:
        watch = Watch(rhythm=Rhythm(jitter=0.1), seed=seed)
        watch.run(5)
        times = watch.engine.times("/metrics")
        return [round(late - early, 6) for early, late in pairwise(times)]

    assert all(0.2 <= gap <= 0.22 for gap in gaps(1))
    assert len(set(gaps(1))) > 10
    assert gaps(1) == gaps(1) != gaps(2)


def test_quiet_engine_is_sampled_once_a_second() -> None:
    """While books and samples agree the interval doubles up to a second."""
    watch = Watch()
    watch.is_quiet = True
    watch.run(4)
    assert watch.engine.times("/metrics") == [0.0, 0.4, 1.2, 2.2, 3.2]


def test_quiet_ends_at_the_next_sample() -> None:
    """Once books and samples disagree the interval is the configured one again."""
    watch = Watch()
    watch.is_quiet = True
    watch.run(3, (1.5, lambda: setattr(watch, "is_quiet", False)))
    assert watch.engine.times("/metrics") == [0.0, 0.4, 1.2, 2.2, 2.4, 2.6, 2.8]


def test_hurry_cuts_a_long_interval_short() -> None:
    """Told to hurry, the poller does not sit out an interval that had grown; one hurry is as good as ten."""
    watch = Watch()
    watch.is_quiet = True

    def hurry() -> None:
        watch.is_quiet = False
        for _ in range(10):
            watch.poller.hurry()

    watch.run(1.75, (1.5, hurry))
    assert watch.engine.times("/metrics") == [0.0, 0.4, 1.2, 1.5, 1.7]


def test_hurry_keeps_the_floor() -> None:
    """Hurrying does not sample more often than the last scrape allows, nor than the configured interval."""
    watch = Watch()
    watch.is_quiet = True
    watch.engine.delays_s["/metrics"] = 0.04
    watch.run(2.5, (1.65, watch.poller.hurry), (2.41, watch.poller.hurry))
    assert watch.engine.times("/metrics") == [0.0, 0.8, 1.6, 2.4]


def test_hurry_when_not_resting_is_harmless() -> None:
    """Hurrying a poller that is in the middle of a scrape, or not running, does nothing."""
    watch = Watch()
    watch.poller.hurry()
    watch.run(0.5, (0.002, watch.poller.hurry))
    assert len(watch.samples()) == 3


def test_f062_hanging_metrics() -> None:
    """F062: an engine whose metrics hang is described, its samples are missed, and it is read when it recovers."""
    watch = Watch()
    watch.engine.delays_s["/metrics"] = HANGS
    watch.run(12, (8.0, watch.engine.delays_s.clear))
    assert watch.described()[0] == (0.505, EngineKind.VLLM)
    assert {unreachable for _, unreachable in watch.missed()} == {False}
    assert watch.missed()[0][0] == pytest.approx(2.505)
    assert watch.samples()[0] < 11.0
    info = watch.poller.info
    assert info is not None
    assert info.reports_load
    assert info.kv_tokens == 2048 - 32


def test_f062_failing_metrics() -> None:
    """F062: an engine whose metrics answer 500 is described, and recovers without a restart, capacity included."""
    watch = Watch()
    page = watch.engine.answers["/metrics"]
    watch.engine.answers["/metrics"] = answer(b"Internal Server Error", 500)
    watch.run(8, (3.0, lambda: watch.engine.answers.update({"/metrics": page})))
    assert watch.missed()[:2] == [(0.005, False), (0.505, False)]
    assert watch.samples()[0] == pytest.approx(3.005)
    assert watch.poller.info is not None
    assert watch.poller.info.kv_tokens == 2048 - 32
    assert [kind for _, kind in watch.described()] == [EngineKind.VLLM, EngineKind.VLLM]


def test_hung_engine_is_missed_and_polled_on() -> None:
    """An engine that stops answering in mid-life gives missed samples, not an outage, and is described only once."""
    watch = Watch()
    watch.run(
        10,
        (1.1, lambda: watch.engine.delays_s.update({"/metrics": HANGS, "/v1/models": HANGS})),
        (6.0, watch.engine.delays_s.clear),
    )
    assert watch.missed() == [(3.2, False), (6.2, False)]
    assert watch.samples()[-1] > 9.0
    assert len(watch.described()) == 1


def test_outage_is_told_and_the_engine_found_anew() -> None:
    """A dead engine is unreachable at each try, and what comes back is described before it is sampled."""
    watch = Watch()

    def return_as_another() -> None:
        watch.engine.down = None
        watch.engine.answers["/v1/models"] = answer(vllm_models("other"))

    watch.run(4, (1.1, lambda: setattr(watch.engine, "down", REFUSED)), (2.3, return_as_another))
    assert watch.missed() == [(1.205, True), (1.705, True), (2.205, True)]
    after = [event for at_s, event in watch.events if at_s > 2.3]
    assert isinstance(after[0], Described)
    assert after[0].info.models == ("other",)
    assert isinstance(after[1], Sampled)


def test_outage_without_change_is_described_again() -> None:
    """After an outage the engine is described also when it is the same: its process is not."""
    watch = Watch()
    watch.run(
        4,
        (1.1, lambda: setattr(watch.engine, "down", REFUSED)),
        (2.3, lambda: setattr(watch.engine, "down", None)),
    )
    assert len(watch.described()) == 2


def test_missing_from_the_start() -> None:
    """An engine that is not there yet is unreachable until it comes, and then found."""
    watch = Watch()
    watch.engine.down = REFUSED
    watch.run(3, (2.2, lambda: setattr(watch.engine, "down", None)))
    assert len(watch.missed()) == 5
    assert [Described, Sampled] == watch.kinds()[5:7]


def test_fallen_counter_is_a_restart() -> None:
    """A counter that falls means another process: it is described before its first sample."""
    watch = Watch()
    fresh = answer(vllm_page(output_tokens=(3.0,), started=""))
    watch.engine.answers["/metrics"] = answer(vllm_page(started=""))
    watch.run(2, (1.1, lambda: watch.engine.answers.update({"/metrics": fresh})))
    kinds = watch.kinds()
    assert kinds.count(Described) == 2
    again = len(kinds) - 1 - kinds[::-1].index(Described)
    event = watch.events[again + 1][1]
    assert isinstance(event, Sampled)
    assert event.sample.output_tokens_total == 3
    assert SampleMissed not in kinds


def test_new_process_mark_is_a_restart() -> None:
    """An idle engine that restarts has no counter that could fall; its start time gives it away."""
    watch = Watch()
    restarted = answer(vllm_page(started="1.8e9"))
    watch.run(2, (1.1, lambda: watch.engine.answers.update({"/metrics": restarted})))
    assert len(watch.described()) == 2


def test_growing_counters_are_no_restart() -> None:
    """Counters that grow, vanish and come back are those of one process."""
    watch = Watch()
    pages = [vllm_page(steps=(value,), started="") for value in (10, "", 11, "NaN", 12)]
    watch.engine.answers["/metrics"] = answer(pages[0])
    watch.run(
        2,
        *(
            (0.3 * (number + 1), lambda page=page: watch.engine.answers.update({"/metrics": answer(page)}))
            for number, page in enumerate(pages)
        ),
    )
    assert len(watch.described()) == 1


def test_another_engine_on_the_same_port() -> None:
    """When the page that was sampled is gone, what listens there is found out anew, with an outage or without."""
    watch = Watch()

    def change() -> None:
        watch.engine.answers.clear()
        watch.engine.answers["/v1/models"] = answer(b'{"data":[{"id":"m"}]}')

    watch.run(3, (1.1, change))
    assert [kind for _, kind in watch.described()] == [EngineKind.VLLM, EngineKind.OPENAI]
    assert watch.missed() == [(1.205, False)]


def test_models_are_looked_at_again() -> None:
    """A model that appears while the engine runs is told within half a minute, and only once."""
    watch = Watch()
    more = answer(vllm_models("tiny", "adapter"))
    watch.run(70, (1.0, lambda: watch.engine.answers.update({"/v1/models": more})))
    assert [event.info.models for _, event in watch.events if isinstance(event, Described)] == [
        ("tiny",),
        ("tiny", "adapter"),
    ]
    assert watch.described()[1][0] <= 30.3


def test_a_look_with_holes_forgets_nothing() -> None:
    """A later look that gets no answer to one question does not make the engine's models unknown."""
    watch = Watch()
    watch.run(70, (1.0, lambda: watch.engine.delays_s.update({"/v1/models": HANGS})))
    assert len(watch.described()) == 1
    assert watch.missed() == []


def test_openai_is_probed_gently() -> None:
    """A server without metrics is asked for a sign of life every second and a half, not more."""
    watch = Watch()
    watch.engine.answers = {"/v1/models": answer(b'{"data":[{"id":"m"}]}'), "/health": answer()}
    watch.run(6)
    assert watch.engine.times("/health") == [0.01, 1.5, 3.0, 4.5]
    assert len(watch.samples()) == 4


def test_an_unwell_openai_server_says_so() -> None:
    """A server whose health page says 503 is read, and tells that it takes no work."""
    watch = Watch()
    watch.engine.answers = {"/v1/models": answer(b'{"data":[{"id":"m"}]}'), "/health": answer()}
    watch.run(6, (2.0, lambda: watch.engine.answers.update({"/health": answer(b"", 503)})))
    assert [] == watch.missed()
    assert ["", "", "its /health says 503", "its /health says 503"] == watch.unready()


def test_an_engine_that_is_shutting_down_says_so_within_two_seconds() -> None:
    """Its health check is asked beside the samples, whatever their interval; the next sample tells it at once."""
    watch = Watch()
    watch.is_quiet = True
    watch.engine.answers["/health"] = answer()
    watch.run(
        12,
        (3.0, lambda: watch.engine.answers.update({"/health": answer(b"", 503)})),
        (7.0, lambda: watch.engine.answers.update({"/health": answer()})),
    )
    told = [at_s for at_s, event in watch.events if isinstance(event, Sampled) and event.sample.unready]
    assert 3.0 < told[0] < 5.1
    assert 7.0 < told[-1] < 9.1
    assert not watch.unready()[-1]


def test_a_dead_process_takes_its_word_with_it() -> None:
    """What comes back on the port is not held to what the one before it said."""
    watch = Watch()
    watch.engine.answers["/health"] = answer(b"", 503)

    def die() -> None:
        watch.engine.down = REFUSED

    def come_back() -> None:
        watch.engine.down = None
        watch.engine.answers["/health"] = answer()

    watch.run(9, (2.0, die), (4.0, come_back))
    assert watch.unready()[0] or watch.unready()[1]
    assert not any(
        event.sample.unready for at_s, event in watch.events if isinstance(event, Sampled) and at_s > 4.0
    )


def test_a_restart_is_told_as_one() -> None:
    """A fall of the counters is told with the new description; a first description is no restart."""
    watch = Watch()
    changed = answer(vllm_page(output_tokens=(1.0,), started="1.9e9"))
    watch.run(3, (1.0, lambda: watch.engine.answers.update({"/metrics": changed})))
    assert [False, True] == [event.restarted for _, event in watch.events if isinstance(event, Described)]


def test_configured_kind_is_kept() -> None:
    """A configured kind is what the engine is described as."""
    watch = Watch(kind=EngineKind.LLAMACPP)
    watch.engine.answers = {"/metrics": answer(llamacpp_page()), "/slots": answer(llamacpp_slots(64, 64))}
    watch.run(0.5)
    assert [kind for _, kind in watch.described()] == [EngineKind.LLAMACPP]
    assert len(watch.samples()) == 3


def test_f061_endless_page_is_missed() -> None:
    """F061: a page beyond the limit is a missed sample of a reachable engine, which is described all the same."""
    watch = Watch()
    watch.engine.answers["/metrics"] = answer(b"x" * (ANSWER_BYTES + 1))
    watch.run(1)
    assert watch.described()[0][1] is EngineKind.VLLM
    assert watch.samples() == []
    assert {False} == {unreachable for _, unreachable in watch.missed()}


def test_f061_odd_values_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """F061: values that cannot be used are reported to people when they appear, not with each sample."""
    watch = Watch()
    watch.engine.answers["/metrics"] = answer(vllm_page(kv_usage={"vllm:kv_cache_usage_perc": (45,)}))
    with caplog.at_level(logging.WARNING):
        watch.run(3)
    assert caplog.messages == [
        "engine-1 reports what cannot be used: vllm:kv_cache_usage_perc is 45, and 0 to 1.01 is possible"
    ]


def test_values_that_are_odd_at_times_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """One line a minute at most, however series with odd values come and go."""
    watch = Watch()
    with caplog.at_level(logging.WARNING):
        for number in range(40):
            odd = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")[number % 2]
            watch.engine.answers["/metrics"] = answer(vllm_page(kv_usage={odd: (math.nan,)}))
            watch.run(1)
            watch.engine.answers["/metrics"] = answer(vllm_page())
            watch.run(1)
    assert 1 <= len(caplog.messages) <= 2
    assert "is nan, and 0 to" in caplog.messages[0]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer(b"", 503), "it answers with status 503"),
        (answer(b"x 1\n" * 300_000), "the metrics page has more than 200000 lines"),
        (answer(b"\x1f\x8b\x00secret", content_encoding="gzip"), "its answer is encoded"),
    ],
)
def test_what_is_no_sample_is_logged_with_its_reason(
    said: Answer, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In our words: nothing of what the engine wrote gets into the log."""
    watch = Watch()
    watch.run(1)
    watch.engine.answers["/metrics"] = said
    with caplog.at_level(logging.WARNING):
        watch.run(3)
    (line,) = caplog.messages
    assert line.startswith("engine-1 cannot be read: ")
    assert why in line
    assert "secret" not in line
    assert len(line) < 200


def test_what_was_found_is_logged_in_words(caplog: pytest.LogCaptureFixture) -> None:
    """One line says what the engine is, and a model's name cannot forge another."""
    watch = Watch()
    watch.engine.answers["/v1/models"] = answer(vllm_models("tiny\nforged"))
    with caplog.at_level(logging.INFO):
        watch.run(1)
    (line,) = caplog.messages
    assert line.startswith("engine-1 is vllm, models 'tiny\\nforged', context ")
    assert "KV cache " in line


def test_trouble_is_logged_once_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged when it begins and when it ends, however many tries lie between."""
    watch = Watch()
    with caplog.at_level(logging.INFO):
        watch.run(
            5,
            (1.0, lambda: setattr(watch.engine, "down", REFUSED)),
            (4.0, lambda: setattr(watch.engine, "down", None)),
        )
    about = [message for message in caplog.messages if " is vllm" not in message]
    assert about == ["engine-1 cannot be read: connection refused", "engine-1 can be read again"]
    assert watch.poller.trouble == ""


def test_a_failing_consumer_does_not_end_polling(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever one turn raises, the poller goes on, and says so."""
    watch = Watch()
    took = watch._took
    fail = True

    def feed(event: Event) -> None:
        if fail:
            raise ZeroDivisionError
        took(event)

    def mend() -> None:
        nonlocal fail
        fail = False

    watch.poller._feed = feed
    watch.run(5, (2.5, mend))
    assert watch.samples()
    assert "it goes on" in caplog.text


def test_stop_gives_up_the_scrape() -> None:
    """Stopping in mid-scrape ends the scrape, feeds nothing more, and may be done twice."""
    watch = Watch()
    watch.engine.delays_s = dict.fromkeys(("/metrics", "/v1/models"), HANGS)
    watch.run(0.3)
    assert (watch.events, watch.engine.in_flight) == ([], 0)

    async def again() -> None:
        await watch.poller.stop()

    run(again())


def test_what_looks_like_no_engine_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A web server in an engine's place is warned of, once however often it is looked at, and used."""
    caplog.set_level(logging.WARNING)
    watch = Watch()
    watch.engine.answers = {"/": answer(b"<html>")}
    watch.run(100)
    assert len(watch.engine.times("/v1/models")) > 2
    assert ["engine-1 does not look like an inference engine: /v1/models answered 404; check the URL"] == [
        line.getMessage() for line in caplog.records
    ]
    assert watch.samples()
