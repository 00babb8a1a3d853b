from __future__ import annotations

import random
from itertools import pairwise

import pytest

from forebay.admission.errors import InvariantError
from forebay.admission.tenant_shares import TenantShares
from forebay.admission.victims import TenantShare
from forebay.admission.work_ahead import weight_units

ONE = weight_units(1.0)


def filed(shares: TenantShares, **work_us: int) -> TenantShares:
    """One request each, of equal weight."""
    for name, us in work_us.items():
        shares.file(name, ONE, us, may_go=True)
    return shares


def above(shares: TenantShares) -> list[str]:
    """Who is above its share, in order."""
    return [share.name for share in shares.above()]


def test_a_fair_share_is_a_part_of_all_that_waits() -> None:
    """Of 12 µs three tenants may have four each: who has exactly that is not above, who has more is."""
    assert ["large"] == above(filed(TenantShares(), modest=3, fair=4, large=5))
    assert [] == above(filed(TenantShares(), a=4, b=4, c=4))


def test_alone_a_tenant_has_its_share() -> None:
    """With nobody beside it nobody is above."""
    shares = filed(TenantShares(), alone=1000)
    share = shares.file("alone", ONE, 1000, may_go=True)
    assert [] == above(shares)
    assert not shares.is_above(share)
    assert 1 == len(shares)


def test_shares_are_those_of_now() -> None:
    """A tenant is above when others come that have less, and not any more when it has less itself."""
    shares = filed(TenantShares(), large=8)
    large = shares.file("large", ONE, 4, may_go=True)
    assert [] == above(shares)
    modest = shares.file("modest", ONE, 6, may_go=True)
    assert ["large"] == above(shares)
    shares.leave(large, 8)
    assert ["modest"] == above(shares)
    shares.leave(modest, 6)
    assert [] == above(shares)
    shares.verify(4, 1)


def test_weight_is_as_the_latest_request_says() -> None:
    """Twice the weight is twice the share; of a tenant that waits already too."""
    shares = filed(TenantShares(), heavy=10, light=8)
    assert ["heavy"] == above(shares)
    shares.file("heavy", 2 * ONE, 1, may_go=True)
    assert ["light"] == above(shares)
    shares.verify(19, 3)


def test_a_newcomer_counts_for_a_moment() -> None:
    """As if it waited: so it may be above, or others are because of it; then all is as it was."""
    shares = filed(TenantShares(), a=10, b=10)
    for name, work_us, is_above in (("new", 10, False), ("new", 11, True), ("a", 1, True)):
        own = shares.visit(name, ONE, work_us)
        assert is_above is shares.is_above(own)
        shares.leave(own, work_us)
        shares.verify(20, 2)
    alone = filed(TenantShares(), alone=10)
    own = alone.visit("new", 2 * ONE, 10)
    assert ["alone"] == above(alone)
    alone.leave(own, 10)
    assert [] == above(alone)
    heavy = shares.visit("a", 5 * ONE, 0)
    assert ONE == heavy.units
    shares.leave(heavy, 0)


def test_those_furthest_above_come_first() -> None:
    """By work ÷ weight, as far as bins tell them apart."""
    shares = filed(TenantShares(), modest=1, more=100, most=800)
    shares.file("heavy", 10 * ONE, 4000, may_go=True)
    shares.file("tiny", ONE // 4, 150, may_go=True)
    assert ["most", "tiny", "heavy"] == above(shares)


def test_only_those_are_listed_of_whom_somebody_may_go() -> None:
    """Who has nobody to lose is counted and not named, until one more is filed, or it is listed again."""
    shares = filed(TenantShares(), modest=1)
    firm = shares.file("firm", ONE, 50, may_go=False)
    assert [] == above(shares)
    assert shares.is_above(firm)
    shares.list_again(firm)
    assert ["firm"] == above(shares)
    shares.strike_off(firm)
    shares.strike_off(firm)
    assert [] == above(shares)
    shares.file("firm", ONE, 50, may_go=True)
    assert ["firm"] == above(shares)
    shares.verify(101, 3)


def test_a_tenant_comes_back_as_it_left() -> None:
    """What is counted out for a moment can be counted again."""
    shares = filed(TenantShares(), modest=1)
    large = shares.file("large", ONE, 50, may_go=True)
    shares.leave(large, 50)
    assert 1 == len(shares)
    shares.list_again(large)
    assert [] == above(shares)
    shares.enter(large, 50)
    shares.list_again(large)
    assert ["large"] == above(shares)
    shares.verify(51, 2)


def test_work_of_nothing_is_no_share() -> None:
    """Requests without work are counted and take nothing."""
    assert ["b"] == above(filed(TenantShares(), a=0, b=1))
    assert [] == above(filed(TenantShares(), a=0, b=0))


def test_any_history_gives_what_the_definition_says() -> None:
    """After each of many steps those above are the ones of which more waits than their weight's part."""
    rng = random.Random(5)
    shares = TenantShares()
    waiting: list[tuple[TenantShare, int]] = []
    units = {f"t{n}": rng.choice([ONE, 3 * ONE]) for n in range(30)}
    for _ in range(3000):
        if waiting and rng.random() < 0.48:
            shares.leave(*waiting.pop(rng.randrange(len(waiting))))
        else:
            name, work_us = rng.choice([*units]), rng.randrange(1_000_000)
            waiting.append((shares.file(name, units[name], work_us, may_go=True), work_us))
        work = {name: sum(us for share, us in waiting if share.name == name) for name in units}
        those = {share.name for share, _ in waiting}
        weight = sum(units[name] for name in those)
        expected = {name for name in those if work[name] * weight > units[name] * sum(work.values())}
        named = above(shares)
        assert expected == {*named}
        assert len(named) == len(expected)
        ratios = [work[name] / units[name] for name in named]
        assert all(later <= earlier * 2 ** (1 / 8) for earlier, later in pairwise(ratios))
        shares.verify(sum(work.values()), len(waiting))


@pytest.mark.parametrize("wrong", [(7, 1), (6, 2)])
def test_broken_books_are_found_out(wrong: tuple[int, int]) -> None:
    """`verify` compares with what the caller knows."""
    shares = filed(TenantShares(), a=6)
    shares.verify(6, 1)
    with pytest.raises(InvariantError):
        shares.verify(*wrong)
