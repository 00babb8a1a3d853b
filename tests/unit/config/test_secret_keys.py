from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.cli.check import command
from forebay.config import ConfigError, load
from forebay.config.schema import json_schema
from forebay.config.secret_keys import (
    harmless,
    in_words,
    is_secret,
    is_secret_key,
    may_be_secret,
    quoted,
    shown_path,
)

SECRET = "x7Qz-9fK2mPw"
SPELLINGS = (
    "S", "'S'", '"S"', "'S", '"S', "*S", "&S", "&S x", "!S x", "!x S", "!!int S", "!!python/name:S x", "!<S> x",
    "!S!x y", "{S: 1}", "{a: S}", "{S: 1, S: 2}", "{<<: S}", "{<<: *S}", "{a: {b: {S: [S]}}}", "[S]", "[[S]]", "[S, S]",
    "[*S]", "[!x S]", "[{S: x}]", "|\n    S", "%S", "@S", "`S", "S: x", "- S", "? S", '"\\q S"', "{? [S] : 1}", "S\x00",
    "9S", "\n    S: x", "\n    - S", "\n    - S: x", "\n    - name: S\n      S: 2", "sha256:S", "http://a:S@b",
    "S x: y", "S #", "[S", "{S", "[S}",
)  # fmt: skip
"""How it may be written, S being the secret."""
PLACES = (
    "admin_token: V",
    "admin_tokn: V",
    "upstream_key: V",
    "api_key: V",
    "pools: [{endpoints: ['http://a:1'], upstream_key: V}]",
    "pools:\n- endpoints: ['http://a:1']\n  upstream_key: V",
    "pools:\n- endpoints: ['http://a:1']\n  upstrem_key: V",
    "pools:\n- endpoints:\n  - upstream_key: V",
    "pools:\n- {endpoints: 7, upstream_key: V, gpus: x}",
    "tenants:\n- name: a\n  keys: V",
    "tenants:\n- name: a\n  kyes: V",
    "tenants:\n- keys: [V]",
    "tenants: [{name: a, keys: [sha256:1, V]}]",
    "tenants:\n  acme:\n    keys: V",
    "admin: {token: V}",
    "listen: {admin_token: V}",
    "limits: {max_body: {upstream_key: V}, max_waiting_bytes: {secret: V}}",
    "classes: {realtime: {ttft: {password: V}}}",
    "default_class: {key: V}",
    "trusted_proxies: [{key: V}]",
    "anonymous: {plan: free, token: V}",
    "rules: [{name: r, when: {key: V}}]",
    "shared_state: {url: x, password: V}",
    "admin_token: &t V\nlisten: *t",
    "default_class: &t V\nadmin_token: *t",
    "pools: [{name: &t V, endpoints: ['http://a:1'], upstream_key: *t}]",
    "limits: &t {max_body: V}\nadmin_token: *t",
    "plans: {free: {classes: &t [V]}}\nadmin_token: *t",
    "tenants: &t [{name: a, keys: V}]\nplans: *t",
    "x: &t {upstream_key: V}\npools: [{<<: *t, endpoints: 5}]",
)
OTHERS = (
    "",
    "",
    "listen: nonsense",
    "grace: 5",
    "clases: {}",
    "pools: 5",
    "a: [",
    "- b",
    "listen: 'x",
    "mode: of",
    "\t",
)
VARIABLES = (
    "ADMIN_TOKEN", "ADMIN_TOKEN__X", "POOLS__0__UPSTREAM_KEY", "POOLS__0__UPSTREAM_KEY__X", "TENANTS__0__KEYS",
    "TENANTS__0__KEYS__0", "UPSTREAM_KEY", "API_KEY",
)  # fmt: skip


def told(tmp_path: Path, text: str, environ: dict[str, str]) -> str:
    """All that is said of a file, by the command and by who loads it."""
    path = tmp_path / "f.yaml"
    path.write_text(text)
    try:
        loaded = load(path, environ=environ)
        said = [*loaded.warnings, repr(loaded), repr(loaded.config)]
    except ConfigError as error:
        said = [str(error), *error.warnings, repr(error)]
    done = CliRunner().invoke(command, [str(path)], env=environ)
    assert done.exit_code in (0, 2), done.output
    return "\n".join([*said, done.output])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spelling=st.sampled_from(SPELLINGS),
    place=st.sampled_from(PLACES),
    before=st.sampled_from(OTHERS),
    after=st.sampled_from(OTHERS),
)
def test_a_secret_is_in_no_message(
    tmp_path: Path, spelling: str, place: str, before: str, after: str
) -> None:
    """However it is written, wherever its key stands, and whatever else is wrong."""
    text = f"{before}\n{place}\n{after}\n".replace("V", spelling.replace("S", SECRET))
    assert SECRET not in told(tmp_path, text, {})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spelling=st.sampled_from(SPELLINGS), name=st.sampled_from(VARIABLES), other=st.sampled_from(OTHERS))
def test_a_secret_in_the_environment_is_in_no_message(
    tmp_path: Path, spelling: str, name: str, other: str
) -> None:
    """Taken as it is written, or read as YAML."""
    value = spelling.replace("S", SECRET).replace("\x00", "")
    assert SECRET not in told(tmp_path, other, {f"FOREBAY_{name}": value})
    tenants = f"[{{name: a, keys: {value}}}]"
    assert SECRET not in told(tmp_path, other, {"FOREBAY_TENANTS": tenants})


@pytest.mark.parametrize("place", PLACES)
def test_every_place_is_tried_with_every_spelling(tmp_path: Path, place: str) -> None:
    """The same without chance, and nothing else wrong."""
    for spelling in SPELLINGS:
        text = f"{place}\n".replace("V", spelling.replace("S", SECRET))
        assert SECRET not in told(tmp_path, text, {}), (place, spelling)


def test_what_is_no_secret_is_shown() -> None:
    """Who has to put it right must see what was found."""
    assert "'abc'" == quoted("abc")
    assert 60 > len(quoted("x" * 1000)) - 3
    for text in ("admin_token: abc", "x\n  upstream_key : abc", "http://a:b@c", "?api_key=abc"):
        assert "abc" not in quoted(text) + in_words(text)
    values: list[object] = [None, True, {}, [], 7]
    assert ["nothing", "true", "a mapping", "a list", "7"] == [in_words(value) for value in values]
    assert ("localhost", "h", "h") == (
        harmless("localhost", "h"),
        harmless("", "h"),
        harmless("key=abc", "h"),
    )
    assert ("pools", 0, "gpus") == shown_path(("pools", 0, "gpus"))
    assert ("tenants", 3, "keys", 1) == shown_path(("tenants", 3, "keys", 1, "abc", 2))
    assert ("tenants", 3) == shown_path(("tenants", 3, "sk-12345"))
    assert ("tenants", 3, "plna") == shown_path(("tenants", 3, "plna"))
    assert may_be_secret(("tenants", 3, "plna"))
    assert not may_be_secret(("tenants", 3, "plan"))


def test_the_keys_of_a_configuration_that_are_secret_are_these() -> None:
    """No other one sounds as if it were: its value would never be shown."""

    def names(schema: Any) -> set[str]:
        found = set()
        if isinstance(schema, dict):
            found |= set(schema.get("properties", {}))
            for part in schema.values():
                found |= names(part)
        elif isinstance(schema, list):
            for part in schema:
                found |= names(part)
        return found

    secret = {name for name in names(json_schema()) if is_secret_key(name)}
    assert {
        "admin_token",
        "upstream_key",
        "keys",
        "ssl_keyfile",
    } == secret  # a key may be pasted into the last
    assert is_secret(("pools", 0, "upstream_key", "x"))
    assert not is_secret(("pools", 0, "endpoints", 0))


def test_one_value_for_several_secret_keys_may_have_an_alias(tmp_path: Path) -> None:
    """Several pools of one vendor."""
    path = tmp_path / "f.yaml"
    path.write_text(
        f"pools:\n- {{name: a, endpoints: ['http://a:1'], upstream_key: &k {SECRET}}}\n"
        "- {name: b, endpoints: ['http://b:1'], upstream_key: *k}\n"
    )
    assert 2 == len(load(path, environ={}).config.pools)
    path.write_text(f"admin_token: &k {SECRET}\nlisten: *k\n")
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    assert "f.yaml:1:14: admin_token: the value of admin_token is also that of listen" in str(caught.value)
