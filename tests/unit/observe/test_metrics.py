"""Metrics: counted by the way, exposed at a scrape."""

from __future__ import annotations

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay.admission.model import EndpointState, Mode
from forebay.admission.outcomes import Outcome
from forebay.admission.snapshot import Snapshot
from forebay.observe.counts import MAX_TENANTS
from forebay.observe.metrics import Metrics
from tests.unit.observe.records import ENDPOINT, record, refusal_record, refused, settlement
from tests.unit.observe.snapshots import a_snapshot


def values(metrics: Metrics) -> dict[str, float]:
    """Every sample of a scrape as `name{label="value"}`, labels in the order of their names."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def without_core() -> Snapshot | None:
    """A core that cannot be asked."""
    return None


def test_endings_are_counted_by_outcome() -> None:
    """Each settlement counts once, in its pool, class and outcome."""
    metrics = Metrics(without_core)
    metrics.counts.on_settlement(settlement())
    metrics.counts.on_settlement(settlement(met_objective=False))
    metrics.counts.on_settlement(refused(class_name="batch"))
    seen = values(metrics)
    assert 2 == seen['forebay_requests_total{class="standard",outcome="completed",pool="p"}']
    assert 1 == seen['forebay_requests_total{class="batch",outcome="queue_full",pool="p"}']
    assert 1 == seen['forebay_goodput_total{class="standard",pool="p"}']
    assert 0 == seen['forebay_goodput_total{class="batch",pool="p"}']


def test_what_shadow_did_not_carry_out_is_counted_apart() -> None:
    """Refusals by their code and holds; not what it let start with room, nor what bypass let through."""
    metrics = Metrics(a_snapshot)
    for made in (
        refusal_record(mode=Mode.SHADOW),
        record(action="hold", mode=Mode.SHADOW),
        record(mode=Mode.SHADOW),
        record(mode=Mode.BYPASS),
    ):
        metrics.counts.on_unenforced(made)
    seen = values(metrics)
    assert {"queue_full": 1.0, "hold": 1.0} == {
        key.split('reason="')[1].rstrip('"}'): value
        for key, value in seen.items()
        if key.startswith("forebay_shadow_decisions_total")
    }
    assert [] == [key for key in seen if key.startswith("forebay_refusals_total")]
    assert (1.0, 0.0) == (
        seen['forebay_mode{class="batch",mode="enforce",pool="p"}'],
        seen['forebay_mode{class="batch",mode="shadow",pool="p"}'],
    )


def test_refusals_are_counted_by_reason() -> None:
    """Refusals are those that were turned away; failures and departures are not among them."""
    metrics = Metrics(without_core)
    for outcome in Outcome:
        metrics.counts.on_settlement(settlement(outcome=outcome))
    reasons = {
        key.split('reason="')[1].rstrip('"}')
        for key in values(metrics)
        if key.startswith("forebay_refusals_total")
    }
    assert {"queue_full", "deadline_unreachable", "no_endpoints", "draining", "request_too_large"} <= reasons
    assert not {"completed", "client_gone", "upstream_failed", "slow_reader"} & reasons


def test_waits_and_times_are_distributions() -> None:
    """Queue wait covers whoever was dispatched or waited; times to first token only those that had one."""
    metrics = Metrics(without_core)
    metrics.counts.on_settlement(settlement(waited_s=0.0, ttft_s=0.3, duration_s=2.0))
    metrics.counts.on_settlement(settlement(waited_s=0.7, ttft_s=None, outcome=Outcome.UPSTREAM_FAILED))
    metrics.counts.on_settlement(refused(Outcome.QUEUE_TIMEOUT, waited_s=5.0))
    metrics.counts.on_settlement(refused(waited_s=0.0))
    seen = values(metrics)
    labels = '{class="standard",pool="p"}'
    assert 3 == seen["forebay_queue_wait_seconds_count" + labels]
    assert 5.7 == pytest.approx(seen["forebay_queue_wait_seconds_sum" + labels])
    assert 1 == seen['forebay_queue_wait_seconds_bucket{class="standard",le="0.001",pool="p"}']
    assert 2 == seen['forebay_queue_wait_seconds_bucket{class="standard",le="1.0",pool="p"}']
    assert (1, 0.3) == (
        seen["forebay_ttft_seconds_count" + labels],
        seen["forebay_ttft_seconds_sum" + labels],
    )
    assert 2 == seen["forebay_request_duration_seconds_count" + labels]


def test_error_of_predicted_waits_is_signed() -> None:
    """A wait longer than predicted is positive, a shorter one negative; there is no sum."""
    metrics = Metrics(without_core)
    metrics.counts.on_settlement(settlement(waited_s=2.0, predicted_wait_s=1.5))
    metrics.counts.on_settlement(settlement(waited_s=1.0, predicted_wait_s=3.0))
    metrics.counts.on_settlement(settlement(waited_s=0.0, predicted_wait_s=0.0))
    seen = values(metrics)
    bucket = 'forebay_predicted_wait_error_seconds_bucket{{class="standard",le="{}",pool="p"}}'
    assert [1, 1, 2, 2] == [seen[bucket.format(bound)] for bound in ("-1.0", "0.0", "1.0", "+Inf")]
    assert not any(key.startswith("forebay_predicted_wait_error_seconds_sum") for key in seen)


def test_work_is_charged_to_tenants_and_their_number_is_bounded() -> None:
    """GPU-seconds add up per tenant; those beyond the bound share `other`."""
    metrics = Metrics(without_core)
    for number in range(MAX_TENANTS + 50):
        metrics.counts.on_settlement(settlement(tenant=f"t{number}", charged_gpu_s=2.0))
    metrics.counts.on_settlement(settlement(tenant="t0", charged_gpu_s=0.5))
    seen = values(metrics)
    charged = {
        key: value for key, value in seen.items() if key.startswith("forebay_tenant_gpu_seconds_total")
    }
    assert MAX_TENANTS + 1 == len(charged)
    assert 2.5 == charged['forebay_tenant_gpu_seconds_total{class="standard",pool="p",tenant="t0"}']
    assert 100.0 == charged['forebay_tenant_gpu_seconds_total{class="standard",pool="p",tenant="other"}']


def test_attainment_counts_who_was_offered_and_who_was_let_in() -> None:
    """Two of four met their objective, of three that were dispatched; and each tenant its own.

    What an engine rejected counts in neither.
    """
    metrics = Metrics(without_core)
    metrics.counts.on_settlement(settlement(tenant="a", met_objective=True))
    metrics.counts.on_settlement(settlement(tenant="a", met_objective=False))
    metrics.counts.on_settlement(settlement(tenant="b", met_objective=True, class_name="batch"))
    metrics.counts.on_settlement(settlement(tenant="b", met_objective=True))
    metrics.counts.on_settlement(refused(tenant="b"))
    metrics.counts.on_settlement(settlement(tenant="c", met_objective=False, outcome=Outcome.ENGINE_REJECTED))
    seen = values(metrics)
    labels = '{class="standard",pool="p"}'
    assert 2 / 4 == seen["forebay_slo_attainment" + labels]
    assert 2 / 3 == pytest.approx(seen["forebay_admitted_attainment" + labels])
    for class_name, tenant, offered, met, rejected in (
        ("standard", "a", 2, 1, 0),
        ("standard", "b", 2, 1, 0),
        ("batch", "b", 1, 1, 0),
        ("standard", "c", 1, 0, 1),
    ):
        labels = f'{{class="{class_name}",pool="p",tenant="{tenant}"}}'
        assert offered == seen["forebay_tenant_requests_total" + labels]
        assert met == seen["forebay_tenant_goodput_total" + labels]
        assert rejected == seen["forebay_tenant_engine_rejected_total" + labels]
    # R60: the same of a class, whether it is asked or its tenants are.
    of_class = dict.fromkeys(("requests", "goodput", "engine_rejected"), 0.0)
    for name in of_class:
        of_class[name] = sum(
            value
            for key, value in seen.items()
            if key.startswith(f"forebay_tenant_{name}_total") and 'class="standard"' in key
        )
    attained = of_class["goodput"] / (of_class["requests"] - of_class["engine_rejected"])
    assert attained == seen['forebay_slo_attainment{class="standard",pool="p"}']


def test_tenant_names_can_be_kept_out() -> None:
    """Where names must not be shown, all work is under one label."""
    metrics = Metrics(without_core, show_tenants=False)
    metrics.counts.on_settlement(settlement(tenant="secret-customer"))
    assert b"secret-customer" not in metrics.exposition()
    assert 1.5 == values(metrics)['forebay_tenant_gpu_seconds_total{class="standard",pool="p",tenant="all"}']


def test_gauges_come_from_the_core() -> None:
    """What is held and waiting, and what the engines say, is read from the snapshot at the scrape."""
    metrics = Metrics(lambda: a_snapshot(sample_at_s=90.0, kv_usage=0.4), clock=lambda: 100.0)
    seen = values(metrics)
    endpoint = f'{{endpoint="{ENDPOINT}",pool="p"}}'
    assert 3 == seen["forebay_inflight_requests" + endpoint]
    assert 4.5 == seen["forebay_inflight_gpu_seconds" + endpoint]
    assert 1 == seen["forebay_draining_requests" + endpoint]
    assert 0.4 == seen["forebay_kv_utilization" + endpoint]
    assert 10.0 == seen["forebay_sample_age_seconds" + endpoint]
    assert 8 == seen["forebay_concurrency_limit" + endpoint]
    assert 7 == seen["forebay_engine_preemptions_total" + endpoint]
    assert 2 == seen['forebay_queue_requests{class="standard",pool="p"}']
    assert 2.5 == seen['forebay_queue_gpu_seconds{class="standard",pool="p"}']
    assert 1.25 == seen['forebay_predicted_wait_seconds{class="standard",pool="p"}']
    assert 1 == seen['forebay_pool_learning{pool="p"}']
    states = {
        state: seen[f'forebay_endpoint_state{{endpoint="{ENDPOINT}",pool="p",state="{state.value}"}}']
        for state in EndpointState
    }
    assert [EndpointState.UP] == [state for state, value in states.items() if value]


def test_kv_utilization_falls_back_on_the_books() -> None:
    """An engine that does not tell its KV use is shown by what is booked; without a limit there is no value."""
    seen = values(Metrics(lambda: a_snapshot(kv_usage=None, kv_tokens=250, kv_limit=1000)))
    assert 0.25 == seen[f'forebay_kv_utilization{{endpoint="{ENDPOINT}",pool="p"}}']
    unknown = values(Metrics(lambda: a_snapshot(kv_usage=None, kv_limit=None, sample_at_s=None)))
    assert not any(key.startswith(("forebay_kv_utilization{", "forebay_sample_age")) for key in unknown)


def test_odd_values_do_not_break_a_scrape() -> None:
    """An infinite predicted wait and a quoted pool name are exposed as the format wants it."""
    seen = values(Metrics(lambda: a_snapshot(predicted_wait_s=math.inf, pool='p"\n\\')))
    assert math.inf in seen.values()


def test_answers_before_the_core_and_own_failures_are_counted() -> None:
    """Early answers, internal errors and lost log lines have counters of their own."""
    metrics = Metrics(without_core)
    metrics.early_answers = lambda: {"invalid_request": 4, "queue_full": 2}
    metrics.lines_dropped = lambda: 9
    metrics.counts.count_error("observer")
    metrics.counts.decision_s.observe(20e-6)
    seen = values(metrics)
    assert 4 == seen['forebay_early_answers_total{reason="invalid_request"}']
    assert [] == [
        key for key in seen if key.startswith("forebay_refusals_total")
    ]  # `on_early_refusal` counts them
    assert 1 == seen['forebay_internal_errors_total{where="observer"}']
    assert 9 == seen["forebay_log_lines_dropped_total"]
    assert 1 == seen['forebay_decision_seconds_bucket{le="2.5e-05"}']


def test_what_was_refused_unread_was_offered_as_well() -> None:
    """R60: it lowers attainment where its pool is known, and counts for its class and tenant wherever it was."""
    metrics = Metrics(without_core)
    metrics.counts.on_settlement(settlement(met_objective=True, tenant="acme"))
    for pool in ("p", "p", "p", ""):
        metrics.counts.on_early_refusal(pool, "standard", "acme", Outcome.RATE_LIMIT_EXCEEDED)
    seen = values(metrics)
    assert 0.25 == seen['forebay_slo_attainment{class="standard",pool="p"}']
    assert 1.0 == seen['forebay_admitted_attainment{class="standard",pool="p"}']
    assert 4.0 == seen['forebay_tenant_requests_total{class="standard",pool="p",tenant="acme"}']
    unknown = 'class="standard",outcome="rate_limit_exceeded",pool=""'
    assert 1.0 == seen["forebay_requests_total{" + unknown + "}"]
    assert [] == [key for key in seen if "attainment" in key and 'pool=""' in key]


def test_refused_work_is_told_by_tenant() -> None:
    """What might have been served: not what never could, what failed, or whose client went away."""
    metrics = Metrics(without_core)
    for outcome in (Outcome.QUEUE_FULL, Outcome.DISPLACED, Outcome.NO_ENDPOINTS):
        metrics.counts.on_settlement(refused(outcome, tenant="acme", estimated_gpu_s=2.0))
    for outcome in (Outcome.REQUEST_TOO_LARGE, Outcome.CLIENT_GONE, Outcome.UPSTREAM_FAILED):
        metrics.counts.on_settlement(refused(outcome, tenant="acme", estimated_gpu_s=50.0))
    metrics.counts.on_settlement(refused(tenant="other", estimated_gpu_s=0.5))
    seen = values(metrics)
    name = "forebay_tenant_refused_gpu_seconds_total"
    assert 6.0 == seen[name + '{class="standard",pool="p",tenant="acme"}']
    assert 0.5 == seen[name + '{class="standard",pool="p",tenant="other"}']


def test_registries_are_not_shared() -> None:
    """Two gateways in one process count for themselves."""
    one, two = Metrics(without_core), Metrics(without_core)
    one.counts.on_settlement(settlement())
    assert b"completed" in one.exposition()
    assert b"completed" not in two.exposition()
