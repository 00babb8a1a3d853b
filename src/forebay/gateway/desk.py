"""What all requests of a gateway share: the core, the lookups, the connections to engines, the room for bodies.

For: `gateway`, which is one, and `relay`, which is given it. Owns these parts and decides nothing.
"""

from __future__ import annotations

import secrets

from forebay.admission.model import TicketId
from forebay.gateway.bodies import BodyRoom
from forebay.gateway.early_answers import EarlyAnswers
from forebay.gateway.ports import Core, GatewaySettings, Serving
from forebay.gateway.progress import Progress
from forebay.gateway.routing import Routing
from forebay.gateway.upstreams import Upstreams

__all__ = ["Desk"]


class Desk:
    """What all relays of a gateway share. A class and no protocol: it is asked a dozen times for each request."""

    def __init__(self, core: Core, settings: GatewaySettings, serving: Serving) -> None:
        self.core = core
        self.settings = settings
        self.routing = Routing(serving)
        self.upstreams = Upstreams(settings)
        self.progress = Progress(core.feed, core.now, settings.progress_interval_s)
        self.bodies = BodyRoom(settings.max_waiting_bytes)
        self.early = EarlyAnswers()
        self.passing = 0
        """Requests that are passed without admission just now."""
        self.turn = 0
        """Counts those, so that endpoints take turns."""
        # Unguessable, so that an id from one process finds nothing in another, and cheap: one number per request.
        self.mark = secrets.token_hex(6).encode("ascii")
        """Begins the ids of this process, and tells its own polls from others'."""

    def own_id(self, ticket: TicketId) -> bytes:
        """`x-forebay-id`: the key of a request in logs, explanations and the admin port."""
        return b"%b-%x" % (self.mark, ticket)
