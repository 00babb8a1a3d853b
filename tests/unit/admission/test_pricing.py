from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.counted_prompts import CountedPrompts
from forebay.admission.length_law import PRIOR_OUTPUT_TOKENS
from forebay.admission.model import Usage
from forebay.admission.pricing import CHANGED, Pricing
from forebay.admission.settings import OPTIMISTIC_LAW, SpeedLaw
from tests.unit.admission.build import AS_LONG_AS_MAY_BE, LAW, demand


def sure(law: SpeedLaw = LAW, max_output_tokens: int | None = None) -> Pricing:
    """Estimates that take every answer for as long as it may be."""
    pricing = Pricing(law, max_output_tokens)
    key = pricing.lengths._pool
    key.law, key.left = AS_LONG_AS_MAY_BE, 1 << 60
    return pricing


def answered(pricing: Pricing, times: int, tokens: int, *, whole: bool = True, **changes: Any) -> Pricing:
    """The same estimates after so many answers of so many tokens."""
    wanted = demand(1, **changes)
    for _ in range(times):
        pricing.learn_output(wanted, pricing.price(wanted), tokens, whole=whole)
    return pricing


def expected(pricing: Pricing, **changes: Any) -> int:
    """Output tokens that are expected of an answer without a limit of its own."""
    return pricing.price(demand(1, **{"max_output_tokens": None, **changes})).cost.output_tokens


# The prompt


def test_a_known_prompt_is_priced_as_it_is() -> None:
    """The exact count goes before the bytes; images and audio come on top."""
    cost = sure().price(demand(1, prompt_tokens=500, extra_prompt_tokens=300, prompt_bytes=9999)).cost
    assert (800, 99) == (cost.prompt_tokens, cost.output_tokens)
    assert (80_000, 80_000 + 990_000) == (cost.prefill_us, cost.work_us)


def test_an_unknown_prompt_is_estimated_from_its_bytes() -> None:
    """Four bytes a token before anything is learned, and eight tokens of a template."""
    assert 258 == sure().price(demand(1, prompt_tokens=None, prompt_bytes=1000)).cost.prompt_tokens


def test_kv_is_booked_as_is_held_on_average() -> None:
    """An answer of 99 tokens holds 50 of them on average while it grows, and its prompt all the time."""
    assert 100 + 50 == sure().price(demand(1)).cost.kv_tokens


def test_every_sample_is_paid_for() -> None:
    """Four answers for one prompt cost four decodes, and KV for four answers and one prompt."""
    cost = sure().price(demand(1, samples=4)).cost
    assert (10_000 + 4 * 990_000, 100 + 4 * 50) == (cost.work_us, cost.kv_tokens)


def test_an_embedding_holds_no_kv() -> None:
    """What generates nothing pays for its prompt alone."""
    cost = sure().price(demand(1, generates=False)).cost
    assert (10_000, 0, 0) == (cost.work_us, cost.kv_tokens, cost.output_tokens)


def test_what_a_request_surely_needs() -> None:
    """An exact count is sure; of a guess from bytes only a quarter is, or a half once thirty prompts were counted."""
    pricing = Pricing(LAW, None)
    guessed = demand(1, prompt_tokens=None, prompt_bytes=4000)
    assert (500, 252) == (pricing.surely_needs(demand(1, prompt_tokens=500)), pricing.surely_needs(guessed))
    for _ in range(30):
        pricing.learn_usage(demand(1, prompt_tokens=None, prompt_bytes=400), Usage(108, 5))
    assert 500 == pricing.surely_needs(guessed)


# The most an answer may have


@pytest.mark.parametrize(
    ("client", "pool", "context", "cap"),
    [
        (99, None, None, 99),
        (99, 64, None, 64),
        (32, 64, None, 32),
        (None, 64, None, 64),
        (4000, 2000, 1000, 900),
        (None, None, 1000, 900),
        (50, None, 1000, 50),
        (None, None, 100, 1),
        (None, None, 60, 1),
        (0, None, None, 1),
        (None, None, None, 2 * 100_000 - 100),
    ],
    ids=str,
)
def test_the_tightest_limit_caps_the_answer(
    client: int | None, pool: int | None, context: int | None, cap: int
) -> None:
    """Client, pool, what a prompt of 100 leaves of the window; the cache twice over where nobody says; at least 1."""
    pricing = sure(max_output_tokens=pool)
    pricing.context_tokens = context
    price = pricing.price(demand(1, max_output_tokens=client))
    assert (cap, cap) == (price.cap, price.cost.output_tokens)


def test_a_limit_is_not_what_is_expected() -> None:
    """Where answers are short a wide limit costs nothing, and a tight one makes them shorter still."""
    pricing = answered(Pricing(LAW, None), 400, 20, max_output_tokens=1000)
    wide, tight = (pricing.price(demand(1, max_output_tokens=limit)) for limit in (4000, 5))
    assert (4000, 5) == (wide.cap, tight.cap)
    assert pytest.approx(20, abs=3) == wide.cost.output_tokens
    assert pytest.approx(5, abs=1) == tight.cost.output_tokens
    assert wide.lengths is tight.lengths


# Learned lengths


def test_before_any_answer_the_prior_is_expected() -> None:
    """Some 256 tokens, whoever asks."""
    for tenant in ("acme", "other"):
        assert pytest.approx(PRIOR_OUTPUT_TOKENS, rel=0.02) == expected(Pricing(LAW, None), tenant=tenant)


def test_whole_answers_teach_how_long_answers_are() -> None:
    """Of a tenant whose answers had 20 tokens the next is expected to, and of others somewhat."""
    pricing = answered(Pricing(LAW, None), 400, 20, tenant="acme")
    assert pytest.approx(20, abs=3) == expected(pricing, tenant="acme")
    assert pytest.approx(20, abs=3) == expected(pricing, tenant="other")
    assert expected(pricing, class_name="batch", tenant="other") < PRIOR_OUTPUT_TOKENS / 2


def test_an_answer_that_ends_at_its_limit_was_cut_off_by_it() -> None:
    """Limits are set by clients and teach no lengths: answers of 32 do so under a limit of 33, but not of 32."""
    cut = answered(Pricing(LAW, None), 200, 32, max_output_tokens=32)
    ended = answered(Pricing(LAW, None), 200, 32, max_output_tokens=33)
    assert expected(cut) > PRIOR_OUTPUT_TOKENS
    assert pytest.approx(32, abs=8) == expected(ended)


@pytest.mark.parametrize("limits", [{"pool": 32}, {"context": 132}], ids=str)
def test_so_was_one_that_ends_at_the_limit_of_pool_or_window(limits: dict[str, int]) -> None:
    """It is the cap that cuts, whosever it is."""
    pricing = Pricing(LAW, limits.get("pool"))
    pricing.context_tokens = limits.get("context")
    answered(pricing, 200, 32, max_output_tokens=None)
    pricing.max_output_tokens = pricing.context_tokens = None
    assert expected(pricing) > PRIOR_OUTPUT_TOKENS


def test_an_answer_that_was_cut_off_was_to_be_longer() -> None:
    """Whoever ended it: what has come by then is the least that it would have had."""
    pricing = answered(Pricing(LAW, None), 200, 900, whole=False, max_output_tokens=4000)
    assert expected(pricing) > 900


def test_each_sample_is_an_answer() -> None:
    """Eighty tokens over four samples are answers of twenty."""
    pricing = answered(Pricing(LAW, None), 400, 80, samples=4)
    assert pytest.approx(20, abs=3) == expected(pricing)
    assert pytest.approx(80, abs=12) == expected(pricing, samples=4)


@pytest.mark.parametrize(
    ("tokens", "changes"),
    [(0, {}), (-3, {}), (1, {"generates": False})],
    ids=["none", "negative", "embedding"],
)
@pytest.mark.parametrize("whole", [True, False])
def test_what_has_no_answer_teaches_no_length(tokens: int, changes: dict[str, Any], whole: bool) -> None:
    """Nothing that came, and embeddings whatever their usage says, leave all estimates as they are."""
    pricing = Pricing(LAW, None)
    before = json.dumps(pricing.export())
    answered(pricing, 50, tokens, whole=whole, **changes)
    assert before == json.dumps(pricing.export())
    assert (None, 2_100_000) == (pricing.output_error, pricing.usual_work_us())


def test_the_error_of_expected_lengths_is_kept() -> None:
    """Twice what was expected is an error of two; later answers pull it by a fiftieth; cut-off ones say nothing."""
    pricing, wanted = sure(), demand(1)
    price = pricing.price(wanted)
    pricing.learn_output(wanted, price, 198, whole=True)
    assert 2.0 == pricing.output_error
    pricing.learn_output(wanted, price, 99, whole=True)
    pricing.learn_output(wanted, price, 1, whole=False)
    assert pytest.approx(2.0 * 0.98 + 0.02) == pricing.output_error


# A usual request


def test_a_usual_request_is_guessed_before_any_was_seen() -> None:
    """A thousand prompt tokens and two hundred of an answer: 0.1 s and 2 s under these tests' law."""
    assert 100_000 + 2_000_000 == Pricing(LAW, None).usual_work_us()


def test_a_usual_request_is_what_requests_are_like() -> None:
    """After some hundred answers of 49 tokens to prompts of 100 it takes 10 ms and 490 ms, within 3 %."""
    pricing = answered(Pricing(LAW, None), 300, 49)
    assert pytest.approx(500_000, rel=0.03) == pricing.usual_work_us()
    halfway = answered(Pricing(LAW, None), 35, 49)
    assert pytest.approx((2_100_000 + 500_000) / 2, rel=0.03) == halfway.usual_work_us()


def test_answers_that_were_cut_off_are_not_usual() -> None:
    """How long they would have become nobody knows."""
    assert 2_100_000 == answered(Pricing(LAW, None), 300, 10, whole=False).usual_work_us()


# What engines say of prompts


def test_usage_teaches_how_many_tokens_text_makes() -> None:
    """Two thousand bytes of text that were a thousand tokens; an image comes on top of that."""
    pricing = Pricing(LAW, None)
    for number in range(200):
        wanted = demand(number, prompt_tokens=None, prompt_bytes=2000)
        pricing.learn_usage(wanted, Usage(prompt_tokens=1000, output_tokens=20))
    again = demand(1, prompt_tokens=None, prompt_bytes=2000, extra_prompt_tokens=50)
    assert pytest.approx(1050, rel=0.02) == pricing.price(again).cost.prompt_tokens


def test_prompts_with_images_teach_nothing_of_text() -> None:
    """How many tokens an image has is a guess: an image of 1800 tokens must not make text look dear."""
    pricing = Pricing(LAW, None)
    for number in range(200):
        wanted = demand(number, prompt_tokens=None, prompt_bytes=100, extra_prompt_tokens=1000)
        pricing.learn_usage(wanted, Usage(prompt_tokens=1825, output_tokens=20))
        pricing.learn_counted(CountedPrompts([(wanted, 1033)], 1825, None))
    assert (0, 4.0) == (pricing.ratios.common.observations, pricing.ratios.common.bytes_per_token)


def counted(prompts: int, tokens: int, cached_tokens: int | None = None, **changes: Any) -> CountedPrompts:
    """So many requests of 2000 bytes, counted together."""
    asked = [
        (demand(n, **{"prompt_tokens": None, "prompt_bytes": 2000, **changes}), 500) for n in range(prompts)
    ]
    return CountedPrompts(asked, tokens, cached_tokens)


def test_prompts_counted_together_teach_bytes_per_token() -> None:
    """Two thousand bytes that were a thousand tokens, also beside prompts that came as tokens."""
    pricing = Pricing(LAW, None)
    for _ in range(100):
        pricing.learn_counted(counted(2, 2000))
        mixed = counted(1, 1000 + 300)
        mixed.prompts.append((demand(9, prompt_tokens=300), 300))
        pricing.learn_counted(mixed)
    assert pytest.approx(1000, rel=0.02) == pricing.ratios.common.estimate(2000)
    assert 300 == pricing.ratios.common.observations


def test_only_prompts_that_came_as_tokens_teach_no_ratio() -> None:
    """However many the engine counted."""
    pricing = Pricing(LAW, None)
    pricing.learn_counted(counted(3, 900, prompt_tokens=100))
    assert (0, 4.0) == (pricing.ratios.common.observations, pricing.ratios.common.bytes_per_token)


def test_of_cached_tokens_usage_is_better_evidence_than_a_count() -> None:
    """A window in which usage told of them is left to it; the next one without counts again."""
    pricing = Pricing(LAW, None)
    told = demand(1, prompt_tokens=None, prompt_bytes=2000)
    pricing.learn_usage(told, Usage(prompt_tokens=1000, output_tokens=5, cached_tokens=0))
    pricing.learn_counted(counted(4, 2000, cached_tokens=300, prefix_hash=5))
    assert (0, 5) == (len(pricing.prefixes), pricing.ratios.common.observations)
    pricing.learn_counted(counted(4, 2000, cached_tokens=300, prefix_hash=5))
    assert 1 == len(pricing.prefixes)


@pytest.mark.parametrize(("tokens", "learns"), [(13_000, False), (6000, True), (500, True), (300, False)])
def test_counts_that_are_far_off_are_somebody_elses(tokens: int, learns: bool) -> None:
    """Four prompts of 2000 bytes: at first up to six times too many or too few tokens may be theirs."""
    pricing = Pricing(LAW, None)
    pricing.learn_counted(counted(4, tokens))
    assert learns is bool(pricing.ratios.common.observations)


def test_what_is_known_well_may_not_be_far_off() -> None:
    """Three times, once thirty prompts were counted: more is another client of the engine."""
    pricing = Pricing(LAW, None)
    for _ in range(10):
        pricing.learn_counted(counted(4, 2000))
    before = pricing.ratios.common.bytes_per_token
    pricing.learn_counted(counted(4, 6100))
    assert before == pricing.ratios.common.bytes_per_token


def test_an_answer_at_the_smaller_of_two_limits_says_nothing_of_its_length() -> None:
    """Nobody knows by which of them the engine went."""
    cut, whole = Pricing(LAW, None), Pricing(LAW, None)
    for number in range(100):
        for pricing, limit in ((cut, 20), (whole, None)):
            asked = demand(number, max_output_tokens=4000, cut_output_tokens=limit)
            pricing.learn_output(asked, pricing.price(asked), 20, whole=True)
    of_cut, of_whole = (p.price(demand(1, max_output_tokens=4000)).cost.output_tokens for p in (cut, whole))
    assert of_cut > 200
    assert of_whole < 60


def test_where_usage_has_told_of_cached_tokens_none_are_none() -> None:
    """Some engines leave out a nought: hits alone would teach that everything is always cached."""
    pricing = Pricing(LAW, None)
    assert (None, 40) == (pricing.cached_of(Usage(100, 5)), pricing.cached_at_end(Usage(100, 5), 40))
    pricing.learn_usage(demand(1, prefix_hash=5), Usage(1000, 5, cached_tokens=900))
    for _ in range(40):
        pricing.learn_usage(demand(1, prefix_hash=5), Usage(1000, 5))
    assert (0, 0) == (pricing.cached_of(Usage(100, 5)), pricing.cached_at_end(Usage(100, 5), 40))
    assert pricing.price(demand(1, prefix_hash=5, prompt_tokens=1000)).cost.cached_tokens < 2


def test_a_whole_prompt_is_never_expected_to_have_been_cached() -> None:
    """The last token at least was worked out; what an engine says itself is another matter."""
    pricing = Pricing(LAW, None)
    assert (99, 0, 0) == tuple(pricing.cached_at_end(Usage(tokens, 5), 400) for tokens in (100, 1, 0))
    assert 100 == pricing.cached_at_end(Usage(100, 5, cached_tokens=5000), 0)


def test_usage_without_details_leaves_prefixes_to_the_count() -> None:
    """vLLM says what was cached in its counters, and in usage only when told to."""
    pricing = Pricing(LAW, None)
    pricing.learn_usage(demand(1, prefix_hash=5), Usage(prompt_tokens=100, output_tokens=5))
    pricing.learn_counted(counted(4, 2000, cached_tokens=1600, prefix_hash=5))
    assert (
        pytest.approx(400, abs=2)
        == pricing.price(demand(1, prefix_hash=5, prompt_tokens=900)).cost.cached_tokens
    )


def test_a_counted_prompt_teaches_no_ratio() -> None:
    """Token-id prompts have no text bytes to speak of."""
    pricing = Pricing(LAW, None)
    pricing.learn_usage(demand(1), Usage(prompt_tokens=100, output_tokens=5))
    assert (0, 4.0) == (pricing.ratios.common.observations, pricing.ratios.common.bytes_per_token)


def test_what_is_cached_is_not_charged_but_held() -> None:
    """Of a prompt whose beginning an engine knew, only the rest is prefill; its KV is booked all the same."""
    pricing = sure()
    for _ in range(5):
        pricing.learn_usage(
            demand(1, prefix_hash=7), Usage(prompt_tokens=100, output_tokens=5, cached_tokens=80)
        )
    known, other = (pricing.price(demand(1, prefix_hash=number)).cost for number in (7, 8))
    assert (2_000, 10_000) == (known.prefill_us, other.prefill_us)
    assert other.work_us - known.work_us == 8_000
    assert known.kv_tokens == other.kv_tokens


# Another law


def scaled(prefill: float = 1.0, decode: float = 1.0) -> SpeedLaw:
    """The law of these tests, with other costs of prompts and of answers."""
    return replace(LAW, c1_s=LAW.c1_s * prefill, c2_s=LAW.c2_s * decode)


@pytest.mark.parametrize("decode", [1.103, 0.897])
def test_a_law_that_changes_hardly_anything_is_not_taken(decode: float) -> None:
    """A usual request that costs up to a tenth more or less is not worth estimating everything anew."""
    pricing = Pricing(LAW, None)
    assert pricing.take_law(scaled(decode=decode)) is None
    assert pricing.law is LAW


@pytest.mark.parametrize(("decode", "factor"), [(1.12, 2.34 / 2.1), (0.5, 1.1 / 2.1), (10.0, 20.1 / 2.1)])
def test_a_law_that_changes_costs_is_taken(decode: float, factor: float) -> None:
    """It is told by how much a usual request costs more, and requests are counted by it from then on."""
    pricing = sure()
    law = scaled(decode=decode)
    assert pytest.approx(factor) == pricing.take_law(law)
    assert pricing.law is law
    assert round(10_000 + 990_000 * decode) == pricing.price(demand(1)).cost.work_us


def test_a_law_is_taken_if_either_part_changes() -> None:
    """Prompts that cost more and answers that cost less leave a usual request as it was, and others not."""
    pricing = Pricing(LAW, None)
    assert pytest.approx(1.0, rel=0.01) == pricing.take_law(scaled(prefill=6.0, decode=0.75))
    assert 3_000_000 == pricing.price(demand(1, prompt_tokens=5000, generates=False)).cost.work_us


def test_the_threshold_is_a_part_of_the_whole_request() -> None:
    """Prompts, a twentieth of a usual request here, may cost twice as much before that matters."""
    assert CHANGED > 0.1 / 2.1
    assert Pricing(LAW, None).take_law(scaled(prefill=2.0)) is None
    assert Pricing(LAW, None).take_law(scaled(prefill=4.0)) is not None


def test_what_is_usual_decides_what_matters() -> None:
    """Where prompts are long and answers short, dearer prompts are another law."""
    pricing = answered(Pricing(LAW, None), 300, 2, prompt_tokens=5000)
    assert pricing.take_law(scaled(prefill=1.5)) is not None


def test_a_law_of_no_cost_is_not_taken() -> None:
    """Nothing could be divided by it."""
    free = SpeedLaw(0.0, 0.0, 0.0, 0.0, 0.0, kv_tokens=1000, max_requests=1)
    pricing = Pricing(LAW, None)
    assert pricing.take_law(free) is None
    assert pricing.law is LAW


# Keeping


def make_laws_anew(pricing: Pricing) -> None:
    """Let the next look at each law make it of all answers: otherwise that is done only now and then."""
    lengths = pricing.lengths
    levels = (lengths._classes, lengths._tenants, lengths._prompt_sizes)
    for key in (lengths._pool, *(key for level in levels for key in level.values())):
        key.left = 0


def test_what_was_exported_can_be_taken_up() -> None:
    """Through JSON and back, prompts and answers are estimated as before."""
    first = answered(Pricing(OPTIMISTIC_LAW, None), 100, 40, tenant="acme")
    for _ in range(100):
        first.learn_usage(demand(1, prompt_tokens=None, prompt_bytes=900), Usage(300, 40))
    second = Pricing(OPTIMISTIC_LAW, None)
    second.restore(json.loads(json.dumps(first.export())))
    wanted = demand(1, tenant="acme", prompt_tokens=None, prompt_bytes=900, max_output_tokens=None)
    make_laws_anew(first)
    one, other = first.price(wanted), second.price(wanted)
    assert one.cost.prompt_tokens == other.cost.prompt_tokens
    assert pytest.approx(one.cost.output_tokens, abs=1) == other.cost.output_tokens


def without(part: str) -> Callable[[dict[str, object]], object]:
    """What was exported, less a part."""
    return lambda state: {name: value for name, value in state.items() if name != part}


@pytest.mark.parametrize(
    "spoil",
    [without("prompt_ratios"), without("lengths"), lambda state: [state], lambda _: None],
    ids=["no ratio", "no lengths", "a list", "nothing"],
)
def test_nonsense_is_not_taken_up(spoil: Callable[[dict[str, object]], object]) -> None:
    """State of another form is an error that says so."""
    with pytest.raises(ValueError, match=r"object|ratio|lengths"):
        Pricing(LAW, None).restore(spoil(Pricing(LAW, None).export()))


def test_a_list_of_prompts_costs_what_its_prompts_cost() -> None:
    """And none of them is refused for what all are together."""
    pricing = Pricing(LAW, None)
    pricing.context_tokens = 4096
    one = pricing.price(demand(1, prompt_tokens=1000, max_output_tokens=50))
    many = pricing.price(demand(2, prompt_tokens=16_000, max_output_tokens=50, samples=16, prompts=16))
    assert (50, 50) == (one.cap, many.cap)
    assert pytest.approx(16 * one.cost.work_us, abs=16) == many.cost.work_us
    assert (16_000, 1000) == (
        many.cost.prompt_tokens,
        pricing.surely_needs(demand(2, prompt_tokens=16_000, prompts=16)),
    )


def test_what_is_not_made_of_tokens_costs_what_is_configured() -> None:
    """Each picture costs as much, with no prompt, no output and no KV; and nothing is learned from its usage."""
    pricing = Pricing(LAW, None, {"image": 2_000_000})
    picture = demand(1, flat="image", samples=3, generates=False, prompt_tokens=0, stream=False)
    cost = pricing.price(picture).cost
    assert (6_000_000, 0, 0, 0, 0) == (
        cost.work_us,
        cost.prefill_us,
        cost.kv_tokens,
        cost.prompt_tokens,
        cost.output_tokens,
    )
    before = pricing.export()
    pricing.learn_usage(picture, Usage(50, 7, 20))
    assert before == pricing.export()
    assert not pricing._says_cached
