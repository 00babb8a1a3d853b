"""The policies by name, as `forebay simulate --policy` takes them.

A name may go on with a colon and what the policy makes of it: `static:64`. The baselines
are in `baselines.registry`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay.admission.controller import Controller
from forebay.simulate.baselines.registry import BASELINES
from forebay.simulate.pass_through import PassThrough
from forebay.simulate.policy import PolicyMaker
from forebay.simulate.product import as_configured_or_strict


class UnknownPolicy(ValueError):
    """No policy has that name, or it does not take what stands behind the colon; the text says what it would take."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy."""

    summary: str
    """One line for people."""
    maker: Callable[[str], PolicyMaker]
    """Takes what stands behind the colon, or an empty text; a `ValueError` says what it would take."""


def without_argument(maker: PolicyMaker) -> Callable[[str], PolicyMaker]:
    """For a policy that has nothing to set."""

    def make(argument: str) -> PolicyMaker:
        if argument:
            raise ValueError("it takes nothing behind a colon")
        return maker

    return make


POLICIES: Final[dict[str, Entry]] = {
    "forebay": Entry(
        "Forebay's own decisions, as `forebay serve` makes them; `forebay:strict` serves classes by rank",
        as_configured_or_strict(Controller),
    ),
    "pass-through": Entry(
        "no control: every request goes to the next engine in turn", without_argument(PassThrough)
    ),
    **{name: Entry(summary, maker) for name, (summary, maker) in BASELINES.items()},
}
"""Every policy, in the order in which they are listed."""


def find_policy(name: str) -> PolicyMaker:
    """The maker of the policy of that name. Raises `UnknownPolicy`."""
    base, _, argument = name.partition(":")
    entry = POLICIES.get(base)
    if entry is None:
        near = difflib.get_close_matches(base, POLICIES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UnknownPolicy(f"there is no policy {base[:40]!r}{hint} Known: {', '.join(POLICIES)}")
    try:
        return entry.maker(argument)
    except ValueError as error:
        raise UnknownPolicy(f"policy {base}: {error}") from error
