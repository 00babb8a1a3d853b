from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.errors import MisuseError
from forebay.admission.model import Mode
from forebay.admission.quota import Quota
from forebay.admission.reception import Reception
from forebay.admission.settings import Order, PlanSettings, Retries
from tests.unit.admission.build import Site, demand, settings_for, with_class
from tests.unit.admission.rule_making import always, book, rule

BATCH = rule("batch", ("class",), always, class_name="batch")
WALL = rule("wall", ("class",), always, refuses=True)


def test_without_rules_a_request_is_what_its_demand_says() -> None:
    """Nothing is noted."""
    site = Site()
    ticket = Reception(site.settings, {"llama": site.pool}, Quota(), 0.0).arrived(demand(1), 2.0)
    assert ("standard", 1, 2.0, None) == (
        ticket.demand.class_name,
        ticket.rank,
        ticket.arrived_s,
        ticket.ruling,
    )


def test_rules_give_an_arrival_its_class_and_a_guest_only_a_verdict() -> None:
    """Who falls back has been routed already."""
    site = Site(settings=settings_for(rules=book(BATCH, WALL, names=("class",))))
    reception = Reception(site.settings, {"llama": site.pool}, Quota(), 0.0)
    arrived, guest = reception.arrived(demand(1), 0.0), reception.guest(demand(2), site.ticket(2), 0.0)
    assert ("batch", "standard") == (arrived.demand.class_name, guest.demand.class_name)
    for ticket in (arrived, guest):
        assert ticket.ruling is not None
        assert WALL is ticket.ruling.refused_by
    assert [("batch", 1), ("wall", 2)] == [(view.name, view.matches) for view in reception.rule_views()]


@pytest.mark.parametrize(
    ("retries", "shift_s"), [(Retries.PREFER, -5.0), (Retries.EQUAL, 0.0), (Retries.PENALISE, 5.0)]
)
def test_retries_count_as_earlier_or_later_by_a_wait_budget(retries: Retries, shift_s: float) -> None:
    """R12: and first tries as they came."""
    site = Site(settings=settings_for(retries=retries))
    reception = Reception(site.settings, {"llama": site.pool}, Quota(), 0.0)
    assert shift_s == reception.arrived(demand(1, retry_count=2), 0.0).shift_s
    assert 0.0 == reception.arrived(demand(2), 0.0).shift_s
    reception.reconfigure(settings_for(), 0.0)
    assert 0.0 == reception.arrived(demand(3, retry_count=1), 0.0).shift_s


@pytest.mark.parametrize(
    ("order", "stream", "known"), [("edf", False, True), ("edf", True, False), ("sjf", False, False)]
)
def test_by_when_a_whole_answer_must_start_is_found_where_that_orders(
    order: str, stream: bool, known: bool
) -> None:
    """R19: in a class with `edf`, and not of streams, which are worth their first tokens."""
    settings = with_class("standard", settings_for(), whole_answer_s=60.0, order=Order(order))
    site = Site(settings=settings)
    reception = Reception(site.settings, {"llama": site.pool}, Quota(), 0.0)
    assert known == (reception.arrived(demand(1, stream=stream), 0.0).start_by_s < 60.0)


def test_the_class_before_a_rule_is_noted_and_kept_on_the_way_to_another_pool() -> None:
    """Also where the rules are gone by then; where none gave a class, and in shadow mode, there is none."""
    site = Site(settings=settings_for(rules=book(BATCH, names=("class",))))
    reception = Reception(site.settings, {"llama": site.pool}, Quota(), 0.0)
    arrived = reception.arrived(demand(1), 0.0)
    assert arrived.ruling is not None
    assert "standard" == arrived.ruling.class_before
    as_it_was = reception.arrived(demand(2, class_name="batch"), 0.0)
    assert as_it_was.ruling is not None
    assert not as_it_was.ruling.class_before
    for settings in (site.settings, settings_for()):
        reception.reconfigure(settings, 0.0)
        guest = reception.guest(arrived.demand, arrived, 0.0)
        assert guest.ruling is not None
        assert "standard" == guest.ruling.class_before
    reception.reconfigure(site.settings, 0.0)
    site.pool.classes["standard"].mode = Mode.SHADOW
    shadowed = reception.arrived(demand(3), 0.0)
    assert shadowed.ruling is not None
    assert not shadowed.ruling.class_before


def test_classes_that_a_plan_grants() -> None:
    """As it is now: all without a plan or a list, and none of a plan that is gone."""
    site = Site()
    plans = (PlanSettings("few", classes=("batch", "gone")), PlanSettings("all"))
    reception = Reception(settings_for(plans=plans), {"llama": site.pool}, Quota(), 0.0)

    def granted(plan: str) -> list[str]:
        return [
            name for name in ("realtime", "standard", "batch", "gone") if name in reception.classes_of(plan)
        ]

    everything = ["realtime", "standard", "batch"]
    assert [["batch"], everything, everything, []] == [granted(plan) for plan in ("few", "all", "", "other")]
    reception.reconfigure(settings_for(plans=(PlanSettings("few", classes=("realtime",)),)), 0.0)
    assert [["realtime"], []] == [granted("few"), granted("all")]


@pytest.mark.parametrize("wrong", [{"pool": "none"}, {"class_name": "none"}, {"plan": "none"}])
def test_what_is_not_configured_is_a_misuse(wrong: dict[str, Any]) -> None:
    """The shell looks names up before it asks."""
    site = Site()
    with pytest.raises(MisuseError):
        Reception(site.settings, {"llama": site.pool}, Quota(), 0.0).arrived(replace(demand(1), **wrong), 0.0)
