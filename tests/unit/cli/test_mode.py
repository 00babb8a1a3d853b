"""`forebay mode`, and how all commands ask a running gateway."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from forebay.cli.admin_client import AdminClient
from forebay.cli.main import cli
from tests.unit.cli.admin import Admin

STATE = {
    "mode": "enforce",
    "live": [{"pool": None, "class": "batch", "mode": "shadow"}],
    "pools": {"a": {"chat": "enforce", "batch": "shadow"}, "b": {"chat": "bypass", "batch": "bypass"}},
}


@pytest.fixture(autouse=True)
def _tells_modes(admin: Admin) -> None:
    admin.answer = json.dumps(STATE).encode()


def mode(admin: Admin, *arguments: str) -> Result:
    """Run the command against this API."""
    return CliRunner().invoke(cli, ["mode", *arguments, "--admin", admin.address])


def test_without_arguments_the_modes_are_shown(admin: Admin) -> None:
    """A pool whose classes agree takes one line."""
    result = mode(admin)
    assert (0, [("GET", "/api/mode", None, None)]) == (result.exit_code, admin.asked)
    assert [
        "enforce where nothing else is said",
        "pool a, class chat: enforce",
        "pool a, class batch: shadow",
        "pool b: bypass",
        "switched live: class batch to shadow",
    ] == result.output.splitlines()


def test_a_switch_is_sent_with_its_scope(admin: Admin) -> None:
    """And the credential of the environment with it."""
    result = CliRunner().invoke(
        cli,
        ["mode", "shadow", "--class", "batch", "--json"],
        env={"FOREBAY_ADMIN": f"http://{admin.address}/", "FOREBAY_ADMIN_TOKEN": "correct-horse"},
    )
    assert (0, STATE) == (result.exit_code, json.loads(result.stdout))
    body = {"mode": "shadow", "pool": "", "class": "batch"}
    assert [("POST", "/api/mode", body, "Bearer correct-horse")] == admin.asked


def test_a_scope_without_a_mode_is_wrong_usage(admin: Admin) -> None:
    """There is nothing to switch."""
    assert (2, []) == (mode(admin, "--pool", "a").exit_code, admin.asked)
    assert 2 == mode(admin, "off").exit_code


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (400, b'{"error": "there is no pool \'x\'; there are: a, b"}', "there are: a, b"),
        (401, b"send the admin_token", "FOREBAY_ADMIN_TOKEN"),
        (403, b"closed: the admin port is open to the network", "closed"),
        (404, b"Not Found", "404"),
        (200, b"<html>", "admin port"),
    ],
)
def test_an_error_says_what_to_do(admin: Admin, status: int, answer: bytes, said: str) -> None:
    """In one line, with exit code 1."""
    admin.status, admin.answer = status, answer
    result = mode(admin, "shadow")
    assert (1, True) == (result.exit_code, said in result.output)
    assert 1 == len(result.output.splitlines())


def test_no_gateway_is_told() -> None:
    """With the address that was tried."""
    result = CliRunner().invoke(cli, ["mode", "--admin", "127.0.0.1:9"])
    assert (1, True) == (result.exit_code, "http://127.0.0.1:9" in result.output)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (None, "http://127.0.0.1:9321"),
        ("9000", "http://127.0.0.1:9000"),
        (":9000", "http://127.0.0.1:9000"),
        ("0.0.0.0:9000", "http://127.0.0.1:9000"),
        ("gateway:9000", "http://gateway:9000"),
        ("https://gateway/", "https://gateway"),
    ],
)
def test_an_address_may_be_short(given: str | None, url: str) -> None:
    """What a configuration says of the admin port can be said here too."""
    assert url == AdminClient(given).url


def test_other_schemes_are_wrong_usage() -> None:
    """Above all no files."""
    result = CliRunner().invoke(cli, ["mode", "--admin", "file:///etc/passwd"])
    assert 2 == result.exit_code
