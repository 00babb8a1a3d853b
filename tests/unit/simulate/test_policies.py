"""Policies by name."""

from __future__ import annotations

import pytest

from forebay.admission.controller import Controller
from forebay.admission.settings import ClassOrder, PoolSettings, Settings
from forebay.simulate.policies import POLICIES, UnknownPolicy, find_policy


def test_forebay_is_the_controller_itself() -> None:
    """What is simulated under the product's name is what decides in production."""
    assert find_policy("forebay") is Controller
    assert "forebay" == next(iter(POLICIES))


def test_forebay_by_rank_is_another_policy() -> None:
    """Whatever the settings say of the order of classes."""
    policy = find_policy("forebay:strict")(Settings(pools=(PoolSettings("p"),)), 0.0)
    assert isinstance(policy, Controller)
    assert policy._settings.class_order is ClassOrder.STRICT


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    """The nearest is offered."""
    with pytest.raises(UnknownPolicy, match="did you mean pass-through"):
        find_policy("passthrough")
    with pytest.raises(UnknownPolicy, match="or `strict`"):
        find_policy("forebay:3")
