from __future__ import annotations

from forebay.enginemodel import Request
from forebay.enginemodel.decode import DecodeBatch
from forebay.enginemodel.sequence import Sequence


def _joined(batch: DecodeBatch, number: int, prompt_tokens: int, output_tokens: int) -> Sequence:
    sequence = Sequence(Request(number, prompt_tokens, output_tokens), number)
    sequence.generated = 1  # the first token comes with the prefill
    batch.join(sequence)
    return sequence


def test_what_a_member_has_grows_by_one_per_step() -> None:
    """Context and generated tokens of a member follow the ticks without being touched."""
    batch = DecodeBatch(4)
    sequence = _joined(batch, 1, 10, 50)
    assert (11, 1) == (batch.context(sequence), batch.generated(sequence))
    for _ in range(7):
        batch.advance()
    assert (18, 8) == (batch.context(sequence), batch.generated(sequence))


def test_a_member_needs_a_block_when_its_context_enters_one() -> None:
    """With blocks of four, a context of 11 needs its next block at 13, then at 17."""
    batch = DecodeBatch(4)
    sequence = _joined(batch, 1, 10, 50)
    contexts = []
    for _ in range(12):
        if batch.growing():
            contexts.append(batch.context(sequence))
        batch.advance()
    assert contexts == [13, 17, 21]


def test_members_end_in_the_step_of_their_last_token() -> None:
    """Sequences that joined with one token and want three end after two steps."""
    batch = DecodeBatch(4)
    sequence = _joined(batch, 1, 10, 3)
    _joined(batch, 2, 5, 9)
    assert batch.advance() == []
    assert batch.advance() == [sequence]
    assert list(batch.members) == [2]
    assert sequence.generated == 3


def test_the_sum_of_contexts_follows_joins_steps_and_leaves() -> None:
    """The sum is that of the members' contexts at any time."""
    batch = DecodeBatch(4)
    first = _joined(batch, 1, 10, 30)
    batch.advance()
    _joined(batch, 2, 20, 30)
    assert batch.kv_tokens == 12 + 21
    batch.advance()
    batch.leave(first)
    assert batch.kv_tokens == 22


def test_a_member_that_left_does_not_end() -> None:
    """The calendar passes over a sequence that was taken out, also if it joins again for the same tick."""
    batch = DecodeBatch(4)
    sequence = _joined(batch, 1, 10, 4)
    batch.advance()
    batch.leave(sequence)
    assert (2, 11) == (sequence.generated, sequence.computed)
    batch.join(sequence)
    batch.advance()
    assert batch.advance() == [sequence]


def test_the_last_member_is_the_latest_to_arrive() -> None:
    """`last` is the member that joined last, or None."""
    batch = DecodeBatch(4)
    assert batch.last() is None
    _joined(batch, 1, 10, 4)
    later = _joined(batch, 2, 10, 4)
    assert batch.last() is later
