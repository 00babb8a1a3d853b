from __future__ import annotations

import pytest

from forebay.admission.model_names import asked_at, with_model
from tests.unit.admission.build import Site, demand, pool_settings


@pytest.mark.parametrize(
    ("names", "asked", "goes_as"),
    [
        (("llama",), "llama", "llama"),
        (("small", "tiny"), "llama", "small"),
        (("small", "llama"), "llama", "llama"),
        (("ft-*", "small"), "ft-1", "ft-1"),
        (("ft-*", "small"), "llama", "small"),
        (("ft-*",), "llama", "llama"),
        (("a*b*c",), "axxbyc", "axxbyc"),
        (("a*b*c", "z"), "axxc", "z"),
        (("a*a", "z"), "a", "z"),
        (("*",), "anything", "anything"),
        ((), "llama", "llama"),
        (("small",), "", "small"),
    ],
)
def test_a_pool_is_asked_for_a_model_that_it_serves(names: tuple[str, ...], asked: str, goes_as: str) -> None:
    """The client's own where it is served, else the first; unknown ones are left to the engine."""
    site = Site(pool_settings(models=names))
    found = asked_at(demand(1, model=asked), site.pool)
    assert goes_as == found.model
    assert (None if goes_as == asked else asked) == found.asked_model


def test_without_a_list_what_the_engines_say_counts() -> None:
    """Of all endpoints, in order."""
    site = Site(endpoints=("a", "b"))
    site.describe("a", models=("one",))
    site.describe("b", models=("two", "one"))
    assert "one" == asked_at(demand(1), site.pool).model
    assert "two" == asked_at(demand(1, model="two"), site.pool).model


def test_a_plan_chooses_among_the_models_of_a_pool() -> None:
    """Where it has none of them, the first is named: whoever asks decides what that means."""
    site = Site(pool_settings(models=("small", "tiny", "t-*")))
    assert "tiny" == asked_at(demand(1), site.pool, ("t*",)).model
    assert "small" == asked_at(demand(1), site.pool, ("other",)).model
    assert "t-1" == asked_at(demand(1, model="t-1"), site.pool, ("other",)).model


def test_what_the_client_asked_for_is_kept_over_several_changes() -> None:
    """And going back to it is no change."""
    moved = with_model(with_model(demand(1), "b"), "c")
    assert ("c", "llama") == (moved.model, moved.asked_model)
    assert None is with_model(moved, "llama").asked_model
