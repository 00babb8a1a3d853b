"""Engines as seen from outside: what they are, and how loaded they say they are.

One module per family in `families`; `detect` finds out which one an endpoint is, `poller` keeps watching it.
Nothing here is on the path of a request, decides about traffic, or opens a socket: an `EngineReader` is handed in.
"""

from __future__ import annotations

from forebay.engines.base import EngineFamily, Reading
from forebay.engines.detect import Finding, find_out
from forebay.engines.mapped import MetricMap
from forebay.engines.poller import EndpointPoller, Rhythm
from forebay.engines.reading import Answer, EngineReader, ReadFailed
from forebay.engines.registry import all_families, family_of

__all__ = [
    "Answer",
    "EndpointPoller",
    "EngineFamily",
    "EngineReader",
    "Finding",
    "MetricMap",
    "ReadFailed",
    "Reading",
    "Rhythm",
    "all_families",
    "family_of",
    "find_out",
]
