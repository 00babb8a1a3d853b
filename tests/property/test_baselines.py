"""What must hold for every baseline, whatever comes: each request ends once, nothing is left over, all is bounded."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.events import Failure
from forebay.simulate.baselines.registry import BASELINES
from tests.unit.simulate.baselines.bench import Bench

NAMES: Final = (
    "least-request",
    "static:3",
    "fixed-depth:3",
    "vllm-caps:reqs=5,tokens=600",
    "litellm:rpm=20,tpm=2000",
    "kong:rpm=20,tpm=2000",
    "token-bucket:rpm=20,tpm=2000",
    "gradient2",
    "llm-d",
    "llm-d-static",
    "vtc",
)
ENGINES: Final = 2

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "arrive",
                "arrive",
                "arrive",
                "token",
                "progress",
                "end",
                "end",
                "leave",
                "fail",
                "sample",
                "time",
            )
        ),
        st.integers(0, 1_000_000),
    ),
    max_size=120,
)


def do(bench: Bench, what: str, number: int) -> None:
    """One thing happens; `number` says to whom, and how."""
    running, live = list(bench.running), [*bench.running, *bench.waiting]
    if what == "arrive":
        class_name = ("realtime", "standard", "batch")[number % 3]
        prompt = 1 + number % 700
        bench.arrive(
            len(bench.demands) + 1,
            class_name,
            prompt=prompt,
            limit=None if number % 5 == 0 else 16 << number % 6,
            tenant=f"t{number % 4}",
            stream=number % 7 > 0,
            samples=1 + number % 2,
            by_s=bench.now + number % 50 if number % 11 == 0 else None,
        )
    elif what == "time":
        bench.pass_time(bench.now + number % 4_000 / 1_000)
    elif what == "sample":
        waiting, kv = number % 9, number % 101 / 100
        bench.sample(f"e{number % ENGINES}", waiting=waiting, kv=kv)
    elif what == "leave" and live:
        bench.leave(live[number % len(live)])
    elif running:
        ticket = running[number % len(running)]
        if what == "token":
            bench.first_token(ticket)
        elif what == "progress":
            bench.progress(ticket, 1 + number % 30)
        elif what == "end":
            bench.end(ticket, 1 + number % 300)
        elif what == "fail":
            bench.fail(ticket, tuple(Failure)[number % len(Failure)])


def run(name: str, steps: list[tuple[str, int]]) -> Bench:
    """A life, and its end: what runs ends, engines are idle and read, and time passes."""
    bench = Bench(name, engines=ENGINES, kv_tokens=2_000, max_requests=8)
    for what, number in steps:
        do(bench, what, number)
        bench.policy.verify()
        assert len(bench.running) + len(bench.waiting) == len(bench.law.requests)
    for _ in range(200):
        if not bench.running and not bench.waiting:
            break
        for ticket in list(bench.running):
            bench.end(ticket)
        for n in range(ENGINES):
            bench.sample(f"e{n}")
        bench.pass_time(bench.now + 0.1)
    return bench


@pytest.mark.parametrize("name", NAMES)
@given(steps=STEPS)
def test_each_request_ends_once_and_nothing_is_left(name: str, steps: list[tuple[str, int]]) -> None:
    """What comes ends in one of the ways there are; when engines are idle nobody waits; the books are empty."""
    bench = run(name, steps)
    assert set(bench.demands) == set(bench.over)
    assert {} == bench.law.requests
    assert 0 == len(bench.law.waiting)
    assert all(not place.running for place in bench.law.places.values())


@pytest.mark.parametrize("name", NAMES)
@given(steps=STEPS)
@settings(max_examples=20)
def test_the_same_events_give_the_same_effects(name: str, steps: list[tuple[str, int]]) -> None:
    """In the same order, at the same engines."""
    one, other = run(name, steps), run(name, steps)
    assert (one.started, one.over, one.now) == (other.started, other.over, other.now)


@given(steps=STEPS)
def test_a_static_limit_is_never_passed(steps: list[tuple[str, int]]) -> None:
    """Except by attempts that failed elsewhere, at most the limit runs at an engine, and nobody waits beside room."""
    bench = Bench("static:3", engines=ENGINES)
    for what, number in steps:
        if what == "fail":
            continue
        do(bench, what, number)
        held = [sum(at == f"e{n}" for at in bench.running.values()) for n in range(ENGINES)]
        assert max(held) <= 3
        assert not bench.waiting or min(held) == 3


def test_all_are_tried() -> None:
    """A new baseline has to be named here."""
    assert set(BASELINES) == {name.partition(":")[0] for name in NAMES}
