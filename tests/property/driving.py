"""A driver for the controller that knows nothing of its insides: it obeys the contract and checks what comes back.

It keeps its own naive account of every ticket from the effects alone, so that a test can compare.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay.admission.controller import Controller
from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.events import Arrived, Event
from forebay.admission.model import Demand, EndpointId, Settlement, TicketId
from forebay.admission.settings import Settings


@dataclass
class Seen:
    """What the effects have said about one ticket."""

    demand: Demand
    where: str = "new"
    """new, waiting, running or over."""
    endpoint: EndpointId | None = None
    kv_tokens: int = 0
    tried: set[EndpointId] = field(default_factory=set)
    settlement: Settlement | None = None


class Bench:
    """One controller, its clock, and the naive account."""

    def __init__(self, settings: Settings, now: float = 100.0) -> None:
        self.now = now
        self.controller = Controller(settings, now)
        self.tickets: dict[TicketId, Seen] = {}
        self.log: list[Effect] = []
        self.dispatched_to: set[EndpointId] = set()
        """Endpoints that were given work by the last call."""

    def arrive(self, demand: Demand) -> Seen:
        """Send one request in."""
        seen = self.tickets[demand.ticket] = Seen(demand)
        self.feed(Arrived(demand))
        assert seen.where != "new", "an arrival is answered at once"
        return seen

    def feed(self, event: Event) -> None:
        """Tell the controller what happened."""
        self._carry_out(self.controller.handle(event, self.now))

    def advance(self, seconds: float) -> None:
        """Let time pass, waking the controller exactly when it asked for it."""
        end = self.now + seconds
        for _ in range(10_000):
            due = self.controller.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self._carry_out(self.controller.wake(self.now))
        else:
            raise AssertionError("the controller asks to be woken again and again without time passing")
        self.now = end

    def where(self, place: str) -> list[Seen]:
        """Tickets that are waiting, running or over."""
        return [seen for seen in self.tickets.values() if seen.where == place]

    def _carry_out(self, effects: list[Effect]) -> None:
        self.dispatched_to = set()
        for effect in effects:
            self.log.append(effect)
            if isinstance(effect, Settle):
                seen = self.tickets[effect.settlement.ticket]
                assert seen.settlement is None, "a ticket is settled once"
                seen.settlement, seen.where = effect.settlement, "over"
                continue
            seen = self.tickets[effect.ticket]
            assert seen.where != "over", "nothing is said of a ticket that is over"
            if isinstance(effect, Dispatch):
                assert seen.where in ("new", "waiting"), f"dispatched while {seen.where}"
                seen.where, seen.endpoint = "running", effect.endpoint
                seen.kv_tokens = effect.record.kv_tokens
                self.dispatched_to.add(effect.endpoint)
            elif isinstance(effect, Hold):
                assert seen.where in ("new", "running")
                if seen.endpoint is not None:
                    seen.tried.add(seen.endpoint)
                seen.where, seen.kv_tokens = "waiting", effect.record.kv_tokens
            elif isinstance(effect, Refuse):
                assert seen.where == "new", "only what never waited is refused"
            elif isinstance(effect, Evict):
                assert seen.where == "waiting", "only what waits is evicted"
            elif isinstance(effect, Abort):
                assert seen.where == "running", "only what runs is aborted"
