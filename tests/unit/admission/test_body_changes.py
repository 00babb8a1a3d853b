from __future__ import annotations

import pytest

from forebay.admission.body_changes import body_change
from forebay.admission.effects import Dispatch
from forebay.admission.model import BodyChange, EngineKind
from tests.unit.admission.build import LLAMACPP, VLLM, Scenario, Site, pool_settings

RANKS = [("realtime", 0), ("standard", 1), ("batch", 2)]


def test_the_body_is_changed_only_where_another_model_was_given() -> None:
    """Nothing is said otherwise without need."""
    site = Site()
    assert None is body_change(site.ticket(1), site.endpoint())
    assert BodyChange("b") == body_change(site.ticket(1, model="b", asked_model="a"), site.endpoint())


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_vllm_is_told_the_rank(name: str, rank: int) -> None:
    """R25: it serves the lowest number first, and takes 0 where none is stated: that is the least important class."""
    one = Scenario(pool_settings(pass_priority=True), info=VLLM)
    (effect,) = one.arrive(1, 0.0, class_name=name)
    assert isinstance(effect, Dispatch)
    assert BodyChange(priority=rank - 2) == effect.change


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_sglang_is_told_the_rank_the_other_way_round(name: str, rank: int) -> None:
    """R25: it serves the highest number first."""
    one = Scenario(pool_settings(pass_priority=True, engine=EngineKind.SGLANG), info=LLAMACPP)
    (effect,) = one.arrive(1, 0.0, class_name=name)
    assert isinstance(effect, Dispatch)
    assert BodyChange(priority=2 - rank) == effect.change


def test_others_are_told_nothing_and_nobody_is_unless_it_is_wished() -> None:
    """It is off by default, and an engine that does not know the field might refuse it."""
    for settings, info in ((pool_settings(pass_priority=True), LLAMACPP), (pool_settings(), VLLM)):
        (effect,) = Scenario(settings, info=info).arrive(1, 0.0)
        assert isinstance(effect, Dispatch)
        assert None is effect.change


def test_model_and_priority_change_together() -> None:
    """In one pass over the body."""
    site = Site(pool_settings(pass_priority=True, engine=EngineKind.VLLM))
    ticket = site.ticket(1, model="b", asked_model="a", class_name="batch")
    assert BodyChange("b", 0) == body_change(ticket, site.endpoint())
