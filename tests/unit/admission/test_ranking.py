from __future__ import annotations

import random

import pytest

from forebay.admission.errors import InvariantError
from forebay.admission.ranking import BLOCK, Ranking
from forebay.admission.waiter import Waiter


def waiter(sequence: int, work_us: int = 1000) -> Waiter:
    """A waiter of which only place and cost matter."""
    return Waiter(sequence, 0, "a", 1.0, work_us, 10, 0.0, 99.0, False)


def numbers(ranking: Ranking) -> list[int]:
    """Sequence numbers in their order."""
    return [one.sequence for one in ranking]


def test_an_empty_ranking_has_nobody() -> None:
    """Nothing filed, nothing found, nothing before anybody."""
    ranking = Ranking()
    assert (None, 0, 0, []) == (ranking.head, ranking.count, ranking.work_us, numbers(ranking))
    assert (0, 0) == ranking.before(1.0, waiter(1))


def test_equal_numbers_come_by_arrival() -> None:
    """Ties are broken by sequence, however they are filed."""
    ranking = Ranking()
    for sequence in (3, 1, 2):
        ranking.add(5.0, waiter(sequence))
    assert [1, 2, 3] == numbers(ranking)


@pytest.mark.parametrize("grows", [0.75, 0.5, 0.25])
def test_it_is_a_sorted_list_with_sums(grows: float) -> None:
    """Whatever is filed and leaves, order, head and the sums before any place are those of a plain sorted list."""
    draw = random.Random(f"ranking {grows}")
    ranking = Ranking()
    plain: list[tuple[float, int, Waiter]] = []
    for sequence in range(900):
        one = waiter(sequence, draw.randint(0, 99))
        plain.append((float(draw.randint(0, 300)), sequence, one))
        ranking.add(plain[-1][0], one)
    for sequence in range(900, 5000):
        if draw.random() < grows or not plain:
            one = waiter(sequence, draw.randint(0, 99))
            plain.append((float(draw.randint(0, 300)), sequence, one))
            ranking.add(plain[-1][0], one)
        else:
            number, _, one = plain.pop(draw.randrange(len(plain)))
            ranking.remove(number, one)
        if sequence % 50 == 0 or len(plain) < 20:
            plain.sort()
            assert [s for _, s, _ in plain] == numbers(ranking)
            assert (plain[0][2] if plain else None) is ranking.head
            assert (len(plain), sum(w.work_us for _, _, w in plain)) == (ranking.count, ranking.work_us)
            place = (float(draw.randint(-1, 301)), draw.randint(0, 5000))
            before = [w.work_us for number, s, w in plain if (number, s) < place]
            assert (sum(before), len(before)) == ranking.before(place[0], waiter(place[1]))


def test_blocks_stay_in_proportion_to_what_is_filed() -> None:
    """After 20,000 came and most left in any order, the blocks are as few as for the few that are left."""
    draw = random.Random("blocks")
    ranking = Ranking()
    waiters = [waiter(sequence) for sequence in range(20_000)]
    for one in waiters:
        ranking.add(0.0, one)
    draw.shuffle(waiters)
    for one in waiters[:-1000]:
        ranking.remove(0.0, one)
    assert len(ranking._blocks) <= 1 + 4 * 1000 // (BLOCK // 2)
    assert len(ranking._blocks) == len(ranking._lasts) == len(ranking._totals) == len(ranking._counts)
    for one in waiters[-1000:]:
        ranking.remove(0.0, one)
    assert not (ranking._blocks or ranking._lasts or ranking._totals or ranking._counts)


def test_what_is_not_there_cannot_be_taken_out() -> None:
    """A stranger, one that has left, and one under another number are all errors, and change nothing."""
    ranking, one, other = Ranking(), waiter(1), waiter(2)
    ranking.add(1.0, one)
    ranking.add(2.0, other)
    for number, stranger in ((1.0, waiter(7)), (3.0, other), (0.5, other)):
        with pytest.raises(InvariantError):
            ranking.remove(number, stranger)
    assert [1, 2] == numbers(ranking)


def test_those_passed_over_are_behind_the_head_until_restored() -> None:
    """A walk goes through everybody once, over block borders, and back to the start."""
    ranking = Ranking()
    for sequence in range(3 * BLOCK):
        ranking.add(float(-sequence), waiter(sequence))
    seen = []
    while (head := ranking.head) is not None:
        seen.append(head.sequence)
        head.walk = 1
        ranking.pass_over(1)
    assert seen == numbers(ranking)
    assert seen[0] == getattr(ranking.first(), "sequence", None)
    ranking.restore()
    assert seen[0] == getattr(ranking.head, "sequence", None)


def test_leaving_in_a_walk_does_not_lose_the_place() -> None:
    """Passed-over ones, the head, and later ones may leave: the head is still the first that was not passed over."""
    draw = random.Random("walk")
    for _ in range(40):
        ranking = Ranking()
        left = {sequence: waiter(sequence) for sequence in range(draw.choice([3, 40, 2 * BLOCK]))}
        for one in left.values():
            ranking.add(float(one.sequence), one)
        while left:
            what = draw.random()
            expected = next((one for one in left.values() if one.walk == 0), None)
            assert expected is ranking.head
            if what < 0.4 and expected is not None:
                expected.walk = 1
                ranking.pass_over(1)
                continue
            sequence = draw.choice(list(left))
            ranking.remove(float(sequence), left.pop(sequence))
        assert ranking.head is None


def test_one_that_was_marked_before_is_passed_over_with_the_head() -> None:
    """A waiter that the walk has met elsewhere is not shown again."""
    ranking = Ranking()
    waiters = [waiter(sequence) for sequence in range(4)]
    for one in waiters:
        ranking.add(0.0, one)
    waiters[1].walk = waiters[0].walk = 7
    ranking.pass_over(7)
    assert ranking.head is waiters[2]
    assert 2 == ranking.passed
