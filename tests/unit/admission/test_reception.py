from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.errors import MisuseError
from forebay.admission.quota import Quota
from forebay.admission.reception import Reception
from forebay.admission.settings import Retries
from tests.unit.admission.build import Site, demand, settings_for
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


@pytest.mark.parametrize("wrong", [{"pool": "none"}, {"class_name": "none"}, {"plan": "none"}])
def test_what_is_not_configured_is_a_misuse(wrong: dict[str, Any]) -> None:
    """The shell looks names up before it asks."""
    site = Site()
    with pytest.raises(MisuseError):
        Reception(site.settings, {"llama": site.pool}, Quota(), 0.0).arrived(replace(demand(1), **wrong), 0.0)
