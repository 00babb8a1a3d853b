from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.deadlines import file_waiter
from forebay.admission.effects import Abort, Dispatch, Evict, Hold, Refuse, Settle
from forebay.admission.endpoints import Endpoint
from forebay.admission.errors import InvariantError
from forebay.admission.gate import Verdict
from forebay.admission.lengths import OutputLengths
from forebay.admission.model import Check, Usage
from forebay.admission.outcomes import Group, Outcome
from forebay.admission.tickets import Phase, Ticket
from forebay.admission.unstreamed import LONGEST_LINGER_S
from tests.unit.admission.build import (
    LAW,
    LLAMACPP,
    VLLM,
    Site,
    pool_settings,
    reading,
    settings_for,
    with_class,
)

OVER = Check("waited", 5.0, 5.0, False)


def reserved_at(site: Site) -> Endpoint | None:
    """The endpoint that is kept free for one request."""
    return site.pool.reserved


def finish(
    site: Site,
    ticket: Ticket,
    now: float,
    outcome: Outcome = Outcome.COMPLETED,
    usage: Usage | None = None,
    *,
    engine_goes_on: bool = False,
) -> None:
    """A dispatched request is over."""
    site.life.finish(ticket, outcome, usage, now, engine_goes_on=engine_goes_on)


def take_back(site: Site, ticket: Ticket, now: float) -> None:
    """Its attempt failed and left nothing at the engine."""
    site.life.take_back(ticket, now, engine_goes_on=False, detail="The engine failed.")


# The moves and their effects


def test_a_held_request_waits() -> None:
    """Hold files the ticket, books it, and says where it stands and what wait is predicted."""
    site = Site()
    ticket = site.ticket(1, 1.0)
    site.life.hold(ticket, Verdict(predicted_wait_s=0.7, position=3), 1.0)
    (effect,) = site.effects()
    assert isinstance(effect, Hold)
    assert (1, "hold", 0.7, 3, 1.0) == (
        effect.ticket,
        effect.record.action,
        effect.record.predicted_wait_s,
        effect.record.position,
        effect.record.at_s,
    )
    assert Phase.WAITING is ticket.phase
    assert [ticket] == list(site.pool.queue)
    assert ticket.waiting
    assert (1, 1000) == (site.pool.books.waiting.requests, site.life.ledger.waiting_bytes)


def test_a_dispatched_request_runs() -> None:
    """Dispatch takes the ticket out of the queue, books it at the endpoint and ends its queue time."""
    site = Site()
    ticket = site.queued(1, 1.0)
    site.effects()
    site.life.dispatch(ticket, site.endpoint(), 3.5)
    (effect,) = site.effects()
    assert isinstance(effect, Dispatch)
    assert (1, "a", 1, 2.5, "room") == (
        effect.ticket,
        effect.endpoint,
        effect.attempt,
        effect.record.waited_s,
        effect.record.decided_by,
    )
    assert (Phase.RUNNING, 3.5) == (ticket.phase, ticket.dispatched_s)
    assert 0 == site.pool.books.waiting.requests == site.life.ledger.waiting_bytes
    assert 1 == site.endpoint().books.requests
    assert {1: ticket} == site.endpoint().running


def test_a_refused_request_never_waits() -> None:
    """Refuse settles at once and books nothing."""
    site = Site()
    verdict = Verdict()
    verdict.check("class_queue_requests", 3, 2, Outcome.QUEUE_FULL, "why")
    site.life.refuse(site.ticket(1, 1.0), verdict, Outcome.QUEUE_FULL, 1.0)
    refuse, settle = site.effects()
    assert isinstance(refuse, Refuse)
    assert isinstance(settle, Settle)
    assert (Outcome.QUEUE_FULL, "class_queue_requests", "why", "refuse") == (
        refuse.refusal.outcome,
        refuse.refusal.record.decided_by,
        refuse.refusal.record.detail,
        refuse.refusal.record.action,
    )
    assert (Outcome.QUEUE_FULL, None, None, 0, 0.0, 0.0) == (
        settle.settlement.outcome,
        settle.settlement.endpoint,
        settle.settlement.ttft_s,
        settle.settlement.attempts,
        settle.settlement.charged_gpu_s,
        settle.settlement.duration_s,
    )
    assert {} == site.life.tickets


def test_an_evicted_request_leaves_nothing_behind() -> None:
    """Evict takes a waiter off the books and settles it with the time it waited."""
    site = Site()
    ticket = site.queued(1, 1.0, predicted_wait_s=2.0)
    site.effects()
    site.life.evict(ticket, Outcome.QUEUE_TIMEOUT, 6.0, OVER, "why")
    evict, settle = site.effects()
    assert isinstance(evict, Evict)
    assert isinstance(settle, Settle)
    assert ("evict", "waited", (OVER,), Outcome.QUEUE_TIMEOUT) == (
        evict.refusal.record.action,
        evict.refusal.record.decided_by,
        evict.refusal.record.checks,
        evict.refusal.record.outcome,
    )
    assert (5.0, 5.0, 2.0) == (
        settle.settlement.waited_s,
        settle.settlement.duration_s,
        settle.settlement.predicted_wait_s,
    )
    assert (0, 0) == (site.pool.books.waiting.requests, len(site.pool.queue))


def test_a_waiter_whose_client_left_is_told_nothing() -> None:
    """Drop settles as client_gone and answers nobody."""
    site = Site()
    ticket = site.queued(1, 1.0)
    site.effects()
    site.life.drop(ticket, 2.0)
    assert Outcome.CLIENT_GONE is site.settlement().outcome
    assert 0 == site.life.ledger.waiting_bytes


def test_a_failed_attempt_waits_again_before_the_others() -> None:
    """Taken back, a request is before all of its tenant, off the endpoint's books, and keeps the time it has waited."""
    site = Site()
    ticket = site.queued(1, 0.0, max_output_tokens=500)
    site.queued(2, 0.0)
    assert 2 == getattr(site.pool.queue.first(), "sequence", None)
    site.life.dispatch(ticket, site.endpoint(), 1.0)
    site.effects()
    take_back(site, ticket, 3.0)
    (effect,) = site.effects()
    assert isinstance(effect, Hold)
    assert ("attempt_failed", "The engine failed.") == (effect.record.decided_by, effect.record.detail)
    assert ticket is site.pool.queue.first()
    assert 0 == site.endpoint().books.requests == site.endpoint().pending_prefill_us
    site.life.dispatch(ticket, site.endpoint(), 3.5)
    (again,) = site.effects()
    assert isinstance(again, Dispatch)
    assert (2, 1.5) == (again.attempt, again.record.waited_s)


def test_an_abort_says_when_to_return_only_where_that_helps() -> None:
    """An engine that could not be reached may be back soon; one that failed in the middle promises nothing."""
    for outcome, promised in [(Outcome.NO_ENDPOINTS, True), (Outcome.UPSTREAM_FAILED, False)]:
        site = Site()
        ticket = site.running(1)
        site.effects()
        check = Check("silence", 60.0, 60.0, False)
        site.life.give_up(ticket, outcome, 1.0, check, "why", engine_goes_on=False)
        abort, settle = site.effects()
        assert isinstance(abort, Abort)
        assert isinstance(settle, Settle)
        assert (outcome, "why", promised) == (abort.outcome, abort.detail, abort.retry_after_s is not None)
        assert outcome is settle.settlement.outcome
        record = abort.record
        assert record is not None
        assert ("abort", outcome, "silence", (check,), "why", "a") == (
            record.action, record.outcome, record.decided_by, record.checks, record.detail, record.endpoint
        )  # fmt: skip


def ended(site: Site) -> Ticket:
    """A ticket that ran and is over."""
    ticket = site.running(1)
    finish(site, ticket, 1.0)
    return ticket


def waiting(site: Site) -> Ticket:
    """A ticket that waits."""
    return site.queued(1)


def running(site: Site) -> Ticket:
    """A ticket that runs."""
    return site.running(1)


def hold(site: Site, ticket: Ticket) -> None:
    """Let it wait."""
    site.life.hold(ticket, Verdict(), 2.0)


def refuse(site: Site, ticket: Ticket) -> None:
    """Turn it away at arrival."""
    site.life.refuse(ticket, Verdict(), Outcome.QUEUE_FULL, 2.0)


def evict(site: Site, ticket: Ticket) -> None:
    """Turn it away while it waits."""
    site.life.evict(ticket, Outcome.QUEUE_TIMEOUT, 2.0, OVER, "")


def drop(site: Site, ticket: Ticket) -> None:
    """Its client left while it waited."""
    site.life.drop(ticket, 2.0)


def end(site: Site, ticket: Ticket) -> None:
    """It is over."""
    finish(site, ticket, 2.0)


def fail(site: Site, ticket: Ticket) -> None:
    """Its attempt failed."""
    take_back(site, ticket, 2.0)


ILLEGAL = [
    (start, move)
    for start, moves in [
        (waiting, [hold, refuse, end, fail]),
        (running, [hold, refuse, evict, drop]),
        (ended, [hold, refuse, evict, drop, end, fail]),
    ]
    for move in moves
]


@pytest.mark.parametrize(("start", "move"), ILLEGAL, ids=lambda value: value.__name__)
def test_a_ticket_cannot_make_an_illegal_move(
    start: Callable[[Site], Ticket], move: Callable[[Site, Ticket], None]
) -> None:
    """A second ending, or an ending of what never began, is our bug: it is caught, and settles nothing."""
    site = Site()
    ticket = start(site)
    site.effects()
    with pytest.raises((InvariantError, KeyError)):
        move(site, ticket)
    assert [] == [effect for effect in site.effects() if isinstance(effect, Settle)]


def test_a_finished_request_that_never_ran_is_our_bug() -> None:
    """Finishing needs an endpoint."""
    site = Site()
    with pytest.raises(InvariantError):
        finish(site, site.ticket(1), 1.0)


# First tokens and progress


def test_a_first_token_ends_the_prefill() -> None:
    """It frees the prefill window, credits the prefill and is a sign of life; a second one changes nothing."""
    site = Site()
    ticket = site.running(1, prompt_tokens=3000)
    assert 300_000 == site.endpoint().pending_prefill_us
    site.life.first_token(ticket, 0.4)
    site.life.first_token(ticket, 0.9)
    assert (0, 300_000, 0.4, 0.4) == (
        site.endpoint().pending_prefill_us,
        ticket.credited_us,
        ticket.first_token_s,
        site.endpoint().last_life_s,
    )


def test_first_tokens_teach_the_concurrency_limit() -> None:
    """Eight streams whose first tokens come in time double the limit; the byte of an unstreamed answer is its last."""
    site = Site()
    tickets = [site.running(number) for number in range(8)]
    unstreamed = [site.running(number, stream=False) for number in range(8, 16)]
    for ticket in unstreamed:
        site.life.first_token(ticket, 0.1)
    assert 8 == site.endpoint().limit.limit
    for ticket in tickets:
        site.life.first_token(ticket, 0.1)
    assert 16 == site.endpoint().limit.limit


@pytest.mark.parametrize(("took_s", "limit"), [(13.3, 16), (13.5, 6)])
def test_unstreamed_answers_teach_it_when_they_end(took_s: float, limit: int) -> None:
    """Theirs is reckoned: 1.5 s and 99 tokens of 120 ms, as the class asks for, are in time, and more is late."""
    site = Site()
    tickets = [site.running(number, stream=False) for number in range(8)]
    for ticket in tickets:
        finish(site, ticket, took_s, usage=Usage(prompt_tokens=100, output_tokens=99))
    assert limit == site.endpoint().limit.limit


@pytest.mark.parametrize(("at_s", "limit"), [(99.0, 16), (0.0, 6)], ids=["fresh", "stale"])
def test_an_engine_that_tells_its_queue_needs_no_reckoning(at_s: float, limit: int) -> None:
    """Nobody waits inside it, it says: slow answers are slow steps. But what it said long ago says nothing."""
    site = Site()
    site.describe("a", reports_load=True)
    tickets = [site.running(number, stream=False) for number in range(8)]
    site.endpoint().take_sample(reading(at_s, running=8, waiting=0), at_s)
    for ticket in tickets:
        finish(site, ticket, 100.0, usage=Usage(prompt_tokens=100, output_tokens=99))
    assert limit == site.endpoint().limit.limit


def test_progress_credits_work_as_it_is_done() -> None:
    """A third of the expected tokens is the prefill and a third of the decode, and never more than the estimate."""
    site = Site()
    ticket = site.running(1)
    site.life.progress(ticket, 33, 1.0)
    assert 10_000 + 330_000 == ticket.credited_us
    site.life.progress(ticket, 500, 2.0)
    assert 1_000_000 == ticket.credited_us
    assert (533, 2.0, 1.0) == (ticket.output_events, ticket.last_byte_s, ticket.first_token_s)


# Settlements


def test_a_settlement_tells_the_whole_story() -> None:
    """Times run from arrival, work is in GPU-seconds, and the truth is the engine's own count."""
    site = Site(pool_settings(gpus=2))
    ticket = site.queued(1, 10.0, predicted_wait_s=1.5, tenant="acme")
    site.life.dispatch(ticket, site.endpoint(), 12.0)
    site.life.first_token(ticket, 12.5)
    site.effects()
    finish(site, ticket, 14.0, usage=Usage(prompt_tokens=200, output_tokens=49))
    settlement = site.settlement()
    assert ("llama", "standard", "acme", Outcome.COMPLETED, "a") == (
        settlement.pool,
        settlement.class_name,
        settlement.tenant,
        settlement.outcome,
        settlement.endpoint,
    )
    assert (2.0, 1.5, 2.5, 4.0, 1) == (
        settlement.waited_s,
        settlement.predicted_wait_s,
        settlement.ttft_s,
        settlement.duration_s,
        settlement.attempts,
    )
    assert pytest.approx(2 * (0.02 + 0.49)) == settlement.charged_gpu_s
    assert (2.0, 200, 49) == (
        settlement.estimated_gpu_s,
        settlement.prompt_tokens,
        settlement.output_tokens,
    )


def test_where_an_engine_does_not_say_what_was_cached_it_was_as_expected() -> None:
    """Usage without details is no evidence that nothing was: 60 of 100 were expected to be, and are not paid for."""
    site = Site()
    for _ in range(5):
        site.pool.pricing.prefixes.observe(7, 100, 60)
    ticket = site.running(1, prefix_hash=7, max_output_tokens=1)
    site.life.first_token(ticket, 0.5)
    site.effects()
    finish(site, ticket, 1.0, usage=Usage(prompt_tokens=100, output_tokens=0))
    assert pytest.approx(0.004) == site.settlement().charged_gpu_s
    assert 60 == site.pool.pricing.prefixes.expect(7, 100)


def test_cached_prompt_tokens_are_not_charged() -> None:
    """Of 1000 prompt tokens 900 from the prefix cache, 100 are paid for; more cached than prompt pays nothing back."""
    for cached, charged in [(900, 0.01), (5000, 0.0)]:
        site = Site()
        ticket = site.running(1, prompt_tokens=1000)
        site.effects()
        finish(site, ticket, 1.0, usage=Usage(prompt_tokens=1000, output_tokens=0, cached_tokens=cached))
        assert pytest.approx(charged) == site.settlement().charged_gpu_s


def test_events_stand_in_for_usage() -> None:
    """Without usage the relayed events are the output and the estimate is the prompt."""
    site = Site()
    ticket = site.running(1)
    site.life.progress(ticket, 20, 1.0)
    site.effects()
    finish(site, ticket, 2.0, Outcome.SLOW_READER)
    settlement = site.settlement()
    assert pytest.approx(0.21) == settlement.charged_gpu_s
    assert (100, 20) == (settlement.prompt_tokens, settlement.output_tokens)


def test_an_answer_of_unknown_length_is_settled_at_its_estimate() -> None:
    """An answer without usage and events is no evidence of an empty one, neither for its cost nor for the speed."""
    site = Site()
    meter = site.endpoint().meter
    meter.observe(0.0, saturated=True)
    for number in range(4):
        finish(site, site.running(number, stream=False), 1.0)
    meter.observe(4.0, saturated=True)
    charged = [e.settlement.charged_gpu_s for e in site.effects() if isinstance(e, Settle)]
    assert [1.0] * 4 == charged
    assert pytest.approx(1.0) == meter.speed


def test_what_an_engine_rejects_is_no_service() -> None:
    """It is not charged or learned from, raises no speed, and no goodput; a good answer ends the row of them."""
    site = Site()
    endpoint = site.endpoint()
    for number in range(1, 9):
        ticket = site.running(number, now=1.0)
        if number == 8:
            site.life.first_token(ticket, 1.1)  # a long body came in pieces
        site.effects()
        finish(site, ticket, 1.2, Outcome.ENGINE_REJECTED)
        settlement = site.settlement()
        assert (0.0, False, 0) == (
            settlement.charged_gpu_s,
            settlement.met_objective,
            settlement.output_tokens,
        )
    assert (8, True, 0, 0) == (
        endpoint.rejections_in_row, endpoint.only_rejects, endpoint.pending, site.pool.learning.view().finished,
    )  # fmt: skip
    assert (0, 0) == (endpoint.meter._work_us, endpoint.meter._ended)
    finish(site, site.running(9, now=2.0), 2.5)
    assert not endpoint.only_rejects


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.group is Group.FAILED])
def test_what_never_gave_a_token_is_not_charged(outcome: Outcome) -> None:
    """A request that failed before its first token costs its owner nothing."""
    site = Site()
    ticket = site.running(1)
    site.effects()
    finish(site, ticket, 2.0, outcome)
    settlement = site.settlement()
    assert (0.0, None, "a") == (settlement.charged_gpu_s, settlement.ttft_s, settlement.endpoint)


@pytest.mark.parametrize(
    ("stream", "left_s", "charged_s"), [(True, 2.0, 0.01), (True, 0.004, 0.004), (False, 0.51, 0.51)]
)
def test_who_leaves_before_the_first_token_is_charged_for_what_was_done(
    stream: bool, left_s: float, charged_s: float
) -> None:
    """The prompt, as far as there was time for it, and of an answer that is not streamed what was made by then."""
    site = Site()
    ticket = site.running(1, stream=stream)
    site.effects()
    finish(site, ticket, left_s, Outcome.CLIENT_GONE)
    settlement = site.settlement()
    assert pytest.approx(charged_s, rel=0.02) == settlement.charged_gpu_s
    assert settlement.ttft_s is None


@pytest.mark.parametrize(
    "outcome", [Outcome.COMPLETED, Outcome.UPSTREAM_FAILED, Outcome.CLIENT_GONE], ids=lambda o: o.value
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first_token", [True, False])
@pytest.mark.parametrize("engine_goes_on", [True, False])
def test_no_ending_leaves_anything_at_the_endpoint(
    outcome: Outcome, stream: bool, first_token: bool, engine_goes_on: bool
) -> None:
    """Whether or not a first token was told of, nothing is pending, foreseen or running after an ending."""
    site = Site()
    ticket = site.running(1, stream=stream)
    if first_token:
        site.life.first_token(ticket, 0.5)
    finish(site, ticket, 1.0, outcome, engine_goes_on=engine_goes_on)
    endpoint = site.endpoint()
    assert (0, 0, 0, 1.0) == (
        endpoint.pending,
        endpoint.pending_prefill_us,
        len(endpoint.forecast),
        endpoint.idle_since_s,
    )
    assert ({}, engine_goes_on) == (endpoint.running, bool(endpoint.draining))
    site.life.ledger.verify()


def test_finished_work_is_credited_to_the_endpoint() -> None:
    """The true work of an answer counts for the endpoint's speed once, however it was credited on the way."""
    site = Site()
    meter = site.endpoint().meter
    meter.observe(0.0, saturated=True)
    for number in range(4):
        ticket = site.running(number)
        site.life.progress(ticket, 10, 0.5)
        finish(site, ticket, 1.0, usage=Usage(prompt_tokens=100, output_tokens=24))
    meter.observe(2.0, saturated=True)
    assert pytest.approx(4 * 0.25 / 2.0) == meter.speed


def taught(
    outcome: Outcome, usage: Usage | None, events: int, *, first_token: bool = True, **changes: Any
) -> int:
    """Output tokens that are expected after many answers that ended like this, under a limit of 4000."""
    site = Site()
    site.pool.pricing.lengths = OutputLengths()
    for number in range(120):
        ticket = site.running(number, max_output_tokens=4000, **changes)
        if first_token:
            site.life.first_token(ticket, 0.5)
        ticket.output_events = events
        finish(site, ticket, 1.0, outcome, usage)
        assert outcome is not Outcome.COMPLETED or number + 1 == site.pool.learning.view().finished
    return site.ticket(999, max_output_tokens=4000).cost.output_tokens


UNTAUGHT = 256


def test_whole_answers_teach_lengths() -> None:
    """By the engine's own count, or by the events that were relayed where it does not say."""
    assert pytest.approx(30, rel=0.3) == taught(
        Outcome.COMPLETED, Usage(prompt_tokens=100, output_tokens=30), 7
    )
    assert pytest.approx(30, rel=0.3) == taught(Outcome.COMPLETED, None, 30)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.group in (Group.FAILED, Group.LEFT)])
def test_answers_that_were_cut_off_teach_that_they_are_longer(outcome: Outcome) -> None:
    """Whoever ended them: three tokens are the least of it, and what is expected of an answer gets no shorter."""
    assert taught(outcome, None, 3) >= UNTAUGHT
    assert taught(outcome, None, 300) > 1.5 * UNTAUGHT


@pytest.mark.parametrize("outcome", [Outcome.UPSTREAM_FAILED, Outcome.CLIENT_GONE])
def test_what_has_not_begun_teaches_no_lengths(outcome: Outcome) -> None:
    """Without a first token nobody knows that it would have had more than one."""
    assert UNTAUGHT == taught(outcome, None, 0, first_token=False)


def test_an_answer_that_nobody_counted_teaches_no_lengths() -> None:
    """Without usage and events there is no evidence, and what was expected is none, nor of how lengths spread."""
    site = Site()
    site.pool.pricing.lengths = OutputLengths()
    before = site.pool.pricing.lengths.export()
    for number in range(40):
        finish(site, site.running(number, max_output_tokens=4000, stream=False), 1.0)
    assert before == site.pool.pricing.lengths.export()
    assert (40, None) == (site.pool.learning.view().finished, site.pool.pricing.output_error)


def test_an_end_that_stands_for_a_first_token_tells_nothing_of_prefill() -> None:
    """All of the answer was worked off by then, and not its prompt alone."""
    site = Site()
    finish(site, site.running(1), 9.0, usage=Usage(prompt_tokens=100, output_tokens=99))
    assert 0 == site.endpoint().sources.learner.steps


def test_streams_tell_how_many_tokens_an_event_carries() -> None:
    """Streams of forty events with eighty tokens each: two a piece. Those without usage, or cut off, say nothing."""
    for outcome, usage, tokens in [
        (Outcome.COMPLETED, Usage(prompt_tokens=100, output_tokens=80), 2.0),
        (Outcome.COMPLETED, None, 1.0),
        (Outcome.CLIENT_GONE, None, 1.0),
    ]:
        site = Site()
        for number in range(10):
            ticket = site.running(number)
            site.life.progress(ticket, 40, 1.0)
            finish(site, ticket, 2.0, outcome, usage)
        assert tokens == site.endpoint().sources.pace.tokens_per_event


# Objectives


def stream_that_took(first_token_s: float, duration_s: float, tokens: int, **demand: Any) -> bool:
    """Whether such an answer of class `standard` (TTFT 5 s, TPOT 120 ms) met its objective."""
    site = Site()
    ticket = site.running(1, **demand)
    site.life.first_token(ticket, first_token_s)
    site.effects()
    finish(site, ticket, duration_s, usage=Usage(prompt_tokens=100, output_tokens=tokens))
    return site.settlement().met_objective


@pytest.mark.parametrize(
    ("first_token_s", "duration_s", "tokens", "met"),
    [
        (5.0, 5.0, 1, True),
        (5.1, 5.2, 11, False),
        (1.0, 2.19, 11, True),
        (1.0, 2.31, 11, False),
        (0.1, 6.5, 11, False),
        (4.9, 6.0, 11, True),
    ],
    ids=["at the ttft", "late first token", "at the tpot", "too slow", "early but slow", "late but fast"],
)
def test_a_stream_meets_ttft_and_tpot(
    first_token_s: float, duration_s: float, tokens: int, met: bool
) -> None:
    """A stream is judged by its first token and by the mean time of each token after the first."""
    assert met is stream_that_took(first_token_s, duration_s, tokens)


@pytest.mark.parametrize(("duration_s", "met"), [(6.1, True), (6.3, False)])
def test_an_unstreamed_answer_is_judged_whole(duration_s: float, met: bool) -> None:
    """Ten tokens may take 5 s + 10 · 0.12 s, wherever in that time the first byte comes."""
    assert met is stream_that_took(duration_s, duration_s, 10, stream=False)


@pytest.mark.parametrize(("stream", "met"), [(False, True), (True, False)])
def test_a_class_may_state_its_objective_for_whole_answers(stream: bool, met: bool) -> None:
    """Ten tokens may take a minute where that is said; streams are judged as ever."""
    site = Site(settings=with_class("standard", settings_for(), whole_answer_s=60.0))
    ticket = site.running(1, stream=stream)
    site.life.first_token(ticket, 59.0)
    site.effects()
    finish(site, ticket, 60.0, usage=Usage(prompt_tokens=100, output_tokens=10))
    assert met is site.settlement().met_objective


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.group is not Group.SERVED])
def test_only_a_whole_answer_meets_an_objective(outcome: Outcome) -> None:
    """Whatever ended otherwise has not met it, however fast it was."""
    site = Site()
    ticket = site.running(1)
    site.life.first_token(ticket, 0.1)
    site.effects()
    finish(site, ticket, 0.2, outcome)
    assert not site.settlement().met_objective


def test_waiting_counts_against_the_objective() -> None:
    """Times run from arrival, not from dispatch."""
    site = Site()
    ticket = site.queued(1, 0.0)
    site.life.dispatch(ticket, site.endpoint(), 4.9)
    site.life.first_token(ticket, 5.2)
    site.effects()
    finish(site, ticket, 5.3)
    assert not site.settlement().met_objective


# Lingering


def linger_until(site: Site, ticket: Ticket, now: float) -> float:
    """Until when the room of a request is kept that is given up now."""
    finish(site, ticket, now, Outcome.CLIENT_GONE, engine_goes_on=True)
    (draining,) = site.endpoint().draining
    assert now == draining.since_s
    return draining.until_s


def test_an_abandoned_request_keeps_its_room_for_the_engines_linger() -> None:
    """Its ticket ends at once; its place, KV and work stay booked as draining."""
    site = Site()
    site.endpoint().info = replace(VLLM, linger_s=4.0)
    assert 7.0 == linger_until(site, site.running(1), 3.0)
    books = site.endpoint().books
    assert (0, 1, 150, 1_000_000) == (
        books.running.requests,
        books.draining.requests,
        books.kv_tokens,
        books.work_us,
    )
    site.life.release_draining(site.endpoint(), site.endpoint().draining[0])
    assert (0, 0, 0, []) == (books.requests, books.kv_tokens, books.work_us, site.endpoint().draining)
    assert 0 == site.pool.books.in_flight.requests


def test_an_answer_that_cannot_be_aborted_lingers_until_its_predicted_finish() -> None:
    """An unstreamed request of llama.cpp lingers until 99 · 50 ms after its dispatch, whenever its client left."""
    for left_s in (0.5, 2.0, 3.5):
        site = Site()
        site.endpoint().info = LLAMACPP
        site.endpoint().step_gap_s = 0.05
        assert pytest.approx(4.95, abs=0.1) == linger_until(site, site.running(1, stream=False), left_s)


def test_an_answer_past_its_predicted_finish_lingers_a_little() -> None:
    """A prediction that has proved too short leaves the least linger."""
    site = Site()
    site.endpoint().info = LLAMACPP
    site.endpoint().step_gap_s = 0.01
    assert 51.0 == linger_until(site, site.running(1, stream=False), 50.0)


def test_a_linger_is_bounded() -> None:
    """However long the answer might be, room comes back within ten minutes."""
    site = Site()
    site.endpoint().info = LLAMACPP
    site.endpoint().step_gap_s = 60.0
    assert LONGEST_LINGER_S == linger_until(site, site.running(1, stream=False), 0.0)


def test_without_a_known_gap_the_work_left_is_the_prediction() -> None:
    """An endpoint of half the speed needs two seconds for a request of one."""
    site = Site()
    site.endpoint().info = LLAMACPP
    site.endpoint().meter.speed = 0.5
    assert pytest.approx(2.0) == linger_until(site, site.running(1, stream=False), 0.0)


def test_a_stream_is_aborted_everywhere() -> None:
    """llama.cpp too stops a stream when its connection closes."""
    site = Site()
    site.endpoint().info = LLAMACPP
    site.endpoint().step_gap_s = 60.0
    assert 1.0 == linger_until(site, site.running(1), 0.0)


# When to come back


def promises(site: Site, outcome: Outcome, predicted_s: float, times: int) -> list[float]:
    """When so many clients that are refused at once are told to come back."""
    for number in range(100, 100 + times):
        verdict = Verdict(predicted_wait_s=predicted_s)
        site.life.refuse(site.ticket(number), verdict, outcome, 1.0)
    found = [e.refusal.retry_after_s for e in site.effects() if isinstance(e, Refuse)]
    assert all(promise is not None for promise in found)
    return [promise or 0.0 for promise in found]


SHARED = [o for o in Outcome if o.group is Group.CONTENDED and o is not Outcome.RATE_LIMIT_EXCEEDED]


@pytest.mark.parametrize("outcome", SHARED, ids=lambda o: o.value)
def test_contended_refusals_are_told_a_slot_each(outcome: Outcome) -> None:
    """Predicted to wait 7 s and allowed 5: in 2 s, and each after as much more as four of five that return take."""
    site = Site()
    found = promises(site, outcome, 7.0, 20)
    for number, promise in enumerate(found):
        slot_s = 2.0 + 0.8 * number
        assert slot_s <= promise <= 1.3 * slot_s
    assert 20 == len(set(found))


def test_a_client_with_a_tight_deadline_is_told_when_that_can_be_met() -> None:
    """Predicted to wait 7 s and willing to wait 0.3: it is not for 6.7 s that the same request could be on time."""
    site = Site()
    ticket = site.ticket(100, now=1.0, first_token_by_s=1.3)
    site.life.refuse(ticket, Verdict(predicted_wait_s=7.0), Outcome.DEADLINE_UNREACHABLE, 1.0)
    (refuse,) = [effect for effect in site.effects() if isinstance(effect, Refuse)]
    assert refuse.refusal.retry_after_s is not None
    assert 6.7 <= refuse.refusal.retry_after_s <= 6.7 * 1.3


def test_slots_are_as_far_apart_as_their_class_is_served() -> None:
    """Beside realtime, standard gets five eighths of the rate: its slots take that much longer."""
    site = Site()
    site.queued(1, class_name="realtime")
    site.effects()
    found = promises(site, Outcome.DEADLINE_UNREACHABLE, 5.0, 20)
    for number, promise in enumerate(found):
        slot_s = max(1.0, 0.8 * number / (5 / 8))
        assert slot_s <= promise <= 1.3 * slot_s


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.group is Group.ABSENT], ids=lambda o: o.value)
def test_where_no_engine_is_nobody_is_promised_a_slot(outcome: Outcome) -> None:
    """After the time in which one may be back, spread upwards, however many come."""
    found = promises(Site(), outcome, 7.0, 20)
    assert all(2.0 <= promise <= 2.6 for promise in found)
    assert 20 == len(set(found))


def test_who_waited_in_vain_is_told_when_to_come_back() -> None:
    """By what a usual request would wait now: eight seconds of work ahead, 5 s allowed, so in three seconds."""
    site = Site()
    tickets = [site.queued(number) for number in range(9)]
    site.effects()
    site.life.evict(tickets[0], Outcome.QUEUE_TIMEOUT, 5.0, OVER, "")
    (evict, _) = site.effects()
    assert isinstance(evict, Evict)
    assert pytest.approx(8.0) == evict.refusal.predicted_wait_s
    promised = evict.refusal.retry_after_s
    assert promised is not None
    assert 3.0 <= promised <= 3.9


def test_what_can_never_pass_is_not_asked_back() -> None:
    """No Retry-After on a request that is too large."""
    site = Site()
    site.life.refuse(site.ticket(1), Verdict(), Outcome.REQUEST_TOO_LARGE, 1.0)
    (refuse, _) = site.effects()
    assert isinstance(refuse, Refuse)
    assert refuse.refusal.retry_after_s is None


# What waits teach


def foretold(site: Site, number: int, base_s: float, now: float = 0.0) -> Ticket:
    """A ticket waits that was told a wait."""
    ticket = site.ticket(number, now)
    forecast = site.pool.classes["standard"].waits.forecast(base_s)
    verdict = Verdict(predicted_wait_s=forecast.expected_s, forecast=forecast)
    site.life.hold(ticket, verdict, now)
    return ticket


def test_a_wait_teaches_how_good_its_prediction_was() -> None:
    """Predicted one second and waited two: an error of one in half a budget of 2.5 s, and longer waits are expected."""
    site = Site()
    tickets = [foretold(site, number, 1.0) for number in range(16)]
    before = site.pool.classes["standard"].waits.predict(1.0)
    for ticket in tickets:
        site.life.dispatch(ticket, site.endpoint(), 2.0)
    assert 0.4 == site.pool.errors.median
    assert 16 == site.pool.classes["standard"].waits.judged
    assert site.pool.classes["standard"].waits.predict(1.0) > before


def test_a_wait_without_a_prediction_teaches_nothing() -> None:
    """Nobody could say how long it would be: that is no error of a prediction."""
    site = Site()
    site.life.dispatch(site.queued(1), site.endpoint(), 3.0)
    assert 0 == site.pool.errors.count


@pytest.mark.parametrize("ending", ["dispatch", "evict", "drop"])
def test_only_a_first_wait_teaches(ending: str) -> None:
    """Who waits again after a failed attempt was told nothing of that, and stands before all others."""
    site = Site()
    ticket = foretold(site, 1, 1.0)
    site.life.dispatch(ticket, site.endpoint(), 1.0)
    take_back(site, ticket, 2.0)
    waits = site.pool.classes["standard"].waits
    before = (site.pool.errors.count, waits.judged, waits.export())
    match ending:
        case "dispatch":
            site.life.dispatch(ticket, site.endpoint(), 9.0)
        case "evict":
            site.life.evict(ticket, Outcome.QUEUE_TIMEOUT, 9.0, OVER, "")
        case _:
            site.life.drop(ticket, 9.0)
    assert before == (site.pool.errors.count, waits.judged, waits.export())


@pytest.mark.parametrize("move", ["evict", "drop"])
def test_a_wait_that_was_cut_short_teaches_that_waits_are_longer(move: str) -> None:
    """Turned away or left, after four seconds where one was foretold: the quantiles rise."""
    site = Site()
    waits = site.pool.classes["standard"].waits
    middle_s = waits.at_quantile(1.0, 0.5)
    tickets = [foretold(site, number, 1.0) for number in range(20)]
    for ticket in tickets:
        if move == "evict":
            site.life.evict(ticket, Outcome.DISPLACED, 4.0, OVER, "")
        else:
            site.life.drop(ticket, 4.0)
    assert waits.at_quantile(1.0, 0.5) > middle_s
    assert 1.0 == waits.kappa


def test_a_refusal_on_a_predicted_wait_is_told_to_the_pool() -> None:
    """Thirty of them with nobody waiting cost a class its trust; refusals for other reasons do not."""
    for decided_by, kept in [("predicted_wait", False), ("class_queue_requests", True)]:
        site = Site()
        waits = site.pool.classes["standard"].waits
        waits.trusted = True
        for number in range(30):
            verdict = Verdict(decided_by=decided_by)
            site.life.refuse(site.ticket(number), verdict, Outcome.DEADLINE_UNREACHABLE, 1.0)
        assert kept is waits.trusted


# Another cost


def filed(site: Site, number: int, now: float = 0.0, *, protected: bool = False, **changes: Any) -> Ticket:
    """A ticket waits, and its deadline is known."""
    ticket = site.queued(number, now, **changes)
    file_waiter(ticket, now, protected=protected)
    return ticket


def double(site: Site) -> None:
    """All costs twice as much from now on."""
    site.pool.pricing.law = replace(LAW, c1_s=2 * LAW.c1_s, c2_s=2 * LAW.c2_s)


def test_who_waits_is_estimated_and_booked_anew() -> None:
    """At another law all waiters cost otherwise, on all books; what runs stays as it was booked."""
    site = Site()
    running = site.running(9)
    tickets = [filed(site, number, class_name=name) for number, name in enumerate(("standard", "batch"))]
    double(site)
    site.price_again(1.0)
    site.life.ledger.verify()
    assert [2_000_000] * 2 == [ticket.work_us for ticket in tickets]
    assert [2_000_000] * 2 == [ticket.booking.work_us for ticket in tickets]
    assert (4_000_000, 1_000_000) == (site.pool.books.waiting.work_us, site.pool.books.in_flight.work_us)
    assert 1_000_000 == running.work_us
    assert [2_000_000] * 2 == [site.pool.classes[name].deadlines.work_us for name in ("standard", "batch")]
    assert (4_000_000, 2) == site.pool.queue.work_ahead(site.ticket(50, class_name="batch"))


def test_who_waits_keeps_its_place_when_all_costs_change_alike() -> None:
    """Order, deadlines and protection are as before, and once they have gone nothing is left of them."""
    site = Site()
    sizes = [99, 300, 20, 150, 60]
    tickets = [
        filed(site, number, max_output_tokens=size, protected=number == 1)
        for number, size in enumerate(sizes)
    ]
    double(site)
    for now in (1.0, 1.0, 2.0):
        site.price_again(now)
    assert [False, True, False, False, False] == [t.entry is not None and t.entry.protected for t in tickets]
    site.pool.classes["standard"].deadlines.verify()
    served = []
    while (waiter := site.pool.queue.first()) is not None:
        assert isinstance(waiter, Ticket)
        site.life.dispatch(waiter, site.endpoint(), 3.0)
        served.append(waiter.price.cap)
    assert sorted(sizes) == served
    assert (0, 0) == (len(site.pool.classes["standard"].deadlines), site.pool.books.waiting.work_us)


def test_a_new_estimate_makes_nobody_displaceable_again() -> None:
    """Who has waited for half its budget is left alone from then on, however often costs change."""
    site = Site()
    ticket = filed(site, 1)
    assert ticket.entry is not None
    assert 2.5 == ticket.entry.firm_from_s
    for now in (1.0, 3.0):
        site.price_again(now)
        assert ticket.entry is not None
        assert 2.5 == ticket.entry.firm_from_s
    assert site.pool.classes["standard"].deadlines.least_valuable(3.0) is None


def test_a_failed_attempt_is_estimated_anew() -> None:
    """What has been learned meanwhile is what the second wait is booked as."""
    site = Site()
    ticket = site.running(1)
    double(site)
    take_back(site, ticket, 1.0)
    assert (2_000_000, 2_000_000) == (ticket.work_us, site.pool.books.waiting.work_us)
    assert (0, 0) == (site.pool.books.in_flight.work_us, site.endpoint().pending_prefill_us)
    site.life.ledger.verify()


# What classes and tenants are charged


def test_whoever_runs_is_charged_until_it_ends() -> None:
    """By its estimate at dispatch, corrected by what it took; what never began is given back."""
    site = Site()
    served = site.running(1)
    queue = site.pool.queue.classes[1]
    assert 200_000 == queue.finish
    finish(site, served, 1.0, usage=Usage(prompt_tokens=100, output_tokens=49))
    assert pytest.approx(100_000) == queue.finish
    failed = site.queued(2, 1.0)
    start = queue.finish
    site.life.dispatch(failed, site.endpoint(), 1.0)
    assert queue.finish > start
    finish(site, failed, 2.0, Outcome.UPSTREAM_FAILED)
    assert pytest.approx(start) == queue.finish
    assert {} == {name: tenant for name, tenant in queue.tenants.items() if tenant.in_flight}


# Reservations


@pytest.mark.parametrize("way_out", ["dispatch", "evict", "drop"])
def test_a_reservation_ends_with_the_wait_it_was_for(way_out: str) -> None:
    """However the request stops waiting, the endpoint is there for all again."""
    site = Site()
    ticket = site.queued(1)
    site.pool.reserved, site.endpoint().reserved_for = site.endpoint(), ticket.demand.ticket
    match way_out:
        case "dispatch":
            site.life.dispatch(ticket, site.endpoint(), 1.0)
        case "evict":
            site.life.evict(ticket, Outcome.QUEUE_TIMEOUT, 1.0, OVER, "")
        case _:
            site.life.drop(ticket, 1.0)
    assert reserved_at(site) is None
    assert not any(endpoint.reserved_for for endpoint in site.pool.endpoints.values())


def test_a_reservation_outlives_other_waits() -> None:
    """That somebody else stops waiting frees nothing."""
    site = Site()
    ticket, other = site.queued(1), site.queued(2)
    site.pool.reserved, site.endpoint().reserved_for = site.endpoint(), ticket.demand.ticket
    site.life.drop(other, 1.0)
    assert ticket.demand.ticket == site.endpoint().reserved_for


def test_several_answers_have_the_time_of_one() -> None:
    """They are generated side by side: four of 25 tokens do not get four times as long."""
    for took_s, met in ((8.0, True), (12.0, False)):
        site = Site()
        ticket = site.running(1, stream=False, samples=4, max_output_tokens=25)
        site.life.finish(ticket, Outcome.COMPLETED, Usage(100, 100), took_s, engine_goes_on=False)
        settlement = next(effect.settlement for effect in site.effects() if isinstance(effect, Settle))
        assert met is settlement.met_objective
