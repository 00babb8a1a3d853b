"""Pools that share GPUs: who starts nothing for whose sake, and until when."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest

from forebay.admission.common_law import _count_anew as count_anew
from forebay.admission.effects import Hold
from forebay.admission.events import (
    AttemptFailed,
    Described,
    EndpointsChanged,
    Failure,
    FirstTokenCame,
    SampleMissed,
)
from forebay.admission.groups import Member
from forebay.admission.model import EndpointId, TicketId
from forebay.admission.settings import Settings
from tests.unit.admission.build import (
    VLLM,
    Scenario,
    dispatched,
    held,
    know_lengths,
    pool_settings,
    settings_for,
    with_class,
)

EIGHTEEN = [(number, "b") for number in range(1, 19)]


def grouped(share: float | None = 0.2, *, group: str | None = "gpu", **changes: Any) -> Settings:
    """`llama` has this share and takes one request at a time, `large` the rest and takes ten."""
    pools = (
        pool_settings(group=group, share=share, **{"max_inflight_requests": 1, **changes}),
        pool_settings(name="large", group=group, max_inflight_requests=10),
    )
    return with_class("standard", replace(settings_for(), pools=pools), wait_budget_s=1e4)


def crowd(settings: Settings | None = None, *, measured: bool = True, spare: bool = True) -> Scenario:
    """Two of `llama` wait; then ten of `large` run and twenty wait; nine of them end, having had 0.9 of the GPU.

    With `spare` it has been seen that the GPU has time to spare for `large`.
    """
    settings = settings or grouped()
    if not measured:
        settings = replace(settings, pools=tuple(replace(pool, law=None) for pool in settings.pools))
    one = Scenario(settings=settings)
    one.tell(EndpointsChanged("large", (EndpointId("b"),)), 0.0)
    one.tell(Described(EndpointId("b"), VLLM), 0.0)
    joined = one.controller._pools["large"].member
    if spare and joined is not None:
        joined.group._spare_until_s = 1e9
    one.arrive_many((101, 102, 103), 0.0)
    one.arrive_many(range(1, 31), 0.0, pool="large")
    for number in range(1, 10):
        one.end(number, 1.0)
    return one


def at_b(one: Scenario) -> list[tuple[int, str]]:
    """All that was started at the engine of `large`."""
    return [start for start in dispatched(one.said) if start[1] == "b"]


def member(one: Scenario, name: str = "large") -> Member:
    """A pool's place in its group."""
    found = one.controller._pools[name].member
    assert found is not None
    return found


def test_who_is_ahead_starts_nothing_while_one_that_has_less_waits() -> None:
    """With 0.8 of the GPU it goes on, with more it does not, and a newcomer's record says why."""
    one = crowd()
    assert EIGHTEEN == at_b(one)
    (hold,) = one.arrive(40, 1.0, pool="large")
    assert isinstance(hold, Hold)
    check = hold.record.checks[-1]
    assert ("group_share", 1.0, 0.8, False) == (check.name, check.value, check.limit, check.passed)
    assert "group_share" == hold.record.decided_by
    assert [(102, "a")] == dispatched(one.end(101, 1.0))
    one.close()


def test_it_goes_on_the_moment_that_nobody_waits() -> None:
    """Those for whose sake it was held go away: no further event is needed."""
    one = crowd()
    assert [] == dispatched(one.leave(102, 1.1))
    assert [(19, "b")] == dispatched(one.leave(103, 1.1))
    one.close()


def test_time_alone_opens_it() -> None:
    """What it was served fades: it is not kept below its own part. The core asks to be woken for that."""
    one = crowd()
    assert [] == dispatched(one.run_until(2.1))
    assert [(19, "b")] == dispatched(one.run_until(2.3))


def test_a_pool_with_nothing_in_flight_is_not_held() -> None:
    """Whatever the others wait for, it is not its running work."""
    one = crowd(grouped(0.9))
    last = at_b(one)[-1][0]
    for number in range(10, last):
        assert [] == dispatched(one.end(number, 1.0))
    assert [(last + 1, "b")] == dispatched(one.end(last, 1.0))


def test_nobody_takes_more_of_what_runs_than_its_part_if_all_is_in_use() -> None:
    """Also if it was served little so far: of five requests at the engines four are its own."""
    one = crowd(spare=False)
    started = [number for number, _ in at_b(one)]
    assert started == list(range(1, started[-1] + 1))
    assert 3 == started[-1] - 9, (
        "nine have ended: with one more there would be four of five, and that is the bound"
    )
    assert not member(one).group.has_spare(1.0)
    assert [] == dispatched(one.leave(102, 1.1))
    assert 7 == len(dispatched(one.leave(103, 1.1))), "nobody else waits, so it has ten again"
    one.close()


def test_what_the_others_can_make_no_use_of_is_seen_within_a_second() -> None:
    """The GPU does less than it can: the pool goes on to its own part of it, whatever runs elsewhere."""
    group = member(crowd(spare=False)).group
    small, large = group.members
    for done, spare in ((0.6, True), (0.8, False)):
        group._spare_until_s = 0.0
        assert not group.has_spare(100.0)
        for step in range(5):
            large.serve(int(done * 150_000), 100.0 + step / 5)
            small.serve(int(done * 50_000), 100.0 + step / 5)
            assert not group.has_spare(100.1 + step / 5)
        assert spare == group.has_spare(101.0)
        assert spare == group.has_spare(109.0)
        assert not group.has_spare(112.0), "it is looked at anew"


def test_until_it_is_measured_it_has_its_part_of_the_requests_in_flight() -> None:
    """What its engines get through is a guess till then: four beside the one of the other, and no fewer."""
    one = crowd(measured=False)
    assert [*range(1, 11)] == [number for number, _ in at_b(one)][:10]
    last = at_b(one)[-1][0]
    running = list(range(10, last + 1))
    for number in running[:-4]:
        assert [] == dispatched(one.end(number, 1.0))
    assert [(last + 1, "b")] == dispatched(one.end(running[-1], 1.0))
    one.close()


def test_what_it_was_seen_to_do_is_no_guess() -> None:
    """An engine far faster than was guessed keeps its part of what it did when it had everything."""
    one = crowd(measured=False)
    large = member(one)
    large.serve(int(100e6), 1.0)
    assert large.is_held(1.0)
    opens_s = large.opens_s(1.0)
    assert 1.0 - 10.0 * log(0.8) + 0.01 == pytest.approx(opens_s)
    assert not large._is_ahead(opens_s)
    meter = large.pool.endpoints[EndpointId("b")].meter
    meter.windows = 1
    assert large._is_ahead(opens_s), "what was measured rules"
    meter.speed = 100.0
    assert not large._is_ahead(opens_s)


def test_what_a_pool_had_is_counted_by_the_law_of_today() -> None:
    """The law is learned: all that was charged and served before, and what runs, is worth so much less."""
    one = crowd()
    large, small = member(one), member(one, "llama")
    charged, served = large.group.contended.per_s(1, 1.0), large.group.served.per_s(1, 1.0)
    count_anew(large.pool, 0.1)
    assert charged * 0.1 == pytest.approx(large.group.contended.per_s(1, 1.0))
    assert served * 0.1 == pytest.approx(large.group.served.per_s(1, 1.0))
    started = one.tell(AttemptFailed(TicketId(10), EndpointId("b"), Failure.CLOSED), 1.0)
    expected = charged * 0.1 - 1e4 * exp(-0.1) + 1e5 * len(dispatched(started))
    assert expected == pytest.approx(large.group.contended.per_s(1, 1.0))
    assert 0.0 == small.group.contended.per_s(0, 1.0)


def test_engines_that_give_no_sign_hold_up_nobody() -> None:
    """Long before they count as stalled: it makes no difference to them whether others make way."""
    settings = grouped()
    one = crowd(settings)
    for at_s in (1.2, 1.4):
        one.sample("a", at_s, running=1)
        one.sample("b", at_s, running=9)
    assert member(one, "llama").is_short(1.4)
    assert not member(one, "llama").is_short(2.5)
    one.tell(FirstTokenCame(TicketId(101)), 2.5)
    assert member(one, "llama").is_short(2.5)
    one.close()


def test_engines_that_are_away_hold_up_nobody() -> None:
    """Their pool's requests wait for them, and not for the GPU."""
    one = crowd()
    assert [(19, "b")] == dispatched(one.tell(SampleMissed(EndpointId("a"), unreachable=True), 1.0))
    silent = crowd()
    assert [19] == [ticket for ticket, _ in dispatched(silent.sample("b", 5.5))]


def test_its_own_cap_on_requests_holds_up_nobody() -> None:
    """A pool at its `max_pool_requests` could start nothing if the GPU were idle."""
    one = crowd(grouped(max_inflight_requests=9, max_pool_requests=1))
    assert [*EIGHTEEN, (19, "b")] == at_b(one)


def test_what_stands_at_a_ceiling_holds_up_nobody() -> None:
    """Requests that fill gaps, of a pool that has none, make no claim."""
    settings = grouped(max_inflight_requests=2)
    settings = with_class("batch", settings, admit_below_utilization=0.4, wait_budget_s=1e4)
    one = Scenario(settings=settings)
    one.tell(EndpointsChanged("large", (EndpointId("b"),)), 0.0)
    one.tell(Described(EndpointId("b"), VLLM), 0.0)
    one.arrive_many((101, 102), 0.0, class_name="batch")
    assert [102] == list(one.waiting)
    one.arrive_many(range(1, 31), 0.0, pool="large")
    for number in range(1, 10):
        one.end(number, 1.0)
    assert [*EIGHTEEN, (19, "b")] == at_b(one)


def test_what_nobody_else_wanted_is_held_against_nobody() -> None:
    """It had everything while it was alone; the other, when it comes, is not ahead of it for that."""
    one = Scenario(settings=grouped())
    one.tell(EndpointsChanged("large", (EndpointId("b"),)), 0.0)
    one.tell(Described(EndpointId("b"), VLLM), 0.0)
    one.arrive_many(range(1, 41), 0.0, pool="large")
    for number in range(1, 16):
        one.end(number, 1.0)
    one.arrive_many((101, 102), 1.0)
    for number in range(16, 21):
        assert 1 == len(dispatched(one.end(number, 1.0)))
    assert [] == dispatched(one.end(21, 1.0)), "it has had five sixths of what was charged since"


@pytest.mark.parametrize(
    ("class_name", "cap", "expected"), [("standard", None, 1.0), ("batch", None, 0.0), ("standard", 1, 0.0)]
)
def test_what_one_that_waits_at_its_own_limits_could_not_use_is_held_against_nobody(
    class_name: str, cap: int | None, expected: float
) -> None:
    """A pool that waits at a ceiling, or at its own most requests, holds up nobody then, nor later for that."""
    settings = grouped(max_inflight_requests=10, max_pool_requests=cap)
    one = Scenario(settings=with_class("batch", settings, admit_below_utilization=0.1))
    one.tell(EndpointsChanged("large", (EndpointId("b"),)), 0.0)
    one.tell(Described(EndpointId("b"), VLLM), 0.0)
    one.arrive_many(range(101, 113), 0.0, class_name=class_name)
    one.arrive_many(range(1, 31), 0.0, pool="large")
    for number in range(1, 21):
        if number in one.running:
            one.end(number, 1.0)
    assert expected == member(one).group.contended.share_of(1)
    assert (30 if not expected else 21) == len(at_b(one))


def test_parts_without_a_share_are_what_is_left() -> None:
    """In equal parts; a group of one is none, and neither is none at all."""
    pools = [pool_settings(name="a", group="x", share=0.5)]
    pools += [pool_settings(name=name, group="x") for name in "bc"]
    pools += [pool_settings(name="d", group="y", share=0.5), pool_settings(name="llama")]
    one = Scenario(settings=replace(settings_for(), pools=tuple(pools)), endpoints=())
    assert [0.5, 0.25, 0.25] == [member(one, name).part for name in "abc"]
    assert [None, None] == [one.controller._pools[name].member for name in ("d", "llama")]
    assert [0.0, None] == [
        view.group_share for view in one.controller.snapshot().pools if view.name in ("a", "d")
    ]


def test_a_reload_keeps_what_was_charged() -> None:
    """With another share it is held still; with a large one, or in no group, it goes on at once."""
    one = crowd()
    assert [] == dispatched(one.reconfigure(grouped(0.3), 1.0))
    assert (0.7, True) == (member(one).part, member(one).held)
    assert 1.0 == member(one).group.contended.share_of(1)
    assert [(19, "b")] == dispatched(one.reconfigure(grouped(0.0), 1.0))
    left = member(one)
    assert [] == dispatched(one.reconfigure(grouped(None, group=None), 1.0))
    assert one.controller._pools["large"].member is None
    one.end(19, 1.1)
    assert -1 == left.index
    one.reconfigure(grouped(), 1.2)
    assert (0.0, 0.0) == (member(one).group.contended.share_of(1), member(one).share_of_group())
    one.close()


def test_charges_are_corrected_at_the_end() -> None:
    """By what it took; an attempt that failed took nothing."""
    one = crowd()
    contended, faded = member(one).group.contended, exp(-0.1)
    assert (10 * faded + 8) * 1e5 == pytest.approx(contended.per_s(1, 1.0))
    one.tell(AttemptFailed(TicketId(10), EndpointId("b"), Failure.CLOSED), 1.0)
    assert (9 * faded + 8) * 1e5 == pytest.approx(contended.per_s(1, 1.0))


def test_predicted_waits_count_its_part_while_others_wait() -> None:
    """At most its part of what all get through; alone, all that its engines do. Held, it teaches no speed."""
    one = crowd()
    pools = one.controller._pools
    for pool in pools.values():
        know_lengths(pool)
    assert (0.4e6, 1e6) == (pools["llama"].drain_us_per_s(), pools["large"].drain_us_per_s())
    one.leave(102, 1.1)
    one.leave(103, 1.1)
    assert 1e6 == pools["large"].drain_us_per_s()
    windows = pools["large"].endpoints[EndpointId("b")].meter.windows
    assert 0 == windows


def test_without_groups_nothing_is_asked() -> None:
    """The other pool's waiters are no business of this one."""
    one = crowd(grouped(None, group=None))
    assert [*EIGHTEEN, (19, "b")] == at_b(one)
    assert [] == one.controller._groups.members
    assert [40] == held(one.arrive(40, 1.0, pool="large"))
