"""Who is next: classes by rank, first come first served inside a class.

Only the order lives here. How much is queued is in the ledger; whether a request may start is asked of the endpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from forebay.admission.model import TicketId
from forebay.admission.tickets import Ticket


class ClassQueues:
    """The waiting tickets of one pool."""

    __slots__ = ("_classes",)

    def __init__(self, class_names: tuple[str, ...]) -> None:
        """`class_names` in rank order, most important first."""
        self._classes: dict[str, OrderedDict[TicketId, Ticket]] = {
            name: OrderedDict() for name in class_names
        }

    def add(self, ticket: Ticket, *, front: bool = False) -> None:
        """File a ticket; `front` for one that was dispatched before and came back."""
        queue = self._classes[ticket.demand.class_name]
        queue[ticket.demand.ticket] = ticket
        if front:
            queue.move_to_end(ticket.demand.ticket, last=False)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out, from wherever it stands."""
        del self._classes[ticket.demand.class_name][ticket.demand.ticket]

    def ahead(self, class_name: str) -> Iterator[str]:
        """Names of the classes served before or with this one."""
        for name in self._classes:
            yield name
            if name == class_name:
                return

    def in_order(self, *, per_class: int) -> Iterator[Ticket]:
        """Tickets in the order of service, at most `per_class` of each class."""
        for queue in self._classes.values():
            left = per_class
            for ticket in queue.values():
                yield ticket
                left -= 1
                if not left:
                    break

    def __iter__(self) -> Iterator[Ticket]:
        for queue in self._classes.values():
            yield from queue.values()

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._classes.values())
