"""Forebay itself as a policy: as it is configured, or by rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from forebay.admission.settings import ClassOrder
from forebay.simulate.policy import PolicyMaker


def as_configured_or_strict(maker: PolicyMaker) -> Callable[[str], PolicyMaker]:
    """For a policy that heeds the settings: `strict` behind the colon serves classes by rank, whatever they say."""

    def make(argument: str) -> PolicyMaker:
        if not argument:
            return maker
        if argument != ClassOrder.STRICT.value:
            raise ValueError(
                "it takes nothing behind a colon, or `strict`: classes by rank, as with class_order: strict"
            )
        return lambda settings, now: maker(replace(settings, class_order=ClassOrder.STRICT), now)

    return make
