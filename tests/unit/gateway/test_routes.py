from __future__ import annotations

import json

from forebay.gateway.routes import ADMITTED, allowed_methods, not_allowed, not_found


def test_inference_paths_are_admitted() -> None:
    """Chat and completions are the paths that pass admission."""
    assert ["/v1/chat/completions", "/v1/completions"] == list(ADMITTED)


def test_methods_of_paths() -> None:
    """Each known path has its methods; unknown ones have none."""
    gets = ("/version",)
    assert allowed_methods("/v1/completions", gets) == b"POST, OPTIONS"
    for path in ("/healthz", "/v1/models", "/v1/models/a/b", "/version"):
        assert allowed_methods(path, gets) == b"GET, HEAD, OPTIONS"
    for path in ("/", "/v1/modelsx", "/version", "/v1/chat/completions/"):
        assert allowed_methods(path, ()) is None


def test_unknown_paths_get_help() -> None:
    """A 404 says what is served, names well-known paths of later, and repeats no others."""
    plain = json.loads(not_found("/secret-path", ("/version",)).body)["error"]
    assert ("not_found", "secret" in plain["message"]) == (plain["code"], False)
    assert "POST /v1/chat/completions" in plain["message"]
    assert plain["message"].endswith("GET /v1/models, GET /healthz, GET /version.")
    assert (
        "/v1/embeddings is not served" in json.loads(not_found("/v1/embeddings", ()).body)["error"]["message"]
    )
    for path in ("/chat/completions", "/completions", "/models"):
        assert "put /v1 before it" in json.loads(not_found(path, ()).body)["error"]["message"]
    assert "slash" in json.loads(not_found("/v1/completions/", ()).body)["error"]["message"]


def test_other_methods_are_told_the_right_ones() -> None:
    """A 405 carries Allow."""
    answer = not_allowed(b"POST, OPTIONS")
    assert (405, b"POST, OPTIONS") == (answer.status, dict(answer.headers)[b"allow"])
