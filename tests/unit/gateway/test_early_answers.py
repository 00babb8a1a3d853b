"""Answers that were given without asking the core."""

from __future__ import annotations

from forebay.admission.model import TicketId
from forebay.admission.outcomes import Outcome
from forebay.gateway.early_answers import BODY_BYTES, KEPT, EarlyAnswers
from forebay.gateway.refusals import plain_error


def test_only_refusals_of_what_might_have_been_served_were_offered() -> None:
    """Bad input, unknown keys and models are nobody's to serve."""
    early = EarlyAnswers()
    early.turned_away("queue_full", "p", "batch", "acme")  # nobody listens yet
    told: list[object] = []
    early.on_refusal = lambda *refusal: told.append(refusal)
    for code in (
        "rate_limit_exceeded",
        "invalid_request",
        "invalid_api_key",
        "model_not_found",
        "draining",
        "",
    ):
        early.turned_away(code, "p", "batch", "acme")
    known = ("p", "batch", "acme")
    assert [(*known, Outcome.RATE_LIMIT_EXCEEDED), (*known, Outcome.DRAINING)] == told


def test_the_last_ones_are_found_by_either_id() -> None:
    """All are counted; of those that had an id the last are kept, with no more than so much of their body."""
    early = EarlyAnswers()
    early.count("client_gone")
    for number in range(KEPT + 1):
        answer = plain_error(400, "invalid_request", "x" * (2 * BODY_BYTES))
        early.add(TicketId(number), float(number), answer, b"call-%d" % number)
    assert {"client_gone": 1, "invalid_request": KEPT + 1} == early.counts
    assert (None, None) == (early.of_ticket(TicketId(0)), early.named(b"call-0"))
    last = early.of_ticket(TicketId(KEPT))
    assert last is not None
    assert (400, "invalid_request", float(KEPT)) == (last.status, last.code, last.at_s)
    assert BODY_BYTES == len(last.body)
    assert TicketId(KEPT) == early.named(b"call-%d" % KEPT)
