from __future__ import annotations

import math
import random

import pytest

from forebay.admission.fairness import LEAST_PART, WINDOW_S, FairTime, Flow, FlowOrder, ShareWindow
from forebay.admission.waiter import Waiter


def headed(finish: float, work_us: int, sequence: int, weight: float = 1.0) -> Flow:
    """A flow with this finish tag, and a head."""
    flow = Flow()
    flow.finish = finish
    flow.head = Waiter(sequence, 0, "a", weight, work_us, 10, 0.0, 99.0, False)
    return flow


def test_serving_moves_the_finish_tag_and_the_fair_time() -> None:
    """A flow without backlog starts at the fair time, one with a backlog where it ended last."""
    time, one, other = FairTime(), Flow(), Flow()
    time.enter(one)
    time.enter(other)
    time.serve(one, 10.0)
    time.serve(other, 4.0)
    assert (10.0, 4.0, 10.0) == (one.finish, other.finish, time.now)
    stranger = Flow()
    time.serve(stranger, 1.0)
    assert (11.0, 11.0, 11.0) == (stranger.finish, time.now, time.served)


def test_idling_earns_no_credit() -> None:
    """A flow that gets work is lifted to the fair time; what it is ahead of that it owes, unless it idles on."""
    time, busy, idle, ahead = FairTime(), Flow(), Flow(), Flow()
    time.enter(busy)
    time.serve(busy, 100.0)
    time.enter(idle)
    ahead.finish = 130.0
    time.enter(ahead)
    assert (100.0, 100.0) == (idle.finish, idle.lifted)
    assert (100.0, 30.0) == (ahead.finish, ahead.due)
    time.leave(ahead)
    assert (130.0, 0.0) == (ahead.finish, ahead.due)
    time.serve(busy, 50.0)
    time.enter(ahead)
    assert (150.0, 0.0) == (ahead.finish, ahead.due)


def test_what_is_due_is_settled_as_a_flow_is_served() -> None:
    """A sixteenth at each request, and all that is more than the request; it moves nobody who waits."""
    time, flow = FairTime(), Flow()
    time.enter(flow)
    time.owe(flow, 40.0)
    assert (0.0, 40.0) == (flow.finish, flow.due)
    time.serve(flow, 16.0)
    assert (40.0, 16.0) == (flow.finish, flow.due)
    time.serve(flow, 16.0)
    assert (57.0, 15.0) == (flow.finish, flow.due)
    time.owe(flow, -55.0)
    assert (57.0, -40.0) == (flow.finish, flow.due)
    time.serve(flow, 16.0)
    assert (49.0, -16.0) == (flow.finish, flow.due)


def test_a_small_refund_leaves_a_flow_no_further_back_than_the_fair_time() -> None:
    """Or it would be served twice before one that came meanwhile."""
    time, busy, flow = FairTime(), Flow(), Flow()
    time.enter(flow)
    time.serve(flow, 32.0)
    time.serve(busy, 31.0)
    time.owe(flow, -32.0)
    time.serve(flow, 32.0)
    assert (63.0, -31.0) == (flow.finish, flow.due)


def test_due_refunds_are_no_credit_for_idling_either() -> None:
    """They take a flow that waits no lower than where it was lifted to."""
    time, busy, flow = FairTime(), Flow(), Flow()
    time.serve(busy, 100.0)
    time.enter(flow)
    time.owe(flow, -30.0)
    assert (100.0, 0.0) == (flow.finish, flow.due)


def test_a_request_that_comes_back_is_paid_for() -> None:
    """With credit, a flow is lifted to the fair time less the cost, so that the tag of the request is the fair time."""
    time, busy, back = FairTime(), Flow(), Flow()
    time.serve(busy, 100.0)
    time.enter(back, 30.0)
    assert 70.0 == back.finish


def test_a_refund_never_gives_credit_for_idling() -> None:
    """While a flow waits, refunds go down to where it was lifted to and no further; surcharges always count."""
    time, busy, flow = FairTime(), Flow(), Flow()
    time.serve(flow, 40.0)
    time.serve(busy, 100.0)
    time.enter(flow)
    time.serve(flow, 20.0)
    time.correct(flow, -39.0)
    assert (140.0, 140.0) == (flow.finish, flow.lifted)
    time.correct(flow, 7.0)
    assert 147.0 == flow.finish
    time.correct(busy, -30.0)
    assert 110.0 == busy.finish


def test_one_that_cannot_be_placed_keeps_a_claim_to_one_request() -> None:
    """It stays first of those served meanwhile, and does not collect what they were given."""
    time, blocked, other = FairTime(), Flow(), Flow()
    time.enter(blocked)
    time.enter(other)
    for _ in range(50):
        time.serve(other, 10.0)
    time.pass_over(blocked, 25.0)
    assert 475.0 == blocked.finish
    time.served = 0.0
    time.pass_over(blocked, 25.0)
    assert 475.0 == blocked.finish


def test_a_refund_is_not_lost_by_being_passed_over() -> None:
    """What counts is who was served meanwhile, not how far the fair time ever was."""
    time, refunded, other = FairTime(), Flow(), Flow()
    time.enter(refunded)
    time.enter(other)
    time.serve(refunded, 1000.0)
    time.correct(refunded, -900.0)
    time.served = 0.0
    time.serve(other, 100.0)
    time.pass_over(refunded, 50.0)
    assert 100.0 == refunded.finish


def test_the_smallest_finish_tag_is_first() -> None:
    """Start tag and cost ÷ weight of the head together decide, and the arrival of the head among equals."""
    order = FlowOrder()
    flows = [headed(100.0, 50, 3), headed(0.0, 300, 2, weight=2.0), headed(60.0, 85, 1), headed(140.0, 10, 4)]
    for flow in flows:
        order.put(flow)
    served = []
    while (first := order.first()) is not None:
        served.append(flows.index(first))
        first.head = None
        order.put(first)
    assert [2, 1, 0, 3] == served


def test_only_the_last_filing_of_a_flow_counts() -> None:
    """A flow filed anew under a higher or lower tag is where it was put last."""
    order = FlowOrder()
    one, other = headed(0.0, 10, 1), headed(0.0, 20, 2)
    order.put(one)
    order.put(other)
    one.finish = 100.0
    order.put(one)
    assert order.first() is other
    one.finish = 5.0
    order.put(one)
    assert order.first() is one
    one.head = None
    order.put(one)
    order.put(one)
    assert order.first() is other


def test_the_order_holds_each_flow_once() -> None:
    """However often tags change and flows come and go, the first is the smallest of those there."""
    draw = random.Random("order")
    order = FlowOrder()
    flows = [headed(0.0, 10, number) for number in range(50)]
    heads = [flow.head for flow in flows]
    there: set[int] = set()
    for _ in range(20_000):
        number = draw.randrange(50)
        flow = flows[number]
        flow.finish = float(draw.randrange(200))  # few values: many tags are the same
        flow.head = heads[number] if draw.random() < 0.8 else None
        order.put(flow)
        (there.add if flow.head is not None else there.discard)(number)
        assert len(there) == len(order)
        expected = min(there, key=lambda n: (flows[n].finish, n), default=None)
        assert order.first() is (None if expected is None else flows[expected])


def test_shares_fade() -> None:
    """After one time constant what was charged counts 1/e."""
    window = ShareWindow(2)
    window.add(0, 1000, 50.0)
    window.add(1, 1000, 50.0 + WINDOW_S)
    share = 1 / (1 + math.e)
    assert window.is_above(0, share - 1e-9) and not window.is_above(0, share + 1e-9)
    assert window.is_below(0, share + 1e-9) and not window.is_below(0, share - 1e-9)


def test_nobody_has_too_much_or_too_little_of_nothing() -> None:
    """With nothing charged, no class is above or below any share."""
    window = ShareWindow(2)
    assert not window.is_above(0, 0.0)
    assert not window.is_below(1, 0.9)


def test_a_charge_can_be_taken_back_whole() -> None:
    """A correction counts as of the time of the charge; a sum never falls below zero."""
    window = ShareWindow(2)
    window.add(0, 700, 3.0)
    window.add(1, 300, 9.0)
    window.add(0, -700, 3.0)
    assert window.is_above(1, 0.999999)
    window.add(1, -400, 9.0)
    assert [0.0, 0.0] == [max(0.0, amount) for amount in window._amounts] == window._amounts


@pytest.mark.parametrize("days", [1, 365])
def test_shares_stay_finite(days: int) -> None:
    """Times far apart neither overflow nor lose the present."""
    window = ShareWindow(2)
    for hour in range(0, days * 24, 7):
        window.add(0, 300, hour * 3600.0)
        window.add(1, 700, hour * 3600.0)
    assert window.is_above(0, 0.299) and window.is_below(0, 0.301)
    assert all(math.isfinite(amount) for amount in window._amounts)


def test_what_has_faded_away_is_above_no_share() -> None:
    """All amounts fade alike and ratios stay, so one that was alone would be above its share without end."""
    window = ShareWindow(2)
    rate = 100 / (WINDOW_S * LEAST_PART)
    window.add(0, 300, 5.0)
    window.look(rate, 5.0)
    assert window.is_above(0, 0.5)
    faded_s = window.faded_s(0)
    assert pytest.approx(5.0 + WINDOW_S * math.log(3.0)) == faded_s
    window.look(rate, faded_s - 0.01)
    assert window.is_above(0, 0.5)
    window.look(rate, faded_s + 0.01)
    assert not window.is_above(0, 0.5)
    assert math.inf == window.faded_s(1)
    window.look(rate, 1e6)
    assert not window.is_above(0, 0.5)
    window.add(0, 300, 1e6)
    window.look(rate, 1e6)
    assert window.is_above(0, 0.5)
