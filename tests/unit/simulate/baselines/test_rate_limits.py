from __future__ import annotations

import pytest

from forebay.simulate.baselines.rate_limits import Bucket, FixedWindow, SlidingWindow
from tests.unit.simulate.baselines.bench import Bench


def test_a_fixed_window_begins_with_its_first_request() -> None:
    """A minute later all is forgotten, at once."""
    bench = Bench("litellm:rpm=2")
    bench.now = 50.0
    bench.arrive(1)
    bench.now = 80.0
    bench.arrive(2)
    bench.arrive(3)
    assert "rate_limit_exceeded" == bench.over[3]
    assert 30.0 == pytest.approx(bench.refusals[3].retry_after_s)
    bench.now = 110.0
    bench.arrive(4)
    assert 4 in bench.running


def test_tokens_count_when_the_answer_ends() -> None:
    """A burst goes through before its tokens are known; then nothing does until the window ends."""
    bench = Bench("litellm:tpm=1000")
    for ticket in range(1, 6):
        bench.arrive(ticket, prompt=500)
    assert 5 == len(bench.running)
    for ticket in range(1, 6):
        bench.end(ticket, 100)
    bench.arrive(6)
    assert "rate_limit_exceeded" == bench.over[6]


def test_tenants_do_not_share() -> None:
    """Each has limits of its own."""
    bench = Bench("token-bucket:rpm=1")
    bench.arrive(1, tenant="a")
    bench.arrive(2, tenant="b")
    bench.arrive(3, tenant="a")
    assert {3: "rate_limit_exceeded"} == bench.over


def test_a_sliding_window_sees_a_part_of_the_last_minute() -> None:
    """Half a minute on, half of it still counts; refused requests count too."""
    window = SlidingWindow(10)
    for _ in range(10):
        window.add(1, 30.0)
    assert not window.has_room(60.0, newcomer=1)
    assert window.has_room(90.0, newcomer=5)
    assert not window.has_room(90.0, newcomer=6)
    bench = Bench("kong:rpm=2")
    for ticket in range(1, 7):
        bench.arrive(ticket)
    assert [1, 2] == bench.started
    bench.now = 90.0
    bench.arrive(7)
    assert "rate_limit_exceeded" == bench.over[7]
    assert 120.0 == pytest.approx(bench.refusals[3].retry_after_s)
    bench.now = 180.0
    bench.arrive(8)
    assert 8 in bench.running


def test_a_bucket_refills_at_its_rate_and_pays_back_first() -> None:
    """A minute deep; below nothing it lets nobody in."""
    bucket = Bucket(60)
    bucket.add(70, 0.0)
    assert not bucket.has_room(10.9, newcomer=0)
    assert 0.1 == pytest.approx(bucket.room_in_s(10.9))
    assert bucket.has_room(11.1, newcomer=0)
    assert bucket.has_room(500.0, newcomer=60)
    assert not bucket.has_room(500.0, newcomer=61)


def test_a_window_that_is_over_lets_all_in_again() -> None:
    """Use that ends in a later window falls into that one."""
    window = FixedWindow(100)
    window.add(100, 0.0)
    assert not window.has_room(59.9, newcomer=0)
    window.add(50, 60.0)
    assert window.has_room(60.0, newcomer=50)
    assert not window.has_room(60.0, newcomer=51)
