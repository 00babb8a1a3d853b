"""Claims about the server's bounds."""

from __future__ import annotations

from forebay.http.limits import ServerLimits


def test_the_stated_times_and_sizes_are_the_defaults() -> None:
    """The defaults are the documented times and sizes."""
    limits = ServerLimits()
    assert (limits.head_bytes, limits.head_fields, limits.head_timeout_s) == (65536, 100, 10.0)
    assert (limits.keep_alive_s, limits.write_timeout_s) == (75.0, 30.0)
    assert (limits.drain_bytes, limits.drain_s) == (65536, 1.0)


def test_the_sweep_follows_the_shortest_bound() -> None:
    """The sweep runs twice per shortest bound, at most every 10 ms and at least twice a second."""
    assert ServerLimits().sweep_s == 0.5
    assert ServerLimits(head_timeout_s=0.2).sweep_s == 0.1
    assert ServerLimits(drain_s=0.001).sweep_s == 0.01
    assert ServerLimits(drain_s=10.0, linger_s=10.0).sweep_s == 0.5
