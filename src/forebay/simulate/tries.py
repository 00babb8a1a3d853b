"""What became of one request: everything that a run notes down about it. Scores are made from these records alone."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.admission.model import TicketId
from forebay.admission.outcomes import Outcome
from forebay.load.felt import End, Felt
from forebay.simulate.request import Planned


@dataclass(slots=True, eq=False)
class Try:
    """One request, from its arrival to its end. Times are of the run."""

    ticket: TicketId
    planned: Planned
    end: End = End.UNANSWERED
    outcome: Outcome | None = None
    """Why, where it was turned away or broken off; None of what was still open at the end of the run."""
    ended_s: float = 0.0
    held_s: float | None = None
    """Since when it waits, or had to at first; None if it never had to."""
    dispatched_s: float | None = None
    """When it was first sent to an engine."""
    first_s: float | None = None
    """First token, or the whole of an answer that is not streamed."""
    given_tokens: int = 0
    cached_tokens: int = 0
    """Of its prompt, in the engine's prefix cache."""
    work_s: float = 0.0
    """Endpoint-seconds that engines spent on it, by the closed form."""
    lost_work_s: float = 0.0
    """The same on engines that died with it."""
    retry_after_s: float | None = None
    predicted_wait_s: float = 0.0
    """As told when it had to wait."""
    stated_wait_s: float | None = None
    """The quantile of its wait that was compared with its budget; None if none was."""
    budget_s: float = 0.0
    """The longest it might wait."""
    learning: bool = False

    @property
    def waited_s(self) -> float:
        """From its arrival until it was sent to an engine, or ended without that."""
        return (self.ended_s if self.dispatched_s is None else self.dispatched_s) - self.planned.at_s

    def felt(self) -> Felt:
        """What its client felt."""
        planned = self.planned
        first_s = None if self.first_s is None else self.first_s - planned.at_s
        return Felt(
            class_name=planned.class_name,
            at_s=planned.at_s,
            stream=planned.stream,
            end=self.end,
            duration_s=self.ended_s - planned.at_s,
            first_token_s=first_s,
            last_token_s=None if first_s is None else self.ended_s - planned.at_s,
            output_tokens=self.given_tokens,
            code="" if self.outcome is None or self.end is End.COMPLETED else self.outcome.value,
            retry_after_s=self.retry_after_s,
        )
