"""A plan: which figures go together."""

from __future__ import annotations

import math

import pytest
import yaml

from forebay.sizing.batching import Engine, Request, workload_of
from forebay.sizing.errors import SizingError
from forebay.sizing.layers import edge_yaml, engine_flags, forebay_yaml, keda_yaml
from forebay.sizing.plan import ClassTarget, Plan, make_plan

ENGINE = Engine(
    "hand",
    c0_s=0.010,
    c1_s=2e-5,
    c2_s=1e-4,
    c3_s=1e-7,
    kv_tokens=100_000,
    max_requests=64,
    chunk_tokens=2048,
    context_tokens=8192,
    gpus=2,
)
WORKLOAD = workload_of([Request(1000, 200, 0.08, 0.06, 2.3)])
CLASSES = (ClassTarget("chat", 1.5, 0.08, 1.5), ClassTarget("batch", 60.0, 0.2, 60.0))


def plan(rate: float | None = 20.0, endpoints: int | None = None, policy: str = "balanced") -> Plan:
    """One by hand: an engine serves 12.5 requests/s."""
    return make_plan(ENGINE, WORKLOAD, CLASSES, rate_rps=rate, endpoints=endpoints, policy=policy)


def test_engines_for_a_rate() -> None:
    """20 requests/s at 12.5 each: 1.6 engines full, 1.6 ÷ 0.85 = 1.9 planned, 3 at 0.7."""
    assert (2, 3, 2) == (
        plan().endpoints,
        plan(policy="latency").endpoints,
        plan(policy="throughput").endpoints,
    )
    assert 0.8 == pytest.approx(plan().load)
    assert [3, 2, 2] == [each.endpoints for each in plan().utilizations]


def test_rate_for_engines() -> None:
    """Four engines planned at 0.85 take 0.85 × 4 × 12.5 requests/s."""
    assert 42.5 == pytest.approx(plan(rate=None, endpoints=4).rate_rps)
    assert 1 == plan(rate=None).endpoints


def test_an_exact_fit_takes_no_further_engine() -> None:
    """What just fits two engines is not rounded up to three."""
    assert plan(rate=0.85 * 12.5 * 2).endpoints == 2


def test_bounds_by_hand() -> None:
    """Two engines of two GPUs finish 25 a second: 37.5 in 1.5 s; the pool holds 60 s of 4 GPUs and what runs."""
    made = plan()
    assert 37.5 == pytest.approx(made.depths[0].by_drain)
    assert 64 == made.limits.max_inflight == made.limits.max_num_seqs
    assert 1.5 / 2.3 * 128 * 1.5 == pytest.approx(made.depths[0].by_service)
    assert 60 * 4 + 2 * 64 * 0.16 == pytest.approx(made.pool_gpu_s)
    assert 1.5 * 4 / 2 == made.pool_gpu_s_usual
    assert (0.7 * 1200 * 25, 4 * 0.7 * 1200 * 25) == pytest.approx(made.tokens_bucket)
    assert 1.2 * 25 == pytest.approx(made.edge_bucket.refill_per_s)


def test_one_request_at_a_time_looks_overloaded() -> None:
    """By service times of an idle engine a plan that holds is 23 times too much."""
    made = plan()
    assert 23 == pytest.approx(made.idle_load)
    assert math.isinf(made.idle_wait_s)
    assert made.wait_s < 0.2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: plan(policy="fast"), "no policy 'fast'"),
        (lambda: plan(rate=1e9), "is the rate per second"),
        (
            lambda: make_plan(
                ENGINE,
                workload_of([Request(9000, 200, 1, 1, 1)]),
                CLASSES,
                rate_rps=None,
                endpoints=None,
            ),
            "longer than 9,200 tokens",
        ),
    ],
)
def test_what_cannot_be_says_so(wrong: object, message: str) -> None:
    """Errors name what is wrong."""
    assert callable(wrong)
    with pytest.raises(SizingError, match=message):
        wrong()


@pytest.mark.parametrize("rate", [0.003, 0.7, 20.0, 5000.0])
def test_edge_lets_through_what_it_says(rate: float) -> None:
    """Tokens of a fill over its interval come to the refill, however small or large, and a whole one fits."""
    made = plan(rate=rate)
    token_bucket = yaml.safe_load(edge_yaml(made))[0]["typed_config"]["token_bucket"]
    interval_s = float(token_bucket["fill_interval"].removesuffix("s"))
    assert token_bucket["tokens_per_fill"] / interval_s == pytest.approx(
        made.edge_bucket.refill_per_s, rel=0.01
    )
    assert token_bucket["max_tokens"] >= max(1, token_bucket["tokens_per_fill"])
    assert interval_s >= 0.05


def test_layers_fit_together() -> None:
    """The engine runs at least what Forebay sends it; the edge lets more through than all engines serve."""
    made = plan()
    settings = yaml.safe_load(forebay_yaml(made, profile=None))
    pool = settings["pools"][0]
    assert f"--max-num-seqs {made.limits.max_num_seqs} " in engine_flags(made)
    assert pool["max_inflight_requests"] <= made.limits.max_num_seqs
    assert pool["max_inflight_tokens"] == 90_000
    assert pool["profile"] == "learn"
    assert made.edge_bucket.refill_per_s > made.capacity_rps
    assert "--tensor-parallel-size 2" in engine_flags(made)
    assert "--kv-cache-dtype fp8" in engine_flags(made, kv_dtype="fp8")


def test_autoscaling_is_asked_before_refusals() -> None:
    """The target is the policy's utilisation, at most 0.85, and the backlog that asks is below what is refused."""
    for policy, target in (("latency", "0.7"), ("balanced", "0.85"), ("throughput", "0.85")):
        made = plan(policy=policy)
        body = yaml.safe_load(keda_yaml(made))
        assert body["spec"]["triggers"][0]["metadata"]["threshold"] == target
        assert made.scale_up_gpu_s < CLASSES[0].wait_budget_s * ENGINE.gpus
    assert plan(policy="latency").scale_up_gpu_s == pytest.approx(0.7 * 1.5 * 2)


@pytest.mark.parametrize("name", ["own.json", "a b: c.json", 'say "so".json', "back\\slash.json:NAME", "#1"])
def test_any_file_name_is_written_so_that_it_is_read_again(name: str) -> None:
    """A profile's file may be called anything."""
    assert yaml.safe_load(forebay_yaml(plan(), profile=name))["pools"][0]["profile"] == name
