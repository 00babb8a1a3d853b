"""Measures a live engine: a short load test, and the profile that it comes to.

Lone prompts of several lengths tell what prefill takes; streams that all run at once, few to many, with short and long
contexts, tell what a step of decoding takes. A law is fitted to some of these times (`sizing.fitting`) and held
against others that it was not told. What an engine says of itself (KV cache, context, model) is taken from it.

The load is bounded: never more than `most` requests at once, never more than `KV_PART` of the KV cache, one cell after
another, and every wait has an end. Nothing is measured on an engine that is busy with other requests: their steps
would be taken for ours.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from forebay.admission.model import EngineInfo
from forebay.engines.detect import find_out
from forebay.engines.reading import ReadFailed
from forebay.load.felt import End, Felt
from forebay.load.generator import OpenLoop, Target
from forebay.load.workload import Arrival
from forebay.runtime.polling import EngineClient
from forebay.sizing.errors import SizingError
from forebay.sizing.fitting import Decoding, FittedLaw, Prompt, errors_of, fit_law

__all__ = ["Calibration", "CannotCalibrate", "Facts", "calibrate", "look_at", "mean_error"]

PROMPT_TOKENS: Final = (16, 64, 128, 256, 384, 512, 576, 768, 1024, 1152, 1536, 2048, 2304, 3072, 4096, 4608)
"""Some are just above a power of two: there another step shows where chunks have that size."""
HELD_OUT_PROMPTS: Final = (192, 448, 896, 1792, 2560)
CONTEXTS: Final = (32, 512, 1024)
HELD_OUT_CONTEXT: Final = 256
KV_PART: Final = 0.6
_MOST_CELL_TOKENS: Final = 32_768
"""Of all prompts of a cell together: a few seconds of prefill."""
_REPEATS: Final = 5
"""Of each prompt; the shortest time counts, since a busy client or server only ever adds."""
_ROUNDS: Final = 2
"""Of each cell of decoding; the shorter step counts, for the same reason."""
_STEPS: Final = 32
"""Of the stream that is timed."""
_CELL_S: Final = 120.0
_TOKEN_IDS: Final = (100, 1000)
"""Any model has these, and none of them ends an answer that is told to go on."""
_MEASURED, _BESIDE = "measured", "beside"


class CannotCalibrate(Exception):
    """The engine cannot be measured; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the engine before anything is measured."""

    model: str
    kv_tokens: int
    block_size: int
    context_tokens: int
    max_num_seqs: int | None
    """None where the engine does not say."""
    busy: int
    """Requests that it has now, of others."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of it."""

    facts: Facts
    law: FittedLaw
    max_num_seqs: int | None
    """Seen: more were sent than ran at once. None where that did not happen."""
    most: int
    """The most that ran at once while measured."""
    fit_errors: Sequence[float]
    held_out_errors: Sequence[float]
    """Relative, on times that the law was not fitted to."""

    @property
    def knee(self) -> int:
        """Sequences from which on one more adds less than half of what the first gave, with 500 tokens of context."""
        each_ms = self.law.decoding_s(2, 1000) - self.law.decoding_s(1, 500)
        fixed_s = self.law.decoding_s(1, 500) - each_ms
        return self.most if each_ms <= 0 else max(1, round(fixed_s * (2**0.5 - 1) / each_ms))


async def look_at(
    target: Target, *, kv_tokens: int | None, context_tokens: int | None, model: str | None
) -> Facts:
    """What the engine says of itself; what is given here counts instead. Raises `CannotCalibrate`."""
    client = EngineClient(target.host, target.port)
    try:
        finding = await find_out(client)
        sample = (
            None
            if finding.sample is None
            else finding.family.read(finding.sample_path, finding.sample).sample
        )
    except ReadFailed as failure:
        raise CannotCalibrate(f"{target.host}:{target.port}: {failure}") from failure
    finally:
        client.close()
    info: EngineInfo = finding.info
    kv_tokens = kv_tokens or info.kv_tokens
    if kv_tokens is None:
        raise CannotCalibrate("the engine does not say how large its KV cache is: give it as --kv-tokens N")
    name = model or next(iter(info.models), None)
    if name is None:
        raise CannotCalibrate("the engine lists no model: give its name as --model NAME")
    busy = 0 if sample is None else (sample.running or 0) + (sample.waiting or 0)
    return Facts(
        model=name,
        kv_tokens=kv_tokens,
        block_size=info.kv_block_tokens,
        context_tokens=min(context_tokens or info.context_tokens or kv_tokens, kv_tokens),
        max_num_seqs=info.max_requests,
        busy=busy,
    )


async def calibrate(
    target: Target,
    facts: Facts,
    *,
    most: int,
    chunk_tokens: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure and fit. Raises `CannotCalibrate`.

    Args:
        most: requests at once.
        chunk_tokens: the engine's `--max-num-batched-tokens`, if known.
        progress: is told what is measured next.
    """
    bench = _Bench(target, facts, seed)
    await bench.prompt(16)  # the first request pays for what an engine makes when it is first asked
    longest = min(facts.context_tokens - 2, int(KV_PART * facts.kv_tokens))
    prompts: list[Prompt] = []
    held_prompts: list[Prompt] = []
    for tokens in sorted((*PROMPT_TOKENS, *HELD_OUT_PROMPTS)):
        if tokens <= longest:
            progress(f"a prompt of {tokens} tokens, {_REPEATS} times")
            (held_prompts if tokens in HELD_OUT_PROMPTS else prompts).append(await bench.prompt(tokens))
    decoding: list[Decoding] = []
    held_decoding: list[Decoding] = []
    for sequences in _counts(most):
        for context in (*CONTEXTS, HELD_OUT_CONTEXT):
            if not _allowed(facts, sequences, context) or bench.slots is not None:
                continue
            progress(f"{sequences} at once, {context} tokens of context")
            seen = [await bench.decoding(sequences, context) for _ in range(_ROUNDS)]
            whole = [step for step in seen if step is not None]
            if whole:
                step = min(whole, key=lambda one: one.seconds)
                held = context == HELD_OUT_CONTEXT or sequences % 3 == 0
                (held_decoding if held else decoding).append(step)
    try:
        law = fit_law(decoding, prompts, chunk_tokens=chunk_tokens)
    except SizingError as error:
        raise CannotCalibrate(
            f"{error}: too little of what was sent was answered as a stream of the length that was asked for"
        ) from error
    return Calibration(
        facts=facts,
        law=law,
        max_num_seqs=facts.max_num_seqs or bench.slots,
        most=max((one.sequences for one in decoding), default=1),
        fit_errors=errors_of(law, decoding, prompts),
        held_out_errors=errors_of(law, held_decoding, held_prompts),
    )


def _counts(most: int) -> list[int]:
    """Powers of two, and three quarters of them to hold the law against."""
    counts = {1, most}
    size = 2
    while size <= most:
        counts |= {size, *([size * 3 // 4] if size >= 4 else [])}
        size *= 2
    return sorted(counts)


def _allowed(facts: Facts, sequences: int, context: int) -> bool:
    """Whether all of them fit the cache and the context, and their prompts do not take too long."""
    each = context + _extra_steps(sequences, context) + _STEPS
    room = min(KV_PART * facts.kv_tokens, _MOST_CELL_TOKENS + sequences * (each - context))
    return each < facts.context_tokens and sequences * each <= room


def _extra_steps(sequences: int, context: int) -> int:
    """Tokens more for the streams that begin first: steps until the last prompt is done, with small chunks."""
    return 8 + sequences // 2 + sequences * context // 512


class _Bench:
    """Sends what is to be measured."""

    def __init__(self, target: Target, facts: Facts, seed: int) -> None:
        self.slots: int | None = None
        """What the engine runs at once, where more were sent."""
        self._target = target
        self._facts = facts
        self._seed = seed
        self._run = 0

    async def prompt(self, tokens: int) -> Prompt:
        """The shortest time of some prompts of a length, each alone."""
        times_s = []
        for _ in range(_REPEATS):
            (felt,) = await self._send([self._arrival(0, tokens, 1, _MEASURED)])
            assert felt.first_token_s is not None
            times_s.append(felt.first_token_s - felt.late_s)
        return Prompt(tokens, min(times_s))

    async def decoding(self, sequences: int, context: int) -> Decoding | None:
        """The time of a step with so many streams; None if they never all ran at once."""
        longer = _STEPS + _extra_steps(sequences, context)
        planned = [self._arrival(number, context, longer, _BESIDE) for number in range(sequences - 1)]
        planned.append(self._arrival(sequences - 1, context, _STEPS, _MEASURED))
        felts = await self._send(planned)
        measured = next(felt for felt in felts if felt.class_name == _MEASURED)
        began_s, ended_s = _times(measured)
        beside = [_times(felt) for felt in felts if felt is not measured]
        waited = sum(first_s > ended_s for first_s, _ in beside) + (
            any(last_s < began_s for _, last_s in beside)
        )
        if any(first_s > began_s + 1e-9 for first_s, _ in beside) or any(
            last_s < ended_s for _, last_s in beside
        ):
            running = _most_at_once([*beside, (began_s, ended_s)])
            if waited and running < sequences:
                self.slots = running
            return None
        step_s = (ended_s - began_s) / (_STEPS - 1)
        ahead = sum(0.5 * (began_s - first_s) / step_s for first_s, _ in beside)
        return Decoding(sequences, sequences * (context + (_STEPS + 1) / 2) + ahead, step_s)

    def _arrival(self, index: int, prompt: int, output: int, name: str) -> Arrival:
        # Half a millisecond apart, so that they come in order.
        return Arrival(
            index=index, at_s=index * 0.0005, class_name=name, prompt_tokens=prompt, output_tokens=output,
            limit_tokens=output, stream=True,
        )  # fmt: skip

    async def _send(self, planned: Sequence[Arrival]) -> list[Felt]:
        """Send these at once, and take the answers, which all have to be whole."""
        self._run += 1
        loop = OpenLoop([self._target], self._compose, path="/v1/completions")
        felts = await loop.run(planned, tail_s=_CELL_S)
        for felt in felts:
            if felt.end is not End.COMPLETED or felt.first_token_s is None:
                how = felt.code or felt.status or felt.end.name.lower()
                raise CannotCalibrate(f"a request to measure with was not answered: {how}")
        return felts

    def _compose(self, arrival: Arrival) -> bytes:
        """Token ids at random, so that no prefix cache has them."""
        stream = random.Random(f"{self._seed}/{self._run}/{arrival.index}")  # noqa: S311 - filler
        ids = [stream.randrange(*_TOKEN_IDS) for _ in range(arrival.prompt_tokens)]
        return json.dumps(
            {
                "model": self._facts.model,
                "prompt": ids,
                "max_tokens": arrival.limit_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
        ).encode()


def _times(felt: Felt) -> tuple[float, float]:
    """When a stream's first and last token came, from the start of the cell."""
    assert felt.first_token_s is not None
    assert felt.last_token_s is not None
    return felt.at_s + felt.first_token_s, felt.at_s + felt.last_token_s


def _most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The most streams between whose first and last token some moment lies."""
    return max(sum(first_s <= at_s <= last_s for first_s, last_s in spans) for at_s, _ in spans)


def mean_error(errors: Sequence[float]) -> float:
    """Mean of absolute errors."""
    return fmean(map(abs, errors)) if errors else 0.0
