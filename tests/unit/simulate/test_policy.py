"""The seam between a run and whoever decides."""

from __future__ import annotations

from forebay.admission.controller import Controller
from forebay.admission.model import Check, Demand, EndpointId, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from forebay.simulate.pass_through import PassThrough
from forebay.simulate.policy import PolicyMaker, dispatch, evict, hold, refuse

DEMAND = Demand(TicketId(7), "p", "standard", "m", stream=True, prompt_bytes=4, body_bytes=4)


def test_the_real_controller_is_a_policy() -> None:
    """It stands behind the same seam as any baseline, unchanged (the type checker holds it to that, too)."""
    makers: list[PolicyMaker] = [Controller, PassThrough]
    settings = Settings(pools=(PoolSettings("p"),))
    assert [[], ()] == [maker(settings, 0.0).wake(1.0) for maker in makers]


def test_effects_of_a_baseline_carry_a_record_that_says_who_decided() -> None:
    """What is sent on passed; what is turned away names the check, and how long it had waited."""
    check = Check("depth", 5, 4, False)
    sent = dispatch(DEMAND, EndpointId("a"), 3.0, came_s=1.0)
    assert ("passed", "a", 2.0) == (sent.record.decided_by, sent.endpoint, sent.record.waited_s)
    assert "hold" == hold(DEMAND, 1.0).record.action
    refused = refuse(DEMAND, 1.0, Outcome.QUEUE_FULL, check, retry_after_s=4.0).refusal
    assert ("depth", 4.0, Outcome.QUEUE_FULL) == (
        refused.record.decided_by,
        refused.retry_after_s,
        refused.outcome,
    )
    assert 2.0 == evict(DEMAND, 3.0, Outcome.QUEUE_TIMEOUT, check, came_s=1.0).refusal.record.waited_s
