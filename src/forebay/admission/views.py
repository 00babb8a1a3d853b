"""Building the frozen views of `snapshot` from live pools."""

from __future__ import annotations

from forebay.admission.ceilings import use_of
from forebay.admission.endpoints import Endpoint
from forebay.admission.pools import Pool
from forebay.admission.snapshot import ClassView, EndpointView, PoolView, TicketView
from forebay.admission.tickets import WAITING, Ticket


def pool_view(pool: Pool, now: float) -> PoolView:
    """A frozen view of one pool."""
    to_gpu_s, books = pool.settings.to_gpu_s, pool.books
    max_work_us = pool.max_work_us()
    return PoolView(
        name=pool.settings.name,
        learning=not pool.learning.may_refuse,
        learned=pool.learning.view(),
        waiting_requests=books.waiting.requests,
        waiting_gpu_s=to_gpu_s(books.waiting.work_us),
        in_flight_requests=books.in_flight.requests,
        in_flight_gpu_s=to_gpu_s(books.in_flight.work_us),
        max_gpu_s=None if max_work_us is None else to_gpu_s(max_work_us),
        max_requests=pool.settings.max_pool_requests,
        drain_gpu_s_per_s=to_gpu_s(round(pool.drain_us_per_s())),
        wait_error_median=pool.errors.median,
        bytes_per_prompt_token=pool.pricing.ratios.common.bytes_per_token,
        output_error_ratio=pool.pricing.output_error,
        fell_back=pool.fell_back,
        utilization=use_of(pool.endpoints.values(), now)[0],
        classes=tuple(
            ClassView(
                name,
                account.requests,
                to_gpu_s(account.work_us),
                pool.predict_wait_s(name, now),
                pool.classes[name].mode,
            )
            for name, account in books.classes.items()
        ),
        endpoints=tuple(_endpoint_view(endpoint, pool, now) for endpoint in pool.endpoints.values()),
        group_share=None if pool.member is None else pool.member.share_of_group(),
        gpu_utilization=pool.gpu_load.value(now, pool.common.stale_after_s),
    )


def ticket_view(ticket: Ticket, now: float) -> TicketView:
    """A frozen view of one request that is not over."""
    pool, demand = ticket.pool, ticket.demand
    if ticket.phase is not WAITING:
        ttft_s = None if ticket.first_token_s is None else ticket.first_token_s - ticket.arrived_s
        return TicketView(
            phase=ticket.phase.value,
            since_s=ticket.dispatched_s,
            waited_s=ticket.waited_s,
            pool=demand.pool,
            class_name=demand.class_name,
            attempts=ticket.attempts,
            endpoint=None if ticket.endpoint is None else ticket.endpoint.id,
            ttft_s=ttft_s,
            output_events=ticket.output_events,
        )
    ahead_us, position = pool.queue.work_ahead(ticket)
    predicted_s = None
    if pool.has_up():
        base_s = pool.base_wait_s(demand.class_name, ahead_us, ticket, now)
        predicted_s = pool.classes[demand.class_name].waits.predict(base_s)
    return TicketView(
        phase=ticket.phase.value,
        since_s=ticket.queued_s,
        waited_s=ticket.waited_s + now - ticket.queued_s,
        pool=demand.pool,
        class_name=demand.class_name,
        attempts=ticket.attempts,
        position=position,
        predicted_wait_s=predicted_s,
        waits_at_most_s=max(ticket.deadline_s - now, 0.0),
    )


def _endpoint_view(endpoint: Endpoint, pool: Pool, now: float) -> EndpointView:
    sample = endpoint.sample
    limit, firm = endpoint.request_limit
    return EndpointView(
        id=endpoint.id,
        state=endpoint.state,
        kind=endpoint.info.kind,
        described=endpoint.described,
        is_open=endpoint.is_open(now) and pool.has_place(now),
        reserved_for=endpoint.reserved_for,
        running_requests=endpoint.books.running.requests,
        draining_requests=endpoint.books.draining.requests,
        kv_tokens=endpoint.books.kv_tokens,
        kv_limit=endpoint.kv_limit,
        context_tokens=endpoint.info.context_tokens,
        request_limit=limit,
        request_limit_is_firm=firm,
        work_gpu_s=pool.settings.to_gpu_s(endpoint.books.work_us),
        speed=endpoint.meter.speed,
        kv_usage=None if sample is None else sample.kv_usage,
        sample_at_s=None if sample is None else sample.at_s,
        sample_took_s=None if sample is None else sample.took_s,
        engine_running=None if sample is None else sample.running,
        engine_waiting=None if sample is None else sample.waiting,
        preemptions_total=None if sample is None else sample.preemptions_total,
        rejections_in_row=endpoint.rejections_in_row,
        faults=tuple(endpoint.faults.items()),
    )
