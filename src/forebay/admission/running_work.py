"""What is left of the work that runs in a pool, and so how soon something of it ends.

Kept as sums, so that an arrival costs the same however many run:

- Of a stream it goes by its tokens. At the first one its prompt is worked off. Then what it has before it is what
  answers that got so far are expected to have (`LengthLaw.remaining_mean`), never more than was booked for it. That is
  looked up now and then only: each look-up covers an eighth of what has come by then.
- Of an answer that comes as a whole nothing is seen until its end. Its part of the drain rate is taken off as time goes
  by, but no more than half of the work of all of these: some may be much longer than others, and nobody knows which.

It takes what is booked from the ledger and keeps only what is to be taken off.
"""

from __future__ import annotations

from math import inf
from typing import Final

from forebay.admission.ledger import Account
from forebay.admission.tickets import Ticket

LOOKED_UP_EVERY: Final = 8
"""Tokens from one look-up to the next, at least."""
UNSEEN_MOST: Final = 0.5
"""Part of the work of whole answers that time alone may take off."""
NEVER: Final = 1 << 62


class RunningWork:
    """The running requests of one pool."""

    __slots__ = ("_gone_us", "_since_s", "_unseen", "_unseen_us")

    def __init__(self) -> None:
        self._gone_us = 0
        """Booked work of streams that is done, or not expected any more."""
        self._unseen = 0
        """Running requests of which nothing is seen,"""
        self._unseen_us = 0
        """their work,"""
        self._since_s = 0.0
        """and the times of their dispatch, added up."""

    def start(self, ticket: Ticket) -> None:
        """It was dispatched, at its `dispatched_s`."""
        if ticket.demand.stream:
            ticket.look_up_at = 0
        else:
            ticket.look_up_at = NEVER
            self._unseen += 1
            self._unseen_us += ticket.booking.work_us
            self._since_s += ticket.dispatched_s

    def advance(self, ticket: Ticket, tokens: int) -> None:
        """A stream has come so far, over all its samples: to be called once that is its `look_up_at`."""
        more = tokens >> 3
        ticket.look_up_at = tokens + (more if more > LOOKED_UP_EVERY else LOOKED_UP_EVERY)
        price, samples = ticket.price, ticket.demand.samples
        cost = price.cost
        left = price.lengths.remaining_mean(tokens // samples, price.cap) * samples
        gone_us = cost.prefill_us
        if left < cost.output_tokens:
            gone_us += int((cost.work_us - gone_us) * (1.0 - left / cost.output_tokens))
        self._gone_us += gone_us - ticket.gone_us
        ticket.gone_us = gone_us

    def end(self, ticket: Ticket) -> None:
        """It runs no more, or is none of ours any more."""
        self._gone_us -= ticket.gone_us
        ticket.gone_us = 0
        if not ticket.demand.stream:
            self._unseen -= 1
            self._unseen_us -= ticket.booking.work_us
            self._since_s = self._since_s - ticket.dispatched_s if self._unseen else 0.0

    def left_us(self, in_flight: Account, drain_us_per_s: float, now: float) -> float:
        """Work that is still to be done of what is in flight."""
        left_us = float(in_flight.work_us - self._gone_us)
        if self._unseen:
            done_us = (self._unseen * now - self._since_s) * drain_us_per_s / in_flight.requests
            left_us -= min(max(done_us, 0.0), UNSEEN_MOST * self._unseen_us)
        return left_us if left_us > 0.0 else 0.0

    def first_release_s(self, in_flight: Account, drain_us_per_s: float, now: float) -> float:
        """Seconds until one of those in flight ends: what is left of each in the mean ÷ drain rate.

        n requests that share a rate, each with a mean of w left (exponential), end one by one every w ÷ rate.
        Infinite if nothing drains.
        """
        if not in_flight.requests:
            return 0.0
        if drain_us_per_s <= 0.0:
            return inf
        return self.left_us(in_flight, drain_us_per_s, now) / in_flight.requests / drain_us_per_s
