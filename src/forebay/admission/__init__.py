"""The decision core: admit, queue or refuse. Pure: no I/O, no clock, no randomness, no await.

    from forebay.admission import Controller, Settings, PoolSettings

`Controller` is the machine (its module docstring is the contract); `events` go in, `effects` come out,
`settings` say what the operator wants, `model` and `outcomes` hold the records both sides share.
"""

from __future__ import annotations

from forebay.admission.controller import Controller
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import ClassSettings, PoolSettings, Settings, SpeedLaw
from forebay.admission.snapshot import Snapshot

__all__ = ["ClassSettings", "Controller", "Outcome", "PoolSettings", "Settings", "Snapshot", "SpeedLaw"]
