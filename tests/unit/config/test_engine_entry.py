from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from forebay.config.engine_entry import SERIES, EngineEntry, MetricNames
from forebay.engines.selecting import Selector


def test_a_name_is_the_family() -> None:
    """A text alone, and a mapping, say the same."""
    assert EngineEntry.model_validate("vllm") == EngineEntry(family="vllm")
    assert EngineEntry.model_validate({"metrics": {"running": "a"}}).family == "auto"


@pytest.mark.parametrize("text", ["a", "a:b", 'a{b="c"}', 'a { b = "c" , d="e" }', 'a{b="\\"}"}', "a{}"])
def test_series_are_names_with_labels(text: str) -> None:
    """What may be written is what the reader of metrics understands."""
    assert MetricNames(running=text).running == text
    Selector.parse(text)


@pytest.mark.parametrize("text", ["", "1a", "a b", 'a{b="c"', "a{b=c}", 'a{b!="c"}', "sum(a)"])
def test_what_is_no_series_is_refused(text: str) -> None:
    """An expression, a matcher that is not known, a broken label: refused with how it is written."""
    with pytest.raises(ValidationError):
        MetricNames(running=text)


@given(st.text('ab{}="\\ ,:1', max_size=24))
def test_whatever_is_accepted_can_be_read(text: str) -> None:
    """No text passes the configuration that the reader of metrics refuses."""
    if SERIES.fullmatch(text):
        Selector.parse(text)
