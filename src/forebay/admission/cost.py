"""From a request to its cost: the closed form in endpoint-seconds.

One engine step takes t = c0 + c1·P + c2·n + c3·K + c4·A (`SpeedLaw`). A request with prompt p (of which
`cached` tokens are already in the prefix cache) and output o takes part in o steps and holds p, p+1, … p+o
KV tokens meanwhile, so with KV-time w = p·o + o²/2 its own part of all those steps is

    lin  = c1·(p − cached) + c4·(p² − cached²)/2 + c2·o + c3·w
    cost = lin + c0 · max(w / M, o / N)

M is the KV capacity, N the number of sequences run at once: the last term is the request's dominant share
of the fixed cost of a step. Costs add up: the sum over a backlog is the time one endpoint takes to drain it,
which is why queues, quotas, fairness and predicted waits are all counted in this unit. The form was checked
against a step-level model (within 1 to 6 % of capacity as long as the KV cache does not thrash).

Pure arithmetic: no state, no learning (`lengths` and `speed` learn).
"""

from __future__ import annotations

from forebay.admission.model import MICRO, Cost
from forebay.admission.settings import SpeedLaw


def prefill_us(law: SpeedLaw, prompt_tokens: int, cached_tokens: int = 0) -> int:
    """Micro-endpoint-seconds to process a prompt."""
    fresh = prompt_tokens - cached_tokens
    if fresh <= 0:
        return 0
    attention = prompt_tokens * prompt_tokens - cached_tokens * cached_tokens
    return round(MICRO * (law.c1_s * fresh + law.c4_s * attention / 2))


def decode_us(law: SpeedLaw, prompt_tokens: int, output_tokens: int) -> int:
    """Micro-endpoint-seconds to generate `output_tokens` after a prompt, with the share of the fixed step cost."""
    kv_time = prompt_tokens * output_tokens + output_tokens * output_tokens / 2
    share, slots = kv_time / law.kv_tokens, output_tokens / law.max_requests
    if slots > share:
        share = slots
    return round(MICRO * (law.c2_s * output_tokens + law.c3_s * kv_time + law.c0_s * share))


def estimate(
    law: SpeedLaw,
    *,
    prompt_tokens: int,
    expected_output: int,
    reserved_output: int,
    samples: int,
    generates: bool,
) -> Cost:
    """Cost of a request.

    Args:
        expected_output: mean output tokens of one sample: what is paid for.
        reserved_output: a high quantile of the same: what KV room is kept for.
        samples: answers generated for the one prompt; the prompt's KV is shared between them.
        generates: False for embeddings and scoring: prefill only, and no KV is held.
    """
    prefill = prefill_us(law, prompt_tokens)
    if not generates:
        # A step is at least c0, however small the prompt: without this, empty prompts would be free.
        return Cost(prefill + round(MICRO * law.c0_s / law.max_requests), prefill, 0, prompt_tokens, 0)
    decode = samples * decode_us(law, prompt_tokens, expected_output)
    kv_tokens = prompt_tokens + samples * reserved_output
    return Cost(prefill + decode, prefill, kv_tokens, prompt_tokens, samples * expected_output)


def true_work_us(
    law: SpeedLaw, *, prompt_tokens: int, cached_tokens: int, output_tokens: int, samples: int
) -> int:
    """What a request took in the end, from the engine's own counts (`output_tokens` over all samples)."""
    answers = samples if samples > 1 else 1
    each = decode_us(law, prompt_tokens, output_tokens // answers)
    return prefill_us(law, prompt_tokens, cached_tokens) + answers * each
