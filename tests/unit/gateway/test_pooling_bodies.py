from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.gateway.asks import ATTACHMENT_TOKENS, Ask, BadRequest
from forebay.gateway.pooling_bodies import read_embeddings, read_scores, read_which


def embeddings(**fields: object) -> Ask:
    """A body of the embeddings API, read."""
    return read_embeddings(json.dumps({"model": "m"} | fields).encode())


def scores(**fields: object) -> Ask:
    """A body of a score, read."""
    return read_scores(json.dumps({"model": "m"} | fields).encode())


@pytest.mark.parametrize(
    ("given", "text_bytes", "tokens", "prompts"),
    [
        ("hello", 5, None, 1),
        (["ab", "cde"], 5, None, 2),
        ([1, 2, 3], 0, 3, 1),
        ([[1, 2], [3]], 0, 3, 2),
        ([], 0, 0, 1),
    ],
)
def test_f031_inputs_of_embeddings_are_counted(
    given: object, text_bytes: int, tokens: int | None, prompts: int
) -> None:
    """F031: an input is a text, a list of texts, ids (by their number), or lists of ids; nothing is generated."""
    ask = embeddings(input=given)
    assert (text_bytes, tokens, prompts) == (ask.prompt_bytes, ask.prompt_tokens, ask.prompts)
    assert not ask.generates


def test_embeddings_have_other_forms() -> None:
    """llama.cpp says `content`, chat models take messages, and some take parts of several kinds."""
    assert embeddings(content="hello").prompt_bytes == 5
    assert embeddings(messages=[{"role": "user", "content": "hello"}]).prompt_bytes == 5
    ask = embeddings(
        input=[{"text": "abc"}, {"type": "image_url", "image_url": {"url": "data:" + "A" * 9999}}]
    )
    assert (3, ATTACHMENT_TOKENS, 2) == (ask.prompt_bytes, ask.extra_prompt_tokens, ask.prompts)


@pytest.mark.parametrize("given", [7, True, {"a": [7]}.get("b", 1.5), [[1], "x"], [None]])
def test_wrong_inputs_are_refused(given: object) -> None:
    """What is neither texts nor ids is told by its name."""
    with pytest.raises(BadRequest) as caught:
        embeddings(input=given)
    assert caught.value.param == "input"


def test_a_query_counts_for_each_document() -> None:
    """Of a reranking each pair is a prompt."""
    ask = scores(query="12345", documents=["a", "bc", {"text": "d"}.get("text", "")])
    assert (3 * 5 + 4, 3, False) == (ask.prompt_bytes, ask.prompts, ask.generates)
    assert scores(query="q", documents=[{"text": "abc"}, {"text": "d"}]).prompt_bytes == 2 + 4


@pytest.mark.parametrize(
    ("fields", "text_bytes", "prompts"),
    [
        ({"text_1": "abc", "text_2": "d"}, 4, 1),
        ({"text_1": "abc", "text_2": ["d", "e"]}, 8, 2),
        ({"text_1": ["ab", "c"], "text_2": ["d", "e"]}, 5, 2),
        ({"queries": "abc", "documents": ["d"]}, 4, 1),
        ({"data_1": "abc", "data_2": "d"}, 4, 1),
        ({"query": "abc", "items": ["d", "e"]}, 8, 2),
        ({"query": "abc", "texts": ["d", "e"]}, 8, 2),
        ({}, 0, 1),
    ],
)
def test_names_of_the_two_sides(fields: dict[str, Any], text_bytes: int, prompts: int) -> None:
    """The sides have other names with each engine."""
    ask = scores(**fields)
    assert (text_bytes, prompts) == (ask.prompt_bytes, ask.prompts)


def test_ids_are_counted_exactly() -> None:
    """Where both sides are ids the count is exact."""
    ask = scores(query=[1, 2, 3], items=[[4], [5, 6]])
    assert (9, 0, 2) == (ask.prompt_tokens, ask.extra_prompt_tokens, ask.prompts)


def test_too_many_pairs_are_refused() -> None:
    """One request must not be able to book a whole pool."""
    with pytest.raises(BadRequest, match="9000"):
        scores(query="q", documents=["d"] * 9000)


def test_of_a_count_only_the_model_is_read() -> None:
    """Whatever else is in the body, it is the engine's."""
    assert read_which(b'{"model": "m", "prompt": 7}').model == "m"
    with pytest.raises(BadRequest):
        read_which(b"[]")
