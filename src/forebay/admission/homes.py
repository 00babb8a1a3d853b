"""Which endpoints of a pool have a prompt's beginning in their prefix caches: where others that begin so were sent.

An endpoint keeps a beginning from the first request with it on, until prompts of as many tokens as its KV cache holds
have been sent there since, or its process is another one. That is a guess, and a cheap one: being wrong costs one
prefill. No clock, and nothing that grows: the beginnings used last, each with the endpoints that had it last.

    placement asks        is it here, and not elsewhere? then another endpoint has that much more to work out
    bounded load          an endpoint that holds more than `LOAD` times its part of the pool's work counts as any other
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from forebay.admission.model import EndpointId

BEGINNINGS: Final = 4096
"""Most beginnings kept."""
HOMES: Final = 16
"""Most endpoints kept of one beginning."""
LOAD: Final = 1.25
_GONE: Final = 1 << 50
"""Tokens after which nothing is there any more."""


class PrefixHomes:
    """Beginnings and endpoints of one pool."""

    __slots__ = ("_homes", "_sent")

    def __init__(self) -> None:
        self._homes: OrderedDict[int, dict[EndpointId, int]] = OrderedDict()
        """Used longest ago first. For each endpoint, the tokens that had been sent to it when it was last used."""
        self._sent: dict[EndpointId, int] = {}
        """Prompt tokens sent to each endpoint."""

    def __len__(self) -> int:
        return len(self._homes)

    def sent(self, prefix_hash: int | None, endpoint: EndpointId, prompt_tokens: int) -> None:
        """A request goes there."""
        sent = self._sent.get(endpoint, 0) + prompt_tokens
        self._sent[endpoint] = sent
        if prefix_hash is None:
            return
        homes = self._homes.get(prefix_hash)
        if homes is None:
            self._homes[prefix_hash] = {endpoint: sent}
            if len(self._homes) > BEGINNINGS:
                self._homes.popitem(last=False)
            return
        self._homes.move_to_end(prefix_hash)
        homes[endpoint] = sent
        if len(homes) > HOMES:
            del homes[min(homes, key=homes.__getitem__)]

    def knows(self, prefix_hash: int) -> bool:
        """True if a request that begins so was sent anywhere."""
        return prefix_hash in self._homes

    def are_at(self, prefix_hash: int, endpoint: EndpointId, room: int | None) -> bool:
        """True if this endpoint should have this beginning.

        Args:
            room: tokens that its KV cache holds; None if nobody knows, and then nothing is taken to be gone.
        """
        homes = self._homes.get(prefix_hash)
        if homes is None:
            return False
        then = homes.get(endpoint)
        if then is None:
            return False
        since = self._sent.get(endpoint, 0) - then
        return 0 <= since <= (_GONE - 1 if room is None else room)

    def forget(self, endpoint: EndpointId) -> None:
        """Another process is there, with an empty cache."""
        if endpoint in self._sent:
            self._sent[endpoint] += _GONE

    def drop(self, endpoint: EndpointId) -> None:
        """It is gone for good."""
        self._sent.pop(endpoint, None)
