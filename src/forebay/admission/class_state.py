"""One class of one pool: what its waits have taught, what arrives in it, and when its waiters must start."""

from __future__ import annotations

from forebay.admission.arrival_rates import ArrivalRate, ArrivalSizes
from forebay.admission.feasibility import DeadlineBuckets
from forebay.admission.model import Mode
from forebay.admission.settings import ClassSettings
from forebay.admission.wait import WaitModel

SHORTEST_HORIZON_S = 0.01


class ClassState:
    """What a pool keeps for a class besides its queue."""

    __slots__ = (
        "arrivals",
        "deadlines",
        "hopeful_until_s",
        "index",
        "mode",
        "settings",
        "sizes",
        "waits",
    )

    def __init__(self, settings: ClassSettings, index: int, *, corrects: bool) -> None:
        """See the class.

        Args:
            index: its rank, 0 is the most important.
            corrects: False leaves predictions as they are (`wait_predictor: plain`).
        """
        self.settings = settings
        self.index = index
        self.mode = Mode.ENFORCE
        """What is done with decisions about its requests in this pool."""
        self.hopeful_until_s = 0.0
        """Until then nobody of it is looked for who waits in vain."""
        self.waits = WaitModel(settings.confidence, corrects=corrects)
        self.arrivals = ArrivalRate()
        self.sizes = ArrivalSizes()
        self.deadlines = DeadlineBuckets(max(settings.wait_budget_s, SHORTEST_HORIZON_S))

    def reconfigure(self, settings: ClassSettings, now: float, *, corrects: bool | None = None) -> None:
        """Take new settings. What was learned of waits stays; another confidence has to prove itself."""
        if corrects is None:
            corrects = self.waits.corrects
        if settings.confidence != self.settings.confidence or corrects is not self.waits.corrects:
            learned = self.waits.export()
            self.waits = WaitModel(settings.confidence, corrects=corrects)
            self.waits.restore(learned)
        if settings.wait_budget_s != self.settings.wait_budget_s:
            self.deadlines = self.deadlines.with_horizon(max(settings.wait_budget_s, SHORTEST_HORIZON_S), now)
        self.settings = settings

    def forget_waits(self) -> None:
        """What requests cost has changed so much that waits are to be learned anew."""
        self.waits = WaitModel(self.settings.confidence, corrects=self.waits.corrects)
        self.sizes = ArrivalSizes()

    def arrived(self, work_us: int, now: float) -> None:
        """A request with so much expected work came."""
        self.arrivals.add(now, work_us)
        self.sizes.add(work_us)
