"""What an answer came to when its request is over."""

from __future__ import annotations

import pytest

from forebay.admission.answers import learn_from_answer, output_at_end, own_prefill_s, tokens_of_events
from forebay.admission.model import Usage
from tests.unit.admission.build import Site


def test_the_engine_knows_best_then_events_then_what_was_expected() -> None:
    """And where a client has seen nothing of a stream, nothing was made."""
    site = Site()
    endpoint = site.endpoint()
    ticket = site.running(1, "a", stream=True)
    assert 7 == output_at_end(ticket, Usage(100, 7), 1.0, completed=True, unseen=None)
    assert ticket.cost.output_tokens == output_at_end(ticket, None, 1.0, completed=True, unseen=None)
    assert 0 == output_at_end(ticket, None, 1.0, completed=False, unseen=None)
    assert 0 == output_at_end(ticket, None, 1.0, completed=False, unseen=endpoint)
    ticket.output_events = 5
    assert 5 == tokens_of_events(ticket) == output_at_end(ticket, None, 1.0, completed=True, unseen=None)


def test_what_nobody_waited_for_is_told_by_the_clock() -> None:
    """100 prompt tokens take 10 ms, each token 10 ms; never more than it may generate."""
    site = Site()
    ticket = site.running(1, "a", stream=False)
    for now, tokens in ((0.005, 0), (0.51, 50), (100.0, 99)):
        assert tokens == output_at_end(ticket, None, now, completed=False, unseen=site.endpoint())


def test_a_whole_answer_is_a_sign_of_life() -> None:
    """It ends a row of rejections."""
    site = Site()
    endpoint = site.endpoint()
    ticket = site.running(1, "a", stream=False)
    endpoint.rejections_in_row = 3
    learn_from_answer(ticket, endpoint, Usage(100, 10), 10, 1.0)
    assert 0 == endpoint.rejections_in_row
    assert pytest.approx(0.01) == own_prefill_s(ticket, endpoint)
