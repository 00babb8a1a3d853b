from __future__ import annotations

import pytest

from forebay.admission.settings import PlanSettings, PoolSettings, Settings
from forebay.simulate.baselines.vtc import VirtualTokenCounter, peak_tokens
from tests.unit.simulate.baselines.bench import Bench


def served(bench: Bench) -> dict[str, float]:
    """The counters."""
    law = bench.law
    assert isinstance(law, VirtualTokenCounter)
    return law.served


def test_the_smallest_counter_goes_next() -> None:
    """They take turns by what each has had, not by who came first: 1,020 against 1,000, 1,020 against 1,120."""
    bench = Bench("vtc", max_requests=1)
    bench.arrive(1, tenant="a", prompt=1_000)
    for ticket in (2, 3):
        bench.arrive(ticket, tenant="a")
    for ticket in (4, 5):
        bench.arrive(ticket, tenant="b")
    for ticket in (1, 4, 2, 5):
        bench.end(ticket)
    assert [1, 4, 2, 5, 3] == bench.started


def test_prompts_are_paid_at_the_start_and_tokens_as_they_come() -> None:
    """One for each prompt token, two for each output token; what was not seen, at the end."""
    bench = Bench("vtc")
    bench.arrive(1, tenant="a", prompt=100)
    assert 100 == served(bench)["a"]
    bench.progress(1, 10)
    assert 120 == served(bench)["a"]
    bench.end(1, 15)
    assert 130 == served(bench)["a"]


def test_weights_divide_what_is_paid() -> None:
    """A plan of twice the weight pays half."""
    settings = Settings((PoolSettings("p"),), plans=(PlanSettings("gold", weight=2.0),))
    bench = Bench("vtc", settings=settings)
    bench.arrive(1, tenant="a", prompt=100, plan="gold")
    bench.end(1, 10)
    assert 60 == served(bench)["a"]


def test_idling_earns_nothing() -> None:
    """Who comes back is lifted to the smallest counter of those that wait."""
    bench = Bench("vtc", max_requests=1)
    bench.arrive(1, tenant="a", prompt=5_000)
    bench.arrive(2, tenant="a")
    bench.arrive(3, tenant="b")
    assert 5_000 == served(bench)["b"]


def test_the_worst_case_must_fit_the_cache() -> None:
    """Two of 300 prompt tokens that may become 700 each do not fit 1,300 tokens, and nobody overtakes the first."""
    bench = Bench("vtc", kv_tokens=1_300)
    bench.arrive(1, prompt=300, limit=400)
    bench.arrive(2, prompt=300, limit=400)
    bench.arrive(3, prompt=1, limit=1)
    assert [1] == bench.started
    bench.first_token(1)
    bench.end(1)
    assert [1, 2, 3] == bench.started


def test_the_peak_counts_that_some_end_before_others() -> None:
    """(10 held, 100 to come) and (50 held, 5 to come): 110 when the first ends alone, 10 + 50 + 2 * 5 before."""
    assert 110 == peak_tokens([(50, 5), (10, 100)])
    assert 0 == peak_tokens([])
    assert 205 == peak_tokens([(10, 90), (15, 90)])


def test_what_can_never_fit_starts_on_an_idle_engine() -> None:
    """Else it would stop everybody for good."""
    bench = Bench("vtc", kv_tokens=100)
    bench.arrive(1, prompt=500)
    assert [1] == bench.started


@pytest.mark.parametrize("leaves", [True, False])
def test_nobody_is_refused_and_who_leaves_is_forgotten(leaves: bool) -> None:
    """A request waits until its client goes."""
    bench = Bench("vtc", max_requests=1)
    bench.arrive(1)
    bench.arrive(2, "realtime", tenant="b")
    bench.pass_time(1_000.0)
    assert [2] == list(bench.waiting)
    if leaves:
        bench.leave(2)
    bench.end(1)
    assert ([1] if leaves else [1, 2]) == bench.started
    bench.policy.verify()


def test_when_the_first_in_line_gives_up_the_next_may_fit() -> None:
    """Its time is up, and with it the reason why nobody else started."""
    bench = Bench("vtc", kv_tokens=1_000)
    bench.arrive(1, prompt=100, limit=100)
    bench.arrive(2, prompt=900, limit=500, patience_s=5.0)
    bench.arrive(3, prompt=10, limit=10)
    bench.first_token(1)
    assert [1] == bench.started
    bench.pass_time(5.0)
    assert "queue_timeout" == bench.over[2]
    assert [1, 3] == bench.started
