"""From a request to its cost: the closed form in endpoint-seconds.

One engine step takes t = c0 + c1·P + c2·n + c3·K + c4·A (`SpeedLaw`). A request with prompt p (of which
`cached` tokens are already in the prefix cache) and output o takes part in o steps and holds p, p+1, … p+o
KV tokens meanwhile, so with KV-time w = p·o + o²/2 its own part of all those steps is

    lin  = c1·(p − cached) + c4·(p² − cached²)/2 + c2·o + c3·w
    cost = lin + c0 · max( w / M , o / N )

M is the KV capacity, N the number of sequences run at once: the last term is the request's dominant share
of the fixed cost of a step. Costs add up: the sum over a backlog is the time one endpoint takes to drain it,
which is why queues, quotas, fairness and predicted waits are all counted in this unit. The form was checked
against a step-level model (within 1 to 6 % of capacity as long as the KV cache does not thrash).

Before the answer is known its length L is a law (`length_law`), cut at the request's limit: o is E[L], and w is
p·E[L] + E[L²]/2. The square of the mean would not do: a few long answers hold most of the KV-time.

What is cached is not charged as prefill, but held as KV like the rest. The KV of an estimate is its mean over the
request's life: an answer that is o tokens in the end holds o/2 on average for o steps, so over all answers
E[L²] / (2·E[L]) besides the prompt. That is no bound: what keeps a cache from overrunning is a forecast.

Pure arithmetic: no state, no learning (`lengths` and `speed` learn). Nothing here is negative, and it runs for each
request: hence `int(x + 0.5)`, which compiles to one instruction, where `round` is a call.
"""

from __future__ import annotations

from math import ceil

from forebay.admission.length_law import LengthLaw
from forebay.admission.model import MICRO, Cost
from forebay.admission.settings import SpeedLaw


def prefill_us(law: SpeedLaw, prompt_tokens: int, cached_tokens: int = 0) -> int:
    """Micro-endpoint-seconds to process a prompt."""
    fresh = prompt_tokens - cached_tokens
    if fresh <= 0:
        return 0
    attention = prompt_tokens * prompt_tokens - cached_tokens * cached_tokens
    return int(MICRO * (law.c1_s * fresh + law.c4_s * attention / 2) + 0.5)


def decode_us(law: SpeedLaw, prompt_tokens: int, output_tokens: float, output_square: float) -> int:
    """Micro-endpoint-seconds to generate one answer after a prompt, with its share of the fixed step cost.

    Args:
        output_tokens: mean of its length, or the length itself.
        output_square: mean of the square of its length, or the square itself.
    """
    kv_time = prompt_tokens * output_tokens + output_square / 2
    share, slots = kv_time / law.kv_tokens, output_tokens / law.max_requests
    if slots > share:
        share = slots
    return int(MICRO * (law.c2_s * output_tokens + law.c3_s * kv_time + law.c0_s * share) + 0.5)


def estimate(
    law: SpeedLaw,
    lengths: LengthLaw,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    cap: int,
    samples: int,
    generates: bool,
    prompts: int = 1,
) -> Cost:
    """Cost of a request. Of several prompts each is taken to have its part of all that is said of them.

    Args:
        lengths: how long one answer may become.
        cached_tokens: prompt tokens that are expected to be in the prefix cache.
        cap: the most output tokens that one answer can have: the client's limit or the room that is left.
        samples: answers generated for the one prompt; the prompt's KV is shared between them.
        generates: False for embeddings and scoring: prefill only, and no KV is held.
    """
    each = prompt_tokens if prompts <= 1 else prompt_tokens // prompts
    prefill = (
        prefill_us(law, prompt_tokens, cached_tokens)
        if prompts <= 1
        else prompts * prefill_us(law, each, cached_tokens // prompts)
    )
    if not generates:
        # A step is at least c0, however small the prompt: without this, empty prompts would be free.
        least = int(MICRO * law.c0_s / law.max_requests + 0.5)
        return Cost(prefill + least, prefill, 0, prompt_tokens, 0, cached_tokens)
    mean, square = lengths.moments(cap)
    decode = decode_us(law, each, mean, square)
    held = ceil(square / (2 * mean))
    if samples <= 1:
        return Cost(
            prefill + decode, prefill, prompt_tokens + held, prompt_tokens, int(mean + 0.5), cached_tokens
        )
    return Cost(
        prefill + samples * decode,
        prefill,
        prompt_tokens + samples * held,
        prompt_tokens,
        int(samples * mean + 0.5),
        cached_tokens,
    )


def true_work_us(
    law: SpeedLaw,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    output_tokens: int,
    samples: int,
    prompts: int = 1,
) -> int:
    """What a request took in the end, from the engine's own counts (over all prompts, and over all samples)."""
    answers = samples if samples > 1 else 1
    each = output_tokens // answers
    if prompts > 1:
        prompt_tokens, cached_tokens = prompt_tokens // prompts, cached_tokens // prompts
        prefill = prompts * prefill_us(law, prompt_tokens, cached_tokens)
    else:
        prefill = prefill_us(law, prompt_tokens, cached_tokens)
    return prefill + answers * decode_us(law, prompt_tokens, each, each * each)
