"""One request of a simulated client, as the client knows it, and how clients behave.

It never says anything of how the request fares; `tries` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.admission.model import ANONYMOUS
from forebay.load.workload import Arrival

BYTES_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A request to come. What the gateway could not know is marked so."""

    index: int
    """Number of the client, from 0: its first try and its return share it."""
    at_s: float
    class_name: str
    prompt_tokens: int
    """Not known to the gateway, which sees `prompt_bytes`."""
    output_tokens: int
    """Not known to the gateway."""
    limit_tokens: int | None
    """What the client states that the answer may have; None: nothing."""
    prompt_bytes: int
    stream: bool = True
    pool: str = ""
    """Empty: the first."""
    tenant: str = ANONYMOUS
    plan: str = ""
    model: str = "m"
    prefix: int = 0
    """Number of what its prompt begins with, from 1: others may have the same. 0 if nobody says."""
    shared_tokens: int = 0
    """So much of the token stream of that beginning are its prompt and answer."""
    patience_s: float | None = None
    """The client leaves so long after its arrival if it has had nothing by then. Not known to the gateway."""
    deadline_s: float | None = None
    """It says that it wants the first token by then, from its arrival."""
    returned: bool = False
    """It was refused once, and has come back."""


@dataclass(frozen=True, slots=True)
class Habits:
    """What refused clients do."""

    come_back: bool = True
    """They come back once, where they are told when."""
    heed_retry_after: bool = True
    """They come when they are told; else soon after, as a client does that has a back-off of its own."""
    own_wait_s: float = 1.0
    """Mean of that back-off: half of it to one and a half of it, evenly."""


def planned(
    arrivals: Sequence[Arrival],
    *,
    tenants: Sequence[str] = (),
    bytes_per_token: float = BYTES_PER_TOKEN,
    shared: Mapping[str, int] | None = None,
) -> list[Planned]:
    """The requests of a workload.

    Args:
        arrivals: of the workload.
        tenants: in turn, by the number of the request.
        bytes_per_token: of all prompts.
        shared: by class, the tokens with which all its prompts begin.
    """
    chains = {name: number for number, name in enumerate(shared or {}, 1)}
    return [
        Planned(
            index=one.index,
            at_s=one.at_s,
            class_name=one.class_name,
            prompt_tokens=one.prompt_tokens,
            output_tokens=one.output_tokens,
            limit_tokens=one.limit_tokens,
            prompt_bytes=round(one.prompt_tokens * bytes_per_token),
            stream=one.stream,
            tenant=tenants[one.index % len(tenants)] if tenants else ANONYMOUS,
            prefix=chains.get(one.class_name, len(chains) + 1 + one.index) if chains else 0,
            shared_tokens=min((shared or {}).get(one.class_name, 0), one.prompt_tokens),
        )
        for one in arrivals
    ]
