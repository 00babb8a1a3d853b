from __future__ import annotations

from dataclasses import replace
from typing import Any

from forebay.admission import Settings
from forebay.admission.effects import Dispatch, Effect, Hold, Refuse
from forebay.admission.events import Described, EndpointsChanged
from forebay.admission.facts import FactValue
from forebay.admission.model import DecisionRecord, EndpointId, Mode
from forebay.admission.outcomes import Outcome
from forebay.admission.rule_book import Rule
from forebay.admission.rules import KEPT_S
from forebay.admission.settings import PlanSettings
from tests.unit.admission.build import (
    VLLM,
    Scenario,
    dispatched,
    pool_settings,
    settings_for,
    turned_away,
    with_class,
)
from tests.unit.admission.rule_making import always, asked, book, over, rule

BIG = "request.max_tokens"
RUNNING = "running_seq_count"


def ruled(*rules: Rule, names: tuple[str, ...], **changes: Any) -> Settings:
    """Settings with these rules."""
    return settings_for(rules=book(*rules, names=names), **changes)


def scenario(*rules: Rule, names: tuple[str, ...] = (BIG,), **pool: Any) -> Scenario:
    """One endpoint, and these rules."""
    return Scenario(settings=ruled(*rules, names=names, pool=pool_settings(**pool)))


def record_of(effects: list[Effect]) -> DecisionRecord:
    """The record of the only decision among these."""
    (record,) = [
        effect.refusal.record if isinstance(effect, Refuse) else effect.record
        for effect in effects
        if isinstance(effect, Refuse | Dispatch | Hold)
    ]
    return record


def two_pools(*rules: Rule, names: tuple[str, ...] = (BIG,), **other: Any) -> Scenario:
    """Pools `llama` with endpoint a and `small` with endpoint b."""
    settings = ruled(*rules, names=names)
    pools = (*settings.pools, replace(settings.pools[0], **{"name": "small", **other}))
    one = Scenario(settings=replace(settings, pools=pools))
    one.tell(EndpointsChanged("small", (EndpointId("b"),)), 0.0)
    one.tell(Described(EndpointId("b"), replace(VLLM, models=("tiny", "other"))), 0.0)
    return one


def test_a_refuse_rule_turns_away_what_would_have_started() -> None:
    """R11: with the rule's own Retry-After, spread upwards, and its name in the record."""
    one = scenario(rule("long", (BIG,), over(BIG, 50), refuses=True, retry_after_s=0.5))
    effects = one.arrive(1, 0.0)
    assert [(1, Outcome.RULE_REFUSED)] == turned_away(effects)
    assert isinstance(effects[0], Refuse)
    assert 0.5 <= (effects[0].refusal.retry_after_s or 0) <= 0.65
    record = record_of(effects)
    assert "rule:long" == record.decided_by
    assert ("rule:long", False) in [(check.name, check.passed) for check in record.checks]
    assert dispatched(one.arrive(2, 0.0, max_output_tokens=50)) == [(2, "a")]
    one.close()


def test_retry_after_differs_between_clients_refused_at_once() -> None:
    """Those who are turned away in one burst do not come back in one."""
    one = scenario(rule("all", (BIG,), always, refuses=True, retry_after_s=10.0))
    waits = {
        effect.refusal.retry_after_s
        for number in range(20)
        for effect in one.arrive(number, 0.0)
        if isinstance(effect, Refuse)
    }
    assert 20 == len(waits)


def test_a_rule_without_retry_after_promises_a_slot_like_any_refusal() -> None:
    """At least a second."""
    one = scenario(rule("all", (BIG,), always, refuses=True))
    effects = one.arrive(1, 0.0)
    assert isinstance(effects[0], Refuse)
    assert (effects[0].refusal.retry_after_s or 0) >= 1.0


def test_what_can_never_fit_is_told_so_whatever_the_rules_say() -> None:
    """The first failing check decides, and size comes before rules; the record has both."""
    one = scenario(rule("all", (BIG,), always, refuses=True))
    effects = one.arrive(1, 0.0, prompt_tokens=200_000)
    assert [(1, Outcome.REQUEST_TOO_LARGE)] == turned_away(effects)
    assert "rule:all" in [check.name for check in record_of(effects).checks]


def test_priority_low_leaves_the_most_important_class_alone() -> None:
    """All other classes are refused."""
    one = scenario(rule("low", (BIG,), always, refuses=True, low_only=True))
    assert [] == turned_away(one.arrive(1, 0.0, class_name="realtime"))
    assert [(2, Outcome.RULE_REFUSED)] == turned_away(one.arrive(2, 0.0, class_name="standard"))
    assert [(3, Outcome.RULE_REFUSED)] == turned_away(one.arrive(3, 0.0, class_name="batch"))


def test_a_class_rule_moves_a_request_to_another_class() -> None:
    """R10: it counts, waits and is reported there."""
    one = scenario(rule("big", (BIG,), over(BIG, 90), class_name="batch"), max_inflight_requests=1)
    one.arrive(1, 0.0, max_output_tokens=10)
    record = record_of(one.arrive(2, 0.0))
    assert ("hold", "batch", 60.0) == (record.action, record.class_name, record.wait_budget_s)
    assert "rule:big" == record.checks[0].name
    classes = {view.name: view.waiting_requests for view in one.pool_view().classes}
    assert {"realtime": 0, "standard": 0, "batch": 1} == classes
    one.close()
    assert "batch" == one.settlements[2].class_name


def test_of_each_kind_the_first_rule_that_matches_counts() -> None:
    """And each is asked about the request as it came: there is no loop."""
    one = scenario(
        rule("first", ("class",), lambda v: v["class"] == "standard", class_name="batch"),
        rule("second", ("class",), lambda v: v["class"] == "batch", class_name="realtime"),
        rule("third", ("class",), always, class_name="realtime"),
        names=("class",),
    )
    assert "batch" == record_of(one.arrive(1, 0.0)).class_name
    assert "realtime" == record_of(one.arrive(2, 0.0, class_name="batch")).class_name
    assert "realtime" == record_of(one.arrive(3, 0.0, class_name="realtime")).class_name


def test_rules_that_refuse_see_the_class_that_was_given() -> None:
    """Routing comes first."""
    one = scenario(
        rule("no-batch", ("class",), lambda v: v["class"] == "batch", refuses=True),
        rule("big", (BIG,), over(BIG, 90), class_name="batch"),
        names=("class", BIG),
    )
    assert [(1, Outcome.RULE_REFUSED)] == turned_away(one.arrive(1, 0.0))
    assert [] == turned_away(one.arrive(2, 0.0, max_output_tokens=10))


def test_accept_before_refuse_shields_from_it() -> None:
    """Refuse and accept are one kind: the first that matches decides."""
    shield = rule("vip", ("tenant.name",), lambda v: v["tenant__name"] == "vip", accepts=True)
    wall = rule("wall", (BIG,), always, refuses=True)
    names = ("tenant.name", BIG)
    assert [] == turned_away(scenario(shield, wall, names=names).arrive(1, 0.0, tenant="vip"))
    assert turned_away(scenario(shield, wall, names=names).arrive(1, 0.0, tenant="other"))
    assert turned_away(scenario(wall, shield, names=names).arrive(1, 0.0, tenant="vip"))


def test_accept_skips_the_bounds_of_the_class_but_not_those_of_the_pool() -> None:
    """It waits above `max_queue` of its class; the bound on bytes holds for it too."""
    vip = rule("vip", ("tenant.name",), lambda v: v["tenant__name"] == "vip", accepts=True)
    settings = ruled(vip, names=("tenant.name",), pool=pool_settings(max_inflight_requests=1))
    one = Scenario(settings=replace(with_class("standard", settings, max_queue=0), max_waiting_bytes=2500))
    one.arrive(1, 0.0)
    assert [(2, Outcome.QUEUE_FULL)] == turned_away(one.arrive(2, 0.0))
    assert [] == turned_away(one.arrive(3, 0.0, tenant="vip"))
    assert [] == turned_away(one.arrive(4, 0.0, tenant="vip"))
    assert [(5, Outcome.QUEUE_FULL)] == turned_away(one.arrive(5, 0.0, tenant="vip"))


def test_accept_does_not_pay_for_a_tenant() -> None:
    """Whoever is accepted is held to its plan all the same."""
    vip = rule("vip", ("tenant.name",), always, accepts=True)
    settings = ruled(vip, names=("tenant.name",))
    none = PlanSettings("none", requests_per_s=0.0, requests_capacity=0)
    one = Scenario(settings=replace(settings, plans=(none,)))
    said = turned_away(one.arrive(1, 0.0, tenant="acme", plan="none"))
    assert [(1, Outcome.RATE_LIMIT_EXCEEDED)] == said


def test_a_rule_about_engines_is_asked_once_for_each_reading() -> None:
    """However many requests come, and again after a second without one."""
    cliff = rule("cliff", (RUNNING,), over(RUNNING, 32), refuses=True)
    one = scenario(cliff, names=(RUNNING,))
    one.sample("a", 0.0, running=10)
    one.arrive_many(range(1, 6), 0.1)
    assert 1 == asked(cliff)
    one.sample("a", 0.2, running=33)
    assert 1 == asked(cliff)
    assert [(6, Outcome.RULE_REFUSED)] == turned_away(one.arrive(6, 0.3))
    assert [(7, Outcome.RULE_REFUSED)] == turned_away(one.arrive(7, 0.4))
    assert 2 == asked(cliff)
    one.arrive(8, 0.3 + KEPT_S)
    assert 3 == asked(cliff)
    one.sample("a", 1.5, running=3)
    assert [] == turned_away(one.arrive(9, 1.5))


def test_a_rule_about_requests_is_asked_for_each_and_only_while_it_can_give_something() -> None:
    """Once its kind is decided, it is not asked."""
    first = rule("first", (BIG,), over(BIG, 50), class_name="batch")
    second = rule("second", (BIG,), always, class_name="realtime")
    one = scenario(first, second)
    one.arrive(1, 0.0)
    assert (1, 0) == (asked(first), asked(second))
    one.arrive(2, 0.0, max_output_tokens=10)
    assert (2, 1) == (asked(first), asked(second))


def test_rules_about_endpoints_look_at_the_least_loaded_one() -> None:
    """What holds even there holds everywhere; with none up they do not match."""
    cliff = rule("cliff", (RUNNING,), over(RUNNING, 32), refuses=True)
    one = Scenario(settings=ruled(cliff, names=(RUNNING,)), endpoints=("a", "b"))
    one.sample("a", 0.0, running=40)
    one.sample("b", 0.0, running=20)
    assert [] == turned_away(one.arrive(1, 0.0))
    one.sample("b", 0.1, running=33)
    assert [(2, Outcome.RULE_REFUSED)] == turned_away(one.arrive(2, 0.1))
    empty = Scenario(settings=ruled(cliff, names=(RUNNING,)), up=False)
    empty.arrive(1, 0.0)
    assert 0 == asked(cliff) - 2


def test_a_mixed_rule_sees_the_request_and_the_engines() -> None:
    """It is asked for each request, with the engines as they are by now."""
    mixed = rule(
        "mixed",
        (BIG, RUNNING),
        lambda v: over(BIG, 50)(v) and over(RUNNING, 5)(v),
        refuses=True,
    )
    one = scenario(mixed, names=(BIG, RUNNING))
    one.sample("a", 0.0, running=6)
    assert [(1, Outcome.RULE_REFUSED)] == turned_away(one.arrive(1, 0.0))
    assert [] == turned_away(one.arrive(2, 0.0, max_output_tokens=10))
    nothing_up = Scenario(settings=ruled(mixed, names=(BIG, RUNNING)), up=False)
    nothing_up.arrive(1, 0.0)
    assert 2 == asked(mixed)


def test_a_pool_rule_sends_a_request_elsewhere_with_a_model_of_that_pool() -> None:
    """R10, R13: the first that the engines there list; what the client asked for is kept."""
    one = two_pools(rule("big", (BIG,), over(BIG, 50), pool="small"))
    (effect,) = [e for e in one.arrive(1, 0.0) if isinstance(e, Dispatch)]
    assert effect.change is not None
    assert ("b", "tiny", "small") == (effect.endpoint, effect.change.model, effect.record.pool)
    (effect,) = [e for e in one.arrive(2, 0.0, max_output_tokens=10) if isinstance(e, Dispatch)]
    assert ("a", None, "llama") == (effect.endpoint, effect.change, effect.record.pool)
    (effect,) = [e for e in one.arrive(3, 0.0, model="other") if isinstance(e, Dispatch)]
    assert ("b", None) == (effect.endpoint, effect.change)


def test_a_model_rule_changes_the_model() -> None:
    """Where it goes as well, and alone; the same name is no change."""
    one = two_pools(rule("big", (BIG,), over(BIG, 50), pool="small", model="mini"))
    (effect,) = [e for e in one.arrive(1, 0.0) if isinstance(e, Dispatch)]
    assert effect.change is not None
    assert ("b", "mini", "mini") == (effect.endpoint, effect.change.model, effect.record.model)
    alone = scenario(rule("other", (BIG,), over(BIG, 50), model="ft-1"))
    (effect,) = [e for e in alone.arrive(1, 0.0) if isinstance(e, Dispatch)]
    assert effect.change is not None
    assert ("a", "ft-1") == (effect.endpoint, effect.change.model)
    (effect,) = [e for e in alone.arrive(2, 0.0, model="ft-1") if isinstance(e, Dispatch)]
    assert effect.change is None


def test_rules_that_are_not_enforced_change_nothing() -> None:
    """In shadow what they would do is recorded; in bypass they are not asked."""
    big = rule("big", (BIG,), over(BIG, 50), class_name="batch", model="mini")
    wall = rule("wall", (BIG,), always, refuses=True)
    settings = ruled(big, wall, names=(BIG,))
    shadow = Scenario(settings=replace(settings, mode=Mode.SHADOW))
    (effect,) = [e for e in shadow.arrive(1, 0.0) if isinstance(e, Dispatch)]
    assert (None, "standard", Outcome.RULE_REFUSED) == (
        effect.change,
        effect.record.class_name,
        effect.record.outcome,
    )
    assert ["rule:big", "rule:wall"] == [c.name for c in effect.record.checks if c.name.startswith("rule:")]
    bypass = Scenario(settings=replace(settings, mode=Mode.BYPASS))
    assert [(1, "a")] == dispatched(bypass.arrive(1, 0.0))
    assert (2, 1) == (asked(big) + asked(wall), asked(wall))


def test_no_rule_that_matches_leaves_everything_as_it_is() -> None:
    """R15: the decision is that of a gateway without rules, but for nothing."""
    with_rules = scenario(rule("big", (BIG,), over(BIG, 1e6), class_name="batch", pool="nowhere"))
    without = Scenario()
    assert record_of(without.arrive(1, 0.0)) == record_of(with_rules.arrive(1, 0.0))


def test_what_rules_decided_is_counted_and_counts_live_through_a_reload() -> None:
    """By rule, of those that there are."""
    first = rule("big", (BIG,), over(BIG, 50), class_name="batch")
    one = scenario(first)
    one.arrive_many(range(1, 4), 0.0)
    assert [("big", 3, 0)] == [(v.name, v.matches, v.errors) for v in one.controller.snapshot().rules]
    second = rule("wall", (BIG,), always, refuses=True)
    one.reconfigure(ruled(second, first, names=(BIG,)), 1.0)
    assert [(4, Outcome.RULE_REFUSED)] == turned_away(one.arrive(4, 1.0))
    counts = {view.name: view.matches for view in one.controller.snapshot().rules}
    assert {"wall": 1, "big": 4} == counts
    # What a client is told names the rule.
    effects = one.arrive(40, 1.0)
    assert "It is rule 'wall'." == record_of(effects).detail
    one.reconfigure(settings_for(), 2.0)
    assert () == one.controller.snapshot().rules
    assert [] == turned_away(one.arrive(5, 2.0))
    one.close()


def test_errors_of_a_rule_live_through_a_reload() -> None:
    """As its matches do: a counter that starts anew hides that a rule has failed all the time."""
    failed = [5]
    first = replace(rule("big", (BIG,), over(BIG, 50), class_name="batch"), errors=lambda: failed[0])
    one = scenario(first)

    def errors() -> dict[str, int]:
        return {view.name: view.errors for view in one.controller.snapshot().rules}

    one.reconfigure(ruled(first, names=(BIG,)), 1.0)
    assert {"big": 5} == errors(), "the same rule still"
    other = rule("other", (BIG,), always, refuses=True)
    again = replace(first, errors=lambda: 2)
    one.reconfigure(ruled(other, again, names=(BIG,)), 2.0)
    assert {"other": 0, "big": 7} == errors()
    one.reconfigure(ruled(other, again, names=(BIG,)), 3.0)
    one.reconfigure(ruled(replace(again, errors=lambda: 0), names=(BIG,)), 4.0)
    assert {"big": 7} == errors()


def test_throughput_comes_from_two_readings_and_is_unknown_before() -> None:
    """A counter that fell says nothing; endpoints that are gone are forgotten."""
    seen: list[object] = []

    def note(values: dict[str, FactValue]) -> bool:
        seen.append(values.get("generation_tput"))
        return False

    look = rule("look", ("generation_tput",), note, accepts=True)
    one = scenario(look, names=("generation_tput",))
    for at_s, total in ((0.0, 1000), (1.0, 1500), (2.0, 100), (4.0, 300), (5.0, None)):
        one.sample("a", at_s, output_tokens_total=total)
        one.arrive(int(at_s) + 1, at_s)
    assert [None, 500.0, None, 100.0, 100.0] == seen
    rules = one.controller._reception._rules
    assert rules is not None
    for number in range(100):
        one.tell(EndpointsChanged("llama", (EndpointId(f"e{number}"),)), 10.0 + number)
        one.tell(Described(EndpointId(f"e{number}"), VLLM), 10.0 + number)
        one.sample(f"e{number}", 10.0 + number, output_tokens_total=5)
    assert len(rules._state(one.controller._pools["llama"]).totals) < 20
    one.close()


def test_a_reload_does_not_forget_how_fast_an_engine_is() -> None:
    """Unknown for the time of two readings, a protective rule would be off, or refuse all with `on_error: match`."""
    slow = rule("slow", ("generation_tput",), _is_slow, refuses=True)
    one = scenario(slow, names=("generation_tput",))
    for at_s, total in ((0.0, 0), (1.0, 5)):
        one.sample("a", at_s, output_tokens_total=total)
    other = rule("other", (BIG,), over(BIG, 10**6), refuses=True)
    one.reconfigure(ruled(other, slow, names=(BIG, "generation_tput")), 1.1)
    assert [(1, Outcome.RULE_REFUSED)] == turned_away(one.arrive(1, 1.1))
    one.sample("a", 2.0, output_tokens_total=5000)
    assert [] == turned_away(one.arrive(2, 2.0))
    one.close()


def test_a_pool_that_was_taken_out_and_comes_back_is_known_anew() -> None:
    """What was seen of it is of another time."""
    seen = rule("look", (RUNNING,), always, accepts=True)
    before = two_pools(seen, names=(RUNNING,))
    before.sample("b", 1.0, output_tokens_total=5)
    before.reconfigure(ruled(seen, names=(RUNNING,)), 2.0)
    rules = before.controller._reception._rules
    assert rules is not None
    assert "small" not in rules._engines
    before.close()


def _is_slow(values: dict[str, FactValue]) -> bool:
    """Unknown counts as not matching, as with `on_error: skip`."""
    value = values.get("generation_tput")
    return isinstance(value, float) and value < 10
