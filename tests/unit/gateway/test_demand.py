from __future__ import annotations

import contextlib
import json

import pytest

from forebay.gateway.asks import (
    ATTACHMENT_TOKENS,
    DECODED_PARTS,
    LARGE_BODY_BYTES,
    MAX_OUTPUT_TOKENS,
    MODEL_NAME_CHARS,
    BadRequest,
)
from forebay.gateway.demand import read_chat, read_completion, unstated_limit
from forebay.gateway.prompt_texts import texts_of_chat


def refused(body: bytes) -> BadRequest:
    """The error for a chat body."""
    with pytest.raises(BadRequest) as caught:
        read_chat(body)
    return caught.value


def test_chat_is_read_without_its_syntax() -> None:
    """Text of messages, content parts and tools counts; keys, roles and attachments' bytes do not."""
    body = {
        "model": "m",
        "stream": True,
        "max_tokens": 64,
        "n": 2,
        "messages": [
            {"role": "system", "content": "12345"},
            {"role": "user", "content": [{"type": "text", "text": "678"}, "90"]},
            {"role": "assistant", "content": None},
        ],
        "temperature": 0.5,
    }
    ask = read_chat(json.dumps(body).encode())
    assert ("m", True, 10, 64, 2) == (
        ask.model,
        ask.stream,
        ask.prompt_bytes,
        ask.max_output_tokens,
        ask.samples,
    )
    assert ask.prompt_tokens is None


def test_text_counts_in_utf8_bytes() -> None:
    """Escaped and plain spellings of the same text count the same."""
    text = "漢字 é 🎉"
    for ascii_only in (True, False):
        body = json.dumps({"messages": [{"content": text}]}, ensure_ascii=ascii_only).encode()
        assert len(text.encode()) == read_chat(body).prompt_bytes


def test_base64_is_not_text() -> None:
    """A picture of any size counts as an attachment, not as its bytes."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 600_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "B" * 9_000, "format": "wav"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "what"}, picture, sound]}]}
    ask = read_chat(json.dumps(body).encode())
    assert (4, 2 * ATTACHMENT_TOKENS) == (ask.prompt_bytes, ask.extra_prompt_tokens)


@pytest.mark.parametrize(
    "body",
    [
        '{"documents": [{"text": "GIVEN"}], "messages": [{"content": "x"}]}',
        '{"chat_template_kwargs": {"a": "GIVEN"}, "messages": [{"content": "x"}]}',
        '{"functions": [{"name": "GIVEN"}], "messages": [{"content": "x"}]}',
        '{"messages": [{"content": "x", "reasoning_content": "GIVEN"}]}',
        '{"messages": [{"content": "x", "reasoning": "GIVEN"}]}',
        '{"messages": [{"content": [{"type": "refusal", "refusal": "GIVEN"}]}]}',
    ],
)
def test_nothing_that_templates_put_into_a_prompt_is_free(body: str) -> None:
    """Fields beside the content count by their bytes: else a quota is worth nothing."""
    given = "word " * 2000
    ask = read_chat(body.replace("GIVEN", given).encode())
    assert len(given) <= ask.prompt_bytes + 4 * ask.extra_prompt_tokens <= len(given) + 40
    texts = texts_of_chat(body.replace("GIVEN", given).encode())
    assert texts is not None
    assert any(given in text for text in texts.texts)
    null = body.replace('"GIVEN"', "null")
    assert read_chat(null.encode()).prompt_bytes <= 40


def test_tools_count_as_they_are_rendered() -> None:
    """Tool definitions and calls go into the prompt as JSON, so all of it counts."""
    tools = '[{"type":"function","function":{"name":"f"}}]'
    calls = '[{"id":"1"}]'
    body = f'{{"messages":[{{"content":null,"tool_calls":{calls}}}],"tools":{tools}}}'
    assert len(tools) + len(calls) == read_chat(body.encode()).prompt_bytes


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"[]", "must be an object, not a list"),
        (b'"x"', "must be an object, not a string"),
        (b"null", "must be an object, not null"),
        (b"{} x", "trailing characters"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": tru}', "not valid JSON"),
        (b'{"max_tokens": NaN}', "not valid JSON"),
        (b'{"x": Infinity}', "not valid JSON"),
        (b'{"model": "m"', "ends too early"),
        (b'{"model": "a\x00b"}', "not valid JSON"),
        (b'{"x": "a\x00b"}', "not valid JSON"),
        (b"\x00\x00\x00", "not valid JSON"),
        (b'{"model": "\xff"}', "UTF-8"),
        (b'{"unread": "\xff"}', "UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"messages": ' + b'{"content":' * 100_000, "messages"),
        (b"[" * 200_000, "must be an object"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_malformed_bodies_are_refused_in_words(body: bytes, said: str) -> None:
    """What is no JSON object is our 400, with a message that names the fault."""
    assert said in refused(body).message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": 7}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": 5}]}, "messages[0].content"),
        ({"messages": [{"content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
        ({"max_tokens": "16"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": [16]}, "max_tokens"),
        ({"n": "2"}, "n"),
    ],
)
def test_wrong_types_name_their_field(body: dict[str, object], param: str) -> None:
    """A wrong type in a field that is read is refused under the field's name."""
    error = refused(json.dumps(body).encode())
    assert param == error.param
    assert param in error.message


def test_messages_never_repeat_the_input() -> None:
    """No value from a body gets into an error message."""
    secret = "sk-canary"
    for body in (
        f'{{"model": ["{secret}"]}}',
        f'{{"max_tokens": "{secret}"}}',
        f'{{"{secret}": tru}}',
        secret,
        f'{{"prompt": {{"{secret}": 1}}}}',
    ):
        for read in (read_chat, read_completion):
            said = ""
            with contextlib.suppress(BadRequest):
                try:
                    read(body.encode())
                except BadRequest as error:
                    said = f"{error.message} {error.param}"
                    raise
            assert secret not in said


@pytest.mark.parametrize(
    "value", ["0", "-1", "1.5", "-0.0", '"16"', "true", "NaN", "9223372036854775808", "1e30"]
)
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_f029_odd_output_limits_are_refused(field: str, value: str) -> None:
    """F029: output limits that are not positive whole numbers of a sensible size are a 400 naming the field."""
    error = refused(f'{{"{field}": {value}}}'.encode())
    assert error.param == field or "not valid JSON" in error.message


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ("", None),
        ('"max_tokens": null', None),
        ('"max_tokens": 16', 16),
        ('"max_tokens": 16.0', 16),
        ('"max_tokens": 1e9', 10**9),
        (f'"max_tokens": {MAX_OUTPUT_TOKENS}', MAX_OUTPUT_TOKENS),
        ('"max_completion_tokens": 5', 5),
        ('"max_tokens": 5, "max_completion_tokens": 7', 7),
        ('"max_tokens": 7, "max_completion_tokens": 5', 7),
        ('"max_tokens": 7, "max_tokens": 9', 9),
    ],
)
def test_f029_usual_output_limits_are_read(fields: str, limit: int | None) -> None:
    """F029: missing and null mean none; whole floats are whole; of two limits the larger is reserved."""
    assert limit == read_chat(f"{{{fields}}}".encode()).max_output_tokens


def test_the_smaller_of_two_limits_is_kept() -> None:
    """Only where there are two and they differ; and best_of answers that an engine may not give say no length."""
    for fields, cut in (
        ('"max_tokens": 9, "max_completion_tokens": 2', 2),
        ('"max_tokens": 2, "max_completion_tokens": 9', 2),
        ('"max_tokens": 9, "max_completion_tokens": 9', None),
        ('"max_completion_tokens": 9', None),
    ):
        assert cut == read_chat(f"{{{fields}}}".encode()).cut_output_tokens
    several = read_completion(b'{"prompt": "x", "n": 2, "best_of": 5}')
    assert (5, 1) == (several.samples, several.cut_output_tokens)
    assert None is read_completion(b'{"prompt": "x", "n": 5, "best_of": 5}').cut_output_tokens


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ('"hello"', (5, None, 1)),
        ('["a", "bcd"]', (4, None, 2)),
        ("[1, 2, 30000]", (0, 3, 1)),
        ("[[1, 2], [3]]", (0, 3, 2)),
        ("[[1], [], [2, 3]]", (0, 3, 3)),
        ("[[]]", (0, 0, 1)),
        ("[]", (0, 0, 1)),
        ("null", (0, None, 1)),
    ],
)
def test_prompts_of_completions(prompt: str, expected: tuple[int, int | None, int]) -> None:
    """Strings count by bytes, id lists exactly, and each of several prompts is a sample."""
    ask = read_completion(f'{{"prompt": {prompt}}}'.encode())
    assert expected == (ask.prompt_bytes, ask.prompt_tokens, ask.samples)


@pytest.mark.parametrize("prompt", ["7", "true", "{}", "[1.5]", "[-1]", '[1, "a"]', "[[[1]]]", "[1, [2]]"])
def test_prompts_of_other_kinds_are_refused(prompt: str) -> None:
    """A prompt that no engine takes is a 400 naming it."""
    with pytest.raises(BadRequest) as caught:
        read_completion(f'{{"prompt": {prompt}}}'.encode())
    assert caught.value.param == "prompt"


def test_samples_multiply_prompts() -> None:
    """`n` and `best_of` are taken at their larger, for each prompt."""
    assert read_completion(b'{"prompt": ["a", "b", "c"], "n": 2, "best_of": 4}').samples == 12
    for bad in (b'{"n": 0}', b'{"n": 1.5}', b'{"best_of": -1}', b'{"n": 1000000}'):
        with pytest.raises(BadRequest):
            read_completion(bad)


def test_escaped_keys_and_duplicates() -> None:
    """Keys are compared unescaped and the last of two wins, as engines read them."""
    assert read_chat(b'{"mod\\u0065l": "a", "model": "b"}').model == "b"


def test_completions_without_a_limit_use_the_engines() -> None:
    """VLLM and SGLang stop /v1/completions at 16 tokens if nothing is said; others do not."""
    assert [16, 16, None, None] == [unstated_limit(kind) for kind in ("vllm", "sglang", "llamacpp", "openai")]


def test_a_model_name_has_a_bound() -> None:
    """A name of any length would be kept in records for long: a longer one than any model has is a 400."""
    longest = "m" * MODEL_NAME_CHARS
    for read in (read_chat, read_completion):
        assert longest == read(json.dumps({"model": longest}).encode()).model
        with pytest.raises(BadRequest) as caught:
            read(json.dumps({"model": longest + "m"}).encode())
        assert caught.value.param == "model"


def test_a_crowd_of_tiny_parts_is_not_decoded() -> None:
    """Messages by the million are counted as text and make no objects, which would take ten times the body's size."""
    crowd = b"[" + b"{}," * DECODED_PARTS + b"{}]"
    assert len(crowd) > LARGE_BODY_BYTES
    ask = read_chat(b'{"model": "m", "max_tokens": 5, "messages": ' + crowd + b"}")
    assert ("m", 5, len(crowd)) == (ask.model, ask.max_output_tokens, ask.prompt_bytes)
    few = json.dumps({"messages": [{"content": "x" * 2_000_000}]}).encode()
    assert read_chat(few).prompt_bytes == 2_000_000
    with pytest.raises(BadRequest) as caught:
        read_completion(b'{"prompt": [' + b'"ab",' * DECODED_PARTS + b'"ab"]}')
    assert caught.value.param == "prompt"
    assert read_completion(b'{"prompt": "' + b'\\"' * 2_000_000 + b'"}').prompt_bytes == 2_000_000


@pytest.mark.parametrize(
    "prompt", ["[" + ",".join(["[1]"] * 200_000) + "]", '["' + '","'.join("a" * 10_000) + '"]', "[[],[]]"]
)
def test_one_request_cannot_ask_for_any_number_of_answers(prompt: str) -> None:
    """A list of prompts times `n` has a bound: it must not book a whole pool."""
    body = f'{{"prompt":{prompt},"n":128}}'.encode()
    if len(prompt) < 10:
        assert 256 == read_completion(body).samples
        return
    with pytest.raises(BadRequest, match="answers"):
        read_completion(body)
