"""The exact answer to "whom to turn away", as a pass over everybody: what the buckets of `feasibility` are judged by.

One machine of a known rate, work in micro-seconds, each job with a time until which it must have **started**. A set
can be started in time if and only if it can in the order of start-by + own time: exchanging two neighbours that stand
the other way round never makes the later of their starts later (the rule of Jackson for due dates, with start-by + own
time as the due date). The weighted pass of Moore and Hodgson goes through that order and, where a job would be late,
gives up the one of the lowest value per work so far. It is exact about who is late; as a choice of victims it is
the greedy that the semantics name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True)
class Job:
    """One waiter."""

    start_by_s: float
    work_us: int
    value: float
    sequence: int


def in_due_order(jobs: Sequence[Job], rate_us_per_s: float) -> list[Job]:
    """The order in which a set starts in time if it can at all."""
    return sorted(jobs, key=lambda job: (job.start_by_s + job.work_us / rate_us_per_s, job.sequence))


def all_start_in_time(jobs: Sequence[Job], now: float, rate_us_per_s: float, *, spare_s: float = 0.0) -> bool:
    """True if some order starts each job at least `spare_s` before its time."""
    ahead_us = 0
    for job in in_due_order(jobs, rate_us_per_s):
        if now + ahead_us / rate_us_per_s > job.start_by_s - spare_s:
            return False
        ahead_us += job.work_us
    return True


def keep(jobs: Sequence[Job], now: float, rate_us_per_s: float) -> list[Job]:
    """Those that the weighted pass keeps; all of them start in time."""
    kept_us = 0
    given_up: set[int] = set()
    candidates: list[tuple[float, int, Job]] = []
    for job in in_due_order(jobs, rate_us_per_s):
        kept_us += job.work_us
        heappush(candidates, (job.value / job.work_us, -job.sequence, job))
        while now + (kept_us - job.work_us) / rate_us_per_s > job.start_by_s:
            victim = heappop(candidates)[2]
            kept_us -= victim.work_us
            given_up.add(victim.sequence)
            if victim is job:
                break
    return [job for job in jobs if job.sequence not in given_up]


def value_met(jobs: Sequence[Job], now: float, rate_us_per_s: float) -> float:
    """Value of those that start in time when all are served in due order and the late ones leave unserved."""
    met = 0.0
    ahead_us = 0
    for job in in_due_order(jobs, rate_us_per_s):
        if now + ahead_us / rate_us_per_s <= job.start_by_s:
            met += job.value
            ahead_us += job.work_us
    return met
