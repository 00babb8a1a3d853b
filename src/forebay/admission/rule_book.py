"""An operator's rules, as the core reads them: what each one asks is compiled elsewhere and passed in.

Rules are tried in the order of the file. There are four things that a rule can give (a class, a pool, a model, and a
verdict: refuse or accept), and of each the first rule that matches gives it.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay.admission.facts import EngineFact, FactValue, RequestFact
from forebay.admission.record import record


@record
class Rule:
    """One rule. Of `class_name`, `pool`, `model`, `refuses` and `accepts` at least one is set."""

    name: str
    check: str
    """Its name in decision records, as `rule:NAME`."""
    when: Callable[[object], bool]
    """Does it match? Takes what `RuleBook.context` made, and never raises."""
    errors: Callable[[], int]
    """How often it could not be evaluated so far."""
    of_request: bool
    """True if it names a fact of requests, and so must be asked for each; else once for each reading of an engine."""
    of_endpoint: bool
    """True if it names a fact of endpoints: where none is up it does not match."""
    class_name: str | None = None
    pool: str | None = None
    model: str | None = None
    refuses: bool = False
    retry_after_s: float | None = None
    """What a refused client is told; None: what it would be told of a full queue."""
    low_only: bool = False
    """True if the most important class is not refused."""
    accepts: bool = False

    @property
    def routes(self) -> bool:
        """True if it gives a class, a pool or a model."""
        return self.class_name is not None or self.pool is not None or self.model is not None

    @property
    def judges(self) -> bool:
        """True if it refuses or accepts."""
        return self.refuses or self.accepts


@record
class RuleBook:
    """All rules, and the facts that they name."""

    rules: tuple[Rule, ...]
    context: Callable[[dict[str, FactValue]], object]
    """Makes what `Rule.when` takes, of the values of facts by key. A fact whose value is not known is not in it."""
    engine_facts: tuple[EngineFact, ...] = ()
    """Those that the rules asked once for each reading name."""
    request_facts: tuple[RequestFact, ...] = ()
    """Those that the rules asked for each request name, and the following as well."""
    request_engine_facts: tuple[EngineFact, ...] = ()
