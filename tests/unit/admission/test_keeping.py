from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from forebay.admission import Controller, PoolSettings, Settings
from forebay.admission.events import Described, EndpointsChanged
from forebay.admission.keeping import export_pool, restore_pool
from forebay.admission.model import EndpointId
from forebay.admission.settings import OPTIMISTIC_LAW, SpeedLaw
from tests.unit.admission.build import VLLM, Scenario, Site, dispatched, pool_settings, settings_for

LEARNED = SpeedLaw(1e-2, 1e-4, 1e-4, 1e-8, 1e-9, kv_tokens=50_000, max_requests=64)


def learning_site() -> Site:
    """A pool that learns, and knows nothing yet."""
    return Site(pool_settings(law=None))


def kept() -> dict[str, Any]:
    """What a pool that has learned leaves in a file."""
    site = learning_site()
    site.pool.pricing.law = LEARNED
    site.endpoint().meter.speed = 0.5
    for _ in range(40):
        site.pool.pricing.ratios.observe("llama", 300, 100)
        site.pool.pricing.lengths.observe("standard", "t", 100, 700, censored=False)
    site.pool.learning.observed(500, 40, 0.1, True, 1.0)
    found = json.loads(json.dumps(export_pool(site.pool)))
    assert isinstance(found, dict)
    return found


def test_what_was_learned_comes_back() -> None:
    """A next process starts with the law, the lengths, the speeds and the trust of the last one."""
    site = learning_site()
    assert [] == restore_pool(site.pool, kept(), 5.0)
    assert LEARNED == site.pool.pricing.law
    assert site.pool.pricing.ratios.common.bytes_per_token < 3.9
    assert site.pool.pricing.lengths.expect("standard", "t", 100).mean(4096) > 400
    trust = [site.pool.learning.may_refuse]
    for name in ("another", "a"):
        site.pool.add_endpoint(EndpointId(name), 0)
        trust.append(site.pool.learning.may_refuse)
    assert [False, False, True] == trust  # what was learned of one engine is no reason to refuse for another
    assert 0.5 == site.endpoint("a").meter.speed


def test_a_configured_law_is_not_replaced() -> None:
    """A profile says how fast the engine is; the rest is taken up."""
    site = Site()
    before = site.pool.pricing.law
    assert [] == restore_pool(site.pool, kept(), 5.0)
    assert before == site.pool.pricing.law


@pytest.mark.parametrize(
    ("part", "value", "fault"),
    [
        ("law", {"c0_s": -1}, "law of speed"),
        ("law", "fast", "law of speed"),
        ("law", {**{f"c{n}_s": 1e-3 for n in range(5)}, "kv_tokens": 0, "max_requests": 4}, "law of speed"),
        ("law", {**{f"c{n}_s": 0.0 for n in range(5)}, "kv_tokens": 9, "max_requests": 4}, "law of speed"),
        ("pricing", {"prompt_ratio": "x"}, "lengths"),
        ("pricing", None, "lengths"),
        ("waits", {"standard": {"log_kappa": "x"}}, "waits of class 'standard'"),
        ("learning", {"phase": "sure"}, "how far"),
    ],
)
def test_a_part_that_makes_no_sense_is_told_and_left_out(part: str, value: object, fault: str) -> None:
    """Each part stands for itself; a pool of which some part was nonsense begins by learning."""
    site = learning_site()
    faults = restore_pool(site.pool, {**kept(), part: value}, 5.0)
    assert len(faults) == 1
    assert fault in faults[0]
    assert not site.pool.learning.may_refuse
    if part == "law":
        assert OPTIMISTIC_LAW == site.pool.pricing.law


def test_what_is_no_object_is_told() -> None:
    """A list where a pool should be is no reason to fail."""
    assert ["it is no object"] == restore_pool(learning_site().pool, [], 0.0)


def test_a_controller_keeps_its_pools_apart() -> None:
    """What was learned goes to the pool of the same name; others in the file are nobody's."""
    settings = Settings(pools=(PoolSettings("one"), PoolSettings("two")))
    first = Controller(settings, 0.0)
    learned = json.loads(json.dumps(first.export_learned()))
    assert ["one", "two"] == list(learned)
    learned["one"]["law"] = "x"
    learned["gone"] = {}
    faults = Controller(settings, 0.0).restore_learned(learned, 0.0)
    assert ["pool 'one': its law of speed makes no sense"] == faults


HUGE = 10**400


def _first_in_line(*numbers: float) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["waits"]["standard"].__setitem__("first", [0.0, *numbers])


def _bins(*bins: list[float]) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["waits"]["standard"]["ratios"].__setitem__("bins", [*bins])


def _speed(speed: float) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.__setitem__("speeds", {"a": speed})


def _law(**changes: float) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["law"].update(changes)


@pytest.mark.parametrize(
    "spoil",
    [
        _speed(HUGE),
        _speed(1e308),
        _speed(1e17),
        _speed(1e-300),
        _law(kv_tokens=HUGE),
        _law(max_requests=HUGE),
        _law(c0_s=HUGE),
        _first_in_line(HUGE, 1.0, 0, 0, 0, 0),
        _first_in_line(20, 1e-300, 1e12, 1e12, 1e12, 1e12),
        _bins([3, 5e-324]),
        _bins([3, 1e300], [4, 1e300]),
    ],
)
def test_whatever_a_state_file_holds_the_pool_works(spoil: Callable[[dict[str, Any]], None]) -> None:
    """Numbers beyond all reason are left out, and neither requests nor the next save fail by them."""
    settings = settings_for(pool_settings(law=None))
    learned = json.loads(json.dumps(Controller(settings, 0.0).export_learned()))
    spoil(learned["llama"])
    scenario = Scenario(settings=settings, endpoints=())
    scenario.controller.restore_learned(json.loads(json.dumps(learned)), 0.0)
    scenario.tell(EndpointsChanged("llama", (EndpointId("a"),)), 0.0)
    scenario.tell(Described(EndpointId("a"), VLLM), 0.0)
    running: list[int] = []
    for number in range(1, 201):
        now = number * 0.05
        running += [ticket for ticket, _ in dispatched(scenario.arrive(number, now))]
        if number > 100 and running:
            running += [ticket for ticket, _ in dispatched(scenario.end(running.pop(0), now))]
    scenario.controller.snapshot()
    json.dumps(scenario.controller.export_learned(), allow_nan=False)
