from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.gate import (
    PASSED,
    PREDICTED_WAIT,
    Verdict,
    examine,
    rests_on_prediction,
    wait_budget_s,
)
from forebay.admission.model import Check, EndpointState, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import ClassOrder, Order
from forebay.admission.tickets import Ticket
from forebay.admission.wait import WaitModel
from tests.unit.admission.build import Site, pool_settings, settings_for, with_class

WHOLE_ORDER = [
    "endpoints_up",
    "context_window",
    "kv_cache",
    "request_gpu_seconds",
    "predicted_wait",
    "pool_gpu_seconds",
    "waiting_bytes",
    "class_queue_requests",
    "class_queue_gpu_seconds",
    "pool_queue_requests",
]


def decide(site: Site, ticket: Ticket | None = None, now: float = 0.0, *, draining: bool = False) -> Verdict:
    """What the gate says to one more request."""
    return examine(ticket or site.ticket(99, now), site.life.ledger, site.settings, now, draining=draining)


def names(verdict: Verdict) -> list[str]:
    """The checks that were made, in order."""
    return [check.name for check in verdict.checks]


def check(verdict: Verdict, name: str) -> Check:
    """One check of the record."""
    return next(check for check in verdict.checks if check.name == name)


def full_site(**changes: Any) -> Site:
    """A pool whose one place is taken, so an arrival has to wait. First come is first served; nothing is learned."""
    settings = settings_for(pool_settings(max_inflight_requests=1, **changes))
    for name in ("realtime", "standard", "batch"):
        settings = with_class(name, settings, order=Order.FIFO)
    site = Site(settings=settings)
    site.running(1)
    return site


def trusting(site: Site) -> Site:
    """The same, past its learning: predictions refuse as they are."""
    learning = site.pool.learning
    learning.observed(1000, 1000, 0.1, True, 0.0)
    assert learning.may_refuse
    for state in site.pool.classes.values():
        state.waits = WaitModel(state.settings.confidence, corrects=False)
    return site


def _fields(ticket: Ticket) -> list[object]:
    """All that a ticket holds."""
    names = [name for name in dir(ticket) if not name.startswith("_") and name not in ("key", "pool")]
    found = [getattr(ticket, name) for name in names]
    return [value for value in found if not callable(value)]


# The verdict itself


def test_the_first_failing_check_decides() -> None:
    """Later failures are recorded, and do not change what decided."""
    verdict = Verdict()
    verdict.check("first", 1, 2, Outcome.QUEUE_FULL)
    verdict.check("second", 3, 2, Outcome.REQUEST_TOO_LARGE, "why")
    verdict.check("third", 9, 2, Outcome.DRAINING, "other")
    assert (Outcome.REQUEST_TOO_LARGE, "second", "why") == (
        verdict.outcome,
        verdict.decided_by,
        verdict.detail,
    )
    assert [Check("first", 1, 2, True), Check("second", 3, 2, False), Check("third", 9, 2, False)] == (
        verdict.checks
    )


def test_a_value_at_its_limit_passes() -> None:
    """Limits are inclusive, and without a limit everything passes."""
    verdict = Verdict()
    verdict.check("at", 2, 2, Outcome.QUEUE_FULL)
    verdict.check("unlimited", 1e9, None, Outcome.QUEUE_FULL)
    assert (None, PASSED) == (verdict.outcome, verdict.decided_by)


# Starting at once


def test_a_request_with_room_starts_at_once() -> None:
    """The verdict names the endpoint, and the checks that bound waiting are not made: it does not wait."""
    site = Site()
    verdict = decide(site)
    assert (None, PASSED, site.endpoint()) == (verdict.outcome, verdict.decided_by, verdict.endpoint)
    assert [*WHOLE_ORDER[:4], "pool_gpu_seconds"] == names(verdict)


def test_waiting_bounds_refuse_nobody_who_can_start() -> None:
    """With every bound on waiting at zero an idle engine still serves."""
    settings = settings_for(pool_settings(max_queue=0), max_waiting_bytes=0)
    settings = with_class("standard", settings, max_queue=0, max_queue_gpu_s=0.0, wait_budget_s=0.0)
    site = Site(settings=settings)
    assert site.endpoint() is decide(site).endpoint


def test_a_deadline_in_the_past_refuses_nobody_who_can_start() -> None:
    """Refusal compares waiting with the budget; without waiting there is nothing to compare."""
    site = Site()
    assert site.endpoint() is decide(site, site.ticket(99, first_token_by_s=-1.0)).endpoint


def test_a_request_without_room_waits() -> None:
    """No outcome and no endpoint means: hold. The record has every check in the order of the decision."""
    verdict = decide(full_site())
    assert (None, "endpoint_requests", None) == (verdict.outcome, verdict.decided_by, verdict.endpoint)
    assert [*WHOLE_ORDER, "endpoint_requests"] == names(verdict)
    assert all(check.passed for check in verdict.checks[:-1])


def test_the_cap_over_all_endpoints_makes_wait() -> None:
    """An idle endpoint is of no use while the pool has as many requests as it may."""
    site = Site(pool_settings(max_pool_requests=1), endpoints=("a", "b"))
    site.running(1, "a")
    verdict = decide(site)
    assert (None, None) == (verdict.outcome, verdict.endpoint)


def test_the_position_counts_who_is_ahead() -> None:
    """Those that the order serves first are ahead: of other classes as many as their share has; what runs is not."""
    site = full_site()
    site.queued(2, class_name="realtime")
    site.queued(3)
    site.queued(4, class_name="batch")
    assert 3 == decide(site).position
    assert 0 == decide(Site()).position


def test_examining_changes_nothing() -> None:
    """A decision books nothing: books, queues, effects and the ticket are as before."""
    site = full_site()
    site.queued(2)
    site.effects()
    ticket = site.ticket(99)
    before = (
        _fields(ticket),
        repr(site.pool.books.waiting),
        repr(site.pool.books.in_flight),
        len(site.pool.queue),
    )
    for _ in range(3):
        decide(site, ticket)
    after = (
        _fields(ticket),
        repr(site.pool.books.waiting),
        repr(site.pool.books.in_flight),
        len(site.pool.queue),
    )
    assert before == after
    assert [] == site.effects()


# Each refusal


def test_draining_refuses_before_anything_else() -> None:
    """A gateway that shuts down takes nothing, however idle the engines are."""
    verdict = decide(Site(), draining=True)
    assert (Outcome.DRAINING, "draining", None) == (verdict.outcome, verdict.decided_by, verdict.endpoint)
    assert ["draining"] == names(verdict)


@pytest.mark.parametrize("state", [EndpointState.DOWN, EndpointState.STALLED, EndpointState.REMOVED])
def test_no_endpoint_refuses(state: EndpointState) -> None:
    """With no engine that may be given work the answer is an immediate 503, with every check in the record."""
    site = Site()
    site.endpoint().state = state
    verdict = decide(site)
    assert (Outcome.NO_ENDPOINTS, "endpoints_up") == (verdict.outcome, verdict.decided_by)
    assert "'llama'" in verdict.detail
    assert not check(verdict, "endpoints_up").passed


def test_engines_that_are_drained_are_told_as_such() -> None:
    """Who asks why must not look for a broken network."""
    site = Site(endpoints=("a", "b"))
    site.endpoint("a").state, site.endpoint("b").state = EndpointState.DRAINED, EndpointState.DOWN
    told = decide(site).detail
    assert (
        "No engine of pool 'llama' can be reached, but those that an operator has taken out of use." == told
    )


def test_a_pool_without_endpoints_refuses() -> None:
    """None configured is none that can be reached."""
    assert Outcome.NO_ENDPOINTS is decide(Site(endpoints=())).outcome


def test_a_starting_pool_lets_wait() -> None:
    """Before the first sample a request waits, and no wait is predicted for it."""
    verdict = decide(Site(up=False))
    assert (None, None) == (verdict.outcome, verdict.endpoint)
    assert "predicted_wait" not in names(verdict)


def test_a_pool_scaled_to_zero_lets_wait_where_configured() -> None:
    """`hold_without_endpoints` turns the immediate 503 into a wait."""
    site = Site(pool_settings(hold_without_endpoints_s=30.0), endpoints=())
    assert decide(site).outcome is None


@pytest.mark.parametrize(
    ("demand", "refused"),
    [
        ({"prompt_tokens": 4096}, False),
        ({"prompt_tokens": 4097}, True),
        ({"prompt_tokens": None, "prompt_bytes": 40_000}, False),
        ({"prompt_tokens": None, "prompt_bytes": 80_000}, True),
    ],
    ids=["fits", "too long", "perhaps too long", "surely too long"],
)
def test_a_prompt_beyond_every_context_is_too_large(demand: dict[str, Any], refused: bool) -> None:
    """What is sure to be longer than the model's window is refused for good; what may fit is not."""
    site = Site()
    site.describe(context_tokens=4096)
    verdict = decide(site, site.ticket(99, **demand))
    assert (Outcome.REQUEST_TOO_LARGE if refused else None) is verdict.outcome
    if refused:
        assert "context_window" == verdict.decided_by


def test_a_prompt_beyond_the_kv_cache_is_too_large() -> None:
    """What cannot be held even alone is refused for good; the answer's part may be cut, the prompt's not."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    fits = decide(site, site.ticket(98, prompt_tokens=1000, max_output_tokens=500))
    assert None is fits.outcome
    verdict = decide(site, site.ticket(99, prompt_tokens=1001))
    assert (Outcome.REQUEST_TOO_LARGE, "kv_cache") == (verdict.outcome, verdict.decided_by)


def test_headroom_makes_no_prompt_too_large() -> None:
    """It is for what runs beside others: one that fits the whole cache runs alone."""
    site = Site(pool_settings(headroom=0.9))
    site.describe(kv_tokens=40_000)
    fits = decide(site, site.ticket(98, prompt_tokens=40_000))
    assert (None, True) == (fits.outcome, fits.endpoint is not None)
    assert Outcome.REQUEST_TOO_LARGE is decide(site, site.ticket(99, prompt_tokens=40_001)).outcome


def test_an_embedding_needs_no_kv() -> None:
    """What generates nothing is not measured by the KV cache."""
    site = Site(pool_settings(max_inflight_tokens=1000))
    verdict = decide(site, site.ticket(99, prompt_tokens=1001, generates=False))
    assert None is verdict.outcome
    assert "kv_cache" not in names(verdict)


def test_a_request_above_the_pools_bound_is_too_large() -> None:
    """What alone is more work than the pool may ever hold cannot pass later either; a guess says so to nobody."""
    site = Site(pool_settings(max_gpu_s=0.9))
    assert Outcome.QUEUE_FULL is decide(site).outcome
    verdict = decide(trusting(site))
    assert (Outcome.REQUEST_TOO_LARGE, "request_gpu_seconds") == (verdict.outcome, verdict.decided_by)
    site = Site(pool_settings(max_gpu_s=0.005))
    assert Outcome.REQUEST_TOO_LARGE is decide(site).outcome  # its prompt alone takes 10 ms


@pytest.mark.parametrize("share", [0.0, 0.001])
def test_a_small_share_makes_nothing_too_large(share: float) -> None:
    """A replica's share of the limits changes from second to second: it is no reason to refuse for good."""
    site = Site(pool_settings(max_gpu_s=10.0, max_inflight_tokens=1000))
    site.pool.set_share(share)
    assert Outcome.REQUEST_TOO_LARGE is not decide(site, site.ticket(99)).outcome


def test_the_pools_bound_counts_queued_and_running_work() -> None:
    """Two running and one waiting fill a bound of 3.5 GPU-seconds for a request of one."""
    for bound, outcome in [(3.5, Outcome.QUEUE_FULL), (4.0, None)]:
        site = Site(pool_settings(max_gpu_s=bound))
        site.running(1)
        site.running(2)
        site.queued(3)
        verdict = decide(site)
        assert outcome is verdict.outcome
        if outcome is not None:
            assert ("pool_gpu_seconds", None) == (verdict.decided_by, verdict.endpoint)


def test_the_pools_bound_is_in_gpu_seconds() -> None:
    """On endpoints of four GPUs a request of one endpoint-second is four GPU-seconds, and headroom comes off."""
    site = Site(pool_settings(max_gpu_s=10.0, gpus=4, headroom=0.9))
    site.running(1)
    site.running(2)
    verdict = decide(site)
    assert Check("pool_gpu_seconds", 12.0, 9.0, False) == check(verdict, "pool_gpu_seconds")


def test_waiting_bodies_are_bounded_in_bytes() -> None:
    """The bodies of all waiting requests together stay within the bound, which is inclusive."""
    for bound, outcome in [(2999, Outcome.QUEUE_FULL), (3000, None)]:
        settings = settings_for(pool_settings(max_inflight_requests=1), max_waiting_bytes=bound)
        site = Site(settings=settings)
        site.running(1)
        site.queued(2)
        site.queued(3)
        verdict = decide(site)
        assert outcome is verdict.outcome
        if outcome is not None:
            assert "waiting_bytes" == verdict.decided_by


def test_a_predicted_wait_over_the_budget_refuses() -> None:
    """Four seconds of work ahead, one running and its prompt of 10 ms are 5.01 s: over the budget of 5 s."""
    site = trusting(full_site())
    for number in range(2, 5):
        site.queued(number)
    assert None is decide(site).outcome
    site.queued(5)
    verdict = decide(site)
    assert (Outcome.DEADLINE_UNREACHABLE, "predicted_wait") == (verdict.outcome, verdict.decided_by)
    assert pytest.approx(5.01) == check(verdict, "predicted_wait").value
    assert 5.0 == check(verdict, "predicted_wait").limit
    assert pytest.approx(5.01) == verdict.predicted_wait_s


def test_a_learning_pool_refuses_nothing_on_predictions() -> None:
    """While learning a predicted wait is recorded, without a limit, and refuses nobody however long it is."""
    site = full_site(law=None)
    for number in range(100, 3000):
        site.queued(number)
    verdict = decide(site, site.ticket(9999))
    assert verdict.predicted_wait_s > 5.0
    assert None is verdict.outcome
    assert Check("predicted_wait", verdict.predicted_wait_s, None, True) == check(verdict, "predicted_wait")


def test_the_clients_own_deadline_tightens_the_budget() -> None:
    """A wait of 1.01 s is too long for a client whose first token must be there in 0.5 s."""
    site = trusting(full_site())
    assert None is decide(site, site.ticket(98, now=10.0, first_token_by_s=11.1), 10.0).outcome
    verdict = decide(site, site.ticket(99, now=10.0, first_token_by_s=10.5), 10.0)
    assert (Outcome.DEADLINE_UNREACHABLE, 0.5) == (verdict.outcome, check(verdict, "predicted_wait").limit)


def test_a_passed_deadline_is_the_reason_that_is_given() -> None:
    """Once the client's deadline has passed, that decides, and not a prediction measured against less than nothing."""
    site = full_site()
    site.queued(2)
    verdict = decide(site, site.ticket(99, first_token_by_s=-1.0))
    assert (Outcome.DEADLINE_UNREACHABLE, "deadline") == (verdict.outcome, verdict.decided_by)


def test_a_passed_deadline_refuses_while_learning_too() -> None:
    """That a deadline lies in the past is no prediction."""
    site = full_site(law=None)
    verdict = decide(site, site.ticket(99, now=10.0, first_token_by_s=9.5), 10.0)
    assert (Outcome.DEADLINE_UNREACHABLE, "deadline") == (verdict.outcome, verdict.decided_by)


def test_a_deadline_that_an_idle_engine_could_not_meet_is_recorded() -> None:
    """The prompt alone takes 0.5 s and the client gives 0.2 s: that is noted, and refused only where it is wished."""
    for wished in (False, True):
        site = full_site()
        site.pool.common = replace(site.pool.common, refuse_hopeless=wished)
        ticket = site.ticket(99, now=10.0, prompt_tokens=5000, first_token_by_s=10.2)
        verdict = decide(site, ticket, 10.0)
        hopeless = check(verdict, "deadline_hopeless")
        assert (0.5, False) == (hopeless.value, hopeless.passed)
        assert pytest.approx(0.2) == hopeless.limit
        assert (Outcome.DEADLINE_HOPELESS if wished else None) is verdict.outcome


def test_a_clients_patience_never_refuses_at_arrival() -> None:
    """A client's timeout sheds waiters; nobody is refused for it."""
    site = full_site()
    assert None is decide(site, site.ticket(99, now=10.0, patience_until_s=10.1), 10.0).outcome


def test_a_class_is_bounded_in_requests() -> None:
    """A class with `max_queue` two refuses its third waiter, and other classes do not fill it."""
    settings = settings_for(pool_settings(max_inflight_requests=1))
    site = Site(settings=with_class("standard", settings, max_queue=2))
    site.running(1)
    site.queued(2)
    site.queued(3, class_name="realtime")
    assert None is decide(site).outcome
    site.queued(4)
    verdict = decide(site)
    assert (Outcome.QUEUE_FULL, "class_queue_requests") == (verdict.outcome, verdict.decided_by)


def test_a_class_without_a_queue_refuses_what_cannot_start() -> None:
    """`max_queue: 0` means start now or not at all."""
    settings = settings_for(pool_settings(max_inflight_requests=1))
    site = Site(settings=with_class("standard", settings, max_queue=0))
    site.running(1)
    assert Outcome.QUEUE_FULL is decide(site).outcome


def test_a_class_is_bounded_in_work() -> None:
    """Waiting work never exceeds a configured bound: with 2 of 2.5 GPU-seconds waiting, one more has no room."""
    settings = settings_for(pool_settings(max_inflight_requests=1))
    for bound, outcome in [(2.5, Outcome.QUEUE_FULL), (3.0, None)]:
        site = Site(settings=with_class("standard", settings, max_queue_gpu_s=bound))
        site.running(1)
        site.queued(2)
        site.queued(3)
        verdict = decide(site)
        assert outcome is verdict.outcome
        if outcome is not None:
            assert "class_queue_gpu_seconds" == verdict.decided_by


def test_a_class_is_bounded_by_what_drains_within_its_budget() -> None:
    """Unconfigured, what waits already must drain within the class's budget, however long the arrival itself is."""
    settings = settings_for(pool_settings(max_inflight_requests=1))
    site = trusting(Site(settings=with_class("standard", settings, wait_budget_s=2.0)))
    site.running(1)
    alone = decide(site, site.ticket(98, max_output_tokens=250))
    assert None is alone.outcome
    assert check(alone, "class_queue_gpu_seconds").limit is None  # not before it is surely known what drains
    site.pool.learning.observed(1000, 1000, 0.1, True, 0.0)
    site.pool.classes["standard"].waits.trusted = True
    alone = decide(site, site.ticket(98, max_output_tokens=250))
    assert 2.0 == check(alone, "class_queue_gpu_seconds").limit


@pytest.mark.parametrize(("weight", "expected"), [(3.0, None), (1e-3, Outcome.DEADLINE_UNREACHABLE)])
def test_a_floor_keeps_a_class_from_being_refused_for_a_flood_above_it(
    weight: float, expected: Outcome | None
) -> None:
    """By rank 30 s of work stand before it; but with a floor of a half only 1 s of that is served before."""
    settings = settings_for(pool_settings(max_inflight_requests=1), class_order=ClassOrder.STRICT)
    for name, of_class in (("realtime", 3.0), ("standard", weight), ("batch", 1e-3)):
        settings = with_class(name, settings, weight=of_class, order=Order.FIFO)
    site = trusting(Site(settings=settings))
    site.running(1)
    for number in range(2, 32):
        site.queued(number, class_name="realtime")
    assert expected is decide(site).outcome


@pytest.mark.parametrize(
    ("decided_by", "bound", "expected"),
    [
        (PREDICTED_WAIT, None, True),
        ("class_queue_gpu_seconds", None, True),
        ("class_queue_gpu_seconds", 9.0, False),
        ("class_queue_requests", None, False),
    ],
)
def test_bounds_that_were_learned_are_predictions(
    decided_by: str, bound: float | None, expected: bool
) -> None:
    """An engine that stands idle beside refusals for them sends the pool back to learning; configured ones do not."""
    site = Site(settings=with_class("standard", settings_for(), max_queue_gpu_s=bound))
    assert expected is rests_on_prediction(Verdict(decided_by=decided_by), site.ticket(1))


def test_a_pool_is_bounded_in_waiting_requests() -> None:
    """`max_queue` of a pool counts over all classes."""
    site = full_site(max_queue=2)
    site.queued(2, class_name="batch")
    assert None is decide(site).outcome
    site.queued(3, class_name="realtime")
    verdict = decide(site)
    assert (Outcome.QUEUE_FULL, "pool_queue_requests") == (verdict.outcome, verdict.decided_by)


def test_a_reserved_endpoint_has_no_room_for_others() -> None:
    """An arrival waits though it would fit, while the endpoint is kept for another."""
    site = Site()
    site.endpoint().reserved_for = TicketId(7)
    assert (None, None) == (decide(site).outcome, decide(site).endpoint)


# The order


def test_the_order_of_the_checks_decides_which_refusal_is_given() -> None:
    """When every check fails, the refusals come in the fixed order as one cause after the other is removed."""
    pool = pool_settings(max_inflight_requests=1, max_inflight_tokens=4500, max_gpu_s=0.4, max_queue=0)
    settings = with_class(
        "standard",
        settings_for(pool, max_waiting_bytes=100),
        max_queue=0,
        max_queue_gpu_s=0.0,
        wait_budget_s=0.5,
    )
    site = trusting(Site(settings=settings))
    site.running(1)
    site.queued(2)
    endpoint = site.describe(context_tokens=4096)
    endpoint.state = EndpointState.DOWN
    ticket = site.ticket(99, prompt_tokens=5000)
    expected = WHOLE_ORDER
    cures: list[Callable[[], object]] = [
        lambda: setattr(endpoint, "state", EndpointState.UP),
        lambda: site.describe(context_tokens=None),
        lambda: _change_pool(site, max_inflight_tokens=100_000),
        lambda: _change_pool(site, max_gpu_s=0.6),
        lambda: _change(site, ticket, wait_budget_s=5.0),
        lambda: _change_pool(site, max_gpu_s=None),
        lambda: _change(site, ticket, settings=replace(site.settings, max_waiting_bytes=10**9)),
        lambda: _change(site, ticket, max_queue=None),
        lambda: _change(site, ticket, max_queue_gpu_s=None),
        lambda: _change_pool(site, max_queue=None),
    ]
    decided = []
    for cure in cures:
        verdict = decide(site, ticket)
        decided.append(verdict.decided_by)
        # Without an endpoint that is up there is no wait to predict.
        assert [name for name in names(verdict) if name != "predicted_wait"] == (
            [name for name in WHOLE_ORDER if name != "predicted_wait"]
        )
        cure()
    assert expected == decided
    assert None is decide(site, ticket).outcome


def _change_pool(site: Site, **changes: Any) -> None:
    site.pool.settings = replace(site.pool.settings, **changes)
    for endpoint in site.pool.endpoints.values():
        endpoint.pool_settings = site.pool.settings
    site.pool.find_limits()


def _change(site: Site, ticket: Ticket, settings: Any = None, **changes: Any) -> None:
    site.settings = settings or with_class("standard", site.settings, **changes)
    ticket.settings = site.class_settings("standard")


@pytest.mark.parametrize(
    ("stated", "budget"), [(None, 5.0), (103.0, 3.0), (120.0, 5.0), (99.0, -1.0)], ids=str
)
def test_the_tighter_of_budget_and_deadline_rules(stated: float | None, budget: float) -> None:
    """A client can only tighten what its class allows."""
    ticket = Site().ticket(1, 100.0, first_token_by_s=stated)
    assert budget == wait_budget_s(ticket, 100.0)


def test_where_no_bound_is_set_the_record_says_what_a_request_is_expected_to_take() -> None:
    """While learning, only what is sure may refuse it for good: with a bound, that is what is compared."""
    for bound, least in ((None, 1.0), (100.0, 0.01)):
        site = Site(pool_settings(law=None, max_gpu_s=bound))
        ticket = site.ticket(1)
        assert not site.pool.learning.may_refuse
        verdict = examine(ticket, site.life.ledger, site.settings, 0.0, draining=False)
        found = next(c for c in verdict.checks if c.name == "request_gpu_seconds")
        whole = site.pool.settings.to_gpu_s(ticket.cost.work_us)
        assert (found.value == whole) is (least == 1.0)
        assert 0.0 < found.value <= whole
