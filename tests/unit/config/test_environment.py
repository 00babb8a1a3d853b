"""Overrides from the environment."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.config.environment import apply_override, fill_in_pools, overrides_from
from forebay.config.errors import ConfigError


def applied(environ: dict[str, str], data: dict[str, Any]) -> dict[str, Any]:
    """The data with the overrides of an environment."""
    overrides, _ = overrides_from(environ)
    for override in overrides:
        apply_override(override, data)
    return data


def test_values_are_yaml() -> None:
    """A variable may hold a number, a list or a mapping."""
    environ = {"FOREBAY_OVERLOAD_STATUS": "503", "FOREBAY_POOLS": "[{endpoints: ['http://a:1']}]"}
    assert {"overload_status": 503, "pools": [{"endpoints": ["http://a:1"]}]} == applied(environ, {})


def test_credentials_stay_text() -> None:
    """A credential of digits does not become a number."""
    assert {"admin_token": "0123456789"} == applied({"FOREBAY_ADMIN_TOKEN": "0123456789"}, {})
    pools = {"pools": [{"upstream_key": "0123456789"}]}
    assert pools == applied({"FOREBAY_POOLS__0__UPSTREAM_KEY": "0123456789"}, {"pools": [{}]})


def test_double_underscores_go_down() -> None:
    """Nested keys, list entries and class names can be set."""
    data: dict[str, Any] = {"pools": [{"gpus": 1}], "classes": {"My-Class": {"ttft": "1s"}}}
    environ = {
        "FOREBAY_POOLS__0__GPUS": "4",
        "FOREBAY_CLASSES__MY_CLASS__TTFT": "2s",
        "FOREBAY_LIMITS__MAX_BODY": "64MiB",
    }
    expected = {
        "pools": [{"gpus": 4}],
        "classes": {"My-Class": {"ttft": "2s"}},
        "limits": {"max_body": "64MiB"},
    }
    assert expected == applied(environ, data)


def test_changing_a_default_class_keeps_the_others() -> None:
    """Setting one number of one default class leaves all three classes in place."""
    data = applied({"FOREBAY_CLASSES__BATCH__TTFT": "90s"}, {})
    assert {"realtime": {}, "standard": {}, "batch": {"ttft": "90s"}} == data["classes"]


def test_whole_keys_are_set_before_their_parts() -> None:
    """A variable for a list and one for an entry of it work together, whatever their order."""
    environ = {"FOREBAY_POOLS__0__GPUS": "4", "FOREBAY_POOLS": "[{gpus: 1}]"}
    assert {"pools": [{"gpus": 4}]} == applied(environ, {})


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("FOREBAY_POOLS__5__GPUS", "no entry '5'; entries are 0 to 0, and the next would be 1"),
        ("FOREBAY_POOLS__X__GPUS", "no entry 'x'"),
        ("FOREBAY_LISTEN__HOST", "nothing lies below"),
    ],
)
def test_places_that_are_not_there_are_errors(variable: str, hint: str) -> None:
    """A variable that points nowhere is an error that says what is there."""
    overrides, _ = overrides_from({variable: "1"})
    with pytest.raises(ValueError, match=hint):
        apply_override(overrides[0], {"pools": [{}], "listen": "127.0.0.1:1"})


def test_indices_build_lists() -> None:
    """Entries of a list that is not there, or the next ones of one that is, are made in the order of their numbers."""
    environ = {f"FOREBAY_POOLS__0__ENDPOINTS__{index}": f"http://e{index}" for index in range(12)}
    assert {"pools": [{"endpoints": [f"http://e{index}" for index in range(12)]}]} == applied(environ, {})
    assert {"pools": [{"name": "a"}, {"name": "b"}]} == applied(
        {"FOREBAY_POOLS__1__NAME": "b"}, {"pools": [{"name": "a"}]}
    )


def test_unknown_variables_are_warnings_with_a_guess() -> None:
    """A variable that names no setting does not stop the start, but is told."""
    _, warnings = overrides_from({"FOREBAY_LISTN": "x", "OTHER": "x"})
    assert ["FOREBAY_LISTN is set but names no setting; did you mean FOREBAY_LISTEN?"] == warnings


def test_service_links_of_kubernetes_are_left_alone() -> None:
    """The variables that a Service called forebay brings are neither overrides nor warnings."""
    environ = {
        "FOREBAY_SERVICE_HOST": "10.0.0.1",
        "FOREBAY_SERVICE_PORT": "8080",
        "FOREBAY_SERVICE_PORT_HTTP": "8080",
        "FOREBAY_PORT": "tcp://10.0.0.1:8080",
        "FOREBAY_PORT_8080_TCP_ADDR": "10.0.0.1",
        "FOREBAY_ADMIN_PORT": "tcp://10.0.0.1:9321",
        "FOREBAY_CONFIG": "/etc/forebay.yaml",
    }
    assert ([], []) == overrides_from(environ)


def test_variables_of_the_scripts_are_left_alone() -> None:
    """What the project's own scripts read is no misspelt setting."""
    environ = {"FOREBAY_ENGINES": "/big/disk", "FOREBAY_TORCH_INDEX": "https://index.invalid"}
    assert ([], []) == overrides_from(environ)


def test_broken_yaml_names_the_variable() -> None:
    """A value that is no YAML is reported with the variable's name."""
    with pytest.raises(ConfigError, match="FOREBAY_POOLS:1"):
        overrides_from({"FOREBAY_POOLS": "[{"})


def test_older_names_hold_for_every_pool_that_does_not_say_itself() -> None:
    """`MAX_POOL_GPU_SECONDS` and `POLL_INTERVAL_MS`, as in manifests that are older than the prefix."""
    environ = {"MAX_POOL_GPU_SECONDS": "120", "POLL_INTERVAL_MS": "150"}
    pools = [{"name": "a"}, {"name": "b", "max_gpu_seconds": 7}]
    filled = fill_in_pools(environ, {"pools": pools})
    assert pools == [
        {"name": "a", "max_gpu_seconds": 120.0, "poll_interval": "150ms"},
        {"name": "b", "max_gpu_seconds": 7, "poll_interval": "150ms"},
    ]
    assert "MAX_POOL_GPU_SECONDS" == filled["pools", 0, "max_gpu_seconds"]
    assert ("pools", 1, "max_gpu_seconds") not in filled


def test_older_names_that_say_nothing_or_no_number() -> None:
    """Empty is unset, and what cannot be read is put there as it was written, for the schema to name it."""
    data: dict[str, Any] = {"pools": [{}]}
    assert {} == fill_in_pools({"MAX_POOL_GPU_SECONDS": "", "POLL_INTERVAL_MS": " "}, data)
    assert [{}] == data["pools"]
    fill_in_pools({"MAX_POOL_GPU_SECONDS": "12s", "POLL_INTERVAL_MS": "often"}, data)
    assert [{"max_gpu_seconds": "12s", "poll_interval": "often"}] == data["pools"]


@pytest.mark.parametrize("data", [{}, {"pools": None}, {"pools": "x"}, {"pools": ["x"]}])
def test_older_names_need_pools(data: dict[str, Any]) -> None:
    """Where there is none, or something else, the schema has its say."""
    assert {} == fill_in_pools({"MAX_POOL_GPU_SECONDS": "1"}, data)


def test_what_this_version_cannot_do_is_refused() -> None:
    """Asked to discover endpoints it says that it does not; ignored, somebody would miss engines."""
    with pytest.raises(
        ConfigError, match="POOL_DISCOVERY: this version of Forebay does not discover endpoints"
    ):
        overrides_from({"POOL_DISCOVERY": "k8s-headless"})
    assert ([], []) == overrides_from({"POOL_DISCOVERY": ""})


def test_a_value_that_nothing_lies_below_is_not_shown() -> None:
    """It may be a secret."""
    override = overrides_from({"FOREBAY_ADMIN_TOKEN__X": "1"})[0][0]
    with pytest.raises(ValueError, match="single value") as told:
        apply_override(override, {"admin_token": "very-secret"})
    assert "very" not in str(told.value)
