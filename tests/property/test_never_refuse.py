"""Over every way through the core: who may not be refused is not, and everybody else keeps to the bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.events import AttemptFailed, ClientLeft, Described, Ended, EndpointsChanged, Failure
from forebay.admission.model import Demand, EndpointId, EngineInfo, EngineKind, TicketId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Displace, PlanSettings, PoolSettings, Settings
from tests.property.driving import Bench, check_bounds, close

CLASSES: Final = ("realtime", "standard", "batch")
NEVER: Final = frozenset(
    {Outcome.QUEUE_FULL, Outcome.DISPLACED, Outcome.DEADLINE_UNREACHABLE, Outcome.QUEUE_TIMEOUT}
)
REFUSED_ALL_THE_SAME: Final = (Outcome.REQUEST_TOO_LARGE, Outcome.NO_ENDPOINTS)
"""At arrival."""
moves = st.lists(
    st.one_of(
        st.tuples(st.just("time"), st.sampled_from(["0.1", "2.0", "30.0"]), st.just(0)),
        st.tuples(st.just("arrive"), st.sampled_from(CLASSES), st.integers(1, 400)),
        st.tuples(st.just("important"), st.sampled_from(CLASSES), st.integers(1, 400)),
        st.tuples(st.sampled_from(["end", "leave", "fail"]), st.just(""), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(
    st.sampled_from(list(Displace)),
    st.none() | st.integers(0, 4),
    st.none() | st.sampled_from([0.5, 3.0]),
    moves,
)
def test_who_may_not_be_refused_is_not(
    displace: Displace, max_queue: int | None, max_gpu_s: float | None, history: list[tuple[str, str, int]]
) -> None:
    """By a plan in any class; what ends such a request is its client, its engine, or that there is none."""
    pool = PoolSettings("p", max_inflight_requests=1, max_queue=max_queue, max_gpu_s=max_gpu_s)
    settings = Settings((pool,), plans=(PlanSettings("vip", never_refuse=True),), displace=displace)
    settings = replace(settings, classes=tuple(replace(c, max_queue=3) for c in settings.classes))
    bench = Bench(settings)
    endpoints = (EndpointId("x"), EndpointId("y"))
    bench.feed(EndpointsChanged("p", endpoints))
    for endpoint in endpoints:
        bench.feed(Described(endpoint, EngineInfo(EngineKind.VLLM)))
    for what, value, number in history:
        running = bench.where("running")
        some = running[number % len(running)] if running else None
        if what == "time":
            bench.advance(float(value))
        elif what in ("arrive", "important"):
            ticket = TicketId(len(bench.tickets) + 1)
            plan = "vip" if what == "important" else ""
            seen = bench.arrive(
                Demand(ticket, "p", value, "m", True, 4 * number, 9, plan, number, 0, 50 + number, plan=plan)
            )
            if plan:
                assert seen.where != "over" or _outcome(seen.settlement) in REFUSED_ALL_THE_SAME
            else:
                check_bounds(bench, seen)
        elif some is not None and what == "end":
            bench.feed(Ended(some.demand.ticket, Outcome.COMPLETED, Usage(number + 1, number + 1)))
        elif some is not None and what == "leave":
            bench.feed(ClientLeft(some.demand.ticket))
        elif some is not None and some.endpoint is not None:
            bench.feed(AttemptFailed(some.demand.ticket, some.endpoint, Failure.CLOSED))
        _check(bench)
    close(bench)
    _check(bench)


def _outcome(settlement: object) -> Outcome | None:
    return getattr(settlement, "outcome", None)


def _check(bench: Bench) -> None:
    bench.controller.verify()
    for seen in bench.tickets.values():
        if seen.demand.plan and seen.settlement is not None:
            assert seen.settlement.outcome not in NEVER
