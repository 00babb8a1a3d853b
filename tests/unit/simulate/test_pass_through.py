"""The policy that decides nothing."""

from __future__ import annotations

from forebay.admission.effects import Abort, Dispatch, Refuse
from forebay.admission.events import Arrived, AttemptFailed, EndpointsChanged, Failure
from forebay.admission.model import Demand, EndpointId, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from forebay.simulate.pass_through import PassThrough

A, B = EndpointId("a"), EndpointId("b")


def asked(number: int) -> Arrived:
    """A request."""
    return Arrived(Demand(TicketId(number), "p", "standard", "m", stream=True, prompt_bytes=4, body_bytes=4))


def passing() -> PassThrough:
    """The policy, for one pool."""
    return PassThrough(Settings(pools=(PoolSettings("p"),)), 0.0)


def test_everything_goes_to_the_next_engine_in_turn() -> None:
    """Nothing waits and nothing is refused, however many come."""
    policy = passing()
    policy.handle(EndpointsChanged("p", (A, B)), 0.0)
    effects = [policy.handle(asked(number), 1.0)[0] for number in range(1, 6)]
    assert [A, B, A, B, A] == [effect.endpoint for effect in effects if isinstance(effect, Dispatch)]
    assert policy.next_deadline() is None
    assert () == policy.wake(2.0)


def test_an_engine_that_is_gone_gets_nothing_more() -> None:
    """With none left a request is refused: nothing can serve it."""
    policy = passing()
    policy.handle(EndpointsChanged("p", (A, B)), 0.0)
    policy.handle(EndpointsChanged("p", (B,)), 1.0)
    (effect,) = policy.handle(asked(1), 1.0)
    assert isinstance(effect, Dispatch)
    assert B == effect.endpoint
    policy.handle(EndpointsChanged("p", ()), 2.0)
    (refused,) = policy.handle(asked(2), 2.0)
    assert isinstance(refused, Refuse)
    assert refused.refusal.outcome is Outcome.NO_ENDPOINTS


def test_what_an_engine_dropped_is_not_tried_again() -> None:
    """A plain balancer does not know whether the work was done."""
    policy = passing()
    policy.handle(EndpointsChanged("p", (A,)), 0.0)
    policy.handle(asked(1), 0.0)
    (effect,) = policy.handle(AttemptFailed(TicketId(1), A, Failure.CLOSED), 1.0)
    assert isinstance(effect, Abort)
    assert effect.outcome is Outcome.UPSTREAM_FAILED
