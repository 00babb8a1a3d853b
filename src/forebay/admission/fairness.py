"""Fair time: who among competing flows has had least for its weight, and is served next.

A flow is a tenant among the tenants of its class, or a class among the classes of a pool. The rule is self-clocked
fair queueing (Golestani, INFOCOM 1994) with costs taken from the request at the head instead of fixed at arrival:

    start tag    S = the flow's last finish tag; lifted to the fair time V when the flow gets work to wait
    finish tag   F = S + cost of its head ÷ weight
    next         the flow with the smallest F, ties by the arrival of its head
    fair time    V = the largest finish tag that was ever served

Both are in µs of work per unit of weight. For flows that have work waiting this keeps

    S ≤ V ≤ S + (its largest cost ÷ weight)

The left half holds since S is a finish tag that was served, the right half since whoever was served had the smallest F.
So over any time in which two flows have work that can be placed, their served cost ÷ weight differs by at most the sum
of their largest cost ÷ weight. Lifting is what denies credit for idling: a flow that comes back starts at V.

Classes may be given a burst b: they are lifted to V − b only, and so may catch up on what they did not use of their
share. For them it is S ≤ V ≤ S + max(b, largest cost ÷ weight), so the difference is at most the sum of that of both.

What is charged is the estimate. When the truth is known the finish tag is corrected, and the bound then holds for true
costs but for the errors of what is in flight. Of a class it moves at once (`FairTime.correct`). Of a tenant it would
throw about who is next: a few refunds in a row, and somebody's requests pass one that was before them. So what is due
is settled over its next requests (`FairTime.owe`): at each a sixteenth, and all that is more than such a request.
The sixteenth leaves a refunded flow no further back than V, so that it is not served twice before one that came
meanwhile. Either way a refund never takes a flow that waits below where it was lifted to, or it would be credit for
having been idle; and what is due from a flow is worked off by idling as well. What a class owes as it comes back is
settled over its next requests too.

`ShareWindow` is the other measure: who was charged how much lately, for caps and floors. Nothing here knows what time
it is, what a class is, or whether a request could be placed.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import Final

from forebay.admission.waiter import Waiter

WINDOW_S: Final = 10.0
"""Time constant of the shares: what was charged so long ago counts 1/e."""
LEAST_PART: Final = 0.005
"""Of all that a pool gets through in `WINDOW_S`: a class that had less lately had too much of nothing."""
SETTLED_PART: Final = 1 / 16
"""Of what is due from or to a tenant, the part that is settled at each of its requests."""
_EXPONENT_MOST: Final = 600.0
_REBASE_AT: Final = 40.0
"""In time constants; e^40 still leaves a double all its digits to add with."""


class Flow:
    """One of those who compete. What waits in it is a subclass's business."""

    __slots__ = ("backlogged", "due", "finish", "head", "lifted", "place", "tag", "turn")

    def __init__(self) -> None:
        self.finish = 0.0
        """Finish tag of what it was served last: the start tag of what it is served next."""
        self.due = 0.0
        """What it was charged too little while it had work waiting, and did not make up for yet; < 0: too much."""
        self.lifted = 0.0
        """Where its present backlog began."""
        self.backlogged = False
        self.head: Waiter | None = None
        """The request that would be served next, and decides the tag; None if nothing may be served now."""
        self.tag = 0.0
        """Finish tag of its head, as it was when it was filed in the order, and the arrival of that head."""
        self.turn = 0
        self.place = -1
        """Where it stands in the order; -1 if it is not in it."""


class FairTime:
    """The fair time of one level, and what moves it."""

    __slots__ = ("now", "served")

    def __init__(self) -> None:
        self.now = 0.0
        """V: the largest finish tag served."""
        self.served = 0.0
        """The largest one served since the caller last set this to zero."""

    def enter(self, flow: Flow, credit: float = 0.0) -> None:
        """The flow gets work to wait.

        Args:
            flow: one that had none.
            credit: how far behind the fair time it may stay: the burst of a class, or the cost ÷ weight of a request
                that comes back from a failed attempt, which is served as if it had been paid for. It did not idle.
        """
        lowest = self.now - credit
        if flow.finish < lowest:
            flow.finish = lowest
        elif flow.finish > self.now:
            # No finish tag that was served is above the fair time: the rest is a debt.
            flow.due = flow.finish - self.now
            flow.finish = self.now
        flow.lifted = flow.finish
        flow.backlogged = True

    def leave(self, flow: Flow) -> None:
        """The flow has no work waiting any more."""
        flow.backlogged = False
        flow.finish += flow.due
        flow.due = 0.0

    def serve(self, flow: Flow, amount: float, credit: float = 0.0) -> None:
        """Charge cost ÷ weight to a flow, whether it has work waiting or not.

        Args:
            credit: as in `enter`, for a flow that has none.
        """
        finish = flow.finish
        if not flow.backlogged and finish < self.now - credit:
            finish = self.now - credit
        finish += amount
        if flow.due:
            finish += self._settle(flow, amount, finish)
        flow.finish = finish
        if finish > self.served:
            self.served = finish
            if finish > self.now:
                self.now = finish

    def correct(self, flow: Flow, amount: float) -> None:
        """What was charged was too little (`amount` > 0) or too much (< 0): that counts at once."""
        flow.finish += amount
        if flow.backlogged and flow.finish < flow.lifted:
            flow.finish = flow.lifted

    def owe(self, flow: Flow, amount: float) -> None:
        """The same, but of a flow that has work waiting this is settled as it is served."""
        if flow.backlogged:
            due = flow.due + amount
            lowest = flow.lifted - flow.finish
            flow.due = due if due > lowest else lowest
        else:
            flow.finish += amount

    def _settle(self, flow: Flow, amount: float, finish: float) -> float:
        """Part of what is due, taken out of it, as a request of `amount` takes the flow to `finish`."""
        due = flow.due
        if due > amount:
            part = due - amount
        elif due < -amount:
            part = due + amount
        else:
            part = due * SETTLED_PART
            if part < 0.0 and finish + part < self.now:
                part = min(self.now - finish, 0.0)
        flow.due = due - part
        return part

    def pass_over(self, flow: Flow, amount: float) -> None:
        """A backlogged flow could not be placed, and others were served before it. It keeps a claim to one request.

        It stays ahead of all that were served since `served` was set to zero, by `amount`, the cost ÷ weight of its
        head. With a larger claim, one that was held up for a minute would then hold up everybody else for as long.
        """
        lowest = self.served - amount
        if flow.finish < lowest:
            flow.finish = lowest


class FlowOrder:
    """Flows by the finish tag of their heads: a binary heap of the flows themselves. Each step is O(log n).

    Tag and place are kept in the flow, so that filing it anew moves it, and nothing dead is left behind. With a
    thousand tenants a step costs what it reads of memory that is not in a cache: entries of their own would double it.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Flow] = []

    def put(self, flow: Flow) -> None:
        """File a flow anew: its head or its finish tag has changed. One without a head is taken out."""
        head = flow.head
        heap = self._heap
        place = flow.place
        if head is not None:
            flow.tag = flow.finish + head.work_us / head.weight
            flow.turn = head.sequence
            if place < 0:
                place = len(heap)
                heap.append(flow)
            self._settle(flow, place)
        elif place >= 0:
            flow.place = -1
            last = heap.pop()
            if last is not flow:
                self._settle(last, place)

    def first(self) -> Flow | None:
        """The flow to serve next; None if none has a head."""
        heap = self._heap
        return heap[0] if heap else None

    def __len__(self) -> int:
        return len(self._heap)

    def _settle(self, flow: Flow, place: int) -> None:
        """Put a flow where it belongs, from a place that is free for it: towards the top, or else downwards."""
        heap = self._heap
        tag, turn = flow.tag, flow.turn
        start = place
        while place > 0:
            above = heap[(place - 1) >> 1]
            if above.tag < tag or (above.tag == tag and above.turn < turn):
                break
            heap[place] = above
            above.place = place
            place = (place - 1) >> 1
        size = len(heap)
        child = 2 * place + 1
        while place >= start and child < size:
            below = heap[child]
            if child + 1 < size:
                other = heap[child + 1]
                if other.tag < below.tag or (other.tag == below.tag and other.turn < below.turn):
                    below = other
                    child += 1
            if tag < below.tag or (tag == below.tag and turn < below.turn):
                break
            heap[place] = below
            below.place = place
            place = child
            child = 2 * place + 1
        heap[place] = flow
        flow.place = place


class ShareWindow:
    """Work charged to each class lately: charges fade with a time constant of `WINDOW_S`.

    Amounts are kept scaled by e^(time ÷ WINDOW_S), so that nothing has to be done as time goes by: shares are ratios.
    But all amounts fade alike, and ratios stay. So one that has faded to hardly anything is above no share, as of the
    last `look`.
    """

    __slots__ = ("_amounts", "_least", "_least_us", "_origin_s")

    def __init__(self, classes: int) -> None:
        self._amounts = [0.0] * classes
        self._origin_s = 0.0
        self._least_us = self._least = 0.0
        """What counts as nothing, and the same scaled as amounts are."""

    def add(self, index: int, work_us: int, at_s: float) -> None:
        """Count work charged at `at_s`; negative to take back some of what was charged then."""
        exponent = (at_s - self._origin_s) / WINDOW_S
        if exponent > _REBASE_AT:
            fade = exp(-exponent)
            self._amounts = [amount * fade for amount in self._amounts]
            self._least *= fade
            self._origin_s = at_s
            exponent = 0.0
        amount = self._amounts[index] + work_us * exp(exponent)
        self._amounts[index] = amount if amount > 0.0 else 0.0

    def scale(self, index: int, factor: float) -> None:
        """What was charged to this class was counted in another unit."""
        self._amounts[index] *= factor

    def reclass(self, sources: list[int]) -> None:
        """Other classes: for each the place it had, or -1 for a new one."""
        self._amounts = [self._amounts[source] if source >= 0 else 0.0 for source in sources]

    def look(self, us_per_s: float, now: float) -> None:
        """Find what counts as nothing now, where so much work is done per second."""
        exponent = (now - self._origin_s) / WINDOW_S
        self._least_us = us_per_s * WINDOW_S * LEAST_PART
        self._least = self._least_us * exp(exponent if exponent < _EXPONENT_MOST else _EXPONENT_MOST)

    def faded_s(self, index: int) -> float:
        """When what this class had counts as nothing, if nothing comes to it; infinite if it always counts."""
        amount = self._amounts[index]
        if not self._least_us or not amount:
            return inf
        return self._origin_s + WINDOW_S * log(amount / self._least_us)

    def is_above(self, index: int, share: float) -> bool:
        """True if this class had more than `share` of it all."""
        amount = self._amounts[index]
        return amount > self._least and amount > share * sum(self._amounts)

    def share_of(self, index: int) -> float:
        """Its part of it all; 0 of nothing."""
        total = sum(self._amounts)
        return self._amounts[index] / total if total else 0.0

    def per_s(self, index: int, now: float) -> float:
        """Work charged to this class per second, lately."""
        return self._amounts[index] * exp((self._origin_s - now) / WINDOW_S) / WINDOW_S

    def is_below(self, index: int, share: float) -> bool:
        """True if this class had less than `share` of it all. Of nothing, nobody had too little."""
        return self._amounts[index] < share * sum(self._amounts)
