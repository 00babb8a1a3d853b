"""Classes that come, go and change places under a running pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission.errors import ConfigRefused
from forebay.admission.settings import ClassOrder, ClassSettings, Settings
from tests.unit.admission.build import Scenario, dispatched, held, pool_settings, settings_for, with_class

ONE_PLACE = settings_for(pool_settings(max_inflight_requests=1), class_order=ClassOrder.STRICT)
FLOORLESS = {"weight": 0.001}


def classes(*names: str, settings: Settings = ONE_PLACE) -> Settings:
    """The same settings with these classes in this order; those that are new have the budgets of a batch class."""
    known = {c.name: replace(c, wait_budget_s=1000.0) for c in settings.classes}
    return replace(
        settings,
        classes=tuple(
            known.get(name) or ClassSettings(name, ttft_s=60.0, tpot_s=0.2, wait_budget_s=1000.0)
            for name in names
        ),
    )


def served(scenario: Scenario, count: int) -> list[int]:
    """Let what runs end, again and again: who starts."""
    started: list[int] = []
    for _ in range(count):
        (running,) = scenario.running
        started += [number for number, _ in dispatched(scenario.end(running, scenario.now + 0.1))]
    return started


def test_a_new_order_counts_for_those_who_wait() -> None:
    """Two wait by rank; when the ranks are turned round the other one is served first."""
    for names, first in ((("realtime", "batch"), 2), (("batch", "realtime"), 3)):
        scenario = Scenario(settings=classes("realtime", "standard", "batch"))
        scenario.arrive(1, 0.0)
        scenario.arrive(2, 0.0, class_name="realtime")
        scenario.arrive(3, 0.0, class_name="batch")
        scenario.reconfigure(classes("standard", *names), 0.5)
        (pool,) = scenario.controller._pools.values()
        assert ["standard", *names] == list(pool.classes) == list(pool.books.classes)
        assert first == served(scenario, 1)[0]
        scenario.close()


def test_a_new_class_is_served_and_an_empty_one_goes() -> None:
    """What waits in a class that stays keeps its place; the new class takes requests at once."""
    scenario = Scenario(settings=classes("realtime", "standard", "batch"))
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0)
    scenario.reconfigure(classes("urgent", "standard"), 0.5)
    assert [3] == held(scenario.arrive(3, 0.6, class_name="urgent"))
    assert [3, 2] == served(scenario, 2)
    assert ["urgent", "standard"] == [view.name for view in scenario.pool_view().classes]
    scenario.close()


@pytest.mark.parametrize("what", ["waits", "runs"])
def test_a_class_with_requests_cannot_go(what: str) -> None:
    """Refused, with nothing changed; once it is empty it goes. The core says which are in use."""
    scenario = Scenario(settings=classes("realtime", "standard"))
    scenario.arrive(1, 0.0, class_name="standard" if what == "waits" else "realtime")
    scenario.arrive(2, 0.0, class_name="realtime" if what == "waits" else "standard")
    assert ("realtime", "standard") == scenario.controller.classes_in_use()
    with pytest.raises(ConfigRefused, match="class 'realtime' still has requests"):
        scenario.reconfigure(classes("standard", "batch"), 0.1)
    assert ["realtime", "standard"] == [view.name for view in scenario.pool_view().classes]
    scenario.end(1, 0.2)
    scenario.end(2, 0.3)
    scenario.reconfigure(classes("standard", "batch"), 0.4)
    assert () == scenario.controller.classes_in_use()
    assert ["standard", "batch"] == [view.name for view in scenario.pool_view().classes]


def test_what_was_learned_and_promised_goes_with_the_name() -> None:
    """Waits, tags, recent shares and promises of a class are the same objects and numbers in its new place."""
    scenario = Scenario(settings=classes("realtime", "standard", "batch"))
    (pool,) = scenario.controller._pools.values()
    for number, name in enumerate(("realtime", "standard", "batch", "batch", "standard"), 1):
        scenario.arrive(number, 0.0, class_name=name)
    served(scenario, 3)
    state, queue = pool.classes["standard"], pool.queue.classes[1]
    waits, finish, amount = state.waits, queue.finish, pool.queue.window._amounts[1]
    promised = pool.retry_after._queues[1]
    assert amount > 0
    scenario.reconfigure(classes("batch", "new", "standard", "realtime"), scenario.now)
    assert pool.classes["standard"] is state
    assert pool.queue.classes[2] is queue
    assert (waits, finish, amount, 2, 2) == (
        state.waits, queue.finish, pool.queue.window._amounts[2], state.index, queue.index,
    )  # fmt: skip
    assert pool.retry_after._queues[2] is promised
    assert 0.0 == pool.queue.window._amounts[1]
    scenario.close()


def test_ceilings_go_with_the_class() -> None:
    """A class that is shut stays so under another rank, and one that is new may have a ceiling."""
    base = with_class(
        "batch", settings_for(pool_settings(max_inflight_requests=4)), admit_below_utilization=0.5
    )
    scenario = Scenario(settings=base)
    scenario.arrive_many((1, 2), 0.0)
    scenario.arrive(3, 0.0, class_name="batch")
    scenario.reconfigure(classes("batch", "standard", settings=base), 0.1)
    assert [4] == held(scenario.arrive(4, 0.1, class_name="batch"))
    assert [(5, "a")] == dispatched(scenario.arrive(5, 0.1))
    scenario.end(1, 0.2)
    assert [(3, "a")] == dispatched(scenario.end(2, 0.3))
    scenario.close()


def test_an_endpoint_is_kept_free_from_the_right_classes() -> None:
    """The rank for which an endpoint is kept follows its waiter."""
    base = settings_for(pool_settings(max_inflight_tokens=1000))
    scenario = Scenario(settings=classes("realtime", "standard", "batch", settings=base))
    scenario.arrive_many(range(1, 6), 0.0)
    scenario.arrive(6, 0.0, class_name="standard", prompt_tokens=900)
    scenario.end(1, 600.0)
    (endpoint,) = scenario.controller._pools["llama"].endpoints.values()
    assert (6, 1) == (endpoint.reserved_for, endpoint.reserved_rank)
    scenario.reconfigure(classes("standard", "realtime", "batch", settings=base), 601.0)
    assert 0 == endpoint.reserved_rank
