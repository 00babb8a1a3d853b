"""Claims about telling a slow reader from a busy one."""

from __future__ import annotations

from forebay.http.slow_reader import SlowReaderWatch


def test_a_reader_that_takes_nothing_is_found_once_per_time() -> None:
    """Bytes that wait untouched for the whole time are reported, and then again only a whole time later."""
    watch = SlowReaderWatch()
    watch.written_bytes = 100
    assert not watch.is_stuck(0.0, 100, 30.0)
    assert not watch.is_stuck(29.0, 100, 30.0)
    assert watch.is_stuck(30.0, 100, 30.0)
    assert not watch.is_stuck(31.0, 100, 30.0)
    assert watch.is_stuck(60.0, 100, 30.0)


def test_one_byte_taken_starts_the_time_anew() -> None:
    """A reader that takes anything is not stuck, even while the buffer grows."""
    watch = SlowReaderWatch()
    watch.written_bytes = 100
    assert not watch.is_stuck(0.0, 100, 30.0)
    watch.written_bytes = 1000
    assert not watch.is_stuck(29.0, 999, 30.0)
    assert not watch.is_stuck(58.0, 999, 30.0)
    assert watch.is_stuck(59.0, 999, 30.0)


def test_writing_alone_is_not_taking() -> None:
    """An owner that goes on writing does not make its reader look alive."""
    watch = SlowReaderWatch()
    watch.written_bytes = 100
    assert not watch.is_stuck(0.0, 100, 30.0)
    watch.written_bytes = 5000
    assert watch.is_stuck(30.0, 5000, 30.0)


def test_nothing_waiting_is_never_stuck() -> None:
    """A connection with nothing unsent is not watched."""
    watch = SlowReaderWatch()
    assert not watch.is_stuck(0.0, 0, 1.0)
    assert not watch.is_stuck(100.0, 0, 1.0)
