"""What an answer came to when its request is over."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.admission.answers import (
    believed,
    learn_from_answer,
    output_at_end,
    own_prefill_s,
    tokens_of_events,
)
from forebay.admission.model import Usage
from forebay.admission.outcomes import Outcome
from tests.unit.admission.build import Site, pool_settings


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


@pytest.mark.parametrize(
    ("told", "changes", "facts", "pool", "is_believed"),
    [
        (Usage(100, 10**9), {}, {}, {}, False),
        (Usage(100, 100), {}, {}, {}, True),  # 99 and an end token
        (Usage(100, 101), {}, {}, {}, False),
        (Usage(100, 400), {"samples": 4}, {}, {}, True),
        (Usage(100, 401), {"samples": 4}, {}, {}, False),
        (Usage(100, 4096), {"max_output_tokens": None}, {"context_tokens": 4096}, {}, True),
        (Usage(100, 5000), {"max_output_tokens": None}, {"context_tokens": 4096}, {}, False),
        (Usage(100, 5000), {"max_output_tokens": 10**9}, {"context_tokens": 4096}, {}, False),
        (Usage(4097, 1), {}, {"context_tokens": 4096}, {}, False),
        (Usage(8000, 0), {"prompts": 2, "generates": False}, {"context_tokens": 4096}, {}, True),
        (Usage(100, 5000), {"max_output_tokens": None}, {}, {}, True),  # nobody knows better
        (Usage(100, 10**9), {"max_output_tokens": None}, {}, {}, False),
        (Usage(10**9, 1), {}, {}, {}, False),
        (
            Usage(100, 50),
            {"max_output_tokens": None},
            {},
            {"max_output_tokens": 20, "inject_limit": True},
            False,
        ),
        (
            Usage(100, 50),
            {"max_output_tokens": None},
            {},
            {"max_output_tokens": 20},
            True,
        ),  # the engine was not told
    ],
)
def test_more_than_can_have_been_is_not_believed(
    told: Usage, changes: dict[str, Any], facts: dict[str, Any], pool: dict[str, Any], is_believed: bool
) -> None:
    """It is a fault of the engine, and what it says counts for nothing."""
    site = Site(pool_settings(**pool))
    endpoint = site.describe("a", **facts)
    ticket = site.running(1, "a", **changes)
    assert (told if is_believed else None) == believed(ticket, told)
    assert ({} if is_believed else {"usage": 1}) == endpoint.faults


@pytest.mark.parametrize("stream", [False, True])
def test_an_absurd_count_is_neither_charged_nor_learned(stream: bool) -> None:
    """What came of a stream counts, or what was expected of an answer that came whole."""
    site = Site()
    ticket = site.running(1, "a", stream=stream)
    if stream:
        site.life.progress(ticket, 7, 1.0)
    site.effects()
    site.life.finish(ticket, Outcome.COMPLETED, Usage(10**9, 10**9), 2.0, engine_goes_on=False)
    settled = site.settlement()
    assert (100, 7 if stream else ticket.cost.output_tokens) == (settled.prompt_tokens, settled.output_tokens)
