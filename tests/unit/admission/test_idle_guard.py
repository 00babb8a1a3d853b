from __future__ import annotations

from forebay.admission.learning import LearningPhase
from tests.unit.admission.build import Scenario, pool_settings, settings_for

CAPPED = pool_settings(max_pool_requests=1)


def sure(phase: LearningPhase) -> Scenario:
    """Two endpoints, of which a cap leaves one idle, and a pool that refuses on predictions."""
    scenario = Scenario(settings=settings_for(CAPPED), endpoints=("a", "b"))
    scenario.controller._pools["llama"].learning.phase = phase
    scenario.arrive(1, 1.0)
    return scenario


def test_a_flood_of_refusals_sets_one_timer() -> None:
    """A thousand refusals beside an idle engine leave one timer for its guard, not a thousand."""
    scenario = sure(LearningPhase.CAUTIOUS)
    for number in range(2, 1002):
        now = 1.0 + number * 1e-3
        scenario.arrive(number, now, first_token_by_s=now + 1e-3)
    assert len(scenario.controller._timers) < 20


def test_an_engine_that_a_cap_leaves_idle_proves_nothing() -> None:
    """With `max_pool_requests` below the number of engines one is idle by design: predictions are not to blame."""
    scenario = sure(LearningPhase.CONFIDENT)
    scenario.arrive(2, 1.1, first_token_by_s=1.101)
    scenario.run_until(7.0)
    assert 0 == scenario.pool_view().learned.guard_trips


def test_an_engine_that_is_left_idle_beside_refusals_trips_it() -> None:
    """Without the cap's hindrance the guard works: an idle engine and refusals for five seconds end the trust."""
    scenario = Scenario(pool_settings(max_inflight_requests=1), endpoints=("a",))
    pool = scenario.controller._pools["llama"]
    pool.learning.phase = LearningPhase.CONFIDENT
    scenario.arrive(1, 1.0)
    scenario.end(1, 2.0)
    pool.refused_on_prediction("standard", 3.0)
    scenario.controller._guard.look(pool, 3.0)
    assert 7.0 == scenario.controller.next_deadline()
    scenario.run_until(7.0)
    assert 1 == scenario.pool_view().learned.guard_trips
