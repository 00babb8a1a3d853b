"""One law for each pool: hands every event to the pool that it is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forebay.admission.effects import Effect
from forebay.admission.errors import MisuseError
from forebay.admission.events import Arrived, DrainStarted, EndpointsChanged, Event
from forebay.admission.model import TicketId
from forebay.admission.settings import Settings
from forebay.simulate.baselines.pool_law import PoolLaw
from forebay.simulate.policy import Policy, PolicyMaker

__all__ = ["PerPool", "per_pool"]

LawMaker = Callable[[str, Settings], PoolLaw]
"""Makes the law of the pool of that name."""


class PerPool:
    """A policy made of one law per pool."""

    def __init__(self, make: LawMaker, settings: Settings, now: float) -> None:
        self.laws = {pool.name: make(pool.name, settings) for pool in settings.pools}
        self._now = now

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        """Take in one event; what is about nothing known is late news."""
        self._now = now
        effects: list[Effect] = []
        for law in self._concerned(event):
            law.handle(event, now)
            effects += law.take_effects()
        return effects

    def wake(self, now: float) -> Sequence[Effect]:
        """Do what has become due."""
        self._now = now
        effects: list[Effect] = []
        for law in self.laws.values():
            law.wake(now)
            effects += law.take_effects()
        return effects

    def next_deadline(self) -> float | None:
        """When `wake` is wanted next."""
        times = [at for law in self.laws.values() if (at := law.next_deadline(self._now)) is not None]
        return min(times) if times else None

    def verify(self) -> None:
        """Raise AssertionError unless the books balance. For tests."""
        for law in self.laws.values():
            law.verify()

    def _concerned(self, event: Event) -> list[PoolLaw]:
        if isinstance(event, Arrived):
            law = self.laws[event.demand.pool]
            if event.demand.ticket in law.requests:
                raise MisuseError(f"ticket {event.demand.ticket} is in use")
            return [law]
        if isinstance(event, DrainStarted):
            return list(self.laws.values())
        if isinstance(event, EndpointsChanged):
            return [law for law in self.laws.values() if law.pool == event.pool]
        ticket: TicketId | None = getattr(event, "ticket", None)
        if ticket is not None:
            return [law for law in self.laws.values() if ticket in law.requests]
        endpoint = getattr(event, "endpoint", None)
        return [law for law in self.laws.values() if endpoint in law.places]


def per_pool(make: LawMaker) -> PolicyMaker:
    """The policy that has such a law for each pool."""

    def policy(settings: Settings, now: float) -> Policy:
        return PerPool(make, settings, now)

    return policy
