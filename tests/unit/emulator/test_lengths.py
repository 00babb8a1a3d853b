from __future__ import annotations

import os
import statistics
import subprocess
import sys

from forebay.emulator.lengths import chat_prompt, drawn_output_tokens, ids_prompt, text_prompt


def test_four_bytes_of_text_are_a_token() -> None:
    """Text counts bytes over four, rounded up; an empty text is one token."""
    assert [text_prompt(text).tokens for text in ("", "abcd", "abcde", "héh")] == [1, 1, 2, 1]


def test_a_chat_costs_more_than_its_text() -> None:
    """Each message costs four tokens more, and a chat three."""
    assert chat_prompt([("system", "abcd"), ("user", "abcde")]).tokens == 4 + 1 + 4 + 2 + 3


def test_token_ids_count_exactly() -> None:
    """A prompt of token ids has as many tokens as ids."""
    assert ids_prompt([5, 6, 7]).tokens == 3


def test_texts_share_keys_as_far_as_their_blocks_are_equal() -> None:
    """Two texts that start alike have the same names for the blocks up to the first difference."""
    shared = "x" * 256
    left, right = (text_prompt(shared + tail).block_keys(16) for tail in ("a" * 64, "b" * 64))
    assert (5, 5) == (len(left), len(right))
    assert left[:4] == right[:4]
    assert left[4] != right[4]


def test_a_longer_chat_starts_with_the_shorter_one() -> None:
    """The next turn of a conversation has the names of the turn before for its start."""
    first = [("system", "s" * 200), ("user", "u" * 100)]
    short = list(chat_prompt(first).block_keys(16))
    long = list(chat_prompt([*first, ("assistant", "a" * 80), ("user", "more")]).block_keys(16))
    assert long[: len(short)] == short
    assert len(short) == 5


def test_an_answers_length_depends_on_the_question_only() -> None:
    """Same seed and prompt, same length; another seed, sample or request seed, another draw."""
    prompt = text_prompt("what is a forebay?")
    draw = drawn_output_tokens(1, prompt, None, 0)
    assert draw == drawn_output_tokens(1, text_prompt("what is a forebay?"), None, 0)
    others = [
        drawn_output_tokens(2, prompt, None, 0),
        drawn_output_tokens(1, prompt, 7, 0),
        drawn_output_tokens(1, prompt, None, 1),
    ]
    assert all(other != draw for other in others)


def test_answers_are_log_normal_as_documented() -> None:
    """Over many prompts the median is near 180 tokens and the mean near 248."""
    lengths = [drawn_output_tokens(0, text_prompt(f"question {number}"), None, 0) for number in range(4000)]
    assert 170 < statistics.median(lengths) < 190
    assert 235 < statistics.fmean(lengths) < 262


def test_lengths_do_not_depend_on_the_hash_seed() -> None:
    """Two processes with different hash seeds draw the same lengths."""
    script = (
        "from forebay.emulator.lengths import *\n"
        "print([drawn_output_tokens(3, p, None, 0) for p in (text_prompt('a'), ids_prompt([1, 2, 3]), "
        "chat_prompt([('user', 'hi')]))])"
    )
    answers = set()
    for hash_seed in ("0", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
        )
        answers.add(done.stdout)
    assert len(answers) == 1
