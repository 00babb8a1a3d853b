from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.admission.effects import Abort, Effect, Hold
from forebay.admission.events import Described, EndpointsChanged, Progressed, Sampled, SampleMissed
from forebay.admission.model import Check, EndpointId, EndpointState, EngineInfo, TicketId
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Order
from tests.unit.admission.build import (
    LLAMACPP,
    VLLM,
    Scenario,
    dispatched,
    held,
    pool_settings,
    reading,
    settings_for,
    turned_away,
    with_class,
)

Begin = Callable[..., Scenario]
ONE_PLACE = pool_settings(max_inflight_requests=1)


def add_endpoint(scenario: Scenario, name: str, now: float) -> None:
    """A second endpoint beside `a` comes up."""
    scenario.tell(EndpointsChanged("llama", (EndpointId("a"), EndpointId(name))), now)
    scenario.tell(Described(EndpointId(name), VLLM), now)


# Draining room


def test_room_comes_back_when_a_later_sample_shows_that_it_is_free(begin: Begin) -> None:
    """A client leaves; the engine's running count falls in a reading that began afterwards: the next one starts."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.5)
    scenario.leave(1, 1.0)
    assert Outcome.CLIENT_GONE is scenario.outcome(1)
    assert [] == dispatched(scenario.sample("a", 1.2, 1.1, running=1))
    assert [(2, "a")] == dispatched(scenario.sample("a", 1.4, 1.3, running=0))


def test_each_answer_to_a_request_is_one_that_runs(begin: Begin) -> None:
    """An engine that runs three answers to one request of ours has let go of the abandoned one."""
    scenario = begin()
    scenario.arrive(1, 0.0, samples=3)
    scenario.arrive(2, 0.0)
    scenario.leave(2, 0.5)
    scenario.sample("a", 0.8, running=4)
    assert 1 == scenario.endpoint_view().draining_requests
    scenario.sample("a", 0.9, running=3)
    assert 0 == scenario.endpoint_view().draining_requests


@pytest.mark.parametrize("at_s", [0.9, 1.0])
def test_a_sample_from_before_frees_nothing(begin: Begin, at_s: float) -> None:
    """A reading that began before the client left cannot show that its request is gone."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.5)
    scenario.leave(1, 1.0)
    assert [] == dispatched(scenario.sample("a", 1.2, at_s, running=0))
    assert 1 == scenario.endpoint_view().draining_requests


def test_a_sample_without_a_running_count_frees_nothing(begin: Begin) -> None:
    """An engine that does not say keeps the room for its linger."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.leave(1, 1.0)
    scenario.sample("a", 1.5, running=None)
    assert 1 == scenario.endpoint_view().draining_requests
    scenario.wake(2.0)
    assert 0 == scenario.endpoint_view().draining_requests


def test_a_request_in_the_engines_queue_still_fills_it(begin: Begin) -> None:
    """What the engine has not started yet, but will, has not left it."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.leave(1, 1.0)
    scenario.sample("a", 1.4, 1.3, running=0, waiting=1)
    assert 1 == scenario.endpoint_view().draining_requests


def test_a_dispatch_after_the_reading_does_not_hide_an_abandoned_request(begin: Begin) -> None:
    """The reading shows one running request. It is the abandoned one: ours was dispatched after the reading began."""
    scenario = begin(pool_settings(max_inflight_requests=2))
    scenario.arrive(1, 0.0)
    scenario.leave(1, 1.0)
    scenario.arrive(2, 1.45)
    scenario.sample("a", 1.5, 1.4, running=1)
    assert 1 == scenario.endpoint_view().draining_requests
    scenario.sample("a", 1.7, 1.6, running=1)
    assert 0 == scenario.endpoint_view().draining_requests


def test_without_a_sample_the_linger_frees_the_room(begin: Begin) -> None:
    """A second after the client left the engine must have noticed: the timer frees the room, and not sooner."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.5)
    scenario.leave(1, 1.0)
    assert 2.0 == scenario.controller.next_deadline()
    assert [] == dispatched(scenario.wake(1.999))
    assert [(2, "a")] == dispatched(scenario.wake(2.0))


def test_room_that_a_sample_freed_is_not_freed_again(begin: Begin) -> None:
    """The linger of room that came back earlier is over without a trace."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    scenario.leave(1, 1.0)
    scenario.sample("a", 1.4, 1.3)
    scenario.arrive(2, 1.5)
    assert [] == scenario.wake(2.0)
    assert (1, 0) == (scenario.endpoint_view().running_requests, scenario.endpoint_view().draining_requests)


def test_an_unstreamed_answer_of_llamacpp_holds_its_slot_to_the_end(begin: Begin) -> None:
    """It runs on after its client has left: the slot comes back at the predicted finish, 99 tokens at 50 ms."""
    scenario = begin(ONE_PLACE, info=LLAMACPP)
    scenario.arrive(1, 0.0, stream=False)
    scenario.progress("a", 0.1, gap_s=0.05)
    scenario.arrive(2, 0.5)
    scenario.leave(1, 2.0)
    assert [] == dispatched(scenario.run_until(4.8))
    assert [(2, "a")] == dispatched(scenario.run_until(4.99))


def test_draining_work_counts_in_the_predicted_wait(begin: Begin) -> None:
    """Who waits behind a request of one second that was given up waits for it all the same."""
    scenario = begin(settings=with_class("standard", settings_for(ONE_PLACE), order=Order.FIFO))
    scenario.arrive(1, 0.0)
    scenario.leave(1, 0.1)
    (hold,) = scenario.arrive(2, 0.2)
    assert isinstance(hold, Hold)
    assert pytest.approx(1.0) == hold.record.predicted_wait_s


# Stalls


def test_silence_stalls_an_endpoint_after_ten_seconds(begin: Begin) -> None:
    """Not a moment sooner, counted from the last byte."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.first_token(1, 1.0)
    scenario.progress("a", 3.0, 1)
    scenario.run_until(12.999)
    assert EndpointState.UP is scenario.state()
    scenario.run_until(13.0)
    assert EndpointState.STALLED is scenario.state()


def test_bytes_on_any_stream_keep_an_endpoint_alive(begin: Begin) -> None:
    """One silent stream beside a talking one is no stall."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0)
    for second in range(1, 31):
        scenario.run_until(float(second))
        scenario.progress("a", float(second), 2)
    assert EndpointState.UP is scenario.state()


def test_streams_that_nobody_reads_do_not_keep_an_endpoint_alive(begin: Begin) -> None:
    """A client that reads nothing must not hide that the engine hangs; its own stream is not ended for that silence."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.first_token(1, 1.0)
    for second in range(2, 13):
        scenario.run_until(float(second))
        scenario.tell(Progressed(EndpointId("a"), [(TicketId(1), 0)], alive=False), float(second))
    assert EndpointState.STALLED is scenario.state()
    assert {1: "a"} == scenario.running


def test_counters_that_move_keep_an_endpoint_alive(begin: Begin) -> None:
    """An engine that is busy with prefills sends nothing, and its counters tell that it works."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    for second in range(1, 31):
        scenario.run_until(float(second))
        scenario.sample("a", float(second), running=1, steps_total=100 * second)
    assert EndpointState.UP is scenario.state()


def test_scrapes_alone_do_not_keep_an_endpoint_alive(begin: Begin) -> None:
    """A hung engine goes on answering its metrics."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    for second in range(1, 12):
        scenario.run_until(float(second))
        scenario.sample("a", float(second), running=1, steps_total=100)
    assert EndpointState.STALLED is scenario.state()


def test_a_stream_behind_unstreamed_requests_is_watched(begin: Begin) -> None:
    """Unstreamed answers may be silent for long; a stream that comes after them is watched from its dispatch on."""
    scenario = begin(info=LLAMACPP)
    scenario.arrive(1, 0.0, stream=False)
    scenario.arrive(2, 5.0)
    scenario.run_until(14.9)
    assert EndpointState.UP is scenario.state()
    scenario.run_until(30.0)
    assert EndpointState.STALLED is scenario.state()


def test_a_stalled_endpoint_gets_no_new_work(begin: Begin) -> None:
    """What arrives goes elsewhere."""
    scenario = begin(endpoints=("a", "b"))
    scenario.arrive(1, 0.0)
    scenario.first_token(1, 0.5)
    scenario.run_until(10.5)
    assert (EndpointState.STALLED, EndpointState.UP) == (scenario.state("a"), scenario.state("b"))
    assert [(2, "b"), (3, "b")] == dispatched(scenario.arrive_many([2, 3], 10.5))


def test_streams_without_a_first_token_are_rescued(begin: Begin) -> None:
    """When an endpoint stalls, what has not begun there is sent elsewhere and drains there; what has begun stays."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0)
    scenario.first_token(2, 1.0)
    add_endpoint(scenario, "b", 2.0)
    effects = scenario.run_until(11.0)
    assert ([1], [(1, "b")], []) == (held(effects), dispatched(effects), turned_away(effects))
    assert {1: "b", 2: "a"} == scenario.running
    assert (1, 1) == (
        scenario.endpoint_view("a").draining_requests,
        scenario.endpoint_view("a").running_requests,
    )


def test_a_rescued_request_waits_for_room_elsewhere(begin: Begin) -> None:
    """Where the others are full it waits before all others of its class."""
    scenario = begin(ONE_PLACE)
    scenario.arrive(1, 0.0)
    add_endpoint(scenario, "b", 2.0)
    scenario.arrive(2, 3.0)
    scenario.first_token(2, 9.0)
    scenario.arrive(3, 9.0)
    effects = scenario.run_until(10.0)
    assert ([1], []) == (held(effects), dispatched(effects))
    assert [(1, "b")] == dispatched(scenario.end(2, 11.0))


def test_with_nowhere_to_go_a_stream_stays(begin: Begin) -> None:
    """A stall on the only endpoint ends nothing by itself."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    assert [] == scenario.run_until(30.0)
    assert EndpointState.STALLED is scenario.state()
    assert {1: "a"} == scenario.running


def test_unstreamed_requests_are_not_rescued(begin: Begin) -> None:
    """Nobody can tell whether they have begun: they have a time of their own."""
    scenario = begin()
    scenario.arrive(1, 0.0, stream=False)
    add_endpoint(scenario, "b", 2.0)
    scenario.run_until(30.0)
    assert EndpointState.STALLED is scenario.state("a")
    assert {1: "a"} == scenario.running


def test_a_request_is_not_rescued_without_end(begin: Begin) -> None:
    """The number of attempts bounds rescues as it bounds failures."""
    scenario = begin(endpoints=("a", "b", "c"))
    scenario.arrive(1, 0.0)
    scenario.run_until(10.0)
    assert {1: "b"} == scenario.running
    scenario.run_until(25.0)
    assert EndpointState.STALLED is scenario.state("b")
    assert {1: "b"} == scenario.running


def test_the_first_byte_ends_a_stall(begin: Begin) -> None:
    """An endpoint that talks again gets work again at once."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.run_until(10.0)
    assert EndpointState.STALLED is scenario.state()
    scenario.progress("a", 12.0, 1)
    assert EndpointState.UP is scenario.state()
    assert [(2, "a")] == dispatched(scenario.arrive(2, 12.0))


def test_after_a_stall_an_endpoint_is_watched_as_before(begin: Begin) -> None:
    """A second silence is noticed as soon as the first was."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.run_until(10.0)
    scenario.progress("a", 12.0, 1)
    scenario.run_until(21.9)
    assert EndpointState.UP is scenario.state()
    scenario.run_until(23.0)
    assert EndpointState.STALLED is scenario.state()


def test_a_stalled_endpoint_without_our_work_is_tried_by_one(begin: Begin) -> None:
    """After a stall that no byte can end, the next reading lets one request try; others wait for its first token."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.run_until(10.0)
    scenario.leave(1, 11.0)
    scenario.run_until(12.0)
    assert EndpointState.STALLED is scenario.state()
    scenario.sample("a", 12.5)
    assert [(2, "a")] == dispatched(scenario.arrive_many([2, 3], 13.0))
    assert [(3, "a")] == dispatched(scenario.first_token(2, 14.0))


def test_a_trial_that_fails_is_a_stall_again(begin: Begin) -> None:
    """A request that tries a hung engine in vain finds it stalled ten seconds later."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.run_until(10.0)
    scenario.leave(1, 11.0)
    scenario.run_until(12.0)
    scenario.sample("a", 12.5)
    scenario.arrive(2, 13.0)
    scenario.run_until(22.9)
    assert EndpointState.UP is scenario.state()
    scenario.run_until(23.0)
    assert EndpointState.STALLED is scenario.state()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("loss", ["unreachable", "removed"])
def test_a_silent_stream_on_a_lost_endpoint_ends_in_its_own_time(begin: Begin, loss: str) -> None:
    """A silent stream on an endpoint that is down or removed ends after idle_stream, without busy waiting."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.first_token(1, 1.0)
    if loss == "unreachable":
        scenario.tell(SampleMissed(EndpointId("a"), unreachable=True), 2.0)
    else:
        scenario.tell(EndpointsChanged("llama", ()), 2.0)
    wakes = 0
    while (due := scenario.controller.next_deadline()) is not None and due < 61.0:
        scenario.wake(due)
        wakes += 1
        assert wakes < 20, "busy waiting"
    assert {1: "a"} == scenario.running
    assert [(1, Outcome.UPSTREAM_INTERRUPTED)] == turned_away(scenario.run_until(61.0))


# One silent request


def test_a_silent_stream_ends_after_idle_stream(begin: Begin) -> None:
    """Sixty seconds without a byte in mid-stream: it is interrupted, and the driver is told to close it."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.progress("a", 5.0, 1)
    scenario.run_until(64.9)
    assert {1: "a"} == scenario.running
    effects = scenario.run_until(65.0)
    assert [(1, Outcome.UPSTREAM_INTERRUPTED)] == turned_away(effects)
    assert isinstance(effects[0], Abort)
    assert "60 s" in effects[0].detail
    record = effects[0].record
    assert record is not None
    assert (Check("silence", 60.0, 60.0, False),) == record.checks
    assert 1 == scenario.endpoint_view().draining_requests


def test_a_stream_that_never_began_has_failed(begin: Begin) -> None:
    """Without a first token nothing was relayed: the client gets an error, not a broken stream."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    assert [(1, Outcome.UPSTREAM_FAILED)] == turned_away(scenario.run_until(60.0))


def test_a_talking_neighbour_does_not_save_a_silent_stream(begin: Begin) -> None:
    """Patience is each request's own."""
    scenario = begin()
    scenario.arrive(1, 0.0)
    scenario.arrive(2, 0.0)
    ended: list[tuple[int, Outcome]] = []
    for second in range(1, 62):
        ended += turned_away(scenario.run_until(float(second)))
        scenario.progress("a", float(second), 2)
    assert [(1, Outcome.UPSTREAM_FAILED)] == ended


@pytest.mark.parametrize("info", [LLAMACPP, VLLM], ids=["counts-at-the-end", "unread"])
def test_an_unstreamed_request_has_its_own_time(begin: Begin, info: EngineInfo) -> None:
    """Ten minutes to its first byte, and then it has failed: silence alone proves nothing."""
    scenario = begin(info=info)
    scenario.arrive(1, 0.0, stream=False)
    assert [] == scenario.run_until(599.9)
    assert [(1, Outcome.UPSTREAM_FAILED)] == turned_away(scenario.run_until(600.0))


def test_an_unstreamed_request_ends_with_the_others_where_the_engine_stands_still(begin: Begin) -> None:
    """An engine that answers its metrics and whose counters do not move hangs: nobody waits ten minutes for it."""
    scenario = begin()
    scenario.arrive(1, 0.0, stream=False)
    scenario.sample("a", 5.0, running=1, output_tokens_total=7)
    scenario.sample("a", 6.0, running=1, output_tokens_total=9)
    ended: list[tuple[int, Outcome, float]] = []
    for second in range(7, 80):
        effects = scenario.run_until(float(second))
        ended += [(*found, float(second)) for found in turned_away(effects)]
        scenario.sample("a", float(second), running=1, output_tokens_total=9)
    assert [(1, Outcome.UPSTREAM_FAILED, 66.0)] == ended


def test_an_engine_that_moves_again_keeps_its_unstreamed_requests(begin: Begin) -> None:
    """One that was stalled and whose counters move works: its long answers have their ten minutes."""
    scenario = begin()
    scenario.arrive(1, 0.0, stream=False)
    for second in range(1, 200):
        scenario.sample("a", float(second), running=1, output_tokens_total=second // 50)
        assert [] == turned_away(scenario.run_until(second + 0.5))
    assert {1: "a"} == scenario.running


def test_an_impatient_request_behind_a_patient_one_is_watched(begin: Begin) -> None:
    """The first request's long patience does not hide the second one's short one."""
    scenario = begin(info=LLAMACPP)
    scenario.arrive(1, 0.0, stream=False)
    scenario.arrive(2, 1.0)
    ended = turned_away(scenario.run_until(61.0))
    assert [(2, Outcome.UPSTREAM_FAILED)] == ended


def test_the_room_of_a_silent_stream_serves_the_next(begin: Begin) -> None:
    """When a trickling stream has fallen silent on an engine that otherwise works, who waits gets its room."""
    scenario = begin(pool_settings(max_inflight_requests=2))
    scenario.arrive(1, 0.0, class_name="batch")
    scenario.arrive(2, 0.0, class_name="batch")
    started: list[tuple[int, str]] = []
    for second in range(1, 63):
        started += dispatched(scenario.run_until(float(second)))
        scenario.progress("a", float(second), 2)
        if second == 50:
            scenario.arrive(3, 50.0, class_name="batch")
    assert [(3, "a")] == started


def test_a_sample_of_an_engine_that_is_gone_frees_nothing(begin: Begin) -> None:
    """A reading of an endpoint that is not configured any more is late news."""
    scenario = begin()
    scenario.tell(EndpointsChanged("llama", ()), 1.0)
    assert [] == scenario.tell(Sampled(EndpointId("a"), reading(2.0)), 2.0)


# Answers that do not begin


def test_an_answer_that_does_not_begin_is_tried_elsewhere(begin: Begin) -> None:
    """No first byte in time: another endpoint gets it, once; and the endpoint is told apart by it."""
    scenario = begin(settings=settings_for(unstreamed_timeout_s=30.0), endpoints=("a", "b"))
    (started,) = dispatched(scenario.arrive(1, 0.0, stream=False))
    assert (1, "a") == started
    again = dispatched(scenario.run_until(31.0))
    assert [(1, "b")] == again
    assert {"timeout": 1} == {k: v for k, v in scenario.endpoint_view("a").faults if k == "timeout"}
    scenario.run_until(62.0)
    assert scenario.outcome(1) is Outcome.UPSTREAM_FAILED


def test_a_stalled_engine_gives_back_unstreamed_requests_too(begin: Begin) -> None:
    """Its own counters stand still, so what is not streamed is stuck as well: another endpoint gets it."""
    scenario = begin(endpoints=("a", "b"), info=VLLM)
    scenario.arrive(1, 0.0, stream=False)
    effects: list[Effect] = []
    for second in range(1, 13):
        effects += scenario.sample("a", float(second), running=1, output_tokens_total=5)
        effects += scenario.sample("b", float(second), running=0, output_tokens_total=second)
        effects += scenario.run_until(second + 0.5)
    assert {"stalled": 1} == dict(scenario.endpoint_view("a").faults)
    assert [(1, "b")] == dispatched(effects)


def test_an_engine_that_takes_no_work_gets_none_and_finishes_what_runs(begin: Begin) -> None:
    """It says so with a reading: nothing new, what runs there ends as usual; when it takes work again it gets some."""
    scenario = begin(endpoints=("a", "b"))
    scenario.arrive(1, 0.0)
    scenario.sample("a", 1.0, running=1, unready="it is asleep")
    assert scenario.state("a") is EndpointState.UNREADY
    assert {"b"} == {endpoint for _, endpoint in dispatched(scenario.arrive_many(range(2, 6), 1.1))}
    scenario.first_token(1, 1.2)
    scenario.end(1, 1.5)
    assert scenario.outcome(1) is Outcome.COMPLETED
    assert scenario.state("a") is EndpointState.UNREADY
    scenario.sample("a", 2.0, running=0)
    assert scenario.state("a") is EndpointState.UP
    assert "a" in {endpoint for _, endpoint in dispatched(scenario.arrive_many(range(6, 9), 2.1))}


def test_without_any_engine_that_takes_work_requests_are_told_so(begin: Begin) -> None:
    """An only engine that is asleep is as good as none: 503 at once."""
    scenario = begin()
    scenario.sample("a", 1.0, unready="it is asleep")
    assert [(1, Outcome.NO_ENDPOINTS)] == turned_away(scenario.arrive(1, 1.1))
