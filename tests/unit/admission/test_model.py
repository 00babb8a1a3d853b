from __future__ import annotations

import dataclasses
import inspect

import pytest

from forebay.admission import model
from forebay.admission.model import EndpointState, EngineInfo, EngineKind, EngineSample

RECORDS = [
    value
    for _, value in inspect.getmembers(model, dataclasses.is_dataclass)
    if inspect.isclass(value) and value.__module__ == model.__name__
]


@pytest.mark.parametrize("record", RECORDS)
def test_records_that_cross_the_border_are_closed(record: type) -> None:
    """Nobody outside can add a field to what was decided, and two records of the same content are equal."""
    assert not record.__dictoffset__  # no room for an attribute that was not declared
    assert record.__dataclass_params__.eq  # type: ignore[attr-defined]


def test_a_sample_says_nothing_unless_told() -> None:
    """A reading without fields claims no load: absence of a gauge is not a zero."""
    fields = {f.name for f in dataclasses.fields(EngineSample)} - {"at_s", "took_s", "doubtful", "unready"}
    sample = EngineSample(1.0)
    assert dict.fromkeys(fields) == {name: getattr(sample, name) for name in fields}


def test_an_unknown_engine_promises_nothing() -> None:
    """What was not found out about an engine is not assumed: no limits, no gauges, no name check."""
    info = EngineInfo(EngineKind.OPENAI)
    assert (None, None, None) == (info.context_tokens, info.kv_tokens, info.max_requests)
    assert not (info.reports_load or info.counts_while_running or info.checks_model_names)


def test_metric_labels_are_lower_case_words() -> None:
    """The values of the enums serve as metric labels and configuration words."""
    for value in [*(kind.value for kind in EngineKind), *(state.value for state in EndpointState)]:
        assert value == value.lower()
        assert value.isalnum()
