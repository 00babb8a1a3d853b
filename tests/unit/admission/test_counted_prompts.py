from __future__ import annotations

from typing import Any

from forebay.admission.counted_prompts import EDGE, MOST_PROMPTS, STRANGERS_S, CountedPrompts, PromptCount
from forebay.admission.model import EngineSample
from tests.unit.admission.build import demand, reading


class Driven:
    """A count, told of prompts as an endpoint would."""

    def __init__(self) -> None:
        self.count = PromptCount()
        self.pending = 0
        self.running = 0

    def send(self, prompts: int = 1) -> Driven:
        """So many requests are dispatched."""
        for _ in range(prompts):
            self.running += 1
            self.pending += 1
            self.count.dispatched(self.running)
        return self

    def first_tokens(self, at_s: float, prompts: int = 1, tokens: int = 100, **changes: Any) -> Driven:
        """So many of them get their first token."""
        for number in range(prompts):
            self.pending -= 1
            self.count.prompt_done(demand(number, **changes), tokens, at_s)
        return self

    def end(self, requests: int) -> Driven:
        """So many are over."""
        self.running -= requests
        return self

    def read(self, at_s: float, prompt_tokens: int | None, **fields: Any) -> CountedPrompts | None:
        """A reading of an engine that runs what we have sent."""
        usual: dict[str, Any] = {"running": self.running, "prompt_tokens_total": prompt_tokens, **fields}
        return self.count.sampled(reading(at_s, **usual), pending=self.pending, in_flight=self.running)


def begun() -> Driven:
    """A count with a window that opened at second 1, at 1000 tokens."""
    driven = Driven()
    assert driven.read(1.0, 1000) is None
    return driven


def test_prompts_between_two_readings_are_what_was_counted() -> None:
    """Three prompts, 330 tokens: each with what was expected of it."""
    driven = begun()
    driven.send(3).first_tokens(1.5, 3)
    found = driven.read(2.0, 1330)
    assert found is not None
    assert (3, 330, None) == (len(found.prompts), found.tokens, found.cached_tokens)
    assert {100} == {tokens for _, tokens in found.prompts}


def test_each_window_begins_where_the_last_ended() -> None:
    """Nothing is counted twice."""
    driven = begun()
    driven.send(1).first_tokens(1.5)
    assert driven.read(2.0, 1100) is not None
    driven.send(2).first_tokens(2.5, 2)
    found = driven.read(3.0, 1350)
    assert found is not None
    assert (2, 250) == (len(found.prompts), found.tokens)


def test_cached_tokens_come_along() -> None:
    """Where the engine counts them, and never more than all."""
    for cached, said in ((40, 40), (900, 110), (-5, 0)):
        driven = Driven()
        driven.read(1.0, 1000, cached_tokens_total=500)
        driven.send().first_tokens(1.5)
        found = driven.read(2.0, 1110, cached_tokens_total=500 + cached)
        assert found is not None
        assert said == found.cached_tokens


def test_a_window_waits_until_few_prompts_cross_its_ends() -> None:
    """One without a first token for eight that have it may be in the engine's count already, no more."""
    driven = begun()
    driven.send(EDGE).first_tokens(1.5, EDGE - 1)
    assert driven.read(2.0, 1000 + 110 * EDGE) is None
    driven.send(1).first_tokens(2.5)
    found = driven.read(3.0, 1000 + 110 * EDGE)
    assert found is not None
    assert len(found.prompts) == EDGE


def test_what_was_on_its_way_when_it_opened_counts_as_well() -> None:
    """The engine may have counted these prompts before the window."""
    driven = Driven()
    driven.send(1)
    driven.read(1.0, 1000)
    driven.first_tokens(1.1).send(1).first_tokens(1.5)
    assert driven.read(2.0, 1110) is None
    driven.send(EDGE).first_tokens(2.5, EDGE)
    found = driven.read(3.0, 1110 + 110 * EDGE)
    assert found is not None
    assert len(found.prompts) == EDGE + 2


def test_a_first_token_after_the_engine_was_asked_is_of_the_next_window() -> None:
    """Readings take a while to come back."""
    driven = begun()
    driven.send(EDGE + 1).first_tokens(1.5, EDGE).first_tokens(2.01)
    found = driven.read(2.0, 1000 + 110 * EDGE)
    assert found is not None
    assert len(found.prompts) == EDGE
    driven.send(2 * EDGE).first_tokens(2.5, 2 * EDGE)
    found = driven.read(3.0, 1000 + 330 * EDGE + 110)
    assert found is not None
    assert (2 * EDGE + 1, 220 * EDGE + 110) == (len(found.prompts), found.tokens)


def test_an_engine_that_counts_late_is_waited_for() -> None:
    """First tokens came, and the counter has not moved yet."""
    driven = begun()
    driven.send(1).first_tokens(1.5)
    assert driven.read(2.0, 1000) is None
    found = driven.read(3.0, 1110)
    assert found is not None
    assert (1, 110) == (len(found.prompts), found.tokens)


def test_an_engine_that_others_use_teaches_nothing_for_a_while() -> None:
    """It runs more than was sent to it."""
    driven = begun()
    driven.send(1).first_tokens(1.5)
    assert driven.read(2.0, 1110, running=1, waiting=1) is None
    driven.send(1).first_tokens(2.5)
    assert driven.read(3.0, 1220) is None
    assert driven.read(2.0 + STRANGERS_S, 1220) is None
    driven.send(1).first_tokens(STRANGERS_S + 2.5)
    assert driven.read(STRANGERS_S + 3.0, 1330) is not None


def test_prompts_that_nobody_here_sent_are_others() -> None:
    """Between two readings they came and went, and were counted."""
    driven = begun()
    assert driven.read(2.0, 1500) is None
    driven.send(1).first_tokens(2.5)
    assert driven.read(3.0, 1610) is None
    driven.send(1).first_tokens(3.5)
    assert driven.read(4.0, 1720) is None


def test_what_ended_since_the_last_reading_may_still_be_counted_as_running() -> None:
    """Engines tell what ran in their last step."""
    driven = begun()
    driven.send(2).first_tokens(1.5, 2).end(2)
    assert driven.read(2.0, 1220, running=2) is not None
    driven.send(1).first_tokens(2.5)
    assert driven.read(3.0, 1330, running=2) is None


def test_an_engine_that_begins_anew_is_counted_anew() -> None:
    """Its counters fell."""
    driven = begun()
    driven.send(1).first_tokens(1.5)
    assert driven.read(2.0, 110) is None
    driven.send(1).first_tokens(2.5)
    found = driven.read(3.0, 220)
    assert found is not None
    assert (1, 110) == (len(found.prompts), found.tokens)


def test_embeddings_spoil_a_window() -> None:
    """Not every engine counts their tokens."""
    driven = begun()
    driven.send(2).first_tokens(1.5).first_tokens(1.6, generates=False)
    assert driven.read(2.0, 1110) is None
    driven.send(1).first_tokens(2.5)
    assert driven.read(3.0, 1220) is not None


def test_several_answers_to_one_prompt_spoil_a_window() -> None:
    """The engine counts the prompt once for each of them."""
    driven = begun()
    driven.send(2).first_tokens(1.5).first_tokens(1.6, samples=4)
    assert driven.read(2.0, 1550) is None
    driven.send(1).first_tokens(2.5)
    assert driven.read(3.0, 1660) is not None


def test_a_window_holds_so_many_prompts_and_no_more() -> None:
    """Of an engine that is not read any more nothing piles up."""
    driven = begun()
    driven.send(MOST_PROMPTS + 1).first_tokens(1.5, MOST_PROMPTS + 1)
    assert driven.read(2.0, 100_000) is None
    driven.send(1).first_tokens(2.5)
    found = driven.read(3.0, 100_110)
    assert found is not None
    assert len(found.prompts) == 1


def test_without_counts_there_is_nothing_to_learn() -> None:
    """Engines that do not tell how many run, or how many tokens prompts had."""
    for fields in ({"running": None}, {"prompt_tokens_total": None}):
        driven = begun()
        driven.send(1).first_tokens(1.5)
        assert (
            driven.count.sampled(
                reading(2.0, **{"running": 1, "prompt_tokens_total": 1110, **fields}), pending=0, in_flight=1
            )
            is None
        )
        driven.send(1).first_tokens(2.5)
        assert driven.read(3.0, 1220) is None


def test_an_older_reading_is_nothing_new() -> None:
    """It was overtaken."""
    driven = begun()
    driven.send(1).first_tokens(1.5)
    assert driven.count.sampled(EngineSample(0.5, running=9), pending=0, in_flight=1) is None
    assert driven.read(2.0, 1110) is not None
