"""What a request costs its tenant in tokens: expected when it comes, and settled when it is over.

Input and output count alike. With `bill: estimate` it is what is expected, and in the end what was relayed; with `bill:
cap` the output counts as the most that it may be, from the beginning to the end.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.errors import MisuseError
from forebay.admission.model import Demand
from forebay.admission.outcomes import Outcome
from forebay.admission.quota import Account, Debit, Quota
from forebay.admission.settings import PlanSettings
from forebay.admission.shedding import fingerprint
from forebay.admission.tickets import Ticket

_CLIENT_GONE: Final = Outcome.CLIENT_GONE
_REJECTED: Final = Outcome.ENGINE_REJECTED


def put_on_plan(ticket: Ticket, plan: PlanSettings | None, quota: Quota, now: float) -> None:
    """What its tenant's plan says of a request that has just come. Raises: MisuseError if there is no such plan."""
    if plan is None:
        raise MisuseError(f"no plan {ticket.demand.plan!r} is configured")
    ticket.weight = plan.weight
    if plan.never_refuse:
        ticket.never_refuse = True
    if plan.limits:
        ticket.debit = debit_of(ticket, quota.account(ticket.demand.tenant, plan, now))


def debit_of(ticket: Ticket, account: Account) -> Debit:
    """What a request is to take from its tenant's account."""
    demand, cost, settings = ticket.demand, ticket.cost, ticket.pool.settings
    output_cap = _most_output_tokens(ticket, demand) if account.plan.bills_cap else None
    return Debit(
        account,
        tokens=cost.prompt_tokens + (cost.output_tokens if output_cap is None else output_cap),
        input_tokens=ticket.pool.pricing.surely_needs(demand) * demand.prompts,
        gpu_us=cost.work_us * settings.gpus,
        output_cap=output_cap,
        key=fingerprint(demand),
    )


def close_debit(  # noqa: PLR0917 - by position: for each request
    debit: Debit, ticket: Ticket, outcome: Outcome, prompt_tokens: int | None, output_tokens: int, now: float
) -> None:
    """A request is over: who was not served pays nothing.

    Who left before the first token pays for the input, which the engine was working on: else asking and leaving would
    be free. What an engine rejects costs no tokens, and was a request.

    Args:
        prompt_tokens: None if it ended before it ran.
    """
    if prompt_tokens is None or (ticket.first_token_s is None and outcome is not _CLIENT_GONE):
        debit.close(0, now, was_request=outcome is _REJECTED)
    elif debit.output_cap is not None:
        debit.close(prompt_tokens + debit.output_cap, now, was_request=True)
    else:
        debit.close(prompt_tokens + output_tokens, now, was_request=True)


def _most_output_tokens(ticket: Ticket, demand: Demand) -> int:
    """What its limit allows, or the room that the model has for it."""
    return ticket.price.cap * demand.samples if demand.generates else 0
