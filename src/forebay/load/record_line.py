"""One line of our own record of requests: what the recorder writes, and what trace readers and `report` read.

Owns the names of the fields, which are a contract, and nothing else. A line says how much and how long, never what:
no text, no key. It is also a row of a Mooncake trace (`timestamp`, `input_length`, `output_length`), so tools that
read those take the file as it is.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["LINE_VERSION", "RecordLine"]

LINE_VERSION: Final = 1


class RecordLine(msgspec.Struct, omit_defaults=True, gc=False):
    """One request that ended. Absent fields have their defaults; readers ignore fields that they do not know."""

    forebay: int
    """Version of the line's format: 1."""
    timestamp: int
    """Milliseconds from the start of the recording to the request's arrival."""
    input_length: int
    """Prompt tokens: as the engine counted them, else as estimated."""
    output_length: int
    """Output tokens of the whole answer; of a request that was not answered in full, what was expected of it."""
    time: float
    """When the request arrived: seconds since 1970."""
    id: str = ""
    """Ours (`x-forebay-id`)."""
    request_id: str = ""
    """The client's `x-request-id`."""
    pool: str = ""
    class_name: str = msgspec.field(default="", name="class")
    tenant: str = ""
    model: str = ""
    session: str = ""
    stream: bool = True
    generates: bool = True
    """False for embeddings and scoring, which have no output."""
    flat: str = ""
    """`audio` or `image`: the request was not counted in tokens."""
    samples: int = 1
    """Answers asked for (`n`)."""
    retry: int = 0
    """How often the client says to have tried before."""
    limit_tokens: int | None = None
    """The client's own limit of output tokens, per answer."""
    prompt_tokens: int | None = None
    """As the engine counted them; absent if it never did."""
    cached_tokens: int | None = None
    """Of those, in the engine's prefix cache."""
    output_tokens: int | None = None
    """As the engine counted them, or by the events of the stream; absent if there was no answer."""
    prompt_expected: int | None = None
    cached_expected: int | None = None
    output_expected: int | None = None
    """What the decision counted with."""
    mode: str = "enforce"
    decision: str = ""
    """`dispatch`, `hold`, `refuse`, …: the first decision; in shadow mode what would have been done."""
    decided_by: str = ""
    """The check that decided; `passed` if none failed."""
    would_be: str = ""
    """In shadow mode: the outcome that enforcing would have given, if it would have turned the request away."""
    outcome: str = ""
    """How it ended, one of the documented outcomes."""
    endpoint: str = ""
    attempts: int = 0
    wait_budget_s: float | None = None
    wait_predicted_s: float | None = None
    waited_s: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    """Mean time per output token after the first."""
    duration_s: float = 0.0
    """Arrival to end."""
    cost_expected_gpu_s: float | None = None
    cost_gpu_s: float | None = None
    """What it really took, as far as known."""
    met: bool | None = None
    """Whether it was within the objectives of its class; absent where it was not the gateway's to judge."""
    learning: bool = False
    """The pool was still learning when it was decided."""
