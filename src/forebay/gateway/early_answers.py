"""Answers that were given without asking the core: counted by code, and the last ones kept for who asks why.

Bad input, unknown keys and models, bodies that were not read, a gateway that shuts down: there is no decision to
explain, but the client was given an id and may ask about it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay.admission.model import TicketId
from forebay.admission.outcomes import Group, Outcome
from forebay.gateway.refusals import Answer

__all__ = ["EarlyAnswer", "EarlyAnswers"]

_REFUSALS: Final = {
    outcome.value: outcome
    for outcome in Outcome
    if outcome.group in (Group.CONTENDED, Group.ABSENT, Group.IMPOSSIBLE)
}
"""Of requests that the core would have known, had it been asked."""

KEPT: Final = 500
BODY_BYTES: Final = 2048
"""Error bodies of ours are shorter."""


@dataclass(frozen=True, slots=True)
class EarlyAnswer:
    """One of them, as the client got it."""

    ticket: TicketId
    at_s: float
    """On the driver's clock."""
    status: int
    code: str
    body: bytes
    request_id: bytes | None
    """What the client called it."""


class EarlyAnswers:
    """Those of one gateway."""

    __slots__ = ("_kept", "counts", "on_refusal")

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.on_refusal: Callable[[str, str, str, Outcome], None] | None = None
        """Told the pool, the class, the tenant and the code of each request that was offered and refused."""
        self._kept: deque[EarlyAnswer] = deque(maxlen=KEPT)

    def count(self, code: str) -> None:
        """One that nobody can ask about: it had no id."""
        self.counts[code] += 1

    def turned_away(self, code: str, pool: str, class_name: str, tenant: str) -> None:
        """A request of somebody known was answered so. If that is a refusal it counts in what was offered.

        Not bad input, or a model that there is not: with those nobody could have served it.

        Args:
            pool: empty where its body, which names the model, was not read and there are several.
        """
        outcome = _REFUSALS.get(code)
        if outcome is not None and self.on_refusal is not None:
            self.on_refusal(pool, class_name, tenant, outcome)

    def add(self, ticket: TicketId, at_s: float, answer: Answer, request_id: bytes | None) -> None:
        """One that was given to a request with an id."""
        self.counts[answer.code] += 1
        body = answer.body[:BODY_BYTES]
        self._kept.append(EarlyAnswer(ticket, at_s, answer.status, answer.code, body, request_id))

    def of_ticket(self, ticket: TicketId) -> EarlyAnswer | None:
        """The answer under this id; None if there was none, or too long ago. A scan: only people ask."""
        return next((kept for kept in reversed(self._kept) if kept.ticket == ticket), None)

    def named(self, request_id: bytes) -> TicketId | None:
        """The latest request that its client named so."""
        return next((kept.ticket for kept in reversed(self._kept) if kept.request_id == request_id), None)
