"""From the rows of a trace to the requests of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from forebay.admission.settings import ClassSettings, PoolSettings, Settings
from forebay.enginemodel.profile import EngineConfig
from forebay.load.traces import TraceRow
from forebay.profiles import load_profile
from forebay.simulate.place import fleet
from forebay.simulate.scenario import CannotSimulate, build, drawn, standard_classes

PROFILE = load_profile("llama3-8b-h100x1-bf16")
CONFIG = EngineConfig.from_profile(PROFILE)
SETTINGS = Settings(pools=(PoolSettings("p"),), classes=standard_classes())
ROWS = [TraceRow(10.0 + n, 500, 300) for n in range(2_000)]
ENGINES = fleet("p", PROFILE, CONFIG, 2)


def test_the_standard_scenario_draws_classes_by_row_and_seed() -> None:
    """Half, three tenths, a fifth; the same for each run of a seed, and different for another."""
    first = [one.class_name for one in build(ROWS, SETTINGS, ENGINES, seed=1).requests]
    shares = Counter(first)
    assert pytest.approx(1_000, rel=0.1) == shares["realtime"]
    assert pytest.approx(600, rel=0.1) == shares["standard"]
    assert pytest.approx(400, rel=0.15) == shares["batch"]
    assert first == [one.class_name for one in build(ROWS, SETTINGS, ENGINES, seed=1).requests]
    assert first != [one.class_name for one in build(ROWS, SETTINGS, ENGINES, seed=2).requests]


def test_what_is_drawn_depends_on_nothing_but_its_names() -> None:
    """Known values: no other process, hash seed or version of Python gives others."""
    assert [0.8950, 0.6589] == [round(drawn(1, "class", 0), 4), round(drawn(1, "bytes", 7), 4)]
    values = [drawn(3, "class", n) for n in range(1_000)]
    assert 0.0 <= min(values) < 0.01
    assert 0.99 < max(values) < 1.0


def test_clients_behave_as_the_standard_scenario_says() -> None:
    """Limits are round numbers above the answer; interactive clients have patience for four times the objective."""
    made = {one.class_name: one for one in build(ROWS, SETTINGS, ENGINES, seed=1).requests}
    assert {512} == {one.limit_tokens for one in made.values()}
    assert (6.0, 20.0, None) == tuple(made[name].patience_s for name in ("realtime", "standard", "batch"))
    assert (True, True, False) == tuple(made[name].stream for name in ("realtime", "standard", "batch"))
    assert 256 == build([TraceRow(0.0, 5, 3)], SETTINGS, ENGINES, seed=1).requests[0].limit_tokens
    assert all(1_800 <= one.prompt_bytes <= 2_200 for one in made.values())


def test_what_a_trace_says_is_kept() -> None:
    """Class, limit, tenant, and whether it is streamed."""
    row = TraceRow(0.0, 500, 30, tenant="acme", class_name="batch", limit_tokens=77, stream=True)
    (one,) = build([row], SETTINGS, ENGINES, seed=1, plans={"acme": "gold", "": "free"}).requests
    assert ("batch", 77, "acme", "gold", True) == (
        one.class_name,
        one.limit_tokens,
        one.tenant,
        one.plan,
        one.stream,
    )
    (other,) = build([replace(row, tenant="x")], SETTINGS, ENGINES, seed=1, plans={"": "free"}).requests
    assert "free" == other.plan


def test_a_load_is_reached_by_compressing_time() -> None:
    """Every gap shrinks by the same factor, the first request comes at once, and the load is what was asked for."""
    plain = build(ROWS, SETTINGS, ENGINES, seed=1)
    dense = build(ROWS, SETTINGS, ENGINES, seed=1, load=1.5)
    assert (1.0, 0.0) == (plain.compression, plain.requests[0].at_s)
    assert pytest.approx(1.5) == dense.load == plain.load * dense.compression
    assert pytest.approx(plain.duration_s / dense.compression) == dense.duration_s
    assert pytest.approx(7.0 / dense.compression) == dense.requests[7].at_s
    assert pytest.approx(plain.load / 2) == build(ROWS, SETTINGS, fleet("p", PROFILE, CONFIG, 4), seed=1).load


def test_rows_that_fit_no_engine_are_left_out_and_counted() -> None:
    """An engine would refuse them whatever the policy."""
    long = TraceRow(5.0, CONFIG.context_tokens, 10)
    made = build([*ROWS[:5], long], SETTINGS, ENGINES, seed=1)
    assert (5, 1) == (len(made.requests), made.left_out)
    with pytest.raises(CannotSimulate, match="1 are too long"):
        build([long], SETTINGS, ENGINES, seed=1)
    with pytest.raises(CannotSimulate, match="it is empty"):
        build([], SETTINGS, ENGINES, seed=1)
    with pytest.raises(CannotSimulate, match="come at once"):
        build(ROWS[:1], SETTINGS, ENGINES, seed=1, load=1.0)


def test_models_find_their_pool_and_classes_of_ones_own_their_default() -> None:
    """With a configuration, rows that name nothing are of its default class."""
    settings = Settings(
        pools=(PoolSettings("small", models=("s-*",)), PoolSettings("large", models=("l-*",))),
        classes=(ClassSettings("gold", 1.0, 0.1, 1.0), ClassSettings("lead", 50.0, 0.1, 50.0)),
        default_class="lead",
    )
    engines = [*fleet("small", PROFILE, CONFIG, 1), *fleet("large", PROFILE, CONFIG, 1)]
    rows = [TraceRow(0.0, 9, 9, model="l-70b"), TraceRow(1.0, 9, 9, class_name="gold"), TraceRow(2.0, 9, 9)]
    made = build(rows, settings, engines, seed=1).requests
    assert ["large", "small", "small"] == [one.pool for one in made]
    assert ["lead", "gold", "lead"] == [one.class_name for one in made]
    assert [None, 4.0, None] == [one.patience_s for one in made]


def test_conversations_share_their_beginning() -> None:
    """Turns of one have the same number; what a trace says to be reusable is shared by the requests of a tenant."""
    rows = [
        TraceRow(0.0, 100, 10, session="x"),
        TraceRow(1.0, 200, 10, session="x"),
        TraceRow(2.0, 200, 10, session="y"),
        TraceRow(3.0, 200, 10, cached_tokens=64),
        TraceRow(4.0, 200, 10),
    ]
    made = build(rows, SETTINGS, ENGINES, seed=1)
    assert [(1, 110), (1, 210), (2, 210), (3, 64), (0, 0)] == [
        (one.prefix, one.shared_tokens) for one in made.requests
    ]
    assert made.shares_prompts
    assert not build(rows[4:], SETTINGS, ENGINES, seed=1).shares_prompts
