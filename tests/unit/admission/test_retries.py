"""R12: how requests that say that they are retries are treated, through the whole core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Order, Retries
from tests.unit.admission.build import (
    Scenario,
    dispatched,
    pool_settings,
    settings_for,
    turned_away,
    with_class,
)


def full(retries: Retries, order: Order = Order.SJF) -> Scenario:
    """An engine that runs one request, which is there."""
    settings = settings_for(pool_settings(max_inflight_requests=1), retries=retries)
    one = Scenario(settings=with_class("standard", settings, order=order))
    one.arrive(1, 0.0)
    return one


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize(
    ("retries", "first"), [(Retries.PREFER, 3), (Retries.EQUAL, 2), (Retries.PENALISE, 2)]
)
def test_a_retry_that_comes_later_is_served_first_only_if_preferred(
    order: Order, retries: Retries, first: int
) -> None:
    """By one wait budget, in every order."""
    one = full(retries, order)
    one.arrive(2, 0.0)
    one.arrive(3, 0.1, retry_count=1)
    assert [(first, "a")] == dispatched(one.end(1, 0.2))


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize(
    ("retries", "first"), [(Retries.PREFER, 2), (Retries.EQUAL, 2), (Retries.PENALISE, 3)]
)
def test_a_retry_that_came_before_is_served_last_if_penalised(
    order: Order, retries: Retries, first: int
) -> None:
    """First tries overtake it for one wait budget at most."""
    one = full(retries, order)
    one.arrive(2, 0.0, retry_count=1)
    one.arrive(3, 0.1)
    assert [(first, "a")] == dispatched(one.end(1, 0.2))


@pytest.mark.parametrize("retries", list(Retries))
def test_a_retry_of_what_was_not_displaced_is_displaced(retries: Retries) -> None:
    """Clients say themselves that they retry: that may not fill a queue with what nobody can push out."""
    settings = settings_for(pool_settings(max_inflight_requests=1, max_queue=1), retries=retries)
    one = Scenario(settings=settings)
    one.arrive(1, 0.0)
    one.arrive(2, 0.0, class_name="batch", retry_count=1)
    assert [(2, Outcome.DISPLACED)] == turned_away(one.arrive(3, 0.0, class_name="realtime"))
    one.close()


def test_the_policy_changes_with_a_reload() -> None:
    """For those who come from then on; who waits keeps its place."""
    one = full(Retries.EQUAL)
    one.arrive(2, 0.0)
    one.reconfigure(replace(one.controller._settings, retries=Retries.PREFER), 0.1)
    one.arrive(3, 0.2, retry_count=1)
    assert [(3, "a")] == dispatched(one.end(1, 0.3))
