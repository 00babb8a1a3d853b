"""A continuous-batching inference engine as a pure machine with an explicit clock.

It schedules as vLLM's V1 scheduler does (first come, first served; decodes first, then prefill in chunks; KV
blocks on growth; preemption by recompute; prefix reuse) and takes the time of each step from a measured law.
The emulator drives it in real time, the simulator in virtual time: what they learn from it is the same.

It never reads a clock, never draws a random number and does no I/O. How long an answer gets is told to it.
"""

from __future__ import annotations

from forebay.enginemodel.blocks import BlockPool
from forebay.enginemodel.engine import Engine
from forebay.enginemodel.errors import EngineModelError, InvariantError, MisuseError
from forebay.enginemodel.law import StepLaw
from forebay.enginemodel.prefix import chain_keys, token_keys
from forebay.enginemodel.profile import EngineConfig, EngineProfile
from forebay.enginemodel.sequence import Request, RequestState
from forebay.enginemodel.statistics import EngineStatistics, IterationTokens
from forebay.enginemodel.step import StepResult, Submission

__all__ = [
    "BlockPool",
    "Engine",
    "EngineConfig",
    "EngineModelError",
    "EngineProfile",
    "EngineStatistics",
    "InvariantError",
    "IterationTokens",
    "MisuseError",
    "Request",
    "RequestState",
    "StepLaw",
    "StepResult",
    "Submission",
    "chain_keys",
    "token_keys",
]
