"""One modelled engine of a run."""

from __future__ import annotations

from forebay.admission.model import EndpointId, EngineKind, TicketId
from forebay.enginemodel.profile import EngineConfig
from forebay.enginemodel.sequence import Request
from forebay.profiles import load_profile
from forebay.simulate.place import EngineSetup, Place, fleet, slowed

PROFILE = load_profile("llama3-8b-h100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE)


def place() -> Place:
    """An engine with one request of ten tokens."""
    made = Place(EndpointId("a"), EngineSetup("p", PROFILE, CONFIG), gpus=2)
    made.engine.submit(Request(1, 100, 10))
    made.running[TicketId(1)] = None
    return made


def test_tokens_of_the_step_that_runs_have_not_come() -> None:
    """They are told when it is over, once."""
    here = place()
    here.result = here.engine.step(0.0)
    here.streams[1] = 0
    assert () == here.progress()
    here.result = None
    assert ((1, 1),) == here.progress()
    for _ in range(3):
        here.result = here.engine.step(here.engine.busy_until_s)
    assert ((1, 2),) == here.progress()
    here.result = None
    assert ((1, 1),) == here.progress()
    assert () == here.progress()


def test_what_a_dead_process_did_is_not_forgotten() -> None:
    """Its time counts; what it had is lost; the next one begins with nothing."""
    here = place()
    here.result = here.engine.step(0.0)
    busy_s = here.busy_s
    assert busy_s > 0
    assert [1] == here.die()
    assert (busy_s, False, False) == (here.busy_s, here.up, here.engine.has_work)
    assert 0 == here.sample(1.0).steps_total


def test_a_slow_replica_is_one_whose_steps_take_longer() -> None:
    """All parts of the law but the number of tokens at its knee."""
    slow = slowed(PROFILE, 2.0).law
    assert (2.0 * PROFILE.law.t0, PROFILE.law.n0) == (slow.t0, slow.n0)
    engines = fleet("p", PROFILE, CONFIG, 3, slow=(2.0,))
    assert [2.0, 1.0, 1.0] == [one.profile.law.t0 / PROFILE.law.t0 for one in engines]
    here = place()
    here.slow_down(3.0)
    assert 3.0 * PROFILE.law.t0 == here.engine.profile.law.t0
    here.slow_down(1.0)
    assert PROFILE.law == here.engine.profile.law


def test_a_mute_engine_tells_nothing() -> None:
    """As a server without metrics that we know."""
    here = Place(EndpointId("a"), EngineSetup("p", PROFILE, CONFIG, mute=True))
    assert here.info().kind is EngineKind.OPENAI
    assert here.sample(1.0).running is None
