"""Streams that took longer than their class allows (`max_stream`) make room, but only while others wait.

While nobody waits a stream may take as long as it likes. Otherwise the longest go first, no more of them than there are
waiters whom their room would serve: for what was cut and the engine has not let go of yet, nobody else need go.

`cut_long` is the other limit, of a pool: an answer without one of its own ends at `max_output_tokens`, whoever waits.

`Pool.streams_due_s` is never later than the moment at which the first stream that has begun is due, so that until then
a look costs one comparison. While one is over its limit and may stay, or has not begun, the pool is looked at every
second.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from forebay.admission.answers import tokens_of_events
from forebay.admission.endpoints import Endpoint
from forebay.admission.lifecycle import Lifecycle
from forebay.admission.model import Check, Mode
from forebay.admission.outcomes import Outcome
from forebay.admission.pools import Pool
from forebay.admission.tickets import Ticket
from forebay.admission.timers import Timers

AGAIN_S: Final = 1.0
DETAIL: Final = "Others wait, and this stream took as long as its class allows then ({:g} s)."


class StreamLimits:
    """The stream limits of one controller."""

    def __init__(
        self,
        life: Lifecycle,
        timers: Timers,
        after_leaving: Callable[[Endpoint, Pool, float], None],
        fill: Callable[[Pool, float], None],
    ) -> None:
        """See the module.

        Args:
            after_leaving: told of each stream that was ended.
            fill: look for waiters that can start; it comes back here while some wait.
        """
        self._life = life
        self._timers = timers
        self._after_leaving = after_leaving
        self._fill = fill

    def look(self, pool: Pool, now: float) -> None:
        """Some wait: end streams that are due, or see to it that somebody looks when one is."""
        if now >= pool.streams_due_s:
            for ticket in self._due(pool, now)[: _waiters(pool)]:
                self._end(ticket, now)
        if pool.streams_due_s < pool.streams_armed_s:
            pool.streams_armed_s = pool.streams_due_s
            self._timers.at(pool.streams_armed_s, self._alarm, pool)

    def cut_long(self, endpoint: Endpoint, pool: Pool, now: float) -> None:
        """Tokens came on streams there: end those that are at the pool's limit and have none of their own."""
        most = pool.settings.max_output_tokens
        if most is None or pool.settings.inject_limit:
            return
        for ticket in list(endpoint.running.values()):
            demand = ticket.demand
            if demand.max_output_tokens is not None or not demand.stream:
                continue
            tokens = tokens_of_events(ticket) / demand.samples
            if tokens >= most and pool.classes[demand.class_name].mode is Mode.ENFORCE:
                check = Check("max_output_tokens", int(tokens), most, False)
                detail = f"The answer has reached {most} tokens, which is as long as one gets here."
                self._life.give_up(ticket, Outcome.STREAM_LIMIT, now, check, detail, engine_goes_on=True)
                self._after_leaving(endpoint, pool, now)

    def _alarm(self, pool: Pool, now: float) -> None:
        if now < pool.streams_armed_s:
            return
        pool.streams_armed_s = inf
        self._fill(pool, now)

    def _due(self, pool: Pool, now: float) -> list[Ticket]:
        """Streams over their limit, those that have run longest first. Notes down when to look next."""
        over: list[Ticket] = []
        next_s = inf
        for endpoint in pool.endpoints.values():
            for ticket in endpoint.running.values():
                most_s = ticket.settings.max_stream_s
                if most_s is None or not ticket.demand.stream:
                    continue
                if pool.classes[ticket.demand.class_name].mode is not Mode.ENFORCE:
                    continue
                due_s = ticket.dispatched_s + most_s
                if due_s > now:
                    next_s = min(next_s, due_s)
                    continue
                next_s = min(next_s, now + AGAIN_S)
                if ticket.first_token_s is not None:
                    over.append(ticket)
        pool.streams_due_s = next_s
        over.sort(key=_by_start)
        return over

    def _end(self, ticket: Ticket, now: float) -> None:
        endpoint, most_s = ticket.endpoint, ticket.settings.max_stream_s
        if endpoint is None or most_s is None:
            return
        check = Check("max_stream", now - ticket.dispatched_s, most_s, False)
        self._life.give_up(
            ticket, Outcome.STREAM_LIMIT, now, check, DETAIL.format(most_s), engine_goes_on=True
        )
        self._after_leaving(endpoint, ticket.pool, now)


def _waiters(pool: Pool) -> int:
    """Waiters whom the room of a stream would serve, less those for whom room is on its way."""
    waiting = 0
    for queue in pool.queue.classes:
        if not queue.shut:
            waiting += queue.count
    leaving = 0
    for endpoint in pool.endpoints.values():
        leaving += endpoint.books.draining.requests
    return max(waiting - leaving, 0)


def _by_start(ticket: Ticket) -> tuple[float, int]:
    return ticket.dispatched_s, ticket.sequence
