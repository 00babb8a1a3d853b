from __future__ import annotations

from typing import Any

import pytest

from forebay.admission.model import Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import SpeedLaw
from forebay.admission.steps import LONGEST_WINDOW_S, StepSources
from forebay.admission.tickets import Ticket
from forebay.admission.whole_answers import APART_S, LEAST_TOKENS, LESSONS, RESTS_S, WholeAnswers
from tests.unit.admission.build import LLAMACPP, Site, reading

PRIOR = SpeedLaw(c0_s=8e-3, c1_s=2e-5, c2_s=5e-5, c3_s=0.0, c4_s=0.0, kv_tokens=100_000, max_requests=64)
CHUNK = 1000


class Books:
    """Whole answers of an engine with chunks of `CHUNK` tokens, counted from 0 s."""

    def __init__(self) -> None:
        self.sources = StepSources(PRIOR, CHUNK)
        self.whole = WholeAnswers(self.sources, PRIOR)
        self.learner = self.whole.learner
        self.whole.start(0.0)
        self.begun: dict[int, tuple[float, int, int]] = {}

    @property
    def seen(self) -> list[Any]:
        """What was learned from: no more than the learner itself remembers."""
        return list(self.learner._recent)

    def begin(
        self, key: int, now: float, prompt_tokens: int = 100, samples: int = 1, *, teaches: bool = True
    ) -> None:
        """A request is dispatched."""
        self.begun[key] = (now, prompt_tokens, samples)
        self.whole.began(key, now, prompt_tokens, samples, teaches=teaches)

    def end(
        self,
        key: int,
        now: float,
        output_tokens: int = 100,
        *,
        prompt_tokens: int | None = None,
        cached: int = 0,
    ) -> None:
        """Its answer has come."""
        guessed = self.begun[key][1]
        self.whole.ended(
            key,
            now,
            guessed_tokens=guessed,
            prompt_tokens=guessed if prompt_tokens is None else prompt_tokens,
            cached_tokens=cached,
            output_tokens=output_tokens,
        )
        self.leave(key, now)

    def leave(self, key: int, now: float) -> None:
        """It is gone."""
        at_s, prompt_tokens, samples = self.begun.pop(key)
        self.whole.left(key, now, dispatched_s=at_s, prompt_tokens=prompt_tokens, samples=samples)


# One answer


def test_time_over_tokens_is_the_step_time() -> None:
    """An answer of 100 tokens to a short prompt is 100 steps, the first of them with its prefill in it; alone it
    holds its prompt and half of its answer.
    """
    books = Books()
    books.begin(1, 0.0)
    books.end(1, 1.0)
    (seen,) = books.seen
    assert (100, 1.0, 50.0) == (books.learner.steps, seen.prefill_tokens, seen.attention)
    assert pytest.approx([10e-3, 0.01, 0.99, 150.0], rel=0.01) == [
        seen.step_s,
        seen.share,
        seen.sequences,
        seen.kv_tokens,
    ]


def test_a_long_prompt_takes_steps_of_its_own() -> None:
    """A prompt of three chunks takes three steps, of which the last gives the first token."""
    books = Books()
    books.begin(1, 0.0, prompt_tokens=2500)
    books.end(1, 1.02)
    (seen,) = books.seen
    assert pytest.approx([10e-3, 2500 / 102]) == [seen.step_s, seen.prefill_tokens]


def test_what_was_cached_is_no_prefill() -> None:
    """Of a prompt that was cached in part only the rest is prefill, with the attention that the rest takes."""
    books = Books()
    books.begin(1, 0.0, prompt_tokens=500)
    books.end(1, 1.0, cached=400)
    (seen,) = books.seen
    assert pytest.approx([1.0, 450.0]) == [seen.prefill_tokens, seen.attention]


@pytest.mark.parametrize(("tokens", "learned"), [(LEAST_TOKENS - 1, 0), (LEAST_TOKENS, 1)])
def test_an_answer_of_a_few_tokens_says_nothing(tokens: int, learned: int) -> None:
    """Below the least number of tokens an answer is not learned from."""
    books = Books()
    books.begin(1, 0.0)
    books.end(1, 1.0, tokens)
    assert learned == len(books.seen)


def test_an_answer_in_no_time_says_nothing() -> None:
    """An answer that came at the moment of its dispatch is left out."""
    books = Books()
    books.begin(1, 1.0)
    books.end(1, 1.0)
    assert not books.seen


def test_tokens_of_one_step_are_one_step() -> None:
    """Where it is known that a step gives each sequence two tokens, half as many steps are counted."""
    books = Books()
    pace = books.sources.pace
    for _ in range(10):
        pace.ended(200, 100)
        pace.paced(10e-3, 10e-3)
    books.begin(1, 0.0)
    books.end(1, 1.01, 201)
    assert pytest.approx(10e-3) == books.seen[0].step_s


# What was beside it


def test_means_of_what_ran_beside_it_are_taken() -> None:
    """One that ran for half of the time counts as half a sequence, less what is no decoding; its prompt is prefill."""
    books = Books()
    books.begin(1, 0.0)
    books.begin(2, 0.5, prompt_tokens=300)
    books.end(1, 1.0)
    (seen,) = books.seen
    # Both had a step of prefill, and the second waited for half a step.
    assert pytest.approx(1.5 - 0.025) == seen.sequences
    assert pytest.approx([4.0, (5000 + 45_000) / 100]) == [seen.prefill_tokens, seen.attention]
    # 100 + 50 tokens of its own; of the other 300 + 25 for half of the time.
    assert pytest.approx(150 + 0.5 * 325) == seen.kv_tokens


def test_who_comes_in_the_middle_of_a_step_waits_for_its_rest() -> None:
    """Beside others an answer of 100 tokens is taken for 100.5 steps."""
    books = Books()
    books.begin(1, 0.0)
    books.begin(2, 1.0)
    books.end(2, 2.005)
    assert pytest.approx(10e-3) == books.seen[0].step_s


def test_several_samples_count_as_sequences_and_teach_nothing() -> None:
    """A request for three answers is three sequences beside others."""
    books = Books()
    books.begin(1, 0.0, samples=3, teaches=False)
    books.begin(2, 0.0)
    books.end(2, 1.005)
    (seen,) = books.seen
    assert pytest.approx(4.0 - 1 / 100.5) == seen.sequences
    books.end(1, 2.0)
    assert 1 == len(books.seen)


def test_estimates_of_other_prompts_are_corrected() -> None:
    """When engines said that half of the prompts was cached, that is believed of those beside the next, too."""
    books = Books()
    books.begin(1, 0.0, prompt_tokens=200)
    books.end(1, 1.0, cached=100)
    books.begin(2, 1.0, prompt_tokens=100)
    books.begin(3, 1.5, prompt_tokens=400, teaches=False)
    books.end(2, 2.0, cached=50)
    assert pytest.approx((50 + 200) / 100) == books.seen[1].prefill_tokens


def test_an_answer_without_tokens_of_a_prompt_is_harmless() -> None:
    """A prompt of no tokens, and estimates of none, divide nothing by 0."""
    books = Books()
    books.begin(1, 0.0, prompt_tokens=0)
    books.begin(2, 0.0, prompt_tokens=0)
    books.end(1, 1.0)
    books.end(2, 2.0)
    assert [0.0, 0.0] == [seen.prefill_tokens for seen in books.seen]


def test_an_endpoint_that_empties_starts_from_nothing() -> None:
    """What is rounded does not add up: with the last gone the books are at 0."""
    books = Books()
    for key in range(1, 4):
        books.begin(key, 0.1 * key)
    for key in range(1, 4):
        books.leave(key, 1.0 / key)
    assert 0.0 == books.whole.sequences
    books.begin(5, 5.0)
    books.end(5, 6.0)
    assert pytest.approx(150.0) == books.seen[0].kv_tokens


# How often


def test_answers_that_end_together_are_learned_from_once() -> None:
    """Of those that end within a tenth of a second one is taken; the next counts for the steps since."""
    books = Books()
    for key in range(1, 4):
        books.begin(key, 0.0)
    books.end(1, 1.0)
    books.end(2, 1.0 + 0.5 * APART_S)
    books.end(3, 1.0 + 2.5 * APART_S, 125)
    assert (2, 100 + 25) == (len(books.seen), books.learner.steps)


# What may have queued


def test_after_many_prompts_a_newcomer_counts_as_queued() -> None:
    """Behind more than two chunks of prompts, by the speed that was learned, a request waits and does not teach."""
    books = Books()
    books.begin(1, 0.0)
    books.end(1, 1.0)
    for key in range(2, 8):
        books.begin(key, 2.0, prompt_tokens=900)
    for key in range(2, 8):
        books.end(key, 4.0 + key)
    assert 1 + 3 == len(books.seen)


@pytest.mark.parametrize(("after_s", "learned"), [(LONGEST_WINDOW_S + 0.9, 1), (LONGEST_WINDOW_S + 1.1, 2)])
def test_a_queue_that_never_ends_is_not_believed(after_s: float, learned: int) -> None:
    """If every newcomer would be left out for long, the engine is faster than it was taken to be, and they teach."""
    books = Books()
    books.begin(1, 0.0)
    books.end(1, 1.0)
    prompt_tokens = int(3.0 / books.learner.law().c1_s)
    for number in range(5):
        books.begin(100 + number, 2.0 + number, prompt_tokens, teaches=False)
    books.begin(2, 2.0 + after_s)
    books.end(2, 3.0 + after_s)
    assert learned == len(books.seen)


@pytest.mark.parametrize(
    ("waiting", "at_s", "learned"),
    [(1, 3.01, 3), (2, 3.01, 1), (1, 3.03, 1), (1, 2.99, 1), (1, 1.5, 1)],
    ids=["just came", "more than just came", "waits for steps", "before the reading", "all since"],
)
def test_a_reading_with_a_queue_gives_up_what_is_in_flight(waiting: int, at_s: float, learned: int) -> None:
    """What waits inside the engine are the latest; who came within two steps has only just come."""
    books = Books()
    books.begin(9, 0.0)
    books.end(9, 1.0)
    books.begin(1, 2.0)
    books.begin(2, 3.0)
    books.whole.queue_seen(waiting, at_s)
    books.end(1, 4.0)
    books.end(2, 5.0)
    assert learned == len(books.seen)


# When it is silent


def test_it_stops_when_another_source_teaches() -> None:
    """An answer that ends while counters or streams teach is not learned from, nor any that ran beside it."""
    books = Books()
    books.begin(1, 0.0)
    books.begin(2, 0.0)
    books.sources.taught_until_s = 1.5
    books.end(1, 1.0)
    assert not books.whole.counts
    books.end(2, 2.0)
    assert not books.seen


# At an endpoint


def finish(site: Site, ticket: Ticket, now: float, usage: Usage | None, **leaving: Any) -> None:
    """A whole answer has come."""
    site.life.finish(ticket, Outcome.COMPLETED, usage, now, engine_goes_on=False, **leaving)


def steps_of(site: Site) -> int:
    """Steps that were learned from."""
    return site.endpoint().whole_answers.learner.steps


def is_counted(site: Site) -> bool:
    """True if what runs is counted."""
    return site.endpoint().whole_answers.counts


USAGE = Usage(100, 99)


def test_whole_answers_of_an_endpoint_teach() -> None:
    """A request that is not streamed teaches the endpoint where it ran, with nothing else known of the engine."""
    site = Site()
    finish(site, site.running(1, "a", 1.0, stream=False), 2.0, USAGE)
    assert 99 == steps_of(site)
    assert pytest.approx(1 / 99, rel=0.02) == site.endpoint().whole_answers.learner.step_s(
        prefill_tokens=0.0, sequences=1.0, kv_tokens=150.0, attention=0.0
    )


def test_without_usage_nothing_is_learned() -> None:
    """The expected number of tokens is no observation."""
    site = Site()
    finish(site, site.running(1, "a", 1.0, stream=False), 2.0, None)
    assert 0 == steps_of(site)


@pytest.mark.parametrize(("changes", "steps"), [({"stream": True}, 0), ({"samples": 2}, 0), ({}, 99)])
def test_streams_and_several_samples_are_left_out(changes: dict[str, Any], steps: int) -> None:
    """A stream has other sources, and of several samples it is not known when each ended."""
    site = Site()
    finish(site, site.running(1, "a", 1.0, **{"stream": False, **changes}), 2.0, USAGE)
    assert steps == steps_of(site)


@pytest.mark.parametrize(("first_s", "steps"), [(1.9, 0), (1.96, 99)])
def test_a_body_that_takes_long_to_come_is_left_out(first_s: float, steps: int) -> None:
    """When its first byte came long before its last, nobody knows when the engine was done."""
    site = Site()
    ticket = site.running(1, "a", 1.0, stream=False)
    site.life.first_token(ticket, first_s)
    finish(site, ticket, 2.0, USAGE)
    assert steps == steps_of(site)


def test_it_counts_nothing_while_streams_teach() -> None:
    """With streams that teach, whole answers cost nothing; when they fall silent, what runs is counted from there."""
    site = Site()
    endpoint = site.endpoint()
    before = site.running(1, "a", 0.5, stream=False)
    assert is_counted(site)
    endpoint.sources.taught_until_s = 5.0
    beside = site.running(2, "a", 1.0, stream=False)
    assert not is_counted(site)
    finish(site, before, 2.0, USAGE)
    ticket = site.running(3, "a", 6.0, stream=False)
    assert 2.0 == endpoint.whole_answers.sequences
    finish(site, ticket, 7.0, USAGE)
    assert 98 <= steps_of(site) <= 99
    finish(site, beside, 8.0, USAGE)
    assert 0.0 == endpoint.whole_answers.sequences


def test_more_in_flight_than_the_engine_runs_teach_nothing() -> None:
    """A third request at an engine of two slots waits inside it: none of the three is learned from, the next are."""
    site = Site()
    site.describe(max_requests=2)
    tickets = [site.running(number, "a", 1.0, stream=False) for number in (1, 2, 3)]
    for number, ticket in enumerate(tickets):
        finish(site, ticket, 2.0 + number, USAGE)
    assert 0 == steps_of(site)
    tickets = [site.running(number, "a", 5.0, stream=False) for number in (4, 5)]
    for number, ticket in enumerate(tickets):
        finish(site, ticket, 6.0 + number, USAGE)
    assert 99 < steps_of(site)


@pytest.mark.parametrize("sampled", [{"waiting": 1}, {"preemptions_total": 3}])
def test_a_queue_or_a_preemption_in_a_reading_gives_up_what_is_in_flight(sampled: dict[str, Any]) -> None:
    """What waited, or was computed twice, is in no step that is counted."""
    site = Site()
    site.endpoint().take_sample(reading(0.5, preemptions_total=2), 0.5)
    ticket = site.running(1, "a", 1.0, stream=False)
    site.endpoint().take_sample(reading(1.5, **{"preemptions_total": 2, **sampled}), 1.5)
    finish(site, ticket, 2.0, USAGE)
    assert 0 == steps_of(site)


@pytest.mark.parametrize("aborts", [True, False])
def test_what_an_engine_goes_on_with_spoils_what_runs_beside_it(aborts: bool) -> None:
    """An engine that does not stop when a client leaves is at work on more than is counted."""
    site = Site()
    site.describe(aborts_unstreamed=aborts, linger_s=LLAMACPP.linger_s)
    ticket, left = (site.running(number, "a", 1.0, stream=False) for number in (1, 2))
    site.life.finish(left, Outcome.CLIENT_GONE, None, 1.1, engine_goes_on=True)
    later = site.running(3, "a", 1.2, stream=False)
    finish(site, ticket, 2.0, USAGE)
    finish(site, later, 2.2, USAGE)
    assert aborts is bool(steps_of(site))


def test_an_engine_that_is_known_is_counted_only_now_and_then() -> None:
    """Counting is work for each request: once the law is trusted it rests, and then looks again."""
    site = Site()
    whole, now = site.endpoint().whole_answers, 0.0
    for number in range(1, LESSONS + 1):
        now += 1.0
        assert is_counted(site) == (number > 1)
        finish(site, site.running(number, "a", now, stream=False), now + 0.99, USAGE)
    assert whole.learner.is_trusted
    assert not is_counted(site)
    finish(site, site.running(1000, "a", now + 2.0, stream=False), now + 3.0, USAGE)
    assert not is_counted(site)
    site.running(1001, "a", now + 2.0 + RESTS_S, stream=False)
    assert is_counted(site)
