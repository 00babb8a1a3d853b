from __future__ import annotations

from tests.unit.admission.rule_making import always, rule


def test_a_rule_routes_or_judges() -> None:
    """By what it gives."""
    assert (True, False) == (rule("a", (), always, class_name="batch").routes, rule("a", (), always).judges)
    assert rule("a", (), always, pool="b").routes
    assert rule("a", (), always, model="b").routes
    assert rule("a", (), always, refuses=True).judges
    assert rule("a", (), always, accepts=True).judges
    assert not rule("a", (), always, accepts=True).routes
