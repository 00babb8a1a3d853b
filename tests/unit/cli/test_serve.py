"""`forebay serve`: what is wrong with its options, told before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import forebay.runtime.process
from forebay.cli.main import cli
from forebay.runtime.process import Prepared, StartFailed


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Prepared]:
    """What would have been run."""
    runs: list[Prepared] = []

    def run(prepared: Prepared, *, announce: Callable[[str], None], **_: Any) -> int:
        announce("ready")
        runs.append(prepared)
        return 0

    monkeypatch.setattr(forebay.runtime.process, "run", run)
    return runs


def serve(*arguments: str) -> Result:
    """The result of the command."""
    return CliRunner(env={"FOREBAY_CONFIG": None}).invoke(cli, ["serve", *arguments])


def test_upstreams_alone_are_enough(started: list[Prepared]) -> None:
    """One URL per endpoint is all that is needed."""
    result = serve("--upstream", "http://a:1", "--upstream", "http://b:1/v1")
    assert (0, "ready\n") == (result.exit_code, result.stdout)
    (pool,) = started[0].config.pools
    assert ["http://a:1", "http://b:1"] == [str(url) for url in pool.endpoints]


def test_options_reach_the_configuration(started: list[Prepared]) -> None:
    """Addresses, grace and profile are taken over; a profile's speed is the pool's."""
    serve(
        "--upstream", "http://a:1", "--listen", ":0", "--admin", "0", "--grace", "5s",
        "--profile", "llama3-8b-h100x1-bf16", "--shadow",
    )  # fmt: skip
    (prepared,) = started
    config = prepared.config
    assert ("0.0.0.0:0", "127.0.0.1:0", 5.0) == (str(config.listen), str(config.admin), config.grace)
    assert prepared.settings.pools[0].law is not None
    assert "shadow" == prepared.settings.mode.value


def test_file_and_options_go_together(started: list[Prepared], tmp_path: Path) -> None:
    """Options override the file; a file without pools takes those of --upstream."""
    path = tmp_path / "forebay.yaml"
    path.write_text("listen: 127.0.0.1:1\noverload_status: 503\n")
    assert 0 == serve("-c", str(path), "--upstream", "http://a:1", "--listen", "127.0.0.1:2").exit_code
    assert (2, 503) == (started[0].config.listen.port, started[0].config.overload_status)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "pools: none: add `pools:"),
        (("--upstream", "a:8000"), "Error: --upstream: found 'a:8000'; an endpoint is a URL, write http://a:8000"),
        (("--upstream", "http://a", "--listen", "x"), "Error: --listen: no port in 'x'"),
        (("--upstream", "http://a", "--grace", "30"), "Error: --grace: 30 has no unit; write 30s or 30ms"),
        (("--upstream", "http://a", "--profile", "nonsense"), "--profile: there is no engine profile 'nonsense'"),
        (("--profile", "learn"), "--profile describes --upstream engines"),
        (("-c", "/no/such/file.yaml"), "/no/such/file.yaml: cannot be read: No such file or directory"),
        (("--upstream", "http://a", "--log-format", "xml"), "'xml' is not one of"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told_with_the_fix(
    started: list[Prepared], arguments: tuple[str, ...], message: str
) -> None:
    """Each mistake ends with exit code 2 and a message that names the option and the fix."""
    result = serve(*arguments)
    assert 2 == result.exit_code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert [] == started


def test_warnings_come_before_the_error(started: list[Prepared], monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt variable is told where its being ignored is the reason of the error."""
    monkeypatch.setenv("FOREBAY_UPSTREAM", "http://a:1")
    for arguments in ((), ("--upstream", "http://a", "--profile", "nonsense")):
        result = serve(*arguments)
        assert 2 == result.exit_code
        assert result.stderr.startswith("warning: FOREBAY_UPSTREAM is set but names no setting")


def test_profiles_can_be_listed(started: list[Prepared]) -> None:
    """`--profile list` prints the names, as the engine's does, and starts nothing."""
    result = serve("--profile", "list")
    assert 0 == result.exit_code
    assert "llama3-8b-h100x1-bf16  (1 x h100_sxm, 445872 KV tokens)\n" in result.stdout
    assert [] == started


def test_levels_may_be_in_capitals(started: list[Prepared]) -> None:
    """`--log-level DEBUG` is what other programs call it."""
    assert 0 == serve("--upstream", "http://a", "--log-level", "DEBUG", "--log-format", "JSON").exit_code


def test_upstreams_and_pools_exclude_each_other(started: list[Prepared], tmp_path: Path) -> None:
    """A file's pools are not silently replaced."""
    path = tmp_path / "forebay.yaml"
    path.write_text("pools:\n- endpoints: [http://a]\n")
    result = serve("-c", str(path), "--upstream", "http://b")
    assert (2, True) == (result.exit_code, "exclude each other" in result.stderr)
    assert [] == started


def test_start_that_fails_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that is taken is no mistake of usage: exit code 1 and the reason."""

    def run(*_: object, **__: object) -> int:
        raise StartFailed("cannot listen on 127.0.0.1:8080")

    monkeypatch.setattr(forebay.runtime.process, "run", run)
    result = serve("--upstream", "http://a")
    assert (1, "Error: cannot listen on 127.0.0.1:8080\n") == (result.exit_code, result.stderr)
