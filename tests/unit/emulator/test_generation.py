from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.emulator.errors import RequestRefused
from forebay.emulator.generation import Generation, GenerationRules, read_chat, read_completion, read_tokenize

RULES = GenerationRules(model="toy", context_tokens=1000, seed=0)


def _chat(**fields: Any) -> Generation:
    return read_chat(
        json.dumps({"messages": [{"role": "user", "content": "hello"}], **fields}).encode(), RULES
    )


def _completion(**fields: Any) -> Generation:
    return read_completion(json.dumps({"prompt": "hello", **fields}).encode(), RULES)


def _error(refused: pytest.ExceptionInfo[RequestRefused]) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(refused.value.body())["error"]
    return error


def test_the_natural_length_ends_with_stop_and_a_limit_with_length() -> None:
    """An answer ends by itself unless the limit comes first."""
    free = _chat().samples[0]
    assert ("stop", 991) == (free.finish_reason, free.limit_tokens)
    cut = _chat(max_tokens=free.output_tokens - 1).samples[0]
    assert ("length", free.output_tokens - 1) == (cut.finish_reason, cut.output_tokens)


def test_ignore_eos_runs_to_the_limit() -> None:
    """With `ignore_eos` an answer has exactly `max_tokens`, or the rest of the context."""
    assert _chat(ignore_eos=True, max_tokens=77).samples[0].output_tokens == 77
    assert _chat(ignore_eos=True).samples[0].output_tokens == 1000 - 9


def test_the_true_length_can_be_fixed() -> None:
    """`emulator_output_tokens` decides the length, up to the limit."""
    fixed = _completion(emulator_output_tokens=12, max_tokens=50).samples[0]
    assert (12, "stop") == (fixed.output_tokens, fixed.finish_reason)
    cut = _completion(emulator_output_tokens=80, max_tokens=50).samples[0]
    assert (50, "length") == (cut.output_tokens, cut.finish_reason)


def test_a_completion_without_a_limit_gets_sixteen_tokens() -> None:
    """vLLM's default for completions is 16; a chat gets the rest of the context."""
    assert _completion(ignore_eos=True).samples[0].output_tokens == 16


def test_the_newer_name_of_the_limit_wins() -> None:
    """`max_completion_tokens` is taken before `max_tokens`."""
    assert _chat(ignore_eos=True, max_tokens=9, max_completion_tokens=5).samples[0].output_tokens == 5


def test_every_prompt_gets_its_samples() -> None:
    """A list of two prompts with n=2 makes four choices in order; prompt tokens count once per prompt."""
    made = _completion(prompt=["hello", "a longer prompt"], n=2)
    assert [(sample.index, sample.prompt.tokens) for sample in made.samples] == [
        (0, 2),
        (1, 2),
        (2, 4),
        (3, 4),
    ]
    assert made.prompt_tokens == 6


@pytest.mark.parametrize(("prompt", "tokens"), [([1, 2, 3], [3]), ([[1], [2, 3]], [1, 2]), ("abcdefgh", [2])])
def test_prompts_come_in_four_forms(prompt: object, tokens: list[int]) -> None:
    """Text, texts, token ids and lists of token ids are prompts."""
    assert [sample.prompt.tokens for sample in _completion(prompt=prompt).samples] == tokens


def test_content_parts_are_read_as_text() -> None:
    """Only the text of content parts counts; other parts are passed over."""
    content = [{"type": "text", "text": "abcd"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    body = {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": None}]}
    assert read_chat(json.dumps(body).encode(), RULES).prompt_tokens == 5 + 4 + 3


def test_numbers_are_taken_as_leniently_as_vllm_takes_them() -> None:
    """An integral float and a numeric string are the number."""
    assert _chat(ignore_eos=True, max_tokens=3.0).samples[0].output_tokens == 3
    assert _chat(ignore_eos=True, max_tokens="3").samples[0].output_tokens == 3


def test_usage_options_are_read() -> None:
    """Usage in every chunk is only given to those who also ask for it at the end."""
    both = _chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (True, True, True) == (both.stream, both.include_usage, both.continuous_usage)
    assert not _chat(stream=True, stream_options={"continuous_usage_stats": True}).continuous_usage


@pytest.mark.parametrize(
    ("fields", "status", "param", "text"),
    [
        ({"model": "other"}, 404, "model", "The model `other` does not exist"),
        ({"messages": []}, 400, None, "empty conversation"),
        ({"messages": "hi"}, 400, "body.messages", "Expected `array"),
        ({"messages": None}, 400, "body.messages", "Field required"),
        ({"messages": [{"content": "x"}]}, 400, "body.messages[0]", "role"),
        ({"max_tokens": 0}, 400, "max_tokens", "max_tokens must be at least 1, got 0"),
        ({"max_completion_tokens": -5}, 400, "max_completion_tokens", "at least 1, got -5"),
        ({"max_tokens": "lots"}, 400, "body.max_tokens", "Expected `int"),
        ({"max_tokens": 5000}, 400, "max_tokens", "cannot be greater than max_model_len=1000"),
        ({"max_tokens": 995}, 400, "max_tokens", "maximum context length is 1000 tokens"),
        ({"n": 0}, 400, "n", "n must be at least 1"),
        ({"n": 257}, 400, "n", "at most 256"),
        ({"temperature": -1}, 400, "temperature", "must be non-negative"),
        ({"emulator_output_tokens": 0}, 400, "emulator_output_tokens", "at least 1"),
        (
            {"messages": [{"role": "user", "content": "x" * 5000}]},
            400,
            "input_tokens",
            "at least 1001 input tokens",
        ),
    ],
)
def test_bad_requests_are_refused_as_vllm_refuses_them(
    fields: dict[str, object], status: int, param: str | None, text: str
) -> None:
    """Status, parameter and message name what is wrong; the code in the body is the status."""
    with pytest.raises(RequestRefused) as refused:
        _chat(**fields)
    error = _error(refused)
    assert (status, status, param) == (refused.value.status, error["code"], error["param"])
    assert text in error["message"]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "Field required"),
        (b'{"model": "x",', "JSON decode error"),
        (b"[1,2]", "Expected `object`, got `array`"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "UTF-8"),
        (b'{"x":' + b"[" * 200_000, "nested too deeply"),
        (b"{}", "Field required"),
    ],
)
def test_bodies_that_are_no_request_are_refused(raw: bytes, text: str) -> None:
    """Broken JSON, wrong shapes and endless nesting are a 400, never a crash."""
    with pytest.raises(RequestRefused) as refused:
        read_chat(raw, RULES)
    assert refused.value.status == 400
    assert text in _error(refused)["message"]


@pytest.mark.parametrize("prompt", [[], [[]], ["text", 1], [[1], "x"]])
def test_empty_and_mixed_prompts_are_refused(prompt: object) -> None:
    """A list of prompts has at least one, all of one form."""
    with pytest.raises(RequestRefused):
        _completion(prompt=prompt)


def test_tokenize_takes_both_forms() -> None:
    """/tokenize counts a prompt or a chat."""
    assert read_tokenize(b'{"prompt":"hello world"}').tokens == 3
    assert read_tokenize(b'{"messages":[{"role":"user","content":"hello world"}]}').tokens == 10
    with pytest.raises(RequestRefused):
        read_tokenize(b"{}")
