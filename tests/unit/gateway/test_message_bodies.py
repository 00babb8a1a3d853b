from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway import content
from forebay.gateway.asks import ATTACHMENT_TOKENS, LARGE_BODY_BYTES, Ask, BadRequest
from forebay.gateway.demand import LOW_DETAIL_TOKENS
from forebay.gateway.message_bodies import read_messages, read_responses
from forebay.gateway.prefix import PREFIX_CHARACTERS

PICTURE = {"type": "base64", "media_type": "image/png", "data": "A" * 600_000}


def messages(**fields: object) -> Ask:
    """A body of the Messages API, read."""
    return read_messages(json.dumps({"model": "m", "max_tokens": 10} | fields).encode())


def responses(**fields: object) -> Ask:
    """A body of the Responses API, read."""
    return read_responses(json.dumps({"model": "m"} | fields).encode())


def test_messages_are_read() -> None:
    """Model, stream and limit; the system prompt, texts and tools count."""
    tools = [{"name": "t", "input_schema": {}}]
    ask = messages(
        stream=True,
        system=[{"type": "text", "text": "12345"}],
        messages=[
            {"role": "user", "content": "678"},
            {"role": "assistant", "content": [{"type": "text", "text": "9"}]},
        ],
        tools=tools,
    )
    assert ("m", True, 10, 9 + len(json.dumps(tools))) == (
        ask.model,
        ask.stream,
        ask.max_output_tokens,
        ask.prompt_bytes,
    )


@pytest.mark.parametrize(
    ("block", "text_bytes", "attachment_tokens"),
    [
        ({"type": "image", "source": PICTURE}, 0, ATTACHMENT_TOKENS),
        ({"type": "document", "source": PICTURE}, 0, ATTACHMENT_TOKENS),
        ({"type": "document", "source": {"type": "text", "data": "12345"}}, 5, 0),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "123"}]}},
            3,
            0,
        ),
        ({"type": "document"}, 0, ATTACHMENT_TOKENS),
        ({"type": "thinking", "thinking": "1234", "signature": "s" * 99}, 4, 0),
        ({"type": "redacted_thinking", "data": "s" * 99}, 0, 0),
        ({"type": "tool_use", "id": "i", "name": "n", "input": {"a": 1}}, len('{"a": 1}'), 0),
        ({"type": "tool_result", "tool_use_id": "i", "content": "123456"}, 6, 0),
        (
            {
                "type": "tool_result",
                "content": [{"type": "text", "text": "12"}, {"type": "image", "source": PICTURE}],
            },
            2,
            ATTACHMENT_TOKENS,
        ),
        ({"type": "something_new", "x": "y" * 50}, 0, 0),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_blocks_count_by_their_kind(block: dict[str, Any], text_bytes: int, attachment_tokens: int) -> None:
    """Text counts wherever it stands, base64 never: a picture or a file is so many tokens."""
    ask = messages(messages=[{"role": "user", "content": [block]}])
    assert (text_bytes, attachment_tokens) == (ask.prompt_bytes, ask.extra_prompt_tokens)


def test_responses_are_read() -> None:
    """Instructions and items count: messages, calls and their outputs, reasoning."""
    ask = responses(
        instructions="123",
        max_output_tokens=20,
        input=[
            {"role": "user", "content": "45"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "6"}]},
            {"type": "function_call", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call_output", "output": "789"},
            {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": "0"}],
                "encrypted_content": "x" * 99,
            },
        ],
    )
    assert (20, 10 + len(json.dumps('{"a":1}'))) == (ask.max_output_tokens, ask.prompt_bytes)
    assert responses(input="hello").prompt_bytes == 5


def test_f027_pictures_and_files_are_not_text() -> None:
    """F027: a picture of 600 kB, a sound and a file are some tokens each; a picture of low detail is fewer."""
    url = "data:image/png;base64," + "A" * 600_000
    parts = [
        {"type": "input_text", "text": "twenty"},
        {"type": "input_image", "image_url": url},
        {"type": "input_image", "image_url": url, "detail": "low"},
        {"type": "input_audio", "input_audio": {"data": "A" * 1000, "format": "wav"}},
        {"type": "input_file", "file_data": url},
    ]
    ask = responses(input=[{"role": "user", "content": parts}])
    assert (6, 3 * ATTACHMENT_TOKENS + LOW_DETAIL_TOKENS) == (ask.prompt_bytes, ask.extra_prompt_tokens)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"messages": 7}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{"content": True}]}, "messages.content"),
        ({"messages": [{"content": [{"type": 3}]}]}, "messages.content[0].type"),
        ({"system": 1}, "system"),
        ({"model": 1}, "model"),
    ],
)
def test_wrong_types_are_named(fields: dict[str, Any], param: str) -> None:
    """A field that is read and has another type is told by its name."""
    with pytest.raises(BadRequest) as caught:
        messages(**fields)
    assert param == caught.value.param


def test_f029_limits_of_responses() -> None:
    """F029: an odd `max_output_tokens` is refused by name; null and absent are no limit."""
    for odd in (0, -1, 1.5, "16", True, 2**63):
        with pytest.raises(BadRequest) as caught:
            responses(input="x", max_output_tokens=odd)
        assert caught.value.param == "max_output_tokens"
    assert responses(input="x", max_output_tokens=None).max_output_tokens is None


def test_what_goes_on_in_the_background_is_refused() -> None:
    """What an engine would do after its answer cannot be admitted."""
    with pytest.raises(BadRequest, match="background"):
        responses(input="x", background=True)


def test_deep_blocks_count_by_their_size() -> None:
    """Blocks in blocks are looked into a few levels deep; what is nested further costs no more time."""
    inner: Any = "x"
    for _ in range(300):
        inner = [{"type": "tool_result", "content": inner}]
    ask = messages(messages=[{"role": "user", "content": inner}])
    assert ask.prompt_bytes > 300 - content.DEPTH


def test_crowded_bodies_are_not_taken_apart() -> None:
    """Millions of tiny parts count by their size."""
    body = b'{"max_tokens": 1, "messages": [' + b",".join([b"{}"] * 600_000) + b"]}"
    assert len(body) > LARGE_BODY_BYTES
    assert read_messages(body).prompt_bytes > 1_000_000


def test_prompts_that_begin_alike_have_one_number() -> None:
    """The first of system prompt and messages decides; short prompts have none."""
    long = "x" * PREFIX_CHARACTERS
    first = messages(system=long, messages=[{"role": "user", "content": "a"}])
    second = messages(system=long, messages=[{"role": "user", "content": "b"}])
    assert first.prefix_hash == second.prefix_hash is not None
    assert messages(system="short").prefix_hash is None
    picture = [{"type": "image", "source": {}}, {"type": "text", "text": long}]
    assert messages(messages=[{"role": "user", "content": picture}]).prefix_hash is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "source", "data", "input", "role"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON, st.sampled_from([read_messages, read_responses]))
def test_any_json_is_read_or_refused(inner: Any, other: Any, read: Any) -> None:
    """Whatever stands where messages should be: there is a count, or an error that names a field."""
    body = {"messages": inner, "input": inner, "system": other, "instructions": other}
    try:
        ask = read(json.dumps(body).encode())
    except BadRequest as bad:
        named = bad.param
    else:
        named = "none"
        assert ask.prompt_bytes >= 0
        assert ask.extra_prompt_tokens >= 0
    assert named
