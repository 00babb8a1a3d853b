from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.emulator import other_apis
from forebay.emulator.errors import RequestRefused
from forebay.emulator.generation import Generation, GenerationRules
from forebay.emulator.other_wording import (
    EmbeddingsWording,
    MessagesWording,
    RerankWording,
    ResponsesWording,
    ScoresWording,
)

RULES = GenerationRules(model="toy", context_tokens=1000, seed=0)
OF_ANSWER: dict[str, Any] = {"answer_id": "a", "created": 1, "model": "toy", "prompt_tokens": 7}


def read(api: str, **fields: Any) -> Generation:
    """A body of this API, read."""
    reader = getattr(other_apis, f"read_{api}")
    wanted: Generation = reader(json.dumps(fields).encode(), RULES)
    return wanted


def events(raw: bytes) -> list[dict[str, Any]]:
    """The data of named events, whose names are their types."""
    found = []
    for block in raw.decode().rstrip("\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def test_messages_and_responses_are_chats() -> None:
    """System prompt or instructions, and all texts, are the prompt; each API has its own limit."""
    turns = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    message = read("messages", max_tokens=5, system="be kind", messages=turns, ignore_eos=True)
    response = read("responses", max_output_tokens=5, instructions="be kind", input="hello", ignore_eos=True)
    assert message.prompt_tokens == response.prompt_tokens == 3 + 4 + 2 + 4 + 2
    assert [5, 5] == [one.samples[0].output_tokens for one in (message, response)]
    items = [{"role": "user", "content": "hello"}, {"type": "function_call_output", "output": "1234"}]
    assert read("responses", input=items).prompt_tokens > 10
    count = other_apis.read_count(json.dumps({"messages": turns, "system": "be kind"}).encode())
    assert message.prompt_tokens == count.tokens


def test_pooled_requests_are_one_step_for_each_input() -> None:
    """An embedding of each input; of a ranking each pair."""
    assert [1, 3] == [read("embeddings", input=given).prompt_tokens for given in ("hey", [[1, 2], [3]])]
    ranked = read("scores", query="1234", documents=["a", {"text": "b"}])
    assert ([1, 1], 4) == ([sample.output_tokens for sample in ranked.samples], ranked.prompt_tokens)
    assert len(read("scores", text_1=["a", "b"], text_2=["c", "d"]).samples) == 2


@pytest.mark.parametrize(
    ("api", "fields", "status"),
    [
        ("messages", {"messages": []}, 400),
        ("messages", {"max_tokens": 0, "messages": []}, 400),
        ("messages", {"max_tokens": 1}, 400),
        ("messages", {"max_tokens": 1, "messages": [], "model": "other"}, 404),
        ("responses", {}, 400),
        ("responses", {"input": "x", "max_output_tokens": 5000}, 400),
        ("embeddings", {}, 400),
        ("embeddings", {"input": []}, 400),
        ("embeddings", {"input": "x" * 9000}, 400),
        ("scores", {"query": "q"}, 400),
        ("scores", {"query": "q", "documents": []}, 400),
        ("scores", {"text_1": ["a", "b"], "text_2": ["c"]}, 400),
    ],
)
def test_what_vllm_would_refuse_is_refused(api: str, fields: dict[str, Any], status: int) -> None:
    """With its status."""
    with pytest.raises(RequestRefused) as caught:
        read(api, **fields)
    assert status == caught.value.status


def test_a_stream_of_messages() -> None:
    """Events in Anthropic's order, with the prompt's count in the first and the answer's in the last."""
    wording = MessagesWording(**OF_ANSWER)
    opening = wording.opening(0)
    raw = wording.role_chunk(0) + wording.text_chunk(opening, b" a", 1)
    raw += wording.last_chunk(opening, b" b", 2, b"length", b"") + wording.usage_chunk(2) + wording.closing
    told = events(raw)
    assert [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ] == [event["type"] for event in told]
    assert (7, " a b") == (
        told[0]["message"]["usage"]["input_tokens"],
        "".join(e["delta"]["text"] for e in told[2:4]),
    )
    assert ("max_tokens", 2) == (told[-2]["delta"]["stop_reason"], told[-2]["usage"]["output_tokens"])
    whole = json.loads(wording.whole([(b" a b", "stop")], 2))
    assert ("end_turn", " a b") == (whole["stop_reason"], whole["content"][0]["text"])


def test_a_stream_of_a_response() -> None:
    """Deltas, then the whole text and the usage in what ends it."""
    wording = ResponsesWording(**OF_ANSWER)
    opening = wording.opening(0)
    raw = wording.role_chunk(0) + wording.text_chunk(opening, b" a", 1)
    raw += wording.last_chunk(opening, b" b", 2, b"length", b" a b") + wording.closing
    told = events(raw)
    assert ("response.created", "response.completed") == (told[0]["type"], told[-1]["type"])
    done = told[-1]["response"]
    assert ("incomplete", " a b") == (done["status"], done["output"][0]["content"][0]["text"])
    assert {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}.items() <= done["usage"].items()
    whole = json.loads(wording.whole([(b" a b", "stop")], 2))
    assert ("completed", None) == (whole["status"], whole["incomplete_details"])


def test_pooled_answers() -> None:
    """One entry for each input, and a usage that has no output."""
    texts = [(b"", "length")] * 2
    vectors, scores, ranking = (
        json.loads(kind(**OF_ANSWER).whole(texts, 2))
        for kind in (EmbeddingsWording, ScoresWording, RerankWording)
    )
    assert [0, 1] == [entry["index"] for entry in vectors["data"]]
    assert (2, 2) == (len(scores["data"]), len(ranking["results"]))
    for answer in (vectors, scores, ranking):
        assert (7, 7, 0) == tuple(answer["usage"].values())
