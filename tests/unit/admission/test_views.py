from __future__ import annotations

import math
from dataclasses import replace

import pytest

from forebay.admission.learning import CAUTIOUS, LEARNING
from forebay.admission.model import EndpointId, EndpointState, EngineKind, TicketId, Usage
from forebay.admission.snapshot import ClassView
from forebay.admission.views import pool_view, ticket_view
from tests.unit.admission.build import VLLM, Site, pool_settings, reading, settings_for


def test_a_pool_is_shown_in_gpu_seconds() -> None:
    """Work is converted once, at the surface: endpoint-seconds times GPUs."""
    site = Site(pool_settings(gpus=4, max_gpu_s=100.0, headroom=0.9, max_pool_requests=7))
    site.running(1)
    site.queued(2)
    site.queued(3, class_name="batch")
    view = pool_view(site.pool, 0.0)
    assert ("llama", 2, 8.0, 1, 4.0) == (
        view.name,
        view.waiting_requests,
        view.waiting_gpu_s,
        view.in_flight_requests,
        view.in_flight_gpu_s,
    )
    assert (90.0, 7, 4.0) == (view.max_gpu_s, view.max_requests, view.drain_gpu_s_per_s)


def test_classes_are_shown_by_rank_with_their_wait() -> None:
    """Each class shows what waits in it and what a usual arrival, 2.1 s of work, would have to wait.

    That is 10 ms of prefill and a second for what runs; then what is served before it. For realtime (weight 3 to 5
    and 2): 3.5 s of the six of standard, and the second of batch. For the others all seven.
    """
    site = Site()
    site.running(1)
    for number in range(2, 8):
        site.queued(number)
    site.queued(8, class_name="batch")
    shown = pool_view(site.pool, 0.0).classes
    assert [("realtime", 0, 0.0), ("standard", 6, 6.0), ("batch", 1, 1.0)] == [
        (view.name, view.waiting_requests, view.waiting_gpu_s) for view in shown
    ]
    assert pytest.approx([1.01 + 4.5, 1.01 + 7.0, 1.01 + 7.0]) == [view.predicted_wait_s for view in shown]
    assert isinstance(shown[0], ClassView)


def test_a_pool_shows_whether_it_learns_and_what_for() -> None:
    """Until enough is known the view names what is lacking; from then on nobody has to ask."""
    site = Site(pool_settings(law=None))
    view = pool_view(site.pool, 0.0)
    assert (True, LEARNING, ("steps", "finished", "error")) == (
        view.learning,
        view.learned.phase,
        view.learned.lacking,
    )
    site.endpoint().sources.learner.steps = 250
    for number in range(64):
        site.pool.errors.observe(1.0, 1.0)
        ticket = site.ticket(number)
        ticket.endpoint = site.endpoint()
        site.pool.learn_end(ticket, None, 0, 3.0, whole=True)
    view = pool_view(site.pool, 4.0)
    assert (False, CAUTIOUS, (), 3.0) == (
        view.learning,
        view.learned.phase,
        view.learned.lacking,
        view.learned.since_s,
    )
    assert (250, 0.0) == (view.learned.steps, view.wait_error_median)


def test_a_pool_shows_how_good_its_expectations_of_answers_are() -> None:
    """Nothing before the first answer; then what came over what was expected."""
    site = Site()
    assert pool_view(site.pool, 0.0).output_error_ratio is None
    ticket = site.running(1)
    site.pool.learn_end(ticket, Usage(prompt_tokens=100, output_tokens=33), 33, 1.0, whole=True)
    assert pytest.approx(1 / 3) == pool_view(site.pool, 1.0).output_error_ratio


def test_the_utilisation_of_a_pool_is_the_mean_of_what_is_up() -> None:
    """A full and an empty endpoint are half in use; one that is down is none of it."""
    site = Site(pool_settings(max_inflight_requests=1), endpoints=("full", "empty", "down"))
    for name in ("full", "down"):
        site.running(1 if name == "full" else 2, name)
        site.pool.follow(site.endpoint(name), 0.0)
    site.endpoint("down").fail(0.0)
    assert pytest.approx(0.5) == pool_view(site.pool, 1000.0).utilization
    for name in ("full", "empty"):
        site.endpoint(name).fail(0.0)
    assert 0.0 == pool_view(site.pool, 1000.0).utilization


def test_an_unbounded_pool_shows_no_bound() -> None:
    """No limit is None and not a large number."""
    view = pool_view(Site().pool, 0.0)
    assert (None, None, None) == (view.max_gpu_s, view.max_requests, view.wait_error_median)
    assert 4.0 == view.bytes_per_prompt_token


def test_where_nothing_drains_the_shown_wait_is_infinite() -> None:
    """A pool with nothing up says so, and does not show a wait of zero."""
    view = pool_view(Site(up=False).pool, 0.0)
    assert 0.0 == view.drain_gpu_s_per_s
    assert {math.inf} == {shown.predicted_wait_s for shown in view.classes}


def test_an_endpoint_shows_its_books_and_limits() -> None:
    """Running and draining are told apart; KV and work count both."""
    site = Site(pool_settings(max_inflight_tokens=1000, gpus=2))
    site.endpoint().info = replace(VLLM, max_requests=5)
    site.endpoint().described = True
    site.endpoint().meter.speed = 0.5
    ticket = site.running(1)
    site.running(2)
    site.life.ledger.abandon(ticket.booking, EndpointId("a"))
    (view,) = pool_view(site.pool, 0.0).endpoints
    assert ("a", EndpointState.UP, EngineKind.VLLM, True) == (
        view.id,
        view.state,
        view.kind,
        view.described,
    )
    assert (1, 1, 300, 1000, 5, True, 4.0, 0.5) == (
        view.running_requests,
        view.draining_requests,
        view.kv_tokens,
        view.kv_limit,
        view.request_limit,
        view.request_limit_is_firm,
        view.work_gpu_s,
        view.speed,
    )


def test_an_endpoint_without_a_sample_shows_none() -> None:
    """What was never read is None, not zero."""
    (view,) = pool_view(Site().pool, 0.0).endpoints
    assert [None] * 6 == [
        view.kv_usage,
        view.sample_at_s,
        view.sample_took_s,
        view.engine_running,
        view.engine_waiting,
        view.preemptions_total,
    ]
    assert (8, False) == (view.request_limit, view.request_limit_is_firm)


def test_an_endpoint_shows_its_last_sample() -> None:
    """The engine's own word is shown beside our books."""
    site = Site()
    sample = reading(3.0, took_s=0.01, running=5, waiting=2, kv_usage=0.4, preemptions_total=9)
    site.endpoint().take_sample(sample, 3.1)
    (view,) = pool_view(site.pool, 3.1).endpoints
    assert (0.4, 3.0, 0.01, 5, 2, 9) == (
        view.kv_usage,
        view.sample_at_s,
        view.sample_took_s,
        view.engine_running,
        view.engine_waiting,
        view.preemptions_total,
    )


def test_a_view_says_whether_the_endpoint_is_open() -> None:
    """Open means that a request which fits its KV would be taken: state, requests and the pool's cap all count."""
    site = Site(pool_settings(max_pool_requests=1), endpoints=("a", "b"))
    site.endpoint("b").state = EndpointState.DOWN
    assert [True, False] == [view.is_open for view in pool_view(site.pool, 0.0).endpoints]
    site.running(1)
    assert [False, False] == [view.is_open for view in pool_view(site.pool, 0.0).endpoints]


@pytest.mark.parametrize("reserved", [None, TicketId(7)])
def test_a_view_names_the_one_request_that_is_waited_for(reserved: TicketId | None) -> None:
    """A reservation is visible: an idle endpoint beside a queue has a reason."""
    site = Site(settings=settings_for())
    site.endpoint().reserved_for = reserved
    (view,) = pool_view(site.pool, 0.0).endpoints
    assert reserved == view.reserved_for


def test_a_waiter_is_shown_with_its_place_and_what_it_has_still_to_wait() -> None:
    """As an arrival of its size would be told, from now on."""
    site = Site()
    site.running(1)
    for number in (2, 3, 4):
        site.queued(number, 0.0)
    view = ticket_view(site.life.tickets[TicketId(4)], 1.5)
    assert ("waiting", 2, 0.0, 1.5, None) == (
        view.phase, view.position, view.since_s, view.waited_s, view.endpoint,
    )  # fmt: skip
    assert view.predicted_wait_s is not None
    assert view.predicted_wait_s > 1.0
    assert view.waits_at_most_s == max(site.life.tickets[TicketId(4)].deadline_s - 1.5, 0.0)


def test_one_that_runs_is_shown_with_its_endpoint() -> None:
    """It has no place any more."""
    site = Site()
    ticket = site.running(1)
    view = ticket_view(ticket, 2.0)
    assert ("running", None, None, site.endpoint().id, None) == (
        view.phase, view.position, view.predicted_wait_s, view.endpoint, view.ttft_s,
    )  # fmt: skip
    site.life.first_token(ticket, 0.75)
    assert 0.75 == ticket_view(ticket, 2.0).ttft_s
