"""The books of the KV blocks: which are in use, which hold something reusable, which are blank.

Owns counts and keys, not contents. A block is in exactly one of four states:

- private: in use by one sequence, content known to nobody else;
- shared: in use by one or more sequences, found under a key;
- idle: used by nobody, still found under its key until it is taken for something else, oldest first;
- blank: used by nobody, nothing in it.

free = blank + idle, used = private + shared, and used + free = total at all times. Blank blocks are taken before
idle ones, and of a sequence's blocks the last is the first to go, so that the start of a chain survives its end.

It never decides who gets a block or who must give one up; `Engine` does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from forebay.enginemodel.errors import InvariantError


class BlockPool:
    """A fixed number of KV blocks."""

    __slots__ = ("_blank", "_idle", "_users", "publications", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._blank = total
        self._idle: OrderedDict[int, None] = OrderedDict()  # a dict gets slow when emptied from its front
        self._users: dict[int, int] = {}
        self.publications = 0
        """Blocks published under a caller's key so far. While it and `free` do not grow, nobody's fit gets better."""

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return self._blank + len(self._idle)

    @property
    def used(self) -> int:
        """Blocks that live sequences hold. A reusable block that nobody holds is not in use."""
        return self.total - self._blank - len(self._idle)

    @property
    def shared(self) -> int:
        """Blocks in use that are found under a key."""
        return len(self._users)

    @property
    def idle(self) -> int:
        """Free blocks that still hold something reusable."""
        return len(self._idle)

    def take(self, blocks: int) -> bool:
        """Take private blocks, or none at all if there are not that many."""
        blank = self._blank
        if blocks <= blank:
            self._blank = blank - blocks
            return True
        idle = self._idle
        evicted = blocks - blank
        if evicted > len(idle):
            return False
        self._blank = 0
        for _ in range(evicted):
            idle.popitem(last=False)
        return True

    def match(self, keys: Sequence[int], blocks: int) -> int:
        """How many of the first `blocks` keys are there, counted up to the first that is not."""
        users, idle = self._users, self._idle
        limit = min(blocks, len(keys))
        for index in range(limit):
            key = keys[index]
            if key not in users and key not in idle:
                return index
        return limit

    def idle_among(self, keys: Sequence[int], blocks: int) -> int:
        """How many of the first `blocks` keys are idle: holding those makes that many fewer blocks free."""
        idle = self._idle
        return sum(1 for index in range(blocks) if keys[index] in idle)

    def hold(self, keys: Sequence[int], blocks: int) -> list[int]:
        """Become a user of the blocks under the first `blocks` keys, all of which match. Returns those keys."""
        users, idle = self._users, self._idle
        held = list(keys[:blocks])
        for key in held:
            count = users.get(key)
            if count is not None:
                users[key] = count + 1
            else:
                del idle[key]
                users[key] = 1
        return held

    def publish(self, key: int) -> bool:
        """Turn one of the caller's private blocks into a shared one under `key`.

        Returns False, and leaves the block private, if another block with that content is there already: the
        two stay apart, as in an engine.
        """
        if key in self._users or key in self._idle:
            return False
        self._users[key] = 1
        if key >= 0:
            self.publications += 1
        return True

    def release(self, *, private: int, keys: Sequence[int]) -> None:
        """Give back private blocks, and stop using those under `keys` (in the order of the sequence)."""
        self._blank += private
        users, idle = self._users, self._idle
        for key in reversed(keys):
            count = users[key]
            if count > 1:
                users[key] = count - 1
            else:
                del users[key]
                idle[key] = None

    def check(self, private: int) -> None:
        """Raise unless the books balance, given the private blocks that the sequences hold in all."""
        counted = self._blank + len(self._idle) + len(self._users) + private
        if self._blank < 0 or private < 0 or counted != self.total:
            raise InvariantError(
                f"{self._blank} blank + {len(self._idle)} idle + {len(self._users)} shared + {private} private "
                f"blocks are not {self.total}"
            )
        if not self._users.keys().isdisjoint(self._idle):
            raise InvariantError("a block is both in use and idle")
