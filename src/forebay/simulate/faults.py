"""What goes wrong in a run, and when. Records only; `world` carries them out.

An endpoint is named by its number in the fleet, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """An engine dies with all it has, and another process takes its place later."""

    endpoint: int
    at_s: float
    until_s: float = inf


@dataclass(frozen=True, slots=True)
class ReplicaSlow:
    """Steps of an engine take `factor` times as long."""

    endpoint: int
    at_s: float
    factor: float
    until_s: float = inf


@dataclass(frozen=True, slots=True)
class MetricsLost:
    """The metrics of an engine cannot be read; it works on."""

    endpoint: int
    at_s: float
    until_s: float = inf


Fault = ReplicaLost | ReplicaSlow | MetricsLost
