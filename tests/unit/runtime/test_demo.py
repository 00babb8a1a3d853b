from __future__ import annotations

import pytest

from forebay.load.workload import offered_work_s
from forebay.runtime.demo import ENGINES, DemoPlan, demo_law


def test_the_default_plan_is_the_settled_demo() -> None:
    """Ten seconds of warm-up at half load, then 44 seconds at twice what the engines can serve."""
    plan = DemoPlan()
    planned = plan.requests()
    warm_up = [one for one in planned if one.at_s < plan.warm_up_s]
    scored = [one for one in planned if one.at_s >= plan.warm_up_s]

    assert (plan.warm_up_s, plan.seconds_s, plan.load) == (10.0, 44.0, 2.0)
    assert planned[-1].at_s < 54
    assert sum(offered_work_s(warm_up, demo_law()).values()) == pytest.approx(0.5 * ENGINES * 10, rel=0.35)
    assert sum(offered_work_s(scored, demo_law()).values()) == pytest.approx(2.0 * ENGINES * 44, rel=0.15)


def test_the_demo_fits_two_cores() -> None:
    """At twice capacity the demo sends at most 30 requests and asks for at most 5,000 tokens a second."""
    planned = DemoPlan().requests()

    assert len(planned) / 50 <= 30
    assert sum(one.output_tokens for one in planned) / 50 <= 5_000


def test_every_request_of_the_demo_fits_an_engine() -> None:
    """No prompt with its stated limit takes more than a seventh of an engine's KV cache."""
    law = demo_law()

    assert all(one.prompt_tokens + one.limit_tokens <= law.kv_tokens // 7 for one in DemoPlan().requests())


def test_a_short_plan_is_short_throughout() -> None:
    """Warm-up and tail shrink with the scored part."""
    plan = DemoPlan(seconds_s=4.0)

    assert plan.warm_up_s == 1.0
    assert plan.tail_s == 4.0


def test_the_seed_decides_the_requests() -> None:
    """Both arms of a demo, and a repeated demo, get the very same requests; another seed gives others."""
    assert DemoPlan(seed=3).requests() == DemoPlan(seed=3).requests()
    assert DemoPlan(seed=3).requests() != DemoPlan(seed=4).requests()
