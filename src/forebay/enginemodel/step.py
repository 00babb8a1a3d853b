"""What the engine answers: to a submission, and after a step. Records only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, unique

from forebay.enginemodel.sequence import Sequence


@unique
class Submission(Enum):
    """What became of a submitted request."""

    QUEUED = "queued"
    TOO_LONG = "too_long"
    """Prompt and answer exceed the context: it can never run."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. Ids are in order of arrival within each part."""

    start_s: float
    duration_s: float
    decoding: int
    """Sequences that decoded."""
    prefill_tokens: int
    tokens: tuple[int, ...]
    """Requests that gave a token (one each): the decoding ones, then those in `first_tokens` and `resumed`."""
    first_tokens: tuple[int, ...]
    """Requests whose first token this was."""
    resumed: tuple[int, ...]
    """Requests that gave their first token since they were preempted."""
    finished: tuple[int, ...]
    """Requests whose last token this was; the engine has forgotten them."""
    preempted: tuple[int, ...]
    admitted: tuple[int, ...]
    """Requests that entered the batch for the first time."""

    @property
    def end_s(self) -> float:
        """When the step is over and its tokens are there."""
        return self.start_s + self.duration_s


@dataclass(slots=True)
class StepDraft:
    """A step in the making."""

    budget: int = 0
    """Tokens that can still be computed in it."""
    prefill_tokens: int = 0
    attention: float = 0.0
    prefilling: int = 0
    """Sequences with a chunk in this step."""
    completed: list[Sequence] = field(default_factory=list)
    """Those whose prefill this step completes."""
    preempted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
