from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from forebay.gateway.error_shapes import ErrorShape
from forebay.gateway.routes import (
    ADMITTED,
    PASSED_POSTS,
    admitted_route,
    allowed_methods,
    errors_of,
    not_allowed,
    not_found,
)

ENGINES: Final = json.loads(Path(__file__).with_name("engine_routes.json").read_text(encoding="utf-8"))
"""Routes of engines, as their own lists show them: those that clients are to reach, and all others."""
GETS: Final = ("/version",)


def methods_of(path: str) -> list[str]:
    """What may be done at a path."""
    return (allowed_methods(path, GETS) or b"").decode().split(", ")


@pytest.mark.parametrize("engine", ENGINES)
def test_routes_of_engines_are_served_or_not(engine: str) -> None:
    """Inference and the counting of tokens are served, by whatever engine; what administers one never is."""
    for route in ENGINES[engine]["served"]:
        method, _, path = route.partition(" ")
        assert method in methods_of(path), route
    for route in ENGINES[engine]["not_served"]:
        method, _, path = route.partition(" ")
        assert method not in methods_of(path), route


def test_nothing_is_served_that_no_engine_has() -> None:
    """Each path of the table is a route of an engine, or one of OpenAI's own for pictures and speech."""
    known = {route.partition(" ")[2] for engine in ENGINES.values() for route in engine["served"]}
    own = {path for path in ADMITTED if path.startswith("/v1/images/")} | {"/v1/audio/speech"}
    assert set() == {*ADMITTED, *PASSED_POSTS} - known - own


def test_a_path_may_name_the_model() -> None:
    """Triton's paths name the model and say whether the answer is streamed."""
    plain = admitted_route("/v2/models/my%20llama/generate")
    stream = admitted_route("/v2/models/llama/versions/1/generate_stream")
    assert plain is not None
    assert stream is not None
    body = b'{"text_input": "hello", "max_tokens": 7}'
    asks = [plain.read(body), stream.read(body)]
    assert [("my llama", False, 5, 7), ("llama", True, 5, 7)] == [
        (ask.model, ask.stream, ask.prompt_bytes, ask.max_output_tokens) for ask in asks
    ]


def test_errors_of_a_path() -> None:
    """The Messages API has errors of its own shape, on all its paths."""
    assert {ErrorShape.ANTHROPIC} == {
        errors_of(path) for path in ("/v1/messages", "/v1/messages/count_tokens")
    }
    assert ErrorShape.OPENAI is errors_of("/v1/embeddings")


def test_methods_of_paths() -> None:
    """Each known path has its methods; unknown ones have none."""
    assert allowed_methods("/v1/completions", GETS) == b"POST, OPTIONS"
    for path in ("/healthz", "/v1/models", "/v1/models/a/b", "/version"):
        assert allowed_methods(path, GETS) == b"GET, HEAD, OPTIONS"
    for path in ("/", "/v1/modelsx", "/version", "/v1/chat/completions/"):
        assert allowed_methods(path, ()) is None


def test_unknown_paths_get_help() -> None:
    """A 404 says what is served, and repeats nothing of the path."""
    plain = json.loads(not_found("/secret-path", GETS).body)["error"]
    assert ("not_found", "secret" in plain["message"]) == (plain["code"], False)
    assert "POST /v1/chat/completions" in plain["message"]
    assert "GET /v1/models, GET /healthz, GET /version" in plain["message"]
    for path in ("/chat/completions", "/completions", "/models"):
        assert "put /v1 before it" in json.loads(not_found(path, ()).body)["error"]["message"]
    assert "slash" in json.loads(not_found("/v1/completions/", ()).body)["error"]["message"]


def test_other_methods_are_told_the_right_ones() -> None:
    """A 405 carries Allow."""
    answer = not_allowed(b"POST, OPTIONS")
    assert (405, b"POST, OPTIONS") == (answer.status, dict(answer.headers)[b"allow"])
