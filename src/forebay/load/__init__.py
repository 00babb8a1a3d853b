"""Load: what is offered to an endpoint, how it is sent, and what the users felt.

Used by the demo, by trace replay, by calibration and by the benchmarks. It never decides anything about a
request: it plays the clients, and it judges only from what a client can see.
"""

from __future__ import annotations
