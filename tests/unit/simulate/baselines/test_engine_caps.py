from __future__ import annotations

from tests.unit.simulate.baselines.bench import Bench


def test_running_and_waiting_count_together_and_each_sample_counts() -> None:
    """`--max-num-queued-reqs`: refused if what is there and the newcomer's samples are more than the cap."""
    bench = Bench("vllm-caps:reqs=4")
    bench.arrive(1, samples=3)
    bench.arrive(0, samples=2)
    bench.arrive(2)
    bench.arrive(3)
    assert {0: "queue_full", 3: "queue_full"} == bench.over
    bench.end(1)
    bench.arrive(4, samples=3)
    assert 4 in bench.running


def test_the_prompt_that_crosses_the_token_cap_gets_in() -> None:
    """`--max-num-queued-tokens` asks what is in prefill already, not what would be with the newcomer."""
    bench = Bench("vllm-caps:tokens=1000")
    bench.arrive(1, prompt=999)
    bench.arrive(2, prompt=5_000)
    bench.arrive(3, prompt=1)
    assert {3: "queue_full"} == bench.over
    bench.first_token(2)
    bench.arrive(4, prompt=1)
    bench.arrive(5, prompt=1)
    assert [1, 2, 4] == bench.started
    assert "queue_full" == bench.over[5]


def test_another_engine_is_asked_before_the_client_is_told() -> None:
    """A 503 is meant for the balancer."""
    bench = Bench("vllm-caps:tokens=1000", engines=2)
    bench.arrive(1, prompt=2_000)
    bench.arrive(2, prompt=10)
    bench.end(2)
    bench.arrive(3, prompt=10)
    bench.arrive(4, prompt=10)
    assert ["e1", "e1", "e1"] == [bench.running.get(ticket, "e1") for ticket in (2, 3, 4)]
    assert None is bench.refusals.get(4)


def test_what_leaves_early_leaves_the_count() -> None:
    """Clients that go, and attempts that fail and move on, take their prompts along."""
    bench = Bench("vllm-caps:tokens=100", engines=2)
    bench.arrive(1, prompt=100)
    bench.fail(1)
    bench.arrive(2, prompt=100)
    assert "e0" == bench.running[2]
    bench.leave(1)
    bench.leave(2)
    bench.arrive(3, prompt=50)
    bench.arrive(4, prompt=50)
    assert [3, 4] == list(bench.running)


def test_a_whole_answer_is_in_prefill_until_a_later_stream_is_not() -> None:
    """It tells nothing itself, but engines work prompts off in order."""
    bench = Bench("vllm-caps:tokens=100")
    bench.arrive(1, prompt=40, stream=False)
    bench.arrive(2, prompt=10)
    bench.arrive(3, prompt=60, stream=False)
    bench.arrive(4)
    assert "queue_full" == bench.over[4]
    bench.first_token(2)
    bench.arrive(5, prompt=40)
    bench.arrive(6)
    assert 5 in bench.running
    assert "queue_full" == bench.over[6]
