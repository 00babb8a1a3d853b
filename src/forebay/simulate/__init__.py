"""Simulation: whole hours of traffic in virtual time, with the code that decides in production.

Nothing here reads a clock or the network. The clock is a heap of things to come; the engines are `forebay.enginemodel`;
what decides is a `policy.Policy`, of which the real `Controller` is one. The same seed gives the same run under any
hash seed.
"""

from __future__ import annotations
