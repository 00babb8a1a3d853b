from __future__ import annotations

import json

import pytest

from forebay.gateway.error_shapes import ErrorShape, event_of, in_shape, tell
from forebay.gateway.refusals import Answer, error_body, plain_error
from tests.unit.gateway.doubles import ScriptedExchange


def test_anthropic_errors() -> None:
    """Clients of the Messages API find its own types; the code stays."""
    answer = in_shape(plain_error(400, "invalid_request", "Wrong.", "max_tokens"), ErrorShape.ANTHROPIC)
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "Wrong.",
            "param": "max_tokens",
            "code": "invalid_request",
        },
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_anthropic_types(status: int, kind: str) -> None:
    """Each status has the type that Anthropic gives it."""
    assert (
        kind
        == json.loads(in_shape(plain_error(status, "c", "m"), ErrorShape.ANTHROPIC).body)["error"]["type"]
    )


def test_other_answers_stay() -> None:
    """OpenAI's shape is the one that errors are made in; what is no error of ours is never touched."""
    own = plain_error(400, "c", "m")
    assert own is in_shape(own, ErrorShape.OPENAI)
    engines = Answer(400, [], b'{"detail": "x"}')
    assert engines is in_shape(engines, ErrorShape.ANTHROPIC)


def test_events_have_names_where_clients_look_at_them() -> None:
    """In a stream Anthropic's clients and those of responses look for `event: error`."""
    body = error_body(429, "queue_full", "Full.")
    assert event_of(ErrorShape.OPENAI, 429, body) == b"data: " + body + b"\n\n"
    for shape in (ErrorShape.ANTHROPIC, ErrorShape.RESPONSES):
        name, data = event_of(shape, 429, body).rstrip(b"\n").split(b"\n")
        told = json.loads(data.removeprefix(b"data: "))
        assert (b"event: error", "error", "queue_full") == (name, told["type"], told["error"]["code"])


@pytest.mark.parametrize("shape", ErrorShape)
def test_told_after_comments(shape: ErrorShape) -> None:
    """Once comments have gone out, an error is an event, ours or the engine's, and the connection ends."""
    for answer in (
        plain_error(429, "queue_full", "Full."),
        Answer(503, [], b'{"error":\r\n{"message": "busy"}}'),
    ):
        exchange = ScriptedExchange(b"")
        exchange.begin_events([])
        tell(exchange, answer, shape)
        assert ["abort"] == exchange.ends
        assert b"data: {" in exchange.sent
        assert (shape is ErrorShape.OPENAI) != exchange.sent.startswith(b"event: error\n")
