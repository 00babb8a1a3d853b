from __future__ import annotations

import json

import pytest

from forebay.admission.model import Usage
from forebay.gateway import engine_answers
from forebay.http.message import ResponseHead


def head(status: int, content_type: bytes) -> ResponseHead:
    """A response head."""
    return ResponseHead(status, b"", [(b"content-type", content_type)], True, None, True)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"choices":[{"text":"x","finish_reason":"abort"}]}', True),
        (b'{"choices":[{"finish_reason": "abort"}]}', True),
        (b'{"choices":[{"finish_reason":"stop","stop_reason":"abort"}]}', False),
        (b'{"choices":[{"text":"\\"finish_reason\\":\\"abort\\"","finish_reason":"stop"}]}', False),
        (b'"abort"', False),
        (b"", False),
    ],
)
def test_an_answer_that_was_given_up_says_so(body: bytes, expected: bool) -> None:
    """By its finish reason; a stop string and the text itself do not look like it."""
    assert expected is engine_answers.gave_up(body)


@pytest.mark.parametrize(
    ("status", "content_type", "expected"),
    [
        (200, b"text/event-stream", True),
        (200, b"Text/Event-Stream; charset=utf-8", True),
        (200, b"application/json", False),
        (503, b"text/event-stream", False),
    ],
)
def test_streams_are_told_by_their_type(status: int, content_type: bytes, expected: bool) -> None:
    """A stream is a successful answer of that type, whatever the client asked for."""
    assert expected == engine_answers.is_stream(head(status, content_type))


def test_which_errors_another_endpoint_may_cure() -> None:
    """5xx, 429 and 408 may be cured elsewhere; other 4xx judge the request."""
    assert [True] * 5 == [engine_answers.is_refusal(s) for s in (500, 503, 504, 429, 408)]
    assert [False] * 6 == [engine_answers.is_refusal(s) for s in (200, 400, 401, 404, 422, 501)]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b'{"error": {"message": "busy", "type": "Service Unavailable", "param": null, "code": 503}}', 503),
        (b'{"error": {"code": 400, "message": "too long"}}', 400),
        (b'{"object": "error", "message": "full", "code": 503}', 503),
        (b'{"error": {"code": "server_error"}}', 502),
        (b'{"error": {"code": 200}}', 502),
        (b'{"error": "boom"}', 502),
        (b"not json", 502),
    ],
)
def test_errors_inside_a_stream_get_their_status_back(data: bytes, status: int) -> None:
    """Nested and flat error objects give the status they name, else 502; the body is the engine's own."""
    answer = engine_answers.answer_from_event(data)
    assert (status, data) == (answer.status, answer.body)


@pytest.mark.parametrize(
    ("data", "usage"),
    [
        (b'{"prompt_tokens": 16, "total_tokens": 22, "completion_tokens": 6}', Usage(16, 6)),
        (
            b'{"prompt_tokens": 16, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 15}}',
            Usage(16, 6, 15),
        ),
        (b'{"prompt_tokens": 16, "completion_tokens": 6, "prompt_tokens_details": null}', Usage(16, 6)),
        (b'{"prompt_tokens": 0, "completion_tokens": 0}', Usage(0, 0)),
        (b'{"prompt_tokens": 5}', Usage(5, 0)),
        (b'{"prompt_tokens": -5, "completion_tokens": 1}', None),
        (b'{"prompt_tokens": "x"}', None),
        (b"{}", None),
        (b"null", None),
        (b'{"prompt_tokens"', None),
        (b'{"prompt_tokens": 1' + b"0" * 400 + b"}", None),
        (b'{"prompt_tokens": 3, "completion_tokens": 3000000000}', None),
        (
            b'{"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1' + b"0" * 400 + b"}}",
            Usage(3, 0, 3),
        ),
    ],
)
def test_usage_is_read_or_not_believed(data: bytes, usage: Usage | None) -> None:
    """Counts are taken as reported, zero included; what is missing or odd is no usage."""
    assert usage == engine_answers.usage_of_object(data)


def test_usage_of_whole_answers() -> None:
    """A whole answer's usage is found; null, missing and broken are none."""
    assert engine_answers.usage_of_body(
        b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}'
    ) == Usage(3, 4)
    for body in (b'{"usage": null}', b"{}", b"<html>", b"[" * 100_000):
        assert engine_answers.usage_of_body(body) is None


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"choices": [], "usage": {"prompt_tokens": 3}, "more": [{"x": 1}]}, Usage(3, 0)),
        ({"parts": {"usage": {"prompt_tokens": 9}}}, None),
        ({"parts": [{"usage": {"prompt_tokens": 9}}]}, None),
        ({"usage": {"prompt_tokens": 3}, "parts": {"usage": {"prompt_tokens": 9}}}, Usage(3, 0)),
        ({"text": '"usage":{"prompt_tokens":9}}', "usage": {"prompt_tokens": 3}}, Usage(3, 0)),
        ({"usage": {"prompt_tokens": 3}, "text": '"usage":{"prompt_tokens":9}}'}, Usage(3, 0)),
        ({"text": '"usage":{"prompt_tokens":9}}'}, None),
    ],
)
def test_only_the_usage_of_the_answer_itself_counts(answer: dict[str, object], usage: Usage | None) -> None:
    """Neither a deeper object of that name nor text that looks like one is taken for it, however JSON is spaced."""
    compact = json.dumps(answer, separators=(",", ":")).encode()
    assert engine_answers.usage_of_body(compact) == usage
    assert engine_answers.usage_of_body(json.dumps(answer, indent=2).encode()) == usage


def test_what_is_passed_on_is_worked_out_once_for_each_head() -> None:
    """The lines of an answer leave out framing and what is said anew, and are kept with the head."""
    fields = [(b"content-type", b"text/event-stream"), (b"x-request-id", b"r"), (b"connection", b"close")]
    answer = ResponseHead(200, b"", fields, True, None, True)
    passed = engine_answers.passed_head(answer)
    assert passed.is_stream
    assert passed.lines == (
        b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
    )
    assert passed.request_id == b"r"
    assert engine_answers.passed_head(answer) is passed


def test_limits_are_told_once() -> None:
    """Where our headers tell what is left to a tenant those of an engine behind are dropped; else they pass."""
    fields = [(b"X-RateLimit-Limit-Requests", b"9999"), (b"x-other", b"1")]
    head = ResponseHead(200, b"OK", [(name.lower(), value) for name, value in fields], True, 5, False)
    passed = engine_answers.passed_head(head)
    assert b"9999" in passed.joined(b"x-forebay-id: a\r\n")
    ours = passed.joined(b"x-ratelimit-limit-requests: 1\r\n")
    assert 1 == ours.lower().count(b"x-ratelimit-limit-requests")
    assert b"x-other: 1\r\n" in ours


@pytest.mark.parametrize(
    "name", [b"x-ratelimit-remaining-tokens", b"anthropic-ratelimit-input-tokens-remaining"]
)
def test_what_is_left_of_the_operators_account_reaches_no_client(name: bytes) -> None:
    """Where an engine is asked with our key it tells of our account, also to tenants without limits of their own."""
    fields = [(name, b"9999"), (b"x-other", b"1")]
    passed = engine_answers.passed_head(ResponseHead(200, b"OK", fields, True, 5, False))
    assert b"9999" in passed.joined(b"x-forebay-id: a\r\n")
    assert b"x-other: 1\r\nx-forebay-id: a\r\n" == passed.joined(b"x-forebay-id: a\r\n", our_account=True)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 14, "output_tokens": 4}, Usage(14, 4)),
        ({"input_tokens": 1, "cache_read_input_tokens": 13, "output_tokens": 4}, Usage(14, 4, 13)),
        ({"input_tokens": 1, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2}, Usage(6, 0, 3)),
        (
            {
                "input_tokens": 15,
                "output_tokens": 4,
                "input_tokens_details": {"cached_tokens": 3},
                "total_tokens": 19,
            },
            Usage(15, 4, 3),
        ),
        ({"total_tokens": 9}, Usage(9, 0)),
        ({"prompt_tokens": 9, "total_tokens": 9}, Usage(9, 0)),
        ({"output_tokens": 9}, None),
        ({"input_tokens": -1}, None),
        ({}, None),
    ],
)
def test_usage_of_all_apis(usage: dict[str, object], expected: Usage | None) -> None:
    """Responses and messages say input and output, rerankings a total; Anthropic's input leaves out what was cached."""
    assert expected == engine_answers.usage_of_object(json.dumps(usage).encode())


def test_the_first_usage_has_the_prompt() -> None:
    """Where the last usage of a stream has no input, that of the first counts."""
    first = b'{"input_tokens": 1, "cache_read_input_tokens": 13, "output_tokens": 0}'
    assert engine_answers.usage_of_object(b'{"output_tokens": 15}', first) == Usage(14, 15, 13)
    assert engine_answers.usage_of_object(b'{"output_tokens": 15, "input_tokens": 2}', first) == Usage(2, 15)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            {"stop": True, "tokens_predicted": 4, "tokens_evaluated": 6, "timings": {"cache_n": 2}},
            Usage(6, 4, 2),
        ),
        (
            [{"tokens_predicted": 4, "tokens_evaluated": 6}, {"tokens_predicted": 1, "tokens_evaluated": 2}],
            Usage(8, 5),
        ),
        ({"meta_info": {"prompt_tokens": 5, "completion_tokens": 7, "cached_tokens": 1}}, Usage(5, 7, 1)),
        ({"details": {"finish_reason": "length", "generated_tokens": 9, "input_length": 3}}, Usage(3, 9)),
        ({"details": {"finish_reason": "length", "generated_tokens": 9}}, None),
        ({"text_output": "x"}, None),
        ("x", None),
    ],
)
def test_usage_of_engines_own_routes(answer: object, expected: Usage | None) -> None:
    """llama.cpp, SGLang and TGI tell it in their own words; of several answers it is the sum."""
    data = json.dumps(answer).encode()
    assert expected == engine_answers.usage_of_native(data, [])
    assert expected == engine_answers.usage_of_ends([data])


def test_tgi_tells_usage_in_its_head() -> None:
    """A whole answer of TGI has it in header fields, which count if they are numbers."""
    headers = [(b"x-prompt-tokens", b"12"), (b"x-generated-tokens", b"3")]
    assert engine_answers.usage_of_native(b"{}", headers) == Usage(12, 3)
    assert (
        engine_answers.usage_of_native(b"{}", [(b"x-prompt-tokens", b"x"), (b"x-generated-tokens", b"3")])
        is None
    )


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, 529),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}, 429),
        ({"error": "full", "error_type": "overloaded"}, 429),
        ({"type": "error", "code": "server_error", "message": "x"}, 502),
        ({"error": {"type": "something", "message": "x"}}, 502),
    ],
)
def test_errors_in_place_of_an_answer_have_a_status(event: dict[str, object], status: int) -> None:
    """Where an error event has no number, its type says which it is."""
    assert status == engine_answers.answer_from_event(json.dumps(event).encode()).status
