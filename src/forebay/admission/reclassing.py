"""The classes of a running pool change: some are new, some are gone, or their order is another.

Whatever a pool keeps for a class goes with its name: waiters and accounts, what was charged lately, what was promised,
what its waits have taught. A new one begins empty. One that is gone has no requests any more: the caller sees to that.
"""

from __future__ import annotations

from forebay.admission.class_rules import rules_of
from forebay.admission.class_state import ClassState
from forebay.admission.ledger import Account
from forebay.admission.pools import Pool
from forebay.admission.settings import Settings


def change_classes(pool: Pool, common: Settings) -> None:
    """Give a pool these classes in this order; `Pool.reconfigure` does the rest. Does nothing if they are the same."""
    names = [c.name for c in common.classes]
    before = list(pool.classes)
    if names == before:
        return
    sources = [before.index(name) if name in before else -1 for name in names]
    corrects = pool.settings.wait_predictor != "plain"
    states: dict[str, ClassState] = {}
    accounts: dict[str, Account] = {}
    for index, entry in enumerate(common.classes):
        state = pool.classes.get(entry.name) or ClassState(entry, index, corrects=corrects)
        state.index = index
        states[entry.name] = state
        accounts[entry.name] = pool.books.classes.get(entry.name) or Account()
    pool.classes, pool.books.classes = states, accounts
    pool.queue.reclass(sources, rules_of(common))
    pool.retry_after.reclass(sources)
    for endpoint in pool.endpoints.values():
        for ticket in endpoint.running.values():
            ticket.class_index = states[ticket.demand.class_name].index
    kept = pool.reserved
    if kept is not None and kept.reserved_for is not None:
        for waiter in pool.queue:
            if waiter.sequence == kept.reserved_for:
                kept.reserved_rank = waiter.class_index
