"""Plans, tenants and keys as they are written, and whether they fit together."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from forebay.config import ConfigError, load
from forebay.config.checks import find_contradictions, find_doubts
from forebay.config.schema import Config

DIGEST = hashlib.sha256(b"sk-1").hexdigest()


def config(**keys: object) -> Config:
    """A configuration as a validator makes it."""
    return Config.model_validate({"pools": [{"endpoints": ["http://a:1"]}], **keys})


def problems(tmp_path: Path, text: str) -> str:
    """What is wrong with a file."""
    path = tmp_path / "f.yaml"
    path.write_text(f"pools: [{{endpoints: ['http://a:1']}}]\n{text}")
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    return str(caught.value)


@pytest.mark.parametrize(
    "key", ["sk-secret", "sha256:abc", "md5:" + DIGEST, DIGEST, "1234567", "[sk-secret]"]
)
def test_a_plain_key_is_refused_unseen(tmp_path: Path, key: str) -> None:
    """A file holds digests only; whatever else is there is not repeated, and it is said how to make one."""
    said = problems(tmp_path, f"tenants: [{{name: acme, keys: [{key}]}}]")
    assert "sha256sum" in said
    assert key.strip("[]") not in said.replace("sha256:abc", "") or key == "sha256:abc"


def test_anonymous_is_refused_or_a_plan(tmp_path: Path) -> None:
    """Anything else is told what it may be."""
    assert config(anonymous="refuse").anonymous is not None
    for text in ("allow", "{plan: 3}", "{plan: a, more: b}", "true"):
        assert "refuse, or {plan: NAME}" in problems(tmp_path, f"anonymous: {text}")


def test_networks_have_no_host_bits(tmp_path: Path) -> None:
    """What may be a mistake is one."""
    assert "10.0.0.1/32" == str(config(trusted_proxies=["10.0.0.1"]).trusted_proxies[0])
    assert "host bits" in problems(tmp_path, "trusted_proxies: [10.0.0.1/8]")
    assert "trusted_proxies[0]" in problems(tmp_path, "trusted_proxies: [5]")


def test_what_does_not_fit_is_found_with_its_path() -> None:
    """Names and keys that are taken, plans and classes that are not there, keys that go nowhere."""
    digest = f"sha256:{DIGEST}"
    found = find_contradictions(
        config(
            pools=[
                {
                    "name": "a",
                    "endpoints": ["http://a:1"],
                    "forward_authorization": True,
                    "upstream_key": "k",
                },
                {"name": "b", "endpoints": ["http://b:1"]},
            ],
            plans={"free": {"classes": ["batch", "gold"]}},
            tenants=[
                {"name": "acme", "plan": "free", "keys": [digest, digest]},
                {"name": "acme", "plan": "none", "keys": [digest]},
                {"name": "anonymous"},
            ],
            anonymous={"plan": "nope"},
        )
    )
    assert [
        ("plans", "free", "classes", 1),
        ("tenants", 0, "keys", 1),
        ("tenants", 1, "name"),
        ("tenants", 1, "plan"),
        ("tenants", 1, "keys", 0),
        ("tenants", 2, "name"),
        ("anonymous", "plan"),
        ("pools", 0, "forward_authorization"),
    ] == [path for path, _ in found]
    assert DIGEST not in str(found)


def test_what_has_no_effect_is_told() -> None:
    """A switch that changes nothing is an error; a plan, a tenant or a door that nobody can use is a warning."""
    pool = {"endpoints": ["http://a:1"], "forward_authorization": True}
    (contradiction,) = find_contradictions(config(pools=[pool]))
    assert ("pools", 0, "forward_authorization") == contradiction[0]
    paths = [
        path for path, _ in find_doubts(config(plans={"p": {}}, tenants=[{"name": "x"}], anonymous="refuse"))
    ]
    assert [("plans", "p"), ("tenants", 0), ("anonymous",)] == paths
    assert [] == find_doubts(config(tenants=[{"name": "x"}], trusted_proxies=["10.0.0.0/8"]))


@pytest.mark.parametrize(
    "written", ["[sk-secret]", "sk-secret", "{sk-secret: x}", "[{name: a, key: sk-secret}]"]
)
def test_what_stands_where_keys_belong_is_not_shown(tmp_path: Path, written: str) -> None:
    """A key in the wrong place is a mistake, and no reason to print it."""
    told = problems(tmp_path, f"tenants: {written}\n")
    assert "tenants" in told
    assert "sk-secret" not in told


def test_a_model_that_no_pool_serves_is_a_doubt() -> None:
    """Where pools say what they serve; a pattern means something if one of them may be meant."""
    pool = {"endpoints": ["http://a:1"], "models": ["llama-8b", "ft-*"]}
    plans = {"free": {"models": ["llama-8b", "ft-1", "llama-*", "*", "lama-8b", "gpt-*"]}}
    anonymous = {"plan": "free"}
    found = find_doubts(config(pools=[pool], plans=plans, anonymous=anonymous))
    assert [("plans", "free", "models", 4)] == [path for path, _ in found]
    assert "no pool serves 'lama-8b'; there are llama-8b, ft-*" in found[0][1]
    assert [] == find_doubts(config(plans=plans, anonymous=anonymous))


def test_caps_without_any_limit_are_a_doubt() -> None:
    """Who states none would pay for all the room that the model has."""
    plan = {"tokens_per_second": 100.0, "bill": "cap"}
    anonymous = {"plan": "free"}
    ((path, message),) = find_doubts(config(plans={"free": plan}, anonymous=anonymous))
    assert ("plans", "free", "bill") == path
    assert "set require_max_tokens, or max_output_tokens" in message
    pool = {"endpoints": ["http://a:1"], "max_output_tokens": 500}
    for meant in (
        config(plans={"free": plan}, anonymous=anonymous, pools=[pool]),
        config(plans={"free": {**plan, "require_max_tokens": True}}, anonymous=anonymous),
        config(plans={"free": {**plan, "bill": "estimate"}}, anonymous=anonymous),
    ):
        assert [] == find_doubts(meant)
