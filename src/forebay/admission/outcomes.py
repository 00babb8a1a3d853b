"""How a ticket ends: one closed enum, and the groups that other layers reason about.

The values are the codes that users see in error bodies, headers, logs and metrics, so they are
contracts. There is no HTTP here: `gateway.refusals` maps an outcome to a status, and a test walks the
enum so that a new member cannot be forgotten there.
"""

from __future__ import annotations

from enum import Enum, unique


class Group(Enum):
    """What an outcome says about where the work got to."""

    SERVED = "served"
    """An engine gave the whole answer."""
    CONTENDED = "contended"
    """Capacity exists but is taken: it may pass later (429 by default)."""
    ABSENT = "absent"
    """Nothing can serve it at present (503)."""
    IMPOSSIBLE = "impossible"
    """It can never pass as it is (4xx, no Retry-After)."""
    REJECTED = "rejected"
    """It was dispatched, and the engine said that it will not serve it: the client's to mend."""
    FAILED = "failed"
    """It was dispatched and the engine, or the reader, failed."""
    LEFT = "left"
    """The client went away first."""


@unique
class Outcome(Enum):
    """One ending per ticket; the value is the public code."""

    COMPLETED = "completed"

    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"
    QUEUE_FULL = "queue_full"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    QUEUE_TIMEOUT = "queue_timeout"
    DISPLACED = "displaced"
    RULE_REFUSED = "rule_refused"

    NO_ENDPOINTS = "no_endpoints"
    DRAINING = "draining"
    LIMITS_UNAVAILABLE = "limits_unavailable"
    STALE_ENGINE = "stale_engine"

    REQUEST_TOO_LARGE = "request_too_large"
    DEADLINE_HOPELESS = "deadline_hopeless"
    REQUEST_EXCEEDS_QUOTA = "request_exceeds_quota"

    ENGINE_REJECTED = "engine_rejected"

    UPSTREAM_FAILED = "upstream_failed"
    UPSTREAM_INTERRUPTED = "upstream_interrupted"
    STREAM_LIMIT = "stream_limit"
    SLOW_READER = "slow_reader"
    NO_PROGRESS = "no_progress"

    CLIENT_GONE = "client_gone"

    group: Group
    """The group that this outcome belongs to. An attribute, since looking a member up costs a call in Python."""

    __hash__ = object.__hash__  # an enum's own, of its name, is another such call

    @property
    def may_pass_later(self) -> bool:
        """True if the same request could succeed on a later try, so a Retry-After makes sense."""
        return self.group in (Group.CONTENDED, Group.ABSENT)


_GROUPS: dict[Outcome, Group] = {
    Outcome.COMPLETED: Group.SERVED,
    Outcome.RATE_LIMIT_EXCEEDED: Group.CONTENDED,
    Outcome.QUEUE_FULL: Group.CONTENDED,
    Outcome.DEADLINE_UNREACHABLE: Group.CONTENDED,
    Outcome.QUEUE_TIMEOUT: Group.CONTENDED,
    Outcome.DISPLACED: Group.CONTENDED,
    Outcome.RULE_REFUSED: Group.CONTENDED,
    Outcome.NO_ENDPOINTS: Group.ABSENT,
    Outcome.DRAINING: Group.ABSENT,
    Outcome.LIMITS_UNAVAILABLE: Group.ABSENT,
    Outcome.STALE_ENGINE: Group.ABSENT,
    Outcome.REQUEST_TOO_LARGE: Group.IMPOSSIBLE,
    Outcome.DEADLINE_HOPELESS: Group.IMPOSSIBLE,
    Outcome.REQUEST_EXCEEDS_QUOTA: Group.IMPOSSIBLE,
    Outcome.ENGINE_REJECTED: Group.REJECTED,
    Outcome.UPSTREAM_FAILED: Group.FAILED,
    Outcome.UPSTREAM_INTERRUPTED: Group.FAILED,
    Outcome.STREAM_LIMIT: Group.FAILED,
    Outcome.SLOW_READER: Group.FAILED,
    Outcome.NO_PROGRESS: Group.FAILED,
    Outcome.CLIENT_GONE: Group.LEFT,
}

for _outcome, _group in _GROUPS.items():
    _outcome.group = _group
