from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forebay.admission.rule_book import Rule, RuleBook
from forebay.config.errors import ConfigError
from forebay.config.loading import load
from forebay.config.mapping import to_settings
from forebay.gateway.asks import MODEL_NAME_CHARS

POOLS = """
pools:
  - {name: big, endpoints: ["http://127.0.0.1:1"], models: [llama-70b, "ft-*"]}
  - {name: small, endpoints: ["http://127.0.0.1:2"], models: [llama-8b]}
"""


def book_of(tmp_path: Path, rules: str) -> RuleBook:
    """The rules of a file with these."""
    path = tmp_path / "forebay.yaml"
    path.write_text(POOLS + "rules:\n" + rules)
    settings = to_settings(load(path, environ={}), memory_limit_bytes=1 << 30, read_profile=_no_profile)
    assert settings.rules is not None
    return settings.rules


def _no_profile(name: str) -> Any:
    raise LookupError(name)


def problems(tmp_path: Path, rules: str) -> list[str]:
    """What is wrong with a file with these, each with its place."""
    path = tmp_path / "forebay.yaml"
    path.write_text(POOLS + "rules:\n" + rules)
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    return [str(problem).removeprefix(str(path)) for problem in caught.value.problems]


def one(tmp_path: Path, when: str, then: str = "{accept: true}", **more: str) -> tuple[RuleBook, Rule]:
    """A book with one rule."""
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    book = book_of(tmp_path, f"  - {{name: r, when: {when!r}, then: {then}{extra}}}\n")
    return book, book.rules[0]


def test_a_rule_names_what_it_needs_and_is_asked_about_requests_only_then(tmp_path: Path) -> None:
    """R11: rules about engines alone are apart from those about requests, and from mixed ones."""
    book = book_of(
        tmp_path,
        """
  - {name: engines, when: "running_seq_count > 32 || pool.queue_requests > 5", then: {refuse: }}
  - {name: request, when: "request.max_tokens > 5", then: {class: batch}}
  - {name: mixed, when: "class == 'batch' && gpu_utilization > 0.5", then: {refuse: {priority: low, retry_after: 2s}}}
  - {name: neither, when: "true", then: {class: batch}}
""",
    )
    assert [False, True, True, False] == [rule.of_request for rule in book.rules]
    assert [True, False, False, False] == [rule.of_endpoint for rule in book.rules]
    assert ["pool.queue_requests", "running_seq_count"] == [fact.name for fact in book.engine_facts]
    assert ["request.max_tokens", "class"] == [fact.name for fact in book.request_facts]
    assert ["gpu_utilization"] == [fact.name for fact in book.request_engine_facts]
    assert [(True, None, False), (True, 2.0, True)] == [
        (rule.refuses, rule.retry_after_s, rule.low_only) for rule in (book.rules[0], book.rules[2])
    ]


def test_a_condition_is_evaluated_over_the_values_it_names(tmp_path: Path) -> None:
    """Compiled once; names of two words included."""
    book, rule = one(tmp_path, "request.max_tokens > 4096 && tenant.plan == 'free'")
    for tokens, plan, expected in ((5000, "free", True), (5000, "paid", False), (1, "free", False)):
        context = book.context({"request__max_tokens": tokens, "tenant__plan": plan})
        assert expected is rule.when(context)
    assert 0 == rule.errors()


@pytest.mark.parametrize(
    ("when", "values"),
    [
        ("gpu_cache_usage_perc > 0.9", {}),
        ("gpu_cache_usage_perc > 0.9", {"gpu_cache_usage_perc": float("nan")}),
        ("5 / running_seq_count > 1", {"running_seq_count": 0}),
        ("running_seq_count + 9223372036854775807 > 1", {"running_seq_count": 5}),
        ("dyn(running_seq_count)", {"running_seq_count": 5}),
        ("{'a': 1}.b == 1", {}),
        ("[1][5] == 1", {}),
        ("timestamp('x') > timestamp('2020-01-01T00:00:00Z')", {}),
    ],
)
def test_a_condition_that_cannot_be_evaluated_is_skipped_and_counted(
    tmp_path: Path, when: str, values: dict[str, Any]
) -> None:
    """Or matches, where a rule that refuses says `on_error: match`."""
    book, rule = one(tmp_path, when, "{refuse: }")
    assert [False, False] == [rule.when(book.context(values)) for _ in range(2)]
    assert 2 == rule.errors()
    book, rule = one(tmp_path, when, "{refuse: }", on_error="match")
    assert rule.when(book.context(values))
    assert 1 == rule.errors()


def test_errors_are_told_at_first_and_whenever_their_number_has_doubled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rule that fails for each request must not fill the log."""
    book, rule = one(tmp_path, "1 / running_seq_count > 1")
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            rule.when(book.context({"running_seq_count": 0}))
    assert 10 == len(caplog.records)
    assert "rule r: division by zero" in caplog.text
    assert 1000 == rule.errors()


def test_what_an_engine_has_not_told_is_not_called_a_slip(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CEL asks whether the name is spelled correctly, which it is."""
    for name in ("generation_tput", "endpoint.sample_age"):
        book, rule = one(tmp_path, f"{name} < 10.0 && running_seq_count > 5")
        with caplog.at_level(logging.WARNING):
            rule.when(book.context({"running_seq_count": 6}))
        assert f"rule r: {name} is not known: the engine has not told it" in caplog.text
    assert "spelled" not in caplog.text


def test_one_side_of_an_or_may_be_unknown(tmp_path: Path) -> None:
    """CEL's own rule."""
    book, rule = one(tmp_path, "gpu_cache_usage_perc > 0.9 || running_seq_count > 5")
    assert rule.when(book.context({"running_seq_count": 6}))
    assert 0 == rule.errors()


def test_a_model_is_found_at_the_pool_that_names_it(tmp_path: Path) -> None:
    """Itself before a pattern; a pool that is named stays."""
    for then, pool in (
        ("{model: llama-8b}", "small"),
        ("{model: ft-7}", "big"),
        ("{model: ft-7, pool: small}", "small"),
        ("{pool: small}", "small"),
    ):
        _, rule = one(tmp_path, "true", then)
        assert pool == rule.pool


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            "{name: r, when: 'request.modle == 1', then: {accept: true}}",
            ":6:15: rules[0].when: rule 'r': there is no `request.modle`; did you mean request.model? (character 1)",
        ),
        (
            "{name: r, when: 'request.tokens', then: {accept: true}}",
            ":6:15: rules[0].when: rule 'r': its value is of type int; a condition is true or false",
        ),
        (
            "{name: r, when: \"class == '\\\\q'\", then: {accept: true}}",
            ":6:15: rules[0].when: rule 'r': 1:10: ",
        ),
        (
            "{name: r, when: 'true', then: {class: bath}}",
            ":6:36: rules[0].then.class: rule 'r': 'bath' is not a class; there are realtime, standard, batch",
        ),
        (
            "{name: r, when: 'true', then: {pool: none}}",
            ":6:36: rules[0].then.pool: rule 'r': 'none' is not a pool; there are big, small",
        ),
        (
            "{name: r, when: 'true', then: {model: none}}",
            ":6:36: rules[0].then.model: rule 'r': no pool's `models` name 'none'; say `pool` as well",
        ),
        ("{name: r, when: 'true', then: {}}", ":6:29: rules[0].then: expected one of refuse, accept"),
        (
            "{name: r, when: 'true', then: {accept: true, class: batch}}",
            ":6:29: rules[0].then: expected one of refuse, accept",
        ),
        (
            "{name: r, when: 'true', then: {clas: batch}}",
            ":6:36: rules[0].then.clas: unknown key; did you mean class? (allowed here: accept, class, model",
        ),
        (
            "{name: r, when: 'true', then: {class: batch}, on_error: match}",
            ":6:5: rules[0]: on_error: match is for rules that refuse",
        ),
        (
            "{name: r, when: 'true', then: {refuse: {retry_after: 2m}}}",
            ":6:45: rules[0].then.refuse.retry_after: found 2m, must be at most 60s",
        ),
        ("{name: 'a b', when: 'true', then: {accept: true}}", ":6:6: rules[0].name: found 'a b'; a name has"),
    ],
)
def test_faults_are_told_with_rule_and_line(tmp_path: Path, rule: str, said: str) -> None:
    """`forebay check` prints these."""
    found = problems(tmp_path, f"  - {rule}\n")
    assert 1 == len(found)
    assert found[0].startswith(said), found[0]


def pools_problems(tmp_path: Path, *pools: str) -> list[str]:
    """What is wrong with pools of these keys, named a, b and so on."""
    path = tmp_path / "forebay.yaml"
    lines = [
        f'  - {{name: {name}, endpoints: ["http://127.0.0.1:{port}"], {keys}}}'
        for port, (name, keys) in enumerate(zip("abcde", pools, strict=False), start=1)
    ]
    path.write_text("\n".join(["pools:", *lines, ""]))
    try:
        load(path, environ={})
    except ConfigError as error:
        return [str(problem).removeprefix(str(path)).split(": ", 1)[1] for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("request.model.matches('(')", "matches('('): "),
        (r"request.model.matches('(?i)\\b\\w{1,100}-\\w{1,100}\\b')", "and every request would wait for it"),
        ("request.model.matches('(((a{100}){100}){100})')", "matches('(((a{100}){100}){100})'"),
        ("request.model.matches(class)", "the pattern of matches() must be written out"),
        ("request.model.matches('a' + class)", "the pattern of matches() must be written out"),
        ("true || request.model.matches('(')", "matches('('): "),
    ],
)
def test_patterns_are_tried_before_requests_wait_for_them(tmp_path: Path, when: str, said: str) -> None:
    """One that is broken or dear is found when the configuration is read, wherever it stands."""
    (found,) = problems(tmp_path, f"  - {{name: r, when: {json.dumps(when)}, then: {{accept: true}}}}\n")
    assert said in found


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (
            f"[{', '.join(['1'] * 900)}].all(x, {' && '.join(['x != 2'] * 12)})",
            "its lists are too long for what is asked",
        ),
        (
            "||".join(["request.model.matches('ft-[0-9]{1,50}[a-z]{1,50}')"] * 70),
            "and every request would wait for it",
        ),
        (
            f"[{', '.join(['1'] * 400)}].exists(x, x == 2 || request.model.matches('ft-[0-9]{{1,90}}'))",
            "400 times, takes",
        ),
        (
            "['a', 'b'].all(x, ['a', 'b'].all(y, x != y))",
            "a macro in another one would be asked for all pairs",
        ),
    ],
)
def test_no_condition_takes_longer_than_requests_can_wait(tmp_path: Path, when: str, said: str) -> None:
    """Whatever it does with lists and texts: in all a millisecond."""
    (found,) = problems(tmp_path, f"  - {{name: r, when: {json.dumps(when)}, then: {{accept: true}}}}\n")
    assert said in found


def test_all_rules_together_have_a_bound(tmp_path: Path) -> None:
    """The first one above it is named, and the wait is that of a request."""
    when = " || ".join(f"request.model.matches('ft{n}-[a-z0-9]{{1,50}}-[a-z0-9]{{1,50}}')" for n in range(5))
    rules = "".join(f'  - {{name: r{n}, when: "{when}", then: {{class: batch}}}}\n' for n in range(199))
    told = [
        found for found in problems(tmp_path, rules) if "with it all rules together take up to 1" in found
    ]
    assert 1 == len(told)
    assert "at most 10 ms are allowed" in told[0]


@pytest.mark.parametrize(
    "when",
    [
        f"[{', '.join(['1'] * 900)}].all(x, x > 0 && x != 2)",
        " && ".join(["request.model != 'a-model-of-some-length'"] * 60),
        f"size({' + '.join(['request.model'] * 9)}) >= 0",
        f"({' + '.join(['request.model'] * 9)}).matches('^[a-z]*$')",
        " && ".join(["!request.model.matches('^ft-.*$')"] * 9),
        f"[{', '.join(['request.model'] * 150)}].map(x, x).filter(x, x.contains('m')).exists(x, x == 'b') == false",
    ],
)
def test_the_dearest_that_are_taken_are_done_in_milliseconds(tmp_path: Path, when: str) -> None:
    """With the longest texts that a client can send."""
    book, rule = one(tmp_path, when)
    best_s = 9.0
    for _ in range(5):
        began_s = time.thread_time()
        assert rule.when(book.context({"request__model": "m" * MODEL_NAME_CHARS}))
        best_s = min(best_s, time.thread_time() - began_s)
    assert 0 == rule.errors()
    assert best_s < 0.004


def test_usual_patterns_are_taken(tmp_path: Path) -> None:
    """Letters, digits and small counts."""
    for pattern in ("^llama-.*-instruct$", "[a-z0-9-]+", "ft-[0-9]{1,4}"):
        holds, _ = one(tmp_path, f"request.model.matches('{pattern}')", "{accept: true}")
        assert holds is not None


def test_fallbacks_lead_to_pools_and_not_in_circles(tmp_path: Path) -> None:
    """A pool that only leads into a circle is not at fault itself."""
    assert [] == pools_problems(tmp_path, "fallback: b", "fallback: c", "gpus: 1")
    assert ["pools[0].fallback: 'x' is not a pool; there are a, b"] == pools_problems(
        tmp_path, "fallback: x", "gpus: 1"
    )
    assert ["pools[0].fallback: a circle: a → a; leave out one `fallback`"] == pools_problems(
        tmp_path, "fallback: a"
    )
    assert [
        "pools[1].fallback: a circle: b → c → b; leave out one `fallback`",
        "pools[2].fallback: a circle: c → b → c; leave out one `fallback`",
    ] == pools_problems(tmp_path, "fallback: b", "fallback: c", "fallback: b")


def test_priorities_are_passed_only_to_engines_that_know_them(tmp_path: Path) -> None:
    """A setting without effect would be believed in."""
    for kind in ("auto", "vllm", "sglang"):
        assert [] == pools_problems(tmp_path, f"engine: {kind}, pass_priority: true")
    assert [
        "pools[0].pass_priority: llamacpp knows no priorities; only vllm and sglang do"
    ] == pools_problems(tmp_path, "engine: llamacpp, pass_priority: true")


@pytest.mark.parametrize("name", ["host", "X-Request-Id", "x-stainless-retry-count", "a b", "", "x" * 101])
def test_a_header_with_another_meaning_does_not_say_which_retry_it_is(tmp_path: Path, name: str) -> None:
    """It would be taken for that in silence."""
    path = tmp_path / "forebay.yaml"
    path.write_text(POOLS + f"retry_header: {name!r}\n")
    with pytest.raises(ConfigError, match="expected the name of a header that means nothing else here"):
        load(path, environ={})
    path.write_text(POOLS + "retry_header: X-Retry-Attempt\nretries: prefer\n")
    assert "x-retry-attempt" == load(path, environ={}).config.retry_header


def test_a_name_is_given_once(tmp_path: Path) -> None:
    """Decisions and metrics go by it."""
    rule = "  - {name: r, when: 'true', then: {accept: true}}\n"
    assert [":7:6: rules[1].name: the name 'r' is taken by rules[0]; give each rule its own"] == problems(
        tmp_path, rule * 2
    )


def test_without_rules_the_library_is_not_loaded() -> None:
    """It is 6 MB of native code."""
    code = (
        "import sys, pathlib; from forebay.config import load, to_settings;"
        "loaded = load(None, environ={}, options={'pools': ('--upstream', [{'endpoints': ['http://127.0.0.1:1']}])});"
        "settings = to_settings(loaded, memory_limit_bytes=1 << 30, read_profile=None);"
        "print('cel' in sys.modules, settings.rules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False None" == done.stdout.strip()
