"""The clairvoyant bound: nothing that can be played is above it, and where there is plenty it is what was asked for."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.enginemodel import Engine, EngineConfig, EngineProfile, Request, StepLaw
from forebay.simulate import bound as bound_module
from forebay.simulate.bound import (
    BoundEngines,
    BoundFailed,
    BoundRequest,
    LabMissing,
    clairvoyant_bound,
    most_value,
)

LAW = StepLaw(t0=20.0, n0=32, s_lo=0.05, s_hi=0.2, c_kv=0.002, f_attn=1e-4, g_seq=0.1, h0=1.0, h1=0.2)
CONCAVE = StepLaw(t0=20.0, n0=32, s_lo=0.4, s_hi=0.1, c_kv=0.002, f_attn=0.0, g_seq=0.1, h0=1.0, h1=0.2)
STEEP = StepLaw(t0=2.0, n0=64, s_lo=0.01, s_hi=0.5, c_kv=0.0, f_attn=0.0, g_seq=0.1, h0=0.1, h1=0.0)
LAWS = (LAW, CONCAVE, STEEP)
KV, SEQS, BATCHED = 1024, 4, 128


def engines(law: StepLaw = LAW, endpoints: int = 1) -> BoundEngines:
    """Small ones."""
    return BoundEngines(law, endpoints, KV, SEQS, BATCHED)


def play(
    requests: Sequence[BoundRequest], starts: dict[int, tuple[float, int]], law: StepLaw, endpoints: int
) -> float:
    """Value of the requests met, if these are sent at these times to these engines, and the others not at all."""
    profile = EngineProfile("p", "m", "g", 1, "bf16", "bf16", law, KV, 16, SEQS, BATCHED, KV, "test")
    config = EngineConfig.from_profile(profile, prefix_caching=False)
    value = 0.0
    for number in range(endpoints):
        engine = Engine(profile, config)
        due = [(at_s, index) for index, (at_s, where) in starts.items() if where == number]
        heapq.heapify(due)
        first: dict[int, float] = {}
        now = 0.0
        while due or engine.has_work:
            if not engine.has_work:
                now = max(now, due[0][0])
            while due and due[0][0] <= now:
                _, index = heapq.heappop(due)
                engine.submit(Request(index, requests[index].prompt_tokens, requests[index].output_tokens))
            result = engine.step(now)
            assert result is not None
            now = result.start_s + result.duration_s
            for index in result.first_tokens:
                first[index] = now
            value += sum(
                requests[index].value for index in result.finished if met(requests[index], first[index], now)
            )
    return value


def met(one: BoundRequest, first_s: float, end_s: float) -> bool:
    """As `load.felt` judges."""
    pace_s = (end_s - first_s) / (one.output_tokens - 1) if one.output_tokens > 1 else 0.0
    return first_s - one.at_s <= one.ttft_s and pace_s <= one.tpot_s and end_s - one.at_s <= one.whole_s


def some_requests(stream: random.Random, count: int, span_s: float) -> list[BoundRequest]:
    """Requests of all kinds, at random."""
    made = []
    for _ in range(count):
        at_s, prompt, output = stream.uniform(0, span_s), stream.randint(1, 300), stream.randint(1, 30)
        value = stream.choice((1.0, 2.0, 3.0))
        if stream.random() < 0.6:
            ttft_s, tpot_s = stream.uniform(0.03, 1.0), stream.uniform(0.02, 0.1)
            made.append(BoundRequest(at_s, prompt, output, value=value, ttft_s=ttft_s, tpot_s=tpot_s))
        else:
            made.append(BoundRequest(at_s, prompt, output, value=value, whole_s=stream.uniform(0.1, 3.0)))
    return made


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(2, 25),
    law=st.sampled_from(LAWS),
    endpoints=st.integers(1, 2),
    span_s=st.sampled_from((0.2, 1.0, 5.0)),
)
def test_no_schedule_is_above_it(seed: int, count: int, law: StepLaw, endpoints: int, span_s: float) -> None:
    """Whatever is sent, in whatever order, after whatever waits: its value is at most the bound's."""
    stream = random.Random(seed)
    requests = some_requests(stream, count, span_s)
    most = most_value(requests, engines(law, endpoints), lambda one: one.value)
    for _ in range(8):
        kept, hurry = stream.random(), stream.choice((0.0, 0.3))
        starts = {
            index: (one.at_s + hurry * stream.random(), stream.randrange(endpoints))
            for index, one in enumerate(requests)
            if stream.random() < kept
        }
        assert play(requests, starts, law, endpoints) <= most + 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_a_few_is_above_it(seed: int) -> None:
    """Of five that come together, every choice in every order is tried: the best is at most the bound."""
    stream = random.Random(seed)
    requests = [
        BoundRequest(0.0, stream.randint(50, 250), stream.randint(2, 12), value=stream.choice((1.0, 3.0)),
                     whole_s=stream.uniform(0.2, 0.7))
        for _ in range(5)
    ]  # fmt: skip
    best = 0.0
    for size in range(6):
        for chosen in itertools.permutations(range(5), size):
            starts = {index: (1e-6 * place, 0) for place, index in enumerate(chosen)}
            best = max(best, play(requests, starts, LAW, 1))
    most = most_value(requests, engines(), lambda one: one.value)
    assert best <= most
    assert most <= 2.5 * best + 3  # it says something


def test_where_there_is_plenty_all_are_met() -> None:
    """One request a second, which takes a tenth of one: the bound is what is offered."""
    requests = [BoundRequest(float(at), 50, 3, "chat", 2.0, ttft_s=0.5, tpot_s=0.1) for at in range(21)]
    found = clairvoyant_bound(requests, engines())
    assert found.bound_rps == pytest.approx(21 / 20, rel=1e-4)
    assert found.bound_utility == pytest.approx(42 / 20, rel=1e-4)
    assert found.met_parts == pytest.approx({"chat": 1.0})


def test_overload_is_bounded_by_the_time_of_full_steps() -> None:
    """Prompts of a whole step each, all wanted within a second: as many as steps fit into it."""
    requests = [BoundRequest(0.0, BATCHED, 1, ttft_s=1.0, tpot_s=1.0) for _ in range(100)]
    step_s = LAW.step_s(
        prefill_tokens=BATCHED, decoding=0, kv_tokens=0, prefill_attention=BATCHED**2 / 2, sequences=1
    )
    assert most_value(requests, engines(), lambda _: 1.0) == pytest.approx(1 / step_s, rel=0.01)


def test_sequences_bound_what_decodes() -> None:
    """Four at once for one second, 20 steps each of a token: no more than sequences times steps."""
    requests = [BoundRequest(0.0, 1, 21, whole_s=1.0) for _ in range(40)]
    shortest_s = (21 + 4 * (0.05 + 0.1 + 0.2)) / 1000
    most = most_value(requests, engines(), lambda _: 1.0)
    assert most == pytest.approx(4 / (20.5 * shortest_s), rel=0.1)


def test_kv_cache_bounds_what_decodes() -> None:
    """With prompts of half the cache two decode at once, though four sequences might."""
    small, large = ([BoundRequest(0.0, prompt, 41, whole_s=8.0) for _ in range(40)] for prompt in (4, 500))
    free = StepLaw(t0=20, n0=1, s_lo=0, s_hi=0, c_kv=0, f_attn=0, g_seq=0, h0=0, h1=0)
    roomy, tight = (most_value(each, engines(free), lambda _: 1.0) for each in (small, large))
    assert 2 * tight == pytest.approx(roomy, rel=0.2)


def test_more_engines_meet_more() -> None:
    """Twice the engines, twice the bound, where there is more than enough to do."""
    requests = [BoundRequest(0.0, BATCHED, 1, ttft_s=1.0, tpot_s=1.0) for _ in range(200)]
    one, two = (most_value(requests, engines(endpoints=count), lambda _: 1.0) for count in (1, 2))
    assert two == pytest.approx(2 * one, rel=0.01)


@pytest.mark.parametrize(
    "hopeless",
    [
        BoundRequest(0.0, 100, 5, ttft_s=0.01, tpot_s=0.1),
        BoundRequest(0.0, 100, 5, ttft_s=1.0, tpot_s=0.001),
        BoundRequest(0.0, 100, 50, whole_s=0.2),
        BoundRequest(0.0, KV, 50, whole_s=100.0),
        BoundRequest(0.0, 100, 5, ttft_s=1.0, tpot_s=1.0, leaves_s=0.01),
    ],
    ids=["first token", "pace", "whole", "too large", "gone"],
)
def test_what_an_idle_engine_could_not_meet_counts_for_nothing(hopeless: BoundRequest) -> None:
    """Too soon, too fast, or too large."""
    assert most_value([hopeless], engines(), lambda _: 1.0) == 0.0


def test_who_may_come_back_has_more_time() -> None:
    """Two that cannot both be served within their windows can, if one may come a second later."""
    one = BoundRequest(0.0, BATCHED, 1, ttft_s=0.045, tpot_s=1.0)
    later = BoundRequest(0.0, BATCHED, 1, ttft_s=0.045, tpot_s=1.0, returns_s=1.0)
    assert most_value([one, one], engines(), lambda _: 1.0) < 1.2
    assert most_value([one, later], engines(), lambda _: 1.0) == pytest.approx(2.0, rel=1e-4)


def test_what_is_cached_costs_no_prefill() -> None:
    """With half of each prompt in the cache, more are met."""
    plain, cached = (
        [BoundRequest(0.0, 120, 1, ttft_s=1.0, tpot_s=1.0, cached_tokens=tokens) for _ in range(100)]
        for tokens in (0, 60)
    )
    assert most_value(cached, engines(), lambda _: 1.0) > 1.3 * most_value(plain, engines(), lambda _: 1.0)


def test_value_decides_who_is_met() -> None:
    """With values, the utility of the best choice is at least that of the most requests."""
    requests = some_requests(random.Random(4), 60, 1.0)
    found = clairvoyant_bound(requests, engines(), duration_s=10.0)
    assert found.bound_rps * 10 <= 60
    assert found.bound_utility * 10 <= sum(one.value for one in requests)
    assert found.bound_utility >= found.bound_rps


def test_nothing_is_bounded_by_nothing() -> None:
    """No requests, no bound; no time, no rate."""
    assert clairvoyant_bound([], engines()).bound_rps == 0.0
    assert most_value([], engines(), lambda _: 1.0) == 0.0
    with pytest.raises(ValueError, match="duration_s"):
        clairvoyant_bound([BoundRequest(0.0, 1, 1, whole_s=1.0)], engines())
    with pytest.raises(ValueError, match="without an objective"):
        most_value([BoundRequest(0.0, 1, 1)], engines(), lambda _: 1.0)


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(LabMissing, match=r"forebay\[lab\]"):
        most_value([BoundRequest(0.0, 1, 1, whole_s=1.0)], engines(), lambda _: 1.0)


def test_a_solver_that_gives_up_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words are in the error."""
    requests = [BoundRequest(0.0, BATCHED, 1, ttft_s=0.1, tpot_s=1.0) for _ in range(50)]

    class Failed:
        x = None
        message = "out of patience"

    monkeypatch.setattr("scipy.optimize.linprog", lambda *_, **__: Failed())
    with pytest.raises(BoundFailed, match="out of patience"):
        most_value(requests, engines(), lambda _: 1.0)


def test_stopping_early_leaves_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer conditions than there are the bound is looser, never lower."""
    requests = some_requests(random.Random(9), 80, 2.0)
    exact = most_value(requests, engines(), lambda one: one.value)
    monkeypatch.setattr(bound_module, "_ROUNDS", 1)
    loose = most_value(requests, engines(), lambda one: one.value)
    assert exact <= loose * (1 + 1e-6)
    assert not math.isclose(loose, sum(one.value for one in requests))
