from __future__ import annotations

import json

import pytest

from forebay.load.chat import BYTES_PER_TOKEN, TEMPLATE_TOKENS, ChatBodies, prompt_text
from forebay.load.workload import Arrival


def arrival(index: int = 0, *, prompt_tokens: int = 100, stream: bool = True) -> Arrival:
    """One request to come."""
    return Arrival(index, 0.0, "standard", prompt_tokens, 40, 256, stream)


def test_a_body_asks_for_what_the_arrival_says() -> None:
    """The body names model, limit and form of the answer, and asks for usage in a stream."""
    body = json.loads(ChatBodies('mo"del', "seed 1")(arrival()))

    assert body["model"] == 'mo"del'
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["max_tokens"] == 256
    assert body["emulator_output_tokens"] == 40


def test_an_unstreamed_body_has_no_stream_options() -> None:
    """Engines refuse stream options without a stream, so they are left out."""
    body = json.loads(ChatBodies("model", "seed 1")(arrival(stream=False)))

    assert "stream" not in body
    assert "stream_options" not in body


@pytest.mark.parametrize("prompt_tokens", [1, 8, 100, 6_500])
def test_a_prompt_has_the_wished_length(prompt_tokens: int) -> None:
    """Four bytes of text stand for a token, with the template's own tokens taken off."""
    text = prompt_text("start ", prompt_tokens)

    assert len(text.encode()) == BYTES_PER_TOKEN * max(1, prompt_tokens - TEMPLATE_TOKENS)


def test_no_two_prompts_begin_alike() -> None:
    """Requests of a run differ within the first KV block, so a prefix cache has nothing to reuse."""
    compose = ChatBodies("model", "seed 1")
    starts = {json.loads(compose(arrival(index)))["messages"][0]["content"][:64] for index in range(200)}

    assert len(starts) == 200
