"""Label values that clients choose are bounded."""

from __future__ import annotations

from forebay.observe.labels import OTHER, BoundedLabels


def test_later_values_share_other() -> None:
    """The first values keep their names for good; those beyond the limit become `other`."""
    labels = BoundedLabels(2)
    assert ["a", "b", OTHER, "a", OTHER] == [labels.label(value) for value in ("a", "b", "c", "a", "d")]
