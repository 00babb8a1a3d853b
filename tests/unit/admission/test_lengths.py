from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import pytest

from forebay.admission.length_law import PRIOR, LengthLaw
from forebay.admission.lengths import BACKOFF, PROMPT_SIZES, TENANTS, OutputLengths

PLENTY = 100_000
BATCH, CHAT = "batch", "standard"


def answers(
    *lengths: int, class_name: str = CHAT, tenant: str = "anonymous", prompt_tokens: int = 500
) -> OutputLengths:
    """Lengths that have been seen, in this order."""
    seen = OutputLengths()
    teach(seen, *lengths, class_name=class_name, tenant=tenant, prompt_tokens=prompt_tokens)
    return seen


def teach(
    seen: OutputLengths,
    *lengths: int,
    class_name: str = CHAT,
    tenant: str = "anonymous",
    prompt_tokens: int = 500,
    censored: bool = False,
) -> None:
    """See these answers too."""
    for length in lengths:
        seen.observe(class_name, tenant, prompt_tokens, length, censored=censored)


def law(
    seen: OutputLengths, class_name: str = CHAT, tenant: str = "anonymous", prompt_tokens: int = 500
) -> LengthLaw:
    """The law, when it has had time to be made anew."""
    for _ in range(300):
        seen.expect(class_name, tenant, prompt_tokens)
    return seen.expect(class_name, tenant, prompt_tokens)


# Answers of one kind


def test_before_anything_was_seen_the_prior_is_expected() -> None:
    """Unknown answers have 256 tokens on average, and a shape: not all of them have that many."""
    assert OutputLengths().expect(CHAT, "anonymous", 500) is PRIOR


def test_the_mean_is_learned() -> None:
    """Forty answers of 100 tokens are expected to be followed by one of about 100, within a tenth."""
    learned = law(answers(*[100] * 40))
    assert pytest.approx(100, rel=0.1) == learned.mean(PLENTY)
    assert 92 <= learned.quantile(0.9, PLENTY) <= 108


def test_the_prior_is_outweighed() -> None:
    """After 400 answers not a hundredth of the prior is left."""
    assert law(answers(*[8] * 400)).survival(8) < 0.01


def test_quantiles_show_what_is_rare() -> None:
    """One long answer in five is in the 0.9 quantile, one in twenty is not."""
    often = answers(*[1000 if index % 5 == 0 else 100 for index in range(200)])
    seldom = answers(*[1000 if index % 20 == 0 else 100 for index in range(200)])
    assert 862 <= law(often).quantile(0.9, PLENTY) <= 1024
    assert 92 <= law(seldom).quantile(0.9, PLENTY) <= 108


def test_the_limit_shapes_the_mean() -> None:
    """A limit is applied to each answer seen, not to their mean: half 10, half 1000, cut at 100, is about 55."""
    assert pytest.approx(55, rel=0.1) == law(answers(*[10, 1000] * 100)).mean(100)


def test_the_wide_and_the_narrow_differ() -> None:
    """Of two kinds with the same mean the one with a few long answers has the larger second moment."""
    narrow = law(answers(*[100] * 200))
    wide = law(answers(*[1010 if index % 10 == 0 else 1 for index in range(200)]))
    assert wide.second_moment(PLENTY) > 5 * narrow.second_moment(PLENTY)


def test_old_answers_fade() -> None:
    """After 600 short answers the 300 long ones before them weigh little."""
    learned = law(answers(*[1000] * 300, *[10] * 600))
    assert learned.mean(PLENTY) < 100
    assert learned.quantile(0.9, PLENTY) <= 13


def test_ten_thousand_answers_keep_the_numbers_sane() -> None:
    """The growing weights are scaled back, and what is expected does not move by that."""
    few, many = law(answers(*[64] * 3000)), law(answers(*[64] * 60_000))
    assert pytest.approx(few.moments(PLENTY), rel=1e-3) == many.moments(PLENTY)


def test_an_answer_has_at_least_one_token() -> None:
    """An empty answer counts as one token, and what is expected is never less."""
    assert 1.0 <= law(answers(*[0] * 400)).mean(PLENTY) <= 1.2


def test_an_endless_answer_is_counted() -> None:
    """Answers beyond the last bin border are expected to be long again, and the client's limit still cuts them."""
    learned = law(answers(*[1_000_000] * 400))
    assert learned.mean(10**9) >= 262_144
    assert pytest.approx(500, rel=0.01) == learned.mean(500)


# Answers that were cut off


def test_cut_answers_do_not_make_answers_short() -> None:
    """Every second client stops at 64 tokens. The law is that of the whole answers all the same."""
    draw = Random("lengths")
    seen, true = OutputLengths(), []
    for number in range(4000):
        length = int(draw.lognormvariate(5, 0.7)) + 1
        limit = 64 if number % 2 else 100_000
        teach(seen, min(length, limit), censored=length > limit)
        true.append(length)
    learned = law(seen)
    assert pytest.approx(sum(true[-400:]) / 400, rel=0.1) == learned.mean(PLENTY)
    assert pytest.approx(sorted(true)[3600], rel=0.25) == learned.quantile(0.9, PLENTY)


def test_a_limit_that_all_reach_is_not_taken_for_their_length() -> None:
    """Where everybody is cut at 128 tokens, answers without a limit are expected to be longer."""
    seen = OutputLengths()
    teach(seen, *[128] * 200, censored=True)
    assert law(seen).mean(PLENTY) > 250
    assert pytest.approx(128, rel=0.02) == law(seen).mean(128)


def test_a_cut_inside_a_bin_counts_for_the_part_it_saw() -> None:
    """Cut at 100 of the bin 91 to 108, an answer was half watched there: it tells more than one cut at 92."""
    late, early = OutputLengths(), OutputLengths()
    for seen, cut in ((late, 107), (early, 92)):
        teach(seen, *[100] * 20)
        teach(seen, *[cut] * 100, censored=True)
    assert law(late).survival(108) > law(early).survival(108) + 0.1


def test_a_cut_before_the_first_token_tells_nothing() -> None:
    """An answer that was cut off before it began leaves no trace."""
    seen = OutputLengths()
    teach(seen, 0, -1, censored=True)
    assert OutputLengths().export() == seen.export()


# Levels


def test_a_new_class_is_expected_to_do_as_the_pool() -> None:
    """A class nobody has used yet does as the others until it has answers of its own, which then count first."""
    seen = answers(*[4000] * 400, class_name=BATCH)
    assert pytest.approx(4000, rel=0.1) == law(seen, CHAT).mean(PLENTY)
    teach(seen, *[20] * 200, class_name=CHAT)
    assert law(seen, CHAT).quantile(0.5, PLENTY) <= 23
    assert pytest.approx(4000, rel=0.1) == law(seen, BATCH).mean(PLENTY)


def test_tenants_are_learned_apart() -> None:
    """One tenant of a class writes long answers and one short ones; a third is expected to do as they do together."""
    seen = OutputLengths()
    for _ in range(200):
        teach(seen, 2000, tenant="long")
        teach(seen, 20, tenant="short")
    assert pytest.approx(2000, rel=0.15) == law(seen, tenant="long").mean(PLENTY)
    assert law(seen, tenant="short").mean(PLENTY) < 200
    assert pytest.approx(1010, rel=0.15) == law(seen, tenant="new").mean(PLENTY)


def test_prompt_sizes_are_learned_apart() -> None:
    """Short prompts of a tenant get long answers and long ones short; prompts of another size get both."""
    seen = OutputLengths()
    for _ in range(200):
        teach(seen, 800, prompt_tokens=40)
        teach(seen, 10, prompt_tokens=6000)
    assert law(seen, prompt_tokens=60).mean(PLENTY) > 650
    assert law(seen, prompt_tokens=5000).mean(PLENTY) < 150
    assert pytest.approx(405, rel=0.2) == law(seen, prompt_tokens=500).mean(PLENTY)


def test_a_key_counts_by_its_answers() -> None:
    """With n answers of its own a tenant weighs n ÷ (n + κ) against its class."""
    seen = OutputLengths()
    teach(seen, *[5] * 4000, tenant="many")
    teach(seen, *[500] * 50, tenant="few", prompt_tokens=500)
    share = 50 / (50 + BACKOFF)
    assert pytest.approx(1 - (1 - share) ** 2, abs=0.05) == law(seen, tenant="few").survival(400)


def test_a_class_is_trusted_by_its_own_answers() -> None:
    """Thirty answers in the class make it trusted, whoever asked; those of other classes do not."""
    seen = answers(*[100] * 400, class_name=BATCH)
    assert not seen.trusted(CHAT)
    teach(seen, *[100] * 29)
    assert not seen.trusted(CHAT)
    teach(seen, *[100] * 2, tenant="another")
    assert seen.trusted(CHAT) and seen.trusted(BATCH)


# What it costs


def test_a_law_is_a_snapshot() -> None:
    """The law in hand does not change; a new one takes its place once there is enough to tell."""
    seen = answers(*[100] * 300)
    before = law(seen)
    moments = before.moments(PLENTY)
    laws = []
    for _ in range(200):
        teach(seen, 900)
        laws.append(seen.expect(CHAT, "anonymous", 500))
    assert moments == before.moments(PLENTY)
    assert laws[-1].mean(PLENTY) > 300
    made = 1 + sum(now is not was for was, now in pairwise(laws))
    assert 3 <= made <= 10


def test_the_first_answers_show_at_once() -> None:
    """A pool that starts learns from each of its first answers, not only from the hundredth on."""
    seen = OutputLengths()
    means = []
    for _ in range(8):
        teach(seen, 10)
        means.append(seen.expect(CHAT, "anonymous", 500).mean(PLENTY))
    assert means == sorted(means, reverse=True)
    assert means[0] < 256
    assert means[-1] < 0.7 * 256


def test_memory_is_bounded() -> None:
    """However many tenants there are, the keys kept stay few, and the rest does as its class."""
    seen = OutputLengths()
    for number in range(3000):
        for _ in range(10):
            teach(seen, 50, tenant=f"tenant-{number}", prompt_tokens=1 << (number % 12))
    assert (TENANTS, PROMPT_SIZES) == (len(seen._tenants), len(seen._prompt_sizes))
    assert pytest.approx(50, rel=0.1) == law(seen, tenant="tenant-0").mean(PLENTY)


def test_prompt_sizes_of_tenants_hardly_known_are_not_kept() -> None:
    """A thousand tenants that ask now and then cost one key each."""
    seen = OutputLengths()
    for _ in range(7):
        for number in range(1000):
            teach(seen, 50, tenant=f"tenant-{number}")
    assert (1000, 0) == (len(seen._tenants), len(seen._prompt_sizes))
    teach(seen, *[50] * 3, tenant="tenant-0")
    assert 1 == len(seen._prompt_sizes)


def test_tenants_seen_last_are_kept() -> None:
    """A tenant that keeps asking stays known however many others come by; one that stays away is forgotten."""
    seen = OutputLengths()
    teach(seen, *[3000] * 100, tenant="gone")
    for number in range(2 * TENANTS):
        teach(seen, 1000, tenant="steady")
        teach(seen, 10, tenant=f"tenant-{number}")
    assert law(seen, tenant="steady").quantile(0.5, PLENTY) >= 862
    assert ("standard", "gone") not in seen._tenants


def test_a_forgotten_tenant_may_come_back() -> None:
    """Its prompt sizes go on where they were, on top of a tenant that starts anew."""
    seen = OutputLengths()
    teach(seen, *[3000] * 100, tenant="back")
    for number in range(2 * TENANTS):  # passed over the first time, since it was seen more than once
        teach(seen, 10, tenant=f"tenant-{number}")
    teach(seen, 3000, tenant="back")
    assert seen._prompt_sizes[CHAT, "back", 9].parent is seen._tenants[CHAT, "back"]
    assert seen._tenants[CHAT, "back"].answers == 1.0
    assert law(seen, tenant="back").mean(PLENTY) > 1500


# The state file


def varied() -> OutputLengths:
    """Several classes, tenants and sizes, some answers cut off."""
    draw = Random("varied")
    seen = OutputLengths()
    for number in range(2000):
        teach(
            seen,
            int(draw.lognormvariate(5, 1)) + 1,
            class_name=(CHAT, BATCH)[number % 2],
            tenant=f"tenant-{draw.randrange(5)}",
            prompt_tokens=draw.randrange(1, 4000),
            censored=draw.random() < 0.2,
        )
    return seen


def test_lengths_come_back_from_a_file() -> None:
    """What was exported expects the same after a restore, by way of JSON, and exports the same again."""
    seen, again = varied(), OutputLengths()
    state = json.loads(json.dumps(seen.export()))
    again.restore(state)
    assert state == again.export()
    for class_name in (CHAT, BATCH, "new"):
        for tenant in ("tenant-0", "tenant-4", "new"):
            for prompt_tokens in (3, 700, 3000, 10**6):
                was = law(seen, class_name, tenant, prompt_tokens).moments(5000)
                assert pytest.approx(was, rel=0.02) == law(again, class_name, tenant, prompt_tokens).moments(
                    5000
                )
    assert again.trusted(CHAT)


def test_learning_goes_on_after_a_restore() -> None:
    """Restored answers fade like others."""
    again = OutputLengths()
    again.restore(answers(*[1000] * 300).export())
    teach(again, *[10] * 600)
    assert law(again).mean(PLENTY) < 100


def test_the_tenants_forgotten_first_come_back_in_that_order() -> None:
    """The order of last sight goes through the file as well."""
    seen, again = varied(), OutputLengths()
    again.restore(seen.export())
    assert list(seen._tenants) == list(again._tenants)
    assert list(seen._prompt_sizes) == list(again._prompt_sizes)


def broken(**changes: object) -> dict[str, object]:
    """A good state with some fields replaced."""
    seen = OutputLengths()
    teach(seen, 5, 50)
    return {**seen.export(), **changes}


NOTHING: dict[str, object] = {"ended": [], "cut": []}


@pytest.mark.parametrize(
    "state",
    [
        None,
        "lengths",
        {},
        broken(bins=[1, 2, 3]),
        broken(pool=None),
        broken(pool={"ended": []}),
        broken(pool={"ended": [[1, 2.0, 3.0]], "cut": []}),
        broken(pool={"ended": [7], "cut": []}),
        broken(pool={"ended": [[-1, 1.0]], "cut": []}),
        broken(pool={"ended": [[69, 1.0]], "cut": []}),
        broken(pool={"ended": [["1", 1.0]], "cut": []}),
        broken(pool={"ended": [[1, -1.0]], "cut": []}),
        broken(pool={"ended": [[1, float("inf")]], "cut": []}),
        broken(pool={"ended": [[1, 2000.0]], "cut": []}),
        broken(classes={}),
        broken(classes=["standard"]),
        broken(classes=[{"class": 5, **NOTHING}]),
        broken(classes=[{"class": CHAT, **NOTHING}] * 2),
        broken(classes=[{"class": str(n), **NOTHING} for n in range(1001)]),
        broken(classes=[]),
        broken(tenants=[{"class": "unknown", "tenant": "a", **NOTHING}]),
        broken(tenants=[{"class": CHAT, "tenant": "a", **NOTHING}] * 2),
        broken(tenants=[{"class": CHAT, "tenant": str(n), **NOTHING} for n in range(TENANTS + 1)]),
        broken(prompt_sizes=[{"class": CHAT, "tenant": "unknown", "size": 3, **NOTHING}]),
        broken(prompt_sizes=[{"class": CHAT, "tenant": "anonymous", "size": 3, **NOTHING}] * 2),
        broken(prompt_sizes=[{"class": CHAT, "tenant": "anonymous", "size": 64, **NOTHING}]),
        broken(prompt_sizes=[{"class": CHAT, "tenant": "anonymous", "size": None, **NOTHING}]),
    ],
)
def test_lengths_take_no_nonsense_back(state: object) -> None:
    """Whatever a state file holds, it is what was learned or a ValueError that changes nothing."""
    seen = varied()
    before = seen.export()
    with pytest.raises(ValueError, match=r"\w+: "):
        seen.restore(state)
    assert before == seen.export()
