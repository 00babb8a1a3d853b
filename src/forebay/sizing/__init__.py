"""Queueing and capacity arithmetic for `forebay size`: from lengths, a rate and an engine to settings.

Pure functions over plain numbers: no I/O, no clock, no randomness. What reads profiles and traces, and turns them
into these numbers, is `forebay.runtime.sizing`. Each formula names its source and says where it does not hold; the
long form, with figures against simulation, is docs/explanation/sizing.md.
"""

from __future__ import annotations
