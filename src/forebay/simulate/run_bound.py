"""The clairvoyant bound of a run: its requests and engines as `bound` wants them.

Prompts that begin as others do are taken to be cached as far as they possibly could be. Faults are left out, but for
engines that become faster, with which there would be no bound. A refused client that comes back may do so until the
end of the run, so that the bound then says little: it is of use with clients that do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from forebay.simulate.bound import BoundEngines, BoundRequest, clairvoyant_bound
from forebay.simulate.faults import ReplicaSlow
from forebay.simulate.place import EngineSetup
from forebay.simulate.request import Planned
from forebay.simulate.run import TAIL_S, Setup

__all__ = ["CannotBound", "RunBound", "bound_of"]

MOST_REQUESTS: Final = 20_000
"""Of a bounded run: the program is held in memory."""
_SLACK: Final = 1e-4


class CannotBound(Exception):
    """There is no bound for such a run; the message says why."""


class RunBound(NamedTuple):
    """What nobody could exceed, per second of offered time."""

    rps: float
    utility: float

    def is_exceeded_by(self, rps: float, utility: float) -> bool:
        """True if a run came to more, which is a mistake in one of the two."""
        return rps > self.rps * (1 + _SLACK) or utility > self.utility * (1 + _SLACK)


def bound_of(setup: Setup) -> RunBound:
    """The bound, over all pools. Raises: CannotBound, LabMissing, BoundFailed."""
    requests = setup.workload.requests
    if len(requests) > MOST_REQUESTS:
        raise CannotBound(
            f"a bound is worked out for at most {MOST_REQUESTS:,} requests: take fewer with --limit"
        )
    if any(isinstance(fault, ReplicaSlow) and fault.factor < 1 for fault in setup.faults):
        raise CannotBound("there is no bound for engines that become faster than their profile")
    if setup.workload.duration_s <= 0:
        raise CannotBound("requests that all come at once have no rate to bound")
    first_pool = setup.settings.pools[0].name
    rps = utility = 0.0
    for pool in dict.fromkeys(one.pool for one in setup.fleet):
        own = [_request(one, setup) for one in requests if (one.pool or first_pool) == pool]
        found = clairvoyant_bound(
            own,
            _engines([one for one in setup.fleet if one.pool == pool]),
            duration_s=setup.workload.duration_s,
        )
        rps += found.bound_rps
        utility += found.bound_utility
    return RunBound(rps, utility)


def _engines(fleet: Sequence[EngineSetup]) -> BoundEngines:
    """Engines of one pool, which are all alike."""
    one = fleet[0]
    if any((other.profile, other.config) != (one.profile, one.config) for other in fleet):
        raise CannotBound("there is no bound for engines of one pool that are not alike")
    return BoundEngines(
        law=one.profile.law,
        endpoints=len(fleet),
        kv_tokens=one.config.kv_tokens,
        max_num_seqs=one.config.max_num_seqs,
        max_num_batched_tokens=one.config.max_num_batched_tokens,
    )


def _request(one: Planned, setup: Setup) -> BoundRequest:
    entry = next(entry for entry in setup.settings.classes if entry.name == one.class_name)
    patience_s = math.inf if one.patience_s is None else one.patience_s
    returns_s = setup.workload.duration_s + TAIL_S - one.at_s if setup.habits.come_back else 0.0
    if one.stream:
        ttft_s, tpot_s, whole_s = entry.ttft_s, entry.tpot_s, math.inf
    else:
        ttft_s = tpot_s = math.inf
        whole_s = min(entry.answer_s(one.output_tokens), patience_s)
    return BoundRequest(
        at_s=one.at_s,
        prompt_tokens=one.prompt_tokens,
        output_tokens=one.output_tokens,
        class_name=one.class_name,
        value=entry.value,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        whole_s=whole_s,
        leaves_s=patience_s if one.stream else math.inf,
        returns_s=returns_s,
        cached_tokens=min(one.shared_tokens, one.prompt_tokens - 1) if one.prefix else 0,
    )
