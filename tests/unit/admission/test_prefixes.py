from __future__ import annotations

import pytest

from forebay.admission.prefixes import PREFIXES, TRUSTED_AFTER, PrefixCaches

KNOWN, OTHER = 1234, -99


def seen(*cached: int, prefix_hash: int | None = KNOWN, prompt_tokens: int = 1000) -> PrefixCaches:
    """Usages that came for one hash, in this order."""
    caches = PrefixCaches()
    for tokens in cached:
        caches.observe(prefix_hash, prompt_tokens, tokens)
    return caches


def test_nothing_is_cached_before_anything_was_seen() -> None:
    """An engine that has told nothing is taken to have nothing."""
    caches = PrefixCaches()
    assert (0, 0) == (caches.expect(KNOWN, 1000), caches.expect(None, 1000))


def test_a_known_prefix_is_expected_as_it_was() -> None:
    """What was cached for earlier requests with the same beginning is expected again, also after a first miss."""
    assert 640 == seen(640, 640, 640).expect(KNOWN, 900)
    assert 640 == seen(0, 640).expect(KNOWN, 900)


def test_a_new_prefix_is_not_cached() -> None:
    """A hash never seen costs its whole prompt, however well others do; one that never hit is as good as new."""
    assert 0 == seen(640).expect(OTHER, 900)
    caches = seen(0, 0, 0)
    assert (0, 0) == (caches.expect(KNOWN, 900), len(caches))


def test_the_mean_follows_what_comes() -> None:
    """Two usages weigh 0.8 to 1; a prefix that has gone from the cache is soon not counted on any more."""
    assert int((0.8 * 300 + 600) / 1.8) == seen(300, 600).expect(KNOWN, 1000)
    assert seen(600, *[0] * 20).expect(KNOWN, 1000) <= 6


@pytest.mark.parametrize("prompt_tokens", [1, 2, 100, 640, 641])
def test_never_a_whole_prompt(prompt_tokens: int) -> None:
    """An engine works out at least the last token of a prompt."""
    assert min(640, prompt_tokens - 1) == seen(640).expect(KNOWN, prompt_tokens)


def test_an_empty_prompt_has_nothing_cached() -> None:
    """There is no less than nothing."""
    caches = seen(*[900] * TRUSTED_AFTER, prefix_hash=None)
    caches.observe(KNOWN, 1000, 900)
    assert (0, 0) == (caches.expect(KNOWN, 0), caches.expect(None, 0))


def test_without_a_hash_the_ratio_of_such_requests_counts() -> None:
    """Once 30 requests without a hash have told their usage, their share of cached tokens is expected."""
    caches = seen(*[250] * (TRUSTED_AFTER - 1), prefix_hash=None)
    assert 0 == caches.expect(None, 800)
    caches.observe(None, 1000, 250)
    assert 200 == caches.expect(None, 800)
    assert 0 == caches.expect(OTHER, 800)


def test_known_prefixes_do_not_speak_for_requests_without_a_hash() -> None:
    """Conversations that hit every time say nothing about requests whose beginning is unknown."""
    assert 0 == seen(*[900] * 100).expect(None, 1000)


def test_the_ratio_follows_a_change() -> None:
    """Old usages fade: after 1000 others they do not show."""
    caches = seen(*[900] * 300, *[100] * 1000, prefix_hash=None)
    assert pytest.approx(100, abs=6) == caches.expect(None, 1000)


@pytest.mark.parametrize(("prompt_tokens", "cached_tokens"), [(0, 0), (-5, 3)])
def test_a_prompt_without_tokens_is_no_evidence(prompt_tokens: int, cached_tokens: int) -> None:
    """Usage that cannot be true teaches nothing."""
    caches = PrefixCaches()
    for _ in range(TRUSTED_AFTER):
        caches.observe(None, prompt_tokens, cached_tokens)
        caches.observe(KNOWN, prompt_tokens, cached_tokens)
    assert (0, 0, 0) == (caches.expect(None, 100), caches.expect(KNOWN, 100), len(caches))


def test_some_that_are_known_only_together_share_what_was_cached() -> None:
    """As was expected of each, in proportion; what is beyond that by the tokens that are left."""
    for cached, first, second in ((700, 400, 300), (350, 200, 150), (700 + 260, 400 + 120, 300 + 140)):
        caches = PrefixCaches()
        caches.observe(KNOWN, 1000, 400)
        caches.observe(OTHER, 1000, 300)
        caches.observe_together([(KNOWN, 1000), (OTHER, 1000)], cached)
        means = [round((before * 0.8 + now) / 1.8) for before, now in ((400, first), (300, second))]
        found = [caches.expect(KNOWN, 9000), caches.expect(OTHER, 9000)]
        assert pytest.approx(means, abs=1) == found


def test_a_beginning_that_comes_again_and_again_gets_its_due() -> None:
    """Among others that share nothing, and never with the engine's count for it alone."""
    caches = PrefixCaches()
    for number in range(60):
        caches.observe_together([(KNOWN, 1000), (1_000_000 + number, 1000)], 600)
    assert 590 <= caches.expect(KNOWN, 5000) <= 610


def test_together_they_may_all_have_missed_or_hit() -> None:
    """Nothing at all, or everything: no division by nothing."""
    caches = PrefixCaches()
    caches.observe_together([], 0)
    caches.observe_together([(KNOWN, 0), (OTHER, 0)], 5)
    caches.observe_together([(KNOWN, 100), (OTHER, 100)], 200)
    assert (99, 99) == (caches.expect(KNOWN, 100), caches.expect(OTHER, 100))
    caches.observe_together([(KNOWN, 100), (OTHER, 100)], 0)
    assert 30 <= caches.expect(KNOWN, 100) <= 60


def test_impossible_counts_are_cut() -> None:
    """An engine that claims more than the prompt, or less than nothing, is taken at the nearest possible."""
    assert 1000 == seen(5000).expect(KNOWN, 9000)
    assert int(1000 * 0.8 / 1.8) == seen(1000, -1000).expect(KNOWN, 9000)


def test_memory_is_bounded_and_what_is_used_is_kept() -> None:
    """Of more hashes than are kept, those go that were used longest ago."""
    caches = PrefixCaches()
    for prefix_hash in range(PREFIXES):
        caches.observe(prefix_hash, 1000, 500)
    caches.observe(0, 1000, 500)
    caches.observe(PREFIXES, 1000, 500)
    assert PREFIXES == len(caches)
    assert (500, 0, 500) == (caches.expect(0, 900), caches.expect(1, 900), caches.expect(2, 900))


def test_a_prefix_is_gone_when_the_cache_has_been_filled_with_others() -> None:
    """After as many fresh prompt tokens as the caches hold, what was used before them is not expected any more."""
    caches = seen(640)
    caches.room_tokens = 10_000
    for other in range(10):
        caches.observe(other, 1000, 0)
    assert 640 == caches.expect(KNOWN, 900)
    caches.observe(None, 1, 0)
    assert 0 == caches.expect(KNOWN, 900)
    caches.observe(KNOWN, 1000, 640)
    assert 640 == caches.expect(KNOWN, 900)


def test_cached_tokens_fill_no_cache() -> None:
    """Prompts that were in the cache push nothing out of it."""
    caches = seen(640)
    caches.room_tokens = 10_000
    for _ in range(100):
        caches.observe(None, 1000, 1000)
    assert 640 == caches.expect(KNOWN, 900)
