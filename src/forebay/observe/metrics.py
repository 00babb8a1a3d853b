"""Prometheus metrics, put together only when somebody scrapes.

Counters come from `counts`, which grow with settlements (one per ticket); gauges are read from the controller's
snapshot at the scrape.
Owns its own registry, never the process-wide one. Label values are bounded: pools, classes and endpoints are
configured, outcomes are a closed enum, tenants overflow into `other`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from forebay import __version__
from forebay.admission.model import EndpointState, Mode
from forebay.admission.outcomes import Group, Outcome
from forebay.observe.counts import Counts
from forebay.observe.recorder import RecordCounts

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from forebay.admission.snapshot import EndpointView, PoolView, Snapshot

__all__ = ["Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_REFUSAL_GROUPS: Final = (Group.CONTENDED, Group.ABSENT, Group.IMPOSSIBLE)


class Configuration(Protocol):
    """What is asked of whoever reloads it."""

    failed: bool
    reloads: int
    loaded_at_s: float


class Metrics:
    """The counters of one process and the registry that exposes them."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        show_tenants: bool = True,
    ) -> None:
        """See the class.

        Args:
            snapshot: the core as it is now; None when it cannot be asked (it failed).
            clock: the core's.
            show_tenants: False puts everybody's work under the tenant `all`.
        """
        self._snapshot = snapshot
        self._clock = clock
        self.counts = Counts(show_tenants=show_tenants)
        self.lines_dropped: Callable[[], int] = lambda: 0
        """Log lines that were not written."""
        self.early_answers: Callable[[], Mapping[str, int]] = dict
        """Answers given without asking the core, by code or status; never a client's text."""
        self.recorded = RecordCounts()
        """What came of the lines of the record."""
        self.configuration: Configuration | None = None
        """Who reloads it; None where nobody does."""
        self.registry = CollectorRegistry()
        self.registry.register(_Exposition(self))
        ProcessCollector(registry=self.registry)

    def exposition(self) -> bytes:
        """The text for a scrape."""
        return generate_latest(self.registry)

    # What follows runs only at a scrape.

    def families(self) -> Iterator[Metric]:
        """Every metric with its present values."""
        build = GaugeMetricFamily("forebay_build_info", "1, with the version as label.", labels=("version",))
        build.add_metric((__version__,), 1.0)
        yield build
        yield from self._configured()
        yield from self._counters()
        yield from self._histograms()
        snapshot = self._snapshot()
        if snapshot is not None:
            yield from _pool_gauges(snapshot)
            yield from _optional_gauges(snapshot)
            yield from _endpoint_gauges(snapshot, self._clock())
            yield _modes(snapshot)
            yield from _rule_counters(snapshot)
            yield _gauge(
                "forebay_waiting_bytes", "Bodies of waiting requests, in bytes.", snapshot.waiting_bytes
            )
            yield _gauge("forebay_draining", "1 while shutting down.", float(snapshot.draining))

    def _configured(self) -> Iterator[Metric]:
        configuration = self.configuration
        if configuration is None:
            return
        yield _gauge(
            "forebay_config_reload_failed",
            "1 if the last reload of the configuration was refused: the one before is in force.",
            float(configuration.failed),
        )
        yield _gauge(
            "forebay_config_loaded_timestamp_seconds",
            "When the configuration in force was read, in seconds since the epoch.",
            configuration.loaded_at_s,
        )
        reloads = CounterMetricFamily(
            "forebay_config_reloads_total", "Configurations taken over since the start."
        )
        reloads.add_metric((), float(configuration.reloads))
        yield reloads

    def _counters(self) -> Iterator[Metric]:
        labels = ("pool", "class")
        requests = CounterMetricFamily(
            "forebay_requests_total", "Requests by how they ended.", labels=(*labels, "outcome")
        )
        refusals = CounterMetricFamily(
            "forebay_refusals_total", "Requests refused, by reason.", labels=(*labels, "reason")
        )
        shadow = CounterMetricFamily(
            "forebay_shadow_decisions_total",
            "Requests that shadow mode let start and enforcing would not have, by what would have come of them.",
            labels=(*labels, "reason"),
        )
        for of_shadow, count in self.counts.unenforced.items():
            shadow.add_metric(of_shadow, count)
        goodput = CounterMetricFamily(
            "forebay_goodput_total", "Requests that met their objective.", labels=labels
        )
        attainment = GaugeMetricFamily(
            "forebay_slo_attainment", "Requests that met their objective ÷ all offered.", labels=labels
        )
        admitted = GaugeMetricFamily(
            "forebay_admitted_attainment",
            "Requests that met their objective ÷ all dispatched.",
            labels=labels,
        )
        for key, counts in self.counts.by_class.items():
            rejected = counts.outcomes.get(Outcome.ENGINE_REJECTED, 0)  # the clients' to mend
            if key[0]:  # else refused before it was known which of several pools it was for
                attainment.add_metric(key, counts.met / max(sum(counts.outcomes.values()) - rejected, 1))
                admitted.add_metric(key, counts.met / max(counts.admitted - rejected, 1))
            for outcome, count in counts.outcomes.items():
                requests.add_metric((*key, outcome.value), count)
                if outcome.group in _REFUSAL_GROUPS:
                    refusals.add_metric((*key, outcome.value), count)
            goodput.add_metric(key, counts.met)
        early = CounterMetricFamily(
            "forebay_early_answers_total", "Answers given before the core was asked.", labels=("reason",)
        )
        for reason, count in self.early_answers().items():
            early.add_metric((reason,), count)
        errors = CounterMetricFamily(
            "forebay_internal_errors_total", "Failures of Forebay's own code, by place.", labels=("where",)
        )
        for where, count in self.counts.errors.items():
            errors.add_metric((where,), count)
        dropped = CounterMetricFamily(
            "forebay_log_lines_dropped_total",
            "Log lines not written: too many, or a blocked stderr.",
            value=self.lines_dropped(),
        )
        yield from (requests, refusals, shadow, early, goodput, attainment, admitted, errors, dropped)
        yield from self._recorded()
        yield from self._by_tenant()

    def _recorded(self) -> Iterator[Metric]:
        if not self.recorded.used:
            return
        yield CounterMetricFamily(
            "forebay_record_lines_total", "Lines written to the record.", value=self.recorded.written
        )
        lost = CounterMetricFamily(
            "forebay_record_lines_dropped_total", "Lines of the record not written.", labels=("reason",)
        )
        lost.add_metric(("buffer",), self.recorded.no_room)
        lost.add_metric(("disk",), self.recorded.not_written)
        yield lost

    def _by_tenant(self) -> Iterator[Metric]:
        labels = ("pool", "class", "tenant")
        work = CounterMetricFamily("forebay_tenant_gpu_seconds_total", "GPU-seconds charged.", labels=labels)
        offered = CounterMetricFamily("forebay_tenant_requests_total", "Requests offered.", labels=labels)
        met = CounterMetricFamily(
            "forebay_tenant_goodput_total", "Requests that met their objective.", labels=labels
        )
        refused = CounterMetricFamily(
            "forebay_tenant_refused_gpu_seconds_total",
            "Expected GPU-seconds of requests that were turned away for overload, limits or absence.",
            labels=labels,
        )
        rejected = CounterMetricFamily(
            "forebay_tenant_engine_rejected_total",
            "Requests that an engine rejected for what they asked: not in attainment.",
            labels=labels,
        )
        for of_class, counts in self.counts.by_class.items():
            for name, tenant in counts.tenants.items():
                key = (*of_class, name)
                work.add_metric(key, tenant.gpu_s)
                refused.add_metric(key, tenant.refused_gpu_s)
                offered.add_metric(key, tenant.offered)
                met.add_metric(key, tenant.met)
                rejected.add_metric(key, tenant.rejected)
        yield from (work, refused, offered, met, rejected)

    def _histograms(self) -> Iterator[Metric]:
        labels = ("pool", "class")
        wait = HistogramMetricFamily("forebay_queue_wait_seconds", "Time in our queue.", labels=labels)
        ttft = HistogramMetricFamily("forebay_ttft_seconds", "Arrival to first token.", labels=labels)
        duration = HistogramMetricFamily(
            "forebay_request_duration_seconds", "Arrival to end, of dispatched requests.", labels=labels
        )
        wait_error = HistogramMetricFamily(
            "forebay_predicted_wait_error_seconds",
            "Wait less its prediction, of requests that waited.",
            labels=labels,
        )
        for key, counts in self.counts.by_class.items():
            wait.add_metric(key, counts.wait.cumulative(), counts.wait.total)
            ttft.add_metric(key, counts.ttft.cumulative(), counts.ttft.total)
            duration.add_metric(key, counts.duration.cumulative(), counts.duration.total)
            # With negative observations a sum is no counter, so the format has none.
            wait_error.add_metric(key, counts.wait_error.cumulative(), None)
        decision = HistogramMetricFamily(
            "forebay_decision_seconds",
            "Time to decide about an arrival.",
            buckets=self.counts.decision_s.cumulative(),
            sum_value=self.counts.decision_s.total,
        )
        yield from (wait, ttft, duration, wait_error, decision)


class _Exposition(Collector):
    """What the registry calls at a scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families()

    def describe(self) -> list[Metric]:
        """Nothing: without this the registry would collect once at registration, before there is a core."""
        return []


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _rule_counters(snapshot: Snapshot) -> Iterator[Metric]:
    matches = CounterMetricFamily(
        "forebay_rule_matches_total", "Requests for which a rule decided something.", labels=("rule",)
    )
    errors = CounterMetricFamily(
        "forebay_rule_errors_total", "Times that a rule could not be evaluated.", labels=("rule",)
    )
    for rule in snapshot.rules:
        matches.add_metric((rule.name,), rule.matches)
        errors.add_metric((rule.name,), rule.errors)
    yield from (matches, errors)


def _optional_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    """What only some pools have."""
    share = GaugeMetricFamily(
        "forebay_group_share",
        "Part of the work done in its group lately that the pool had.",
        labels=("pool",),
    )
    gpus = GaugeMetricFamily(
        "forebay_gpu_utilization",
        "How busy the pool's GPUs are, as its gpu_metrics say.",
        labels=("pool",),
    )
    for pool in snapshot.pools:
        if pool.group_share is not None:
            share.add_metric((pool.name,), pool.group_share)
        if pool.gpu_utilization is not None:
            gpus.add_metric((pool.name,), pool.gpu_utilization)
    yield from (share, gpus)


def _pool_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    queue_requests = GaugeMetricFamily(
        "forebay_queue_requests", "Waiting requests.", labels=("pool", "class")
    )
    queue_gpu_s = GaugeMetricFamily("forebay_queue_gpu_seconds", "Waiting work.", labels=("pool", "class"))
    predicted = GaugeMetricFamily(
        "forebay_predicted_wait_seconds",
        "Predicted wait of an arrival that cannot start at once.",
        labels=("pool", "class"),
    )
    learning = GaugeMetricFamily(
        "forebay_pool_learning", "1 while the pool is learning its engines.", labels=("pool",)
    )
    drain_rate = GaugeMetricFamily(
        "forebay_drain_rate", "GPU-seconds of work that the pool gets through per second.", labels=("pool",)
    )
    utilization = GaugeMetricFamily(
        "forebay_utilization",
        "Share of the pool in use, over 10 s: slots, KV cache or step time.",
        labels=("pool",),
    )
    output_error = GaugeMetricFamily(
        "forebay_output_tokens_error_ratio", "True over expected output tokens, lately.", labels=("pool",)
    )
    guard_trips = CounterMetricFamily(
        "forebay_learning_guard_trips_total",
        "Times that an endpoint stood idle while requests were refused on predictions.",
        labels=("pool",),
    )
    fallbacks = CounterMetricFamily(
        "forebay_fallbacks_total",
        "Requests that the pool turned away and its fallback took.",
        labels=("pool",),
    )
    for pool in snapshot.pools:
        fallbacks.add_metric((pool.name,), pool.fell_back)
        utilization.add_metric((pool.name,), pool.utilization)
        guard_trips.add_metric((pool.name,), pool.learned.guard_trips)
        if pool.output_error_ratio is not None:
            output_error.add_metric((pool.name,), pool.output_error_ratio)
        learning.add_metric((pool.name,), float(pool.learning))
        drain_rate.add_metric((pool.name,), pool.drain_gpu_s_per_s)
        for view in pool.classes:
            queue_requests.add_metric((pool.name, view.name), view.waiting_requests)
            queue_gpu_s.add_metric((pool.name, view.name), view.waiting_gpu_s)
            predicted.add_metric((pool.name, view.name), view.predicted_wait_s)
    yield from (
        queue_requests,
        queue_gpu_s,
        predicted,
        learning,
        drain_rate,
        utilization,
        output_error,
        guard_trips,
        fallbacks,
    )


def _kv_utilization(endpoint: EndpointView) -> float | None:
    """As the engine says; where it says nothing, what we have booked of its limit."""
    if endpoint.kv_usage is not None:
        return endpoint.kv_usage
    return endpoint.kv_tokens / endpoint.kv_limit if endpoint.kv_limit else None


_ENDPOINT_GAUGES: Final[tuple[tuple[str, str, Callable[[EndpointView, float], float | None]], ...]] = (
    ("forebay_inflight_requests", "Requests at the engine.", lambda e, _: e.running_requests),
    ("forebay_inflight_gpu_seconds", "Work at the engine.", lambda e, _: e.work_gpu_s),
    (
        "forebay_draining_requests",
        "Ended requests that may still hold room.",
        lambda e, _: e.draining_requests,
    ),
    ("forebay_kv_utilization", "Share of the KV cache in use.", lambda e, _: _kv_utilization(e)),
    ("forebay_kv_booked_tokens", "KV tokens booked by us.", lambda e, _: e.kv_tokens),
    ("forebay_concurrency_limit", "Requests that may be in flight.", lambda e, _: e.request_limit),
    ("forebay_sample_seconds", "Time that the last reading took.", lambda e, _: e.sample_took_s),
    (
        "forebay_sample_age_seconds",
        "Age of the last reading.",
        lambda e, now: None if e.sample_at_s is None else max(0.0, now - e.sample_at_s),
    ),
)


def _modes(snapshot: Snapshot) -> Metric:
    family = GaugeMetricFamily(
        "forebay_mode", "1 for what is done with decisions.", labels=("pool", "class", "mode")
    )
    for pool in snapshot.pools:
        for entry in pool.classes:
            for mode in Mode:
                family.add_metric((pool.name, entry.name, mode.value), float(mode is entry.mode))
    return family


def _endpoint_gauges(snapshot: Snapshot, now: float) -> Iterator[Metric]:
    places: list[tuple[PoolView, EndpointView]] = [
        (pool, e) for pool in snapshot.pools for e in pool.endpoints
    ]
    for name, text, value_of in _ENDPOINT_GAUGES:
        family = GaugeMetricFamily(name, text, labels=("pool", "endpoint"))
        for pool, endpoint in places:
            value = value_of(endpoint, now)
            if value is not None:
                family.add_metric((pool.name, endpoint.id), value)
        yield family
    states = GaugeMetricFamily(
        "forebay_endpoint_state",
        "1 for the state that the endpoint is in.",
        labels=("pool", "endpoint", "state"),
    )
    preemptions = CounterMetricFamily(
        "forebay_engine_preemptions_total",
        "Preemptions that the engine reported.",
        labels=("pool", "endpoint"),
    )
    faults = CounterMetricFamily(
        "forebay_engine_faults_total",
        "What was held against the engine, by kind.",
        labels=("pool", "endpoint", "kind"),
    )
    for pool, endpoint in places:
        for kind, count in endpoint.faults:
            faults.add_metric((pool.name, endpoint.id, kind), count)
        for state in EndpointState:
            states.add_metric((pool.name, endpoint.id, state.value), float(state is endpoint.state))
        if endpoint.preemptions_total is not None:
            preemptions.add_metric((pool.name, endpoint.id), endpoint.preemptions_total)
    yield from (states, preemptions, faults)
