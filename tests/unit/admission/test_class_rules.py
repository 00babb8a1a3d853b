from __future__ import annotations

import pytest

from forebay.admission.class_rules import BURST_S, LEAST_BURST_S, bursts_s_of, rules_of
from tests.unit.admission.build import settings_for, with_class


def test_floors_are_parts_of_all_weights() -> None:
    """Weights 3, 5 and 2."""
    rules = rules_of(settings_for())
    assert [3, 5, 2] == [rule.weight for rule in rules]
    assert [0.3, 0.5, 0.2] == pytest.approx([rule.floor for rule in rules])


def test_the_tightest_class_may_save_the_most() -> None:
    """Ten seconds of its share; the others less as their budgets are longer; and one without a budget as it."""
    settings = settings_for()
    assert [BURST_S, BURST_S * 1.5 / 5, BURST_S * 1.5 / 60] == pytest.approx(bursts_s_of(settings))
    assert BURST_S == bursts_s_of(with_class("realtime", settings, wait_budget_s=0.0))[0]


def test_beside_a_cap_each_may_save_for_some_seconds() -> None:
    """Else batch, which may save for a quarter of a second, never has room for a large request come together."""
    settings = with_class("realtime", settings_for(), max_share=0.3)
    assert [BURST_S, LEAST_BURST_S, LEAST_BURST_S] == pytest.approx(bursts_s_of(settings))
