from __future__ import annotations

import math

import pytest

from forebay.admission.errors import InvariantError
from forebay.admission.victims import GARBAGE, Bucket, Entry, TenantShare, may_go

NOW = 1000.0


def filed(
    bucket: Bucket,
    share: TenantShare,
    number: int,
    *,
    work_us: int = 1000,
    value: float = 1.0,
    protected: bool = False,
    firm_from_s: float = math.inf,
) -> Entry:
    """A waiter of this tenant in this slot."""
    entry = Entry(NOW, work_us, value, number, protected, share.name, number, firm_from_s)
    entry.share = share
    bucket.file(entry)
    return entry


@pytest.fixture
def bucket() -> Bucket:
    """An empty slot."""
    return Bucket(8, NOW + 1.0)


def test_value_per_work_is_endless_without_work() -> None:
    """Giving up what costs nothing gains nothing."""
    assert 0.002 == Entry(NOW, 1000, 2.0, 1, False, "t", None).density
    assert math.inf == Entry(NOW, 0, 0.0, 1, False, "t", None).density


def test_who_may_go_is_here_and_neither_protected_nor_firm(bucket: Bucket) -> None:
    """Each of the three is enough to stay."""
    share = TenantShare("t")
    entry = filed(bucket, share, 1, firm_from_s=NOW + 1.0)
    assert may_go(entry, bucket, NOW + 1.0)
    assert not may_go(entry, bucket, NOW + 1.1)
    assert not may_go(entry, Bucket(9, NOW), NOW)
    entry.protected = True
    assert not may_go(entry, bucket, NOW)


def test_a_bucket_and_each_tenant_know_their_first(bucket: Bucket) -> None:
    """The lowest value per work of all, and of each tenant its own; of equals the youngest."""
    a, b, none = TenantShare("a"), TenantShare("b"), TenantShare("c")
    filed(bucket, a, 1, value=1.0)
    filed(bucket, a, 2, value=3.0)
    filed(bucket, b, 3, value=2.0)
    filed(bucket, b, 4, value=2.0)
    filed(bucket, none, 5, value=0.1, protected=True)
    first = bucket.first(NOW)
    assert first is not None
    assert 1 == first[3].sequence
    piles = [share.first_pile(NOW, bucket) for share in (a, b, none)]
    assert [1, 4, None] == [None if pile is None else pile.victims[0][3].sequence for pile in piles]
    bucket.verify()


def test_a_tenant_is_asked_for_its_first_up_to_a_bucket() -> None:
    """Later slots do not count; of slots that end at one time those with the smaller key are earlier."""
    share = TenantShare("t")
    for key, end_s, value in ((5, NOW, 3.0), (6, NOW + 1.0, 2.0), (7, NOW + 1.0, 1.0)):
        filed(Bucket(key, end_s), share, key, value=value)
    buckets = [pile.bucket for pile in share.piles.values()]
    firsts = [share.first_pile(NOW, last) for last in buckets]
    assert [5, 6, 7] == [None if pile is None else pile.bucket.key for pile in firsts]


def test_who_left_is_passed_by(bucket: Bucket) -> None:
    """In the heap of the bucket and in the pile of the tenant."""
    share = TenantShare("t")
    gone = filed(bucket, share, 1, value=0.1)
    filed(bucket, share, 2)
    bucket.drop(gone)
    first, pile = bucket.first(NOW), share.first_pile(NOW, bucket)
    assert first is not None
    assert pile is not None
    assert (2, 2) == (first[3].sequence, pile.victims[0][3].sequence)


def test_who_is_passed_over_can_be_put_back(bucket: Bucket) -> None:
    """Then the next of the tenant is first, and afterwards it is first again."""
    share = TenantShare("t")
    filed(bucket, share, 1, value=0.1)
    filed(bucket, share, 2)
    pile = share.first_pile(NOW, bucket)
    assert pile is not None
    victim = pile.victims[0]
    bucket.pass_over(pile)
    assert 2 == pile.victims[0][3].sequence
    bucket.pile_up(victim)
    assert 1 == pile.victims[0][3].sequence
    bucket.verify()


def test_tenants_that_come_and_go_leave_little_behind(bucket: Bucket) -> None:
    """However many names were there, piles are kept for about as many as wait."""
    stays = TenantShare("stays")
    filed(bucket, stays, 0)
    shares = []
    for number in range(1, 2000):
        shares.append(TenantShare(f"{number}"))
        bucket.drop(filed(bucket, shares[-1], number))
        bucket.verify()
    assert sum(len(share.piles) for share in shares) <= 2 * (2 + GARBAGE)
    assert stays.first_pile(NOW, bucket) is not None


def test_a_closed_bucket_is_forgotten_by_its_tenants(bucket: Bucket) -> None:
    """A tenant that always waits does not gather piles of slots that are long over."""
    share = TenantShare("t")
    bucket.drop(filed(bucket, share, 1))
    bucket.close()
    assert {} == share.piles


def test_a_lost_pile_is_found_out(bucket: Bucket) -> None:
    """`verify` looks for each waiter in the pile of its tenant."""
    share = TenantShare("t")
    filed(bucket, share, 1)
    bucket.verify()
    share.piles[bucket].victims.clear()
    with pytest.raises(InvariantError):
        bucket.verify()
