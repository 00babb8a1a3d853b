"""`forebay explain`."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from forebay.cli.main import cli
from tests.unit.cli.admin import Admin


def check(
    name: str, what: str, found: str, allowed: str, *, passed: bool = False, decided: bool = False
) -> dict[str, Any]:
    """One line of the table."""
    return {
        "name": name,
        "what": what,
        "found": found,
        "allowed": allowed,
        "passed": passed,
        "decided": decided,
    }


TOLD: dict[str, Any] = {
    "ticket": 42,
    "id": "5f1c9a0b3d7e-2a",
    "request_id": "my/call",
    "state": "ended",
    "explanation": {
        "summary": ["It was refused at once (queue_full): The waiting line is full.", "More."],
        "checks": [
            check("endpoints_up", "engines", "2", "", passed=True),
            check("pool_queue_requests", "waiting", "9", "8", decided=True),
            check("waiting_bytes", "bodies", "9 bytes", "8 bytes"),
        ],
        "would_admit": ["Fewer requests waiting."],
    },
    "decisions": [],
    "end": None,
}


def test_sentences_come_first_then_the_checks_then_what_would_have_let_it_in(admin: Admin) -> None:
    """In columns, with the one that decided marked."""
    admin.answer = json.dumps(TOLD).encode()
    result = CliRunner().invoke(cli, ["explain", "my/call", "--admin", admin.address])
    assert 0 == result.exit_code
    assert ["/api/requests/my%2Fcall"] == [path for _, path, _, _ in admin.asked]
    assert [
        "Request 5f1c9a0b3d7e-2a, sent as my/call: ended",
        "",
        "It was refused at once (queue_full): The waiting line is full.",
        "More.",
        "",
        "check                         found    at most  what is compared",
        "endpoints_up         ok       2                 engines",
        "pool_queue_requests  DECIDED  9        8        waiting",
        "waiting_bytes        failed   9 bytes  8 bytes  bodies",
        "",
        "What would have let it in:",
        "  - Fewer requests waiting.",
    ] == result.output.splitlines()


def test_json_is_what_the_api_says(admin: Admin) -> None:
    """Whole."""
    admin.answer = json.dumps(TOLD).encode()
    result = CliRunner().invoke(cli, ["explain", "5f1c9a0b3d7e-2a", "--json", "--admin", admin.address])
    assert TOLD == json.loads(result.stdout)


def test_an_unknown_request_is_told_with_where_to_ask(admin: Admin) -> None:
    """Exit code 1: it was asked for, and is not there."""
    admin.status, admin.answer = 404, b'{"error": "nothing is known of this request here"}'
    result = CliRunner().invoke(cli, ["explain", "x", "--admin", admin.address])
    assert (1, True) == (result.exit_code, "nothing is known" in result.output)
