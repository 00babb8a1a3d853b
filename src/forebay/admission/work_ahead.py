"""How much work of other tenants will be served before an arrival.

While tenant u is served the work A that it has up to and with the arrival, a tenant v of the same class is served
min(B_v, A · w_v ÷ w_u): its whole backlog B_v, or as much as its weight w_v gives it in that time. This is the fluid
form of the order that `fairness` states; for each tenant the true order differs from it by about one request.

The sum over tenants is kept in bins of B ÷ w, `PER_OCTAVE` to each doubling: tenants in bins below A ÷ w_u are through
with all they have, those above get their weight's worth, and the one bin in between is taken as a whole, as
min(Σ B, A ÷ w_u · Σ w). That is never below the exact sum, and above it by at most the factor 2^(1 ÷ PER_OCTAVE),
9 %, for the tenants in that bin. All sums are of integers, so nothing drifts.

An update touches at most two bins, a question adds up at most 2 · (blocks + bins of a block) integers.
"""

from __future__ import annotations

from math import log2
from typing import Final

PER_OCTAVE: Final = 8
_BLOCK: Final = 16
_BINS: Final = 48 * PER_OCTAVE
"""Up to 2^48 µs of work per unit of weight, nine years; down to 1 µs."""
WEIGHT_UNITS: Final = 1024
"""Weights are held in units of 1/1024."""


def weight_units(weight: float) -> int:
    """A weight as an integer, at least 1."""
    units = round(weight * WEIGHT_UNITS)
    return units if units > 0 else 1


class Backlogs:
    """The backlogs of the tenants of one class, by backlog ÷ weight."""

    __slots__ = ("_block_units", "_block_works", "_units", "_works", "units")

    def __init__(self) -> None:
        self._works = [0] * _BINS
        self._units = [0] * _BINS
        self._block_works = [0] * (_BINS // _BLOCK)
        self._block_units = [0] * (_BINS // _BLOCK)
        self.units = 0
        """Weight of all tenants that have work waiting."""

    def move(self, at: int, old_us: int, new_us: int, units: int) -> int:
        """A tenant's backlog has changed.

        Args:
            at: the bin that it is in; -1 if none.
            old_us: its backlog as it was, 0 if none.
            new_us: its backlog now.
            units: its weight, the same as when it came into the bin.

        Returns:
            The bin that it is in now; -1 if none.
        """
        to = bin_of(new_us / units) if new_us else -1
        if to == at:
            if at >= 0:
                self._works[at] += new_us - old_us
                self._block_works[at // _BLOCK] += new_us - old_us
            return at
        if at >= 0:
            block = at // _BLOCK
            self._works[at] -= old_us
            self._block_works[block] -= old_us
            self._units[at] -= units
            self._block_units[block] -= units
            self.units -= units
        if to >= 0:
            block = to // _BLOCK
            self._works[to] += new_us
            self._block_works[block] += new_us
            self._units[to] += units
            self._block_units[block] += units
            self.units += units
        return to

    def ahead_us(self, per_unit: float, own_bin: int, own_us: int, own_units: int) -> float:
        """Work of the other tenants that is served while one is served `per_unit` µs per unit of weight.

        Args:
            per_unit: A ÷ w_u; above zero.
            own_bin: the bin that the tenant itself is in, to leave it out; -1 if none.
            own_us: its backlog.
            own_units: its weight.
        """
        at = bin_of(per_unit)
        block = at // _BLOCK
        start = block * _BLOCK
        below_us = sum(self._block_works[:block]) + sum(self._works[start:at])
        below_units = sum(self._block_units[:block]) + sum(self._units[start:at])
        here_us, here_units = self._works[at], self._units[at]
        above_units = self.units - below_units - here_units
        if own_bin >= 0:
            if own_bin < at:
                below_us -= own_us
            elif own_bin == at:
                here_us -= own_us
                here_units -= own_units
            else:
                above_units -= own_units
        here = here_units * per_unit
        return below_us + above_units * per_unit + (here if here < here_us else here_us)


def bin_of(per_unit: float) -> int:
    """The bin of so many µs per unit of weight."""
    at = int(PER_OCTAVE * log2(per_unit * WEIGHT_UNITS)) if per_unit * WEIGHT_UNITS > 1.0 else 0
    return at if at < _BINS else _BINS - 1
