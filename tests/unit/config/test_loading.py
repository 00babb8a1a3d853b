"""Files, environment and options to one configuration, and every problem with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.config import ConfigError, load
from forebay.config.units import Address

POOLS = "pools:\n- endpoints: [http://10.0.0.1:8000]\n"


def written(folder: Path, text: str) -> Path:
    """A file with this text."""
    path = folder / "forebay.yaml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """The problems with a file, each without its file name."""
    path = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        load(path, environ=environ or {})
    return [str(problem).removeprefix(f"{path}") for problem in caught.value.problems]


def test_upstreams_alone_are_enough() -> None:
    """Without a file, endpoints make a whole configuration with documented defaults."""
    loaded = load(
        None, environ={}, options={"pools": ("--upstream", [{"endpoints": ["http://localhost:8000"]}])}
    )
    config = loaded.config
    assert (Address("127.0.0.1", 8080), Address("127.0.0.1", 9321)) == (config.listen, config.admin)
    assert ["http://localhost:8000"] == [str(url) for url in config.pools[0].endpoints]
    assert (429, None, None) == (config.overload_status, config.default_class, config.classes)
    assert not loaded.pools_replaced


def test_the_last_source_wins(tmp_path: Path) -> None:
    """Command line beats environment beats file."""
    path = written(tmp_path, "listen: 127.0.0.1:1\nadmin: 127.0.0.1:2\noverload_status: 503\n" + POOLS)
    environ = {"FOREBAY_LISTEN": "127.0.0.1:3", "FOREBAY_ADMIN": "127.0.0.1:4"}
    config = load(path, environ=environ, options={"listen": ("--listen", "127.0.0.1:5")}).config
    assert (5, 4, 503) == (config.listen.port, config.admin.port, config.overload_status)


def test_options_that_replace_pools_are_noticed(tmp_path: Path) -> None:
    """The caller can tell that a file's pools would be dropped."""
    options = {"pools": ("--upstream", [{"endpoints": ["http://a:1"]}])}
    assert load(written(tmp_path, POOLS), environ={}, options=options).pools_replaced


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("polls: []\n" + POOLS, ":1:1: polls: unknown key; did you mean pools? (allowed here: admin, admin_token,"),
        (POOLS + "  endpoint: [x]\n", ":3:3: pools[0].endpoint: unknown key; did you mean endpoints? (allowed"),
        (POOLS + "  max_body: 1MiB\n", ":3:3: pools[0].max_body: unknown key; it belongs to limits (allowed here"),
        (POOLS + "shared_state: x\n", ":3:1: shared_state: this version of Forebay does not have this"),
        (POOLS + "  discovery: {dns: x}\n", ":3:3: pools[0].discovery: this version of Forebay does not have this"),
        (POOLS + "classes: {realtime: {max_stream: 0s}}\n", "classes.realtime.max_stream: found 0s, must be more"),
        (POOLS + "classes: {realtime: {max_stream: long}}\n", "classes.realtime.max_stream: "),
        (POOLS + "  gpus: many\n", ":3:3: pools[0].gpus: found the text 'many', expected a whole number"),
        (POOLS + "  gpus: 1.5\n", "pools[0].gpus: found 1.5, expected a whole number"),
        (POOLS + "  gpus: true\n", "pools[0].gpus: found true, expected a whole number"),
        (POOLS + "  gpus: 0\n", "pools[0].gpus: found 0, must be at least 1"),
        (POOLS + "  engine: vlm\n", "pools[0].engine: found the text 'vlm', allowed: auto, vllm, sglang, tgi, trtllm"),
        (POOLS + "  engine: vlm\n", "; did you mean vllm?"),
        (POOLS + "  poll_interval: 200\n", "pools[0].poll_interval: 200 has no unit; write 200s or 200ms"),
        (POOLS + "  poll_interval: 1ms\n", "pools[0].poll_interval: found 1ms, must be at least 50ms"),
        (POOLS + "  profile: {tokens: 3}\n", "pools[0].profile: expected learn, a profile's name, a file, or"),
        (POOLS + "  profile: {tokens_per_gpu_second: 0}\n", "tokens_per_gpu_second: found 0, must be at least 0.001"),
        (POOLS + "  models: []\n", "pools[0].models: too short, needs at least 1"),
        (POOLS + "  name: 'a b'\n", "pools[0].name: found 'a b'; a name has 1 to 100 letters"),
        (POOLS + "  name:\n", "pools[0].name: found nothing, expected text"),
        ("pools:\n- name: a\n", ":2:3: pools[0].endpoints: missing; list the engines, as in `endpoints: [http:"),
        ("pools:\n- endpoints: [ftp://a]\n", ":2:15: pools[0].endpoints[0]: found scheme 'ftp'; engines are reached"),
        ("pools: []\n", "pools: too short, needs at least 1"),
        ("pools: 3\n", "pools: found 3, expected a list"),
        ("", "pools: none: add `pools: [{name: main, endpoints: [http://HOST:8000]}]`, or use --upstream URL"),
        ("- a\n", "a configuration is a mapping of keys to values"),
        (POOLS + "classes: {fast: {weight: 2}}\ndefault_class: fast\n", "classes.fast: needs a ttft, as in `fast: {"),
        (POOLS + "classes: {a: {ttft: 1s}, b: {ttft: 1s}}\n", ":3:1: classes: requests may name no class: set def"),
        (POOLS + "default_class: bulk\n", ":3:1: default_class: 'bulk' is not a class; set default_class to one"),
        (POOLS + "classes: {}\n", "classes: too short, needs at least 1"),
        (POOLS + "listen: 127.0.0.1:5\nadmin: 127.0.0.1:5\n", ":4:1: admin: listen and admin are both 127.0.0.1:5"),
        (POOLS + "grace: 5s\nnotice: 5s\n", "notice: must be shorter than grace (5s)"),
        (POOLS + "- endpoints: [http://b]\n", "pools[1].name: the name 'default' is taken by pools[0]"),
        (POOLS + "- {name: b, endpoints: [http://10.0.0.1:8000]}\n", "pools[1].endpoints[0]: http://10.0.0.1:8000 is"),
        ("pools: [{endpoints: [http://a, http://a:80/v1]}]", "pools[0].endpoints[1]: http://a:80 is listed twice"),
        (POOLS + "overload_status: 500\n", "overload_status: found 500, allowed: 429, 503 or 529"),
        (POOLS + "record: {path: r, max_size: 1MB}\n", "max_size: found 1MB, must be at least 1MiB"),
        (POOLS + "record: r.jsonl\n", "expected a mapping of keys to values, as in `record: {path: requests.jsonl}`"),
        (POOLS + "limits: {max_body: 10}\n", "limits.max_body: found 10 bytes, must be at least 1024 bytes"),
    ],
)  # fmt: skip
def test_problem_says_where_what_and_what_is_allowed(tmp_path: Path, text: str, expected: str) -> None:
    """Each mistake is told with its line, its key, what was found and what is allowed."""
    assert any(expected in problem for problem in problems(tmp_path, text)), problems(tmp_path, text)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """A file with three mistakes gives three problems, in the order of the file."""
    found = problems(tmp_path, "listen: x\n" + POOLS + "  gpus: x\nnonsense: 1\n")
    assert [":1:1: listen", ":4:3: pools[0].gpus", ":5:1: nonsense"] == [
        ":".join(problem.split(":")[:3]) + ":" + problem.split(":")[3] for problem in found
    ]


def test_problem_of_an_override_names_the_variable(tmp_path: Path) -> None:
    """A mistake in the environment is not blamed on the file."""
    (found,) = problems(tmp_path, POOLS, {"FOREBAY_POOLS__0__GPUS": "many"})
    assert "FOREBAY_POOLS__0__GPUS: pools[0].gpus: found the text 'many', expected a whole number" == found


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"FOREBAY_POOLS__NAME": "a"}, "FOREBAY_POOLS__NAME: pools: found a mapping, expected a list"),
        ({"FOREBAY_POOLS__0__NAME": "a"}, "FOREBAY_POOLS__0__NAME: pools[0].endpoints: missing; list the engines"),
        ({"FOREBAY_POOLS__0__ENDPOINTS__0": "a"}, "FOREBAY_POOLS__0__ENDPOINTS__0: pools[0].endpoints[0]: found 'a'"),
        ({"FOREBAY_POOLS__1__NAME": "a"}, "FOREBAY_POOLS__1__NAME: there is no entry '1'; the next would be 0"),
    ],
)  # fmt: skip
def test_problem_of_something_built_from_variables_names_one(environ: dict[str, str], expected: str) -> None:
    """Where a variable made a list or a mapping, what is wrong with it is told with that variable."""
    with pytest.raises(ConfigError) as caught:
        load(None, environ=environ)
    (problem,) = caught.value.problems
    assert str(problem).startswith(expected)


def test_variables_alone_make_a_configuration() -> None:
    """Without a file, indices build pools and their endpoints."""
    environ = {
        "FOREBAY_POOLS__1__ENDPOINTS": "[http://c:1]",
        "FOREBAY_POOLS__1__NAME": "second",
        "FOREBAY_POOLS__0__ENDPOINTS__1": "http://b:1",
        "FOREBAY_POOLS__0__ENDPOINTS__0": "http://a:1",
    }
    pools = load(None, environ=environ).config.pools
    assert [["http://a:1", "http://b:1"], ["http://c:1"]] == [
        [str(endpoint) for endpoint in pool.endpoints] for pool in pools
    ]


def test_warnings_go_with_an_error() -> None:
    """A variable that names nothing is told even if the configuration cannot be used: it may be the reason."""
    with pytest.raises(ConfigError) as caught:
        load(None, environ={"FOREBAY_UPSTREAM": "http://a:1"})
    (warning,) = caught.value.warnings
    assert (
        "FOREBAY_UPSTREAM is set but names no setting; did you mean FOREBAY_POOLS__0__ENDPOINTS__0?"
        == warning
    )


def test_doubts_are_warnings_with_their_place(tmp_path: Path) -> None:
    """What is hardly meant does not stop the start, and is told with file and line."""
    path = written(tmp_path, POOLS + "  max_gpu_seconds: 0\n")
    (warning,) = load(path, environ={}).warnings
    assert warning.startswith(f"{path}:3:3: pools[0].max_gpu_seconds: 0 refuses every request")


def test_part_of_an_option_is_told_with_its_own(tmp_path: Path) -> None:
    """A problem with a value from a second option names that one, and no key beside it."""
    with pytest.raises(ConfigError) as caught:
        load(
            None,
            environ={},
            options={"pools": ("--upstream", [{"endpoints": ["http://a"], "profile": ""}])},
            part_options={("pools", 0, "profile"): "--profile"},
        )
    assert "--profile: expected learn, a profile's name" in str(caught.value)


def test_credential_is_never_repeated(tmp_path: Path) -> None:
    """A wrong credential is not in the message, and a right one is not in the text form of the configuration."""
    text = POOLS + "admin_token: {hunter2: x}\n"
    assert not any("hunter2" in problem for problem in problems(tmp_path, text))
    loaded = load(written(tmp_path, POOLS + "admin_token: hunter2-hunter2\n"), environ={})
    assert "hunter2" not in repr(loaded)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(b"\xff\xfe\x00", "not UTF-8"), (b"a" * 300_000, "larger than 256 KiB")],
)
def test_files_that_are_no_configuration_are_refused(tmp_path: Path, raw: bytes, expected: str) -> None:
    """Binary or huge files are refused without being parsed."""
    path = tmp_path / "f"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=expected):
        load(path, environ={})


def test_missing_file_and_folder_are_told_plainly(tmp_path: Path) -> None:
    """The reason that the system gives is in the message."""
    for path, reason in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=reason):
            load(path, environ={})


def test_byte_order_mark_is_harmless(tmp_path: Path) -> None:
    """A file saved with a byte order mark is read."""
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + POOLS.encode())
    assert 1 == len(load(path, environ={}).config.pools)


def test_older_names_reach_the_pools_of_options_too() -> None:
    """And a value that makes no sense is told by its variable."""
    options = {"pools": ("--upstream", [{"endpoints": ["http://a"]}])}
    loaded = load(None, environ={"POLL_INTERVAL_MS": "350", "MAX_POOL_GPU_SECONDS": "60"}, options=options)
    (pool,) = loaded.config.pools
    assert pytest.approx(0.35) == pool.poll_interval
    assert 60.0 == pool.max_gpu_seconds
    options = {"pools": ("--upstream", [{"endpoints": ["http://a"]}])}
    with pytest.raises(ConfigError, match="MAX_POOL_GPU_SECONDS"):
        load(None, environ={"MAX_POOL_GPU_SECONDS": "many"}, options=options)
