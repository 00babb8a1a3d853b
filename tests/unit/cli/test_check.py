"""`forebay check`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from forebay.cli.main import cli


@pytest.fixture(autouse=True)
def _no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the machine that runs the tests have no say."""
    for variable in ("FOREBAY_LISTEN", "FOREBAY_POOLS", "FOREBAY_CONFIG"):
        monkeypatch.delenv(variable, raising=False)


def check(path: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = CliRunner().invoke(cli, ["check", str(path)])
    return result.exit_code, result.stdout, result.stderr


def test_usable_file_is_ok_and_explained(tmp_path: Path) -> None:
    """A usable file gives OK, exit code 0, and what it comes to with the defaults filled in."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "listen: 0.0.0.0:8080\n"
        "pools:\n"
        "- name: llama\n"
        "  endpoints: [http://10.0.0.1:8000, http://10.0.0.2:8000]\n"
        "  gpus: 4\n"
        "  max_gpu_seconds: 120\n"
        "  profile: {tokens_per_gpu_second: 240}\n"
        "limits: {max_waiting_bytes: 64MiB}\n"
    )
    code, out, err = check(path)
    assert (0, "") == (code, err)
    assert f"OK: {path}\n" in out
    assert (
        "pool llama: 2 endpoints, 4 GPUs each, speed from its profile, at most 120 GPU-seconds × headroom 0.9"
        in out
    )
    assert (
        "class 2 standard: first token in 5s, then 120ms per token, waits at most 5s, weight 5, value 2, sjf, default\n"
    ) in out
    assert "class_order weighted, displace lower\n" in out
    assert "at most 64 MiB" in out


def test_an_objective_for_whole_answers_is_told(tmp_path: Path) -> None:
    """Where one is stated."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "pools: [{endpoints: [http://10.0.0.1:8000]}]\nclasses: {standard: {whole_answer: 90s}}\n"
    )
    _, out, _ = check(path)
    assert "standard: first token in 5s, then 120ms per token, whole answers in 90s, waits" in out


def test_rules_and_fallbacks_are_summed_up(tmp_path: Path) -> None:
    """How many rules cost something for each request is worth knowing."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "pools:\n"
        "- {name: big, endpoints: [http://10.0.0.1:8000], fallback: small}\n"
        "- {name: small, endpoints: [http://10.0.0.2:8000]}\n"
        "rules:\n"
        "- {name: cliff, when: running_seq_count > 32, then: {refuse: {}}}\n"
        "- {name: long, when: request.max_tokens > 4096, then: {class: batch}}\n"
    )
    code, out, _ = check(path)
    assert 0 == code
    assert "speed learned, falls back to small\n" in out
    assert "rules: 2, 1 of them asked for each request\n" in out


def test_unusable_file_gives_every_problem_and_2(tmp_path: Path) -> None:
    """Each problem is a line on stderr, and the exit code says that the configuration is wrong."""
    path = tmp_path / "forebay.yaml"
    path.write_text("listen: x\npools:\n- endpoints: [http://a]\n  profile: no-such-profile\n  gpus: 0\n")
    code, out, err = check(path)
    assert (2, "") == (code, out)
    assert f"{path}:1:1: listen: no port in 'x'; write it like x:8080" in err
    assert f"{path}:5:3: pools[0].gpus: found 0, must be at least 1" in err
    assert err.endswith("2 problems\n")


def test_what_is_set_of_classes_is_told(tmp_path: Path) -> None:
    """Bounds and orders that are not the usual ones can be held against what was meant."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "pools:\n- endpoints: [http://a]\n"
        "class_order: strict\ndisplace: same\n"
        "classes:\n  fast: {ttft: 1s, weight: 4, order: edf, max_queue: 7, max_share: 0.25}\n"
    )
    code, out, _ = check(path)
    assert code == 0
    assert "weight 4, value 1, edf, at most 7 waiting, at most 25% while others wait, default\n" in out
    assert "class_order strict, displace same\n" in out


def test_plans_and_who_has_them_are_told(tmp_path: Path) -> None:
    """With what they allow, and whether strangers are let in; no key, and no digest of one."""
    path = tmp_path / "forebay.yaml"
    digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    path.write_text(
        "pools:\n- endpoints: [http://a]\n"
        "classes:\n  standard: {never_refuse: true}\n"
        "plans:\n  free: {classes: [standard], tokens_per_second: 500, burst: 2000, max_inflight: 4}\n"
        "  big: {weight: 10, never_refuse: true}\n"
        f"tenants:\n- {{name: acme, plan: big, keys: ['sha256:{digest}']}}\n- {{name: b, plan: free, keys: []}}\n"
        "trusted_proxies: [10.0.0.0/8]\n"
    )
    code, out, err = check(path)
    assert (0, "") == (code, err)
    free = "weight 1, classes standard, 500 tokens/s, 2000 at once, 4 in flight, for 1 tenant"
    assert f"plan free: {free}\n" in out
    assert "plan big: weight 10, never refused, all classes, no limits, for 1 tenant\n" in out
    assert "waits as long as it takes" in out
    assert "requests without a known key are refused\n" in out
    assert digest not in out
    path.write_text(path.read_text() + "anonymous: {plan: free}\n")
    out = check(path)[1]
    assert "for 1 tenant and all without a key\n" in out
    assert "are refused" not in out


def test_contradictions_are_told_beside_wrong_values(tmp_path: Path) -> None:
    """One look is enough to mend a file; what follows from a wrong value is not told as well."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "pools:\n- endpoints: [http://a, http://a]\n  gpus: 0\ndefault_class: none-such\n"
        "classes:\n  fast: {ttft: x}\n  slow: {ttft: 9s}\nunheard_of: 1\n"
    )
    code, _, err = check(path)
    assert code == 2
    for line in (
        f"{path}:2:25: pools[0].endpoints[1]: http://a:80 is listed twice; keep one",
        f"{path}:3:3: pools[0].gpus: found 0, must be at least 1",
        f"{path}:4:1: default_class: 'none-such' is not a class; set default_class to one of fast, slow",
        f"{path}:8:1: unheard_of: unknown key",
    ):
        assert line in err
    assert "classes.fast" in err
    assert "needs a ttft" not in err
    assert err.endswith("5 problems\n")


def test_unknown_profile_is_told_with_the_known_ones(tmp_path: Path) -> None:
    """A profile that does not exist is a located problem that names those that do."""
    path = tmp_path / "forebay.yaml"
    path.write_text("pools:\n- endpoints: [http://a]\n  profile: llama3-8b-h100x1-bf61\n")
    code, _, err = check(path)
    assert 2 == code
    assert f"{path}:3:3: pools[0].profile: " in err
    assert "llama3-8b-h100x1-bf16" in err


def test_overrides_of_the_environment_are_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that would stop `serve` stops `check`; one that names nothing is a warning."""
    path = tmp_path / "forebay.yaml"
    path.write_text("pools:\n- endpoints: [http://a]\n")
    monkeypatch.setenv("FOREBAY_LISTN", "x")
    code, _, err = check(path)
    assert (0, "warning: FOREBAY_LISTN is set but names no setting; did you mean FOREBAY_LISTEN?\n") == (
        code,
        err,
    )
    monkeypatch.setenv("FOREBAY_OVERLOAD_STATUS", "418")
    code, _, err = check(path)
    assert 2 == code
    assert "FOREBAY_OVERLOAD_STATUS: overload_status: found 418, allowed: 429, 503 or 529" in err


def test_doubts_are_warnings_and_the_file_is_ok(tmp_path: Path) -> None:
    """What can be used but is hardly meant gives warnings with their places, and exit code 0."""
    path = tmp_path / "forebay.yaml"
    path.write_text("admin: 0.0.0.0:9321\npools:\n- endpoints: [http://a]\n  max_gpu_seconds: 0\n")
    code, out, err = check(path)
    assert 0 == code
    assert f"OK: {path}\n" in out
    assert f"warning: {path}:4:3: pools[0].max_gpu_seconds: 0 refuses every request" in err
    assert f"warning: {path}:1:1: admin: " in err


def test_dash_is_standard_input() -> None:
    """`-` reads the file from standard input, and places name it."""
    result = CliRunner().invoke(cli, ["check", "-"], input="pools: [{endpoints: [http://a]}]\n")
    assert (0, True) == (result.exit_code, result.stdout.startswith("OK: standard input\n"))
    result = CliRunner().invoke(cli, ["check", "-"], input="polls: []\n")
    assert 2 == result.exit_code
    assert "standard input:1:1: polls: unknown key; did you mean pools?" in result.stderr


def test_what_limits_is_told_where_it_is_stated(tmp_path: Path) -> None:
    """Ceilings, models of a plan, and where GPUs are read."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "pools: [{endpoints: ['http://10.0.0.1:8000'], gpu_metrics: ['http://10.0.0.1:9400']}]\n"
        "classes: {standard: {admit_below_utilization: 0.6}}\n"
        "plans: {free: {models: [a, 'b-*']}}\nanonymous: {plan: free}\n"
    )
    _, out, _ = check(path)
    assert "its GPUs told by 1 exporter\n" in out
    assert "starts while the pool is used less than 60%" in out
    assert "all classes, models a, b-*, no limits, for 0 tenants and all without a key" in out


def test_what_is_passed_and_counted_is_told(tmp_path: Path) -> None:
    """Paths that are passed without admission are named; one that is served anyway is a mistake."""
    path = tmp_path / "forebay.yaml"
    path.write_text("pools: [{endpoints: [http://10.0.0.1:8000], passthrough: [/sleep, /lora/*]}]\n")
    code, out, _ = check(path)
    assert (0, True) == (code, "without admission /sleep, /lora/*" in out)
    path.write_text("pools: [{endpoints: [http://10.0.0.1:8000], passthrough: [/sleep, /v1/messages]}]\n")
    code, _, err = check(path)
    assert (2, True) == (code, "pools[0].passthrough[1]: /v1/messages is served anyway" in err)
    path.write_text("pools: [{endpoints: [http://10.0.0.1:8000], passthrough: [sleep]}]\n")
    assert 2 == check(path)[0]
    path.write_text("pools: [{endpoints: [http://10.0.0.1:8000], tokenizer: nowhere.json}]\n")
    code, _, err = check(path)
    assert (2, True) == (code, "pools[0].tokenizer: cannot be used" in err)


def test_every_bound_of_a_pool_is_summed_up(tmp_path: Path) -> None:
    """Counts are told to the last digit."""
    path = tmp_path / "forebay.yaml"
    path.write_text(
        "pools: [{endpoints: [http://10.0.0.1:8000], queue_policy: balanced, max_inflight_tokens: 1234567, "
        "max_output_tokens: 4096}]\n"
    )
    _, out, _ = check(path)
    assert "at most 1234567 KV tokens in flight per endpoint, at most 4096 output tokens" in out
    assert "queue_policy balanced" in out
