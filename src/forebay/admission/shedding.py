"""Which waiters may be pushed out, who of them goes first, and who waits in vain.

Rules over plain arguments, and two memories that some of them need: which requests were displaced a moment ago, so
that their retry is left alone, and which sessions were let in, so that a later call of each is. `feasibility` finds out
when somebody has to go; the caller ends tickets. Nothing here knows a ticket, a queue or a clock.

**May be displaced.** `Displace` says which classes a newcomer may push out: `off` none, `lower` the less important
ones, `same` its own too; never a more important one. Left alone whatever that says: `never_refuse`, the retry of a
displaced request, a later call of an admitted session, whoever was already sent bytes while waiting, and whoever
has waited for more than half of its budget.

**First to go.** Tenants above their fair share, then the less important class, then the lowest value per GPU-second,
then the youngest. Who is above its share is `tenant_shares`'s to say, and `triage` puts the order together.

**In vain.** A waiter is given up when the chance that it can still meet its objective is below 10 %. The chance counts
and not the expectation: the answers that fit into little time are short ones and cost little, so a queue of long jobs
that is dropped by its median loses those it could have served.

    start:         P(remaining wait ≤ start-by − now) < 0.1,  that is: the 0.1 quantile of the wait is too long
    whole answer:  P(L ≤ 1 + (deadline − now − time to the first token) ÷ step) < 0.1,  L output tokens
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from forebay.admission.model import Demand
from forebay.admission.settings import Displace
from forebay.admission.tenant_memory import TenantMemory

HOPELESS_BELOW: Final = 0.1
"""A chance below this is none."""
FIRM_AFTER: Final = 0.5
"""Part of its budget after which a waiter is not displaced any more."""

RETRY_REMEMBERED_S: Final = 120.0
"""Twice the longest Retry-After: whoever was displaced comes back by then, or does not."""
RETRIES_MAX: Final = 4096
SESSION_IDLE_S: Final = 600.0
SESSIONS_MAX: Final = 16_384

# As plain names: up to Python 3.11, looking a member up in its enum costs as much as a call.
_OFF: Final = Displace.OFF
_SAME: Final = Displace.SAME


# Who may go


def may_displace(displace: Displace, newcomer_rank: int, rank: int) -> bool:
    """May a newcomer push out waiters of a class? Rank 0 is the most important."""
    if displace is _OFF:
        return False
    return rank > newcomer_rank or (rank == newcomer_rank and displace is _SAME)


def is_protected(
    *, never_refuse: bool, retry_of_displaced: bool, later_call: bool, bytes_sent: bool = False
) -> bool:
    """Is a waiter left alone for as long as it waits?

    Args:
        retry_of_displaced: `DisplacedRetries` knows it.
        later_call: `Sessions` knows its session, and it is the one of it that is left alone.
        bytes_sent: it has been sent SSE comments while waiting, so it can no longer get a plain refusal.
    """
    return never_refuse or retry_of_displaced or later_call or bytes_sent


def firm_from_s(queued_s: float, budget_s: float) -> float:
    """After this time a waiter is not displaced any more: half its budget is gone."""
    return queued_s + FIRM_AFTER * budget_s


def may_be_displaced(
    displace: Displace, newcomer_rank: int, rank: int, *, protected: bool, firm_s: float, now: float
) -> bool:
    """May this newcomer push out this waiter? All rules at once.

    Args:
        protected: `is_protected` of the waiter.
        firm_s: `firm_from_s` of the waiter.
    """
    return not protected and now <= firm_s and may_displace(displace, newcomer_rank, rank)


# Who waits in vain


def cannot_start(now: float, start_by_s: float, low_wait_s: float) -> bool:
    """True if the chance to start in time is below `HOPELESS_BELOW`.

    Args:
        low_wait_s: the `HOPELESS_BELOW` quantile of the wait that is left; 0 where nothing is predicted.
    """
    return now + low_wait_s > start_by_s


def cannot_finish(
    now: float,
    finish_by_s: float,
    *,
    first_token_s: float,
    step_s: float,
    limit_tokens: int,
    survival: Callable[[float], float],
) -> bool:
    """True if the chance that the whole answer is there in time is below `HOPELESS_BELOW`.

    For calls whose objective is the whole answer and that state a deadline; a stream is worth its first tokens.

    Args:
        first_token_s: from now to the first token at the best: the low quantile of the wait, and the prefill.
        step_s: time per output token at the best; 0 where it is not known.
        limit_tokens: the answer is cut there.
        survival: P(L > tokens), as `LengthLaw.survival`.
    """
    left_s = finish_by_s - now - first_token_s
    if left_s < 0:
        return True
    if left_s >= step_s * (limit_tokens - 1):
        return False  # also where no step was learned yet: 0
    return 1.0 - survival(1.0 + left_s / step_s) < HOPELESS_BELOW


# What has to be remembered for it


def fingerprint(demand: Demand) -> int:
    """A number by which the retry of a request is known again: it has the same sizes and limit."""
    limit = demand.max_output_tokens
    return (
        (demand.body_bytes << 64)
        | (demand.prompt_bytes << 24)
        | ((0 if limit is None else limit + 1) & 0xFFFFFF)
    )


class DisplacedRetries:
    """Requests that were displaced lately. The retry of each is left alone once."""

    __slots__ = ("_memory",)

    def __init__(self, keep_s: float = RETRY_REMEMBERED_S, size_max: int = RETRIES_MAX) -> None:
        self._memory = TenantMemory(keep_s, size_max)

    def displaced(self, tenant: str, fingerprint: int, now: float) -> None:
        """A request was pushed out."""
        before = self._memory.get(tenant, fingerprint, now) or 0
        self._memory.put(tenant, fingerprint, before + 1, now)

    def knows(self, tenant: str, fingerprint: int, now: float) -> bool:
        """Is this the retry of one that was displaced? Uses nothing up."""
        return self._memory.get(tenant, fingerprint, now) is not None

    def claim(self, tenant: str, fingerprint: int, now: float) -> bool:
        """Such a retry begins to wait, and is left alone from now on. True once for each that was displaced."""
        left = self._memory.get(tenant, fingerprint, now)
        if left is None:
            return False
        if left > 1:
            self._memory.put(tenant, fingerprint, left - 1, now)
        else:
            self._memory.forget(tenant, fingerprint)
        return True

    def __len__(self) -> int:
        return len(self._memory)


class Sessions:
    """Sessions of which a call was admitted: later calls keep its class, and one that waits is not displaced."""

    __slots__ = ("_memory", "_protected")

    def __init__(self, idle_s: float = SESSION_IDLE_S, size_max: int = SESSIONS_MAX) -> None:
        self._memory = TenantMemory(idle_s, size_max)
        self._protected = TenantMemory(idle_s, size_max)

    def admitted(self, tenant: str, session: str, class_number: int, now: float) -> None:
        """A call of the session was admitted in this class, or ended: its idle time starts anew."""
        self._memory.put(tenant, session, class_number, now)

    def class_of(self, tenant: str, session: str, now: float) -> int | None:
        """The class of the session's calls; None for the first call, and after a long pause."""
        return self._memory.get(tenant, session, now)

    def protect(self, tenant: str, session: str, ticket: int, now: float) -> None:
        """Of those calls of the session that wait, this is left alone."""
        self._protected.put(tenant, session, ticket, now)

    def protected(self, tenant: str, session: str, now: float) -> int:
        """The last call that was; it may be over. -1 if there was none."""
        ticket = self._protected.get(tenant, session, now)
        return -1 if ticket is None else ticket

    def __len__(self) -> int:
        return len(self._memory)
