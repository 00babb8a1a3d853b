"""An operator's rules applied to requests.

For one arrival: first the rules that route it (class, pool, model), asked about the request as it came; then, where it
goes now, those that refuse or accept. Each rule is asked at most twice, once for each of the two, so there is no loop.
A rule that looks at engines only is asked once for each reading of an engine, when the next request comes; with such
rules alone and none matching, a request costs one look at what is known.

Owns what is known of the engine rules of each pool, and how often each rule decided something.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from forebay.admission.facts import EngineFact, FactValue, Scene
from forebay.admission.model import Check, Cost, Demand, EndpointId, EngineSample
from forebay.admission.model_names import with_model
from forebay.admission.pools import Pool
from forebay.admission.rule_book import Rule, RuleBook
from forebay.admission.snapshot import RuleView

KEPT_S: Final = 1.0
"""What was found of engines counts for no longer than this, however rarely they are read."""


class Ruling:
    """What the rules say of one arrival."""

    __slots__ = ("accepted", "checks", "class_before", "model_given", "refused_by")

    def __init__(self) -> None:
        self.checks: list[Check] = []
        """The rules that matched and gave something, for the record."""
        self.refused_by: Rule | None = None
        self.accepted = False
        self.model_given = False
        """A rule said which model."""
        self.class_before = ""
        """The class in which it came, where a rule gave another; empty where none did."""


class _EngineState:
    """What the engine rules say about one pool at present."""

    __slots__ = ("any", "endpoint_up", "matches", "rates", "totals", "until_s")

    def __init__(self, count: int) -> None:
        self.matches = [False] * count
        """By rule; False of those that are asked for each request."""
        self.any = False
        self.endpoint_up = False
        self.until_s = 0.0
        self.totals: dict[EndpointId, tuple[float, int]] = {}
        """Output tokens at the last reading, and when."""
        self.rates: dict[str, float] = {}


class Rules:
    """The rules of one controller."""

    __slots__ = (
        "_book",
        "_engines",
        "_errors_before",
        "_judged_by_request",
        "_matched",
        "_of_request",
        "_routed_by_request",
    )

    def __init__(self, book: RuleBook, known: Rules | None = None, pools: tuple[str, ...] = ()) -> None:
        """See the class.

        Args:
            known: those before, whose counts go on, and what they have seen of engines.
            pools: those that are still there.
        """
        self._book = book
        self._engines: dict[str, _EngineState] = {} if known is None else known.engines_for(book, pools)
        counts = [(0, 0) if known is None else known.counts_for(rule) for rule in book.rules]
        self._matched = [matches for matches, _ in counts]
        self._errors_before = [errors for _, errors in counts]
        """Of the rules of the same names before these."""
        self._routed_by_request = any(rule.of_request and rule.routes for rule in book.rules)
        self._judged_by_request = any(rule.of_request and rule.judges for rule in book.rules)

    def counts_for(self, new: Rule) -> tuple[int, int]:
        """How often the rule that this one replaces gave something, and failed beside what the new one counts."""
        for rule, matches, errors in zip(self._book.rules, self._matched, self._errors_before, strict=True):
            if rule.name == new.name:
                return matches, errors if rule is new else errors + rule.errors()
        return 0, 0

    def engines_for(self, book: RuleBook, pools: tuple[str, ...]) -> dict[str, _EngineState]:
        """What was seen at these pools, for other rules: a rate takes two readings, which a reload must not cost."""
        engines: dict[str, _EngineState] = {}
        for pool in pools:
            seen = self._engines.get(pool)
            if seen is not None:
                state = engines[pool] = _EngineState(len(book.rules))
                state.totals, state.rates = seen.totals, seen.rates
        return engines

    def views(self) -> tuple[RuleView, ...]:
        """For the snapshot."""
        counted = zip(self._book.rules, self._matched, self._errors_before, strict=True)
        return tuple(RuleView(rule.name, count, before + rule.errors()) for rule, count, before in counted)

    def sampled(self, pool: Pool, endpoint: EndpointId, sample: EngineSample) -> None:
        """An engine was read: what the engine rules say is asked anew."""
        state = self._state(pool)
        state.until_s = 0.0
        total = sample.output_tokens_total
        if total is None:
            return
        before = state.totals.get(endpoint)
        if before is not None and sample.at_s > before[0] and total >= before[1]:
            state.rates[endpoint] = (total - before[1]) / (sample.at_s - before[0])
        else:
            state.rates.pop(endpoint, None)
        state.totals[endpoint] = (sample.at_s, total)
        if len(state.totals) > 2 * len(pool.endpoints) + 8:  # of endpoints that are gone
            state.totals = {key: value for key, value in state.totals.items() if key in pool.endpoints}
            state.rates = {key: value for key, value in state.rates.items() if key in state.totals}

    def route(self, demand: Demand, cost: Cost, pool: Pool, ruling: Ruling, now: float) -> Demand:
        """Give a request the class, pool and model that the rules say; the same demand if they say nothing."""
        state = self._engine_state(pool, now)
        if not state.any and not self._routed_by_request:
            return demand
        asked = _Asked(self._book, state, demand, cost, pool, now)
        class_name: str | None = None
        pool_name: str | None = None
        model: str | None = None
        for index, rule in enumerate(self._book.rules):
            wanted = (
                (rule.class_name is not None and class_name is None)
                or (rule.pool is not None and pool_name is None)
                or (rule.model is not None and model is None)
            )
            if not wanted or not asked.matches(index, rule):
                continue
            class_name = class_name or rule.class_name
            pool_name = pool_name or rule.pool
            model = model or rule.model
            self._gave(index, rule, ruling, passed=True)
        if class_name is None and pool_name is None and model is None:
            return demand
        if model is not None:
            demand = with_model(demand, model)
            ruling.model_given = True
        return replace(demand, class_name=class_name or demand.class_name, pool=pool_name or demand.pool)

    def judge(self, demand: Demand, cost: Cost, pool: Pool, ruling: Ruling, now: float, *, rank: int) -> None:
        """Refuse or accept a request where it goes, or neither. The first rule that matches does.

        Args:
            rank: of its class.
        """
        ruling.refused_by, ruling.accepted = None, False
        state = self._engine_state(pool, now)
        if not state.any and not self._judged_by_request:
            return
        asked = _Asked(self._book, state, demand, cost, pool, now)
        for index, rule in enumerate(self._book.rules):
            if not rule.judges or (rule.low_only and not rank) or not asked.matches(index, rule):
                continue
            if rule.refuses:
                ruling.refused_by = rule
                self._matched[index] += 1
            else:
                ruling.accepted = True
                self._gave(index, rule, ruling, passed=True)
            return

    def _gave(self, index: int, rule: Rule, ruling: Ruling, *, passed: bool) -> None:
        self._matched[index] += 1
        ruling.checks.append(Check(rule.check, 1, None, passed))

    def _state(self, pool: Pool) -> _EngineState:
        state = self._engines.get(pool.settings.name)
        if state is None:
            state = self._engines[pool.settings.name] = _EngineState(len(self._book.rules))
        return state

    def _engine_state(self, pool: Pool, now: float) -> _EngineState:
        """What the engine rules say about this pool, asked anew after a reading or after `KEPT_S`."""
        state = self._state(pool)
        if now < state.until_s:
            return state
        state.until_s = now + KEPT_S
        scene = Scene(pool, state.rates, now)
        state.endpoint_up = scene.endpoint is not None
        state.any = False
        context: object = None
        for index, rule in enumerate(self._book.rules):
            if rule.of_request:
                continue
            matches = False
            if state.endpoint_up or not rule.of_endpoint:
                if context is None:
                    context = self._book.context(_values(self._book.engine_facts, scene))
                matches = rule.when(context)
            state.matches[index] = matches
            state.any = state.any or matches
        return state


class _Asked:
    """One request at one pool, about which rules are asked; what they look at is read when the first one wants it."""

    __slots__ = ("_book", "_context", "_cost", "_demand", "_now", "_pool", "_state")

    def __init__(  # noqa: PLR0917 - by position: for each request
        self, book: RuleBook, state: _EngineState, demand: Demand, cost: Cost, pool: Pool, now: float
    ) -> None:
        self._book = book
        self._state = state
        self._demand = demand
        self._cost = cost
        self._pool = pool
        self._now = now
        self._context: object = None

    def matches(self, index: int, rule: Rule) -> bool:
        """Does this rule? `index` is its place in the book."""
        if not rule.of_request:
            return self._state.matches[index]
        if rule.of_endpoint and not self._state.endpoint_up:
            return False
        if self._context is None:
            self._context = self._read()
        return rule.when(self._context)

    def _read(self) -> object:
        book = self._book
        values: dict[str, FactValue] = {}
        if book.request_engine_facts:
            values = _values(book.request_engine_facts, Scene(self._pool, self._state.rates, self._now))
        for fact in book.request_facts:
            values[fact.key] = fact.read(self._demand, self._cost, self._pool)
        return book.context(values)


def _values(facts: tuple[EngineFact, ...], scene: Scene) -> dict[str, FactValue]:
    values: dict[str, FactValue] = {}
    for fact in facts:
        value = fact.read(scene)
        if value is not None:
            values[fact.key] = value
    return values
