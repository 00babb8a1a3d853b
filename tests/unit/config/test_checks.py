"""Whether the parts of a configuration fit together."""

from __future__ import annotations

import pytest

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES
from forebay.config.checks import DEFAULT_CLASS_NAMES, default_class_of, find_contradictions, find_doubts
from forebay.config.schema import Config


def config(**keys: object) -> Config:
    """A configuration as a validator makes it."""
    return Config.model_validate({"pools": [{"endpoints": ["http://a:1"]}], **keys})


def test_default_class_names_are_the_cores() -> None:
    """The names known here are those of the core's default classes."""
    assert tuple(entry.name for entry in ZERO_CONFIGURATION_CLASSES) == DEFAULT_CLASS_NAMES


def test_sound_configuration_has_no_contradictions() -> None:
    """Nothing is found where nothing is wrong."""
    assert [] == find_contradictions(config(listen="127.0.0.1:0", admin="127.0.0.1:0"))


def test_every_contradiction_is_found_with_its_path() -> None:
    """Several contradictions are found at once, each at the key to change."""
    found = find_contradictions(
        config(
            pools=[
                {"name": "a", "endpoints": ["http://a:1", "http://a:1"]},
                {"name": "a", "endpoints": ["http://a:1"]},
            ],
            classes={"x": {}, "y": {"ttft": "1s"}},
            listen="127.0.0.1:5",
            admin="127.0.0.1:5",
            grace="1s",
            notice="2s",
        )
    )
    assert [
        ("pools", 0, "endpoints", 1),
        ("pools", 1, "name"),
        ("pools", 1, "endpoints", 0),
        ("classes", "x"),
        ("classes",),
        ("admin",),
        ("notice",),
    ] == [path for path, _ in found]


def test_default_class_is_the_obvious_one_if_unset() -> None:
    """Unset, it is `standard`, or the only class; where neither is there it has to be set."""
    one, two = {"gold": {"ttft": "1s"}}, {"gold": {"ttft": "1s"}, "silver": {"ttft": "2s"}}
    assert "standard" == default_class_of(config())
    assert "standard" == default_class_of(config(classes={**two, "standard": {}}))
    assert "gold" == default_class_of(config(classes=one))
    assert "silver" == default_class_of(config(classes=two, default_class="silver"))
    ((path, message),) = find_contradictions(config(classes=two))
    assert ("classes",) == path
    assert "set default_class to one of gold, silver" in message


def test_what_is_hardly_meant_is_a_doubt() -> None:
    """Bounds that refuse everything and an open admin port are found, each with its path; weights count and are not."""
    doubtful = config(
        pools=[{"endpoints": ["http://a:1"], "max_gpu_seconds": 0}],
        classes={"standard": {"weight": 2.0, "value": 2.0}},
        limits={"max_waiting_bytes": 0},
        admin="0.0.0.0:9321",
    )
    assert [] == find_contradictions(doubtful)
    assert [
        ("pools", 0, "max_gpu_seconds"),
        ("limits", "max_waiting_bytes"),
        ("admin",),
    ] == [path for path, _ in find_doubts(doubtful)]


def test_a_model_of_two_pools_is_a_doubt() -> None:
    """The second pool would get none of its requests."""
    pools = [
        {"name": "a", "endpoints": ["http://a:1"], "models": ["m", "ft-*"]},
        {"name": "b", "endpoints": ["http://b:1"], "models": ["n", "m"]},
    ]
    ((path, message),) = find_doubts(config(pools=pools))
    assert ("pools", 1, "models", 1) == path
    assert "served by pool a already" in message


def test_a_queue_that_the_least_important_can_fill_for_good_is_a_doubt() -> None:
    """Nobody pushes out what is never refused: it would keep the others out of a bounded queue."""
    bounded = [
        {"name": "a", "endpoints": ["http://a:1"]},
        {"name": "b", "endpoints": ["http://b:1"], "max_queue": 9},
    ]
    classes: dict[str, object] = {"realtime": {}, "standard": {}, "batch": {"never_refuse": True}}
    plans = {"jobs": {"never_refuse": True, "classes": ["batch"]}, "vip": {"never_refuse": True}}
    both = config(
        displace="same",
        pools=bounded,
        classes=classes,
        plans=plans,
        tenants=[
            {"name": name, "plan": name, "keys": [f"sha256:{digit * 64}"]}
            for name, digit in (("jobs", "1"), ("vip", "2"))
        ],
    )
    found = find_doubts(both)
    assert [("classes", "batch", "never_refuse"), ("plans", "jobs", "never_refuse")] == [
        path for path, _ in found
    ]
    assert "out of pool b" in found[0][1]
    assert [] == find_doubts(config(pools=bounded[:1], classes=classes))
    assert [] == find_doubts(config(pools=bounded, classes={"standard": {"never_refuse": True}}))
    first = {"realtime": {"never_refuse": True}, "standard": {}, "batch": {}}
    assert [] == find_doubts(config(pools=bounded, classes=first))


def test_f056_a_queue_that_one_tenant_can_fill_is_a_doubt() -> None:
    """F056: a bound in requests or in fixed work has no parts; with `displace: same` the others get in all the same."""
    pools = [{"endpoints": ["http://a:1"], "max_queue": 9}]
    classes = {"standard": {"max_queue": 5, "max_queue_gpu_seconds": 7.5}, "batch": {"max_queue": 0}}
    tenants = [{"name": name, "keys": [f"sha256:{digit * 64}"]} for name, digit in (("a", "1"), ("b", "2"))]
    found = find_doubts(config(pools=pools, classes=classes, tenants=tenants))
    assert [
        ("pools", 0, "max_queue"),
        ("classes", "standard", "max_queue"),
        ("classes", "standard", "max_queue_gpu_seconds"),
    ] == [path for path, _ in found]
    assert "displace: same" in found[0][1]
    assert [] == find_doubts(config(pools=pools, classes=classes, tenants=tenants, displace="same"))
    assert [] == find_doubts(config(pools=pools, classes=classes, tenants=tenants[:1]))


def test_bounds_on_waiting_and_a_guarded_admin_port_are_no_doubts() -> None:
    """Not to let anybody wait is a way to run it, and a credential is what an open admin port needs."""
    meant = config(
        pools=[{"endpoints": ["http://a:1"], "max_queue": 0}],
        classes={"standard": {"wait_budget": "0s", "max_queue_gpu_seconds": 0.0}},
        admin="0.0.0.0:9321",
        admin_token="long enough",
    )
    assert [] == find_doubts(meant)


def test_a_gateway_is_not_its_own_engine() -> None:
    """An endpoint that is the gateway's own address, or its admin port, is a contradiction that says so."""
    found = find_contradictions(
        config(
            pools=[{"endpoints": ["http://localhost:5", "http://10.0.0.1:5", "http://127.0.0.1:6"]}],
            listen="0.0.0.0:5",
            admin="127.0.0.1:6",
        )
    )
    assert [("pools", 0, "endpoints", 0), ("pools", 0, "endpoints", 2)] == [path for path, _ in found]
    assert ["own listen address" in found[0][1], "own admin address" in found[1][1]] == [True, True]


def test_a_limit_that_is_put_in_must_be_there() -> None:
    """`inject_limit` alone has nothing to put in."""
    pool = {"endpoints": ["http://a:1"], "inject_limit": True}
    ((path, message),) = find_contradictions(config(pools=[pool]))
    assert (("pools", 0, "inject_limit"), "there is no limit to put in: set max_output_tokens") == (
        path,
        message,
    )
    assert [] == find_contradictions(config(pools=[{**pool, "max_output_tokens": 5}]))


@pytest.mark.parametrize(
    ("entry", "keys"),
    [
        (
            {"order": "fifo", "aging": "1s", "short_tokens": 5, "short_weight": 2.0},
            ["aging", "short_tokens", "short_weight"],
        ),
        ({"order": "edf", "aging": "1s"}, ["aging"]),
        ({"aging": "1s", "short_tokens": 5, "short_weight": 2.0}, []),
        ({"short_tokens": 5}, ["short_tokens"]),
        ({"short_weight": 2.0}, ["short_weight"]),
        (
            {"never_refuse": True, "wait_budget": "9s", "max_queue": 5, "max_queue_gpu_seconds": 1.0},
            ["wait_budget", "max_queue", "max_queue_gpu_seconds"],
        ),
        ({"never_refuse": True, "max_queue_gpu_seconds": "auto"}, []),
    ],
)
def test_what_does_nothing_in_a_class_is_a_doubt(entry: dict[str, object], keys: list[str]) -> None:
    """A setting without effect is one that somebody believes in."""
    doubtful = config(classes={"standard": entry})
    assert [] == find_contradictions(doubtful)
    assert [("classes", "standard", key) for key in keys] == [path for path, _ in find_doubts(doubtful)]


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("class == 'bacth'", "'bacth' is not a class; there are realtime, standard, batch"),
        ("'bacth' != class && request.stream", "'bacth' is not a class"),
        ('class in ["batch", "bacth"]', "'bacth' is not a class"),
        ("tenant.plan == 'gold'", "'gold' is not a plan; there are free"),
        ("pool.name == 'llama'", "'llama' is not a pool; there are default"),
    ],
)
def test_a_rule_that_compares_with_what_is_nowhere_is_a_doubt(when: str, told: str) -> None:
    """It would never match, or always."""
    rules = [{"name": "r", "when": when, "then": {"refuse": {}}}]
    doubtful = config(rules=rules, plans={"free": {}}, anonymous={"plan": "free"})
    assert [] == find_contradictions(doubtful)
    ((path, message),) = find_doubts(doubtful)
    assert ("rules", 0, "when") == path
    assert told in message


def test_a_rule_may_compare_with_what_is_there() -> None:
    """An empty plan is none; texts that are compared with something else are no names of classes."""
    when = "class != 'batch' && tenant.plan in ['', 'free'] && pool.name == 'default' && request.model == 'x'"
    rules = [{"name": "r", "when": when, "then": {"refuse": {}}}]
    assert [] == find_doubts(config(rules=rules, plans={"free": {}}, anonymous={"plan": "free"}))
