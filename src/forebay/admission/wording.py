"""Outcomes and checks in words for people: for error bodies, `forebay explain` and the dashboard.

Data and small functions; a test holds the tables against the outcomes and the checks that the core makes. In a remedy
`{value}` is what was found, `{limit}` what was allowed, both with their unit, `{pool}` and `{class}` names.
"""

from __future__ import annotations

from typing import Final

from forebay.admission.outcomes import Outcome
from forebay.admission.record import record

OUTCOME_WORDS: Final = {
    Outcome.RATE_LIMIT_EXCEEDED: "Your own rate limit is used up.",
    Outcome.QUEUE_FULL: "The waiting line is full.",
    Outcome.DEADLINE_UNREACHABLE: "The predicted wait is longer than this request may wait.",
    Outcome.QUEUE_TIMEOUT: "The request waited, and no place came free.",
    Outcome.DISPLACED: "The request was waiting and had to make room for other work.",
    Outcome.RULE_REFUSED: "An operator's rule refuses this request at present.",
    Outcome.NO_ENDPOINTS: "No engine can serve this model at present.",
    Outcome.DRAINING: "This gateway is shutting down and takes no new requests.",
    Outcome.LIMITS_UNAVAILABLE: "Shared limits cannot be read at present.",
    Outcome.STALE_ENGINE: "The engines' state is not known well enough to admit work.",
    Outcome.REQUEST_TOO_LARGE: "The request can never fit.",
    Outcome.DEADLINE_HOPELESS: "Even an idle engine could not meet this deadline. Allow more time.",
    Outcome.REQUEST_EXCEEDS_QUOTA: "The input alone is larger than your quota's bucket.",
    Outcome.UPSTREAM_FAILED: "The engine failed before it gave an answer.",
    Outcome.UPSTREAM_INTERRUPTED: "The engine's answer broke off before its end.",
    Outcome.STREAM_LIMIT: "The stream ran longer than it may while others wait.",
    Outcome.SLOW_READER: "The answer was not read fast enough.",
    Outcome.NO_PROGRESS: "The engine gave no sign of progress for too long.",
}


@record
class CheckWords:
    """One check."""

    what: str
    """What is compared."""
    unit: str = ""
    """Of both numbers, with the space before it."""
    remedy: str = ""
    """What would have let the request pass it; empty where only time helps."""
    counted_low: bool = False
    """The value is surely reached, and likely passed."""
    is_plain: bool = False
    """A yes or no: its numbers say nothing."""


_LONGER_WAIT: Final = (
    "a wait of {value} being allowed: `wait_budget` of class {class}, and whatever deadline the client states"
)

CHECK_WORDS: Final[dict[str, CheckWords]] = {
    "draining": CheckWords(
        "the gateway shuts down", remedy="another gateway, or this one once it is back", is_plain=True
    ),
    "endpoints_up": CheckWords("engines that are up", remedy="an engine of pool {pool} that can be reached"),
    "stale_samples": CheckWords(
        "engines have not told their load lately",
        remedy="a fresh reading of an engine's metrics",
        is_plain=True,
    ),
    "context_window": CheckWords(
        "prompt against the model's context window",
        " tokens",
        "a prompt of at most {limit}",
        counted_low=True,
    ),
    "max_output_tokens": CheckWords(
        "output limit",
        " tokens",
        "an output limit of {limit}, or `max_output_tokens` of pool {pool} being higher",
    ),
    "kv_cache": CheckWords(
        "prompt against the engine's KV cache", " tokens", "a prompt of at most {limit}", counted_low=True
    ),
    "request_gpu_seconds": CheckWords(
        "work of this request alone (what is sure of it, where a bound is set and the pool is learning)",
        " GPU-seconds",
        "a request of at most {limit} (a shorter prompt, a lower output limit, fewer samples), or `max_gpu_seconds` × "
        "`headroom` of pool {pool} being {value}",
    ),
    "quota_input_tokens": CheckWords(
        "its input against the tenant's bucket", " tokens", "an input of at most {limit}", counted_low=True
    ),
    "quota_tokens": CheckWords(
        "tokens that the tenant has spent, with it",
        " tokens",
        "waiting until the tenant's bucket has refilled",
    ),
    "quota_requests": CheckWords(
        "requests that the tenant has spent, with it", "", "waiting until the tenant's bucket has refilled"
    ),
    "quota_inflight_requests": CheckWords(
        "requests of the tenant in flight, with it", "", "one of the tenant's own requests ending first"
    ),
    "quota_inflight_gpu_seconds": CheckWords(
        "work of the tenant in flight, with it", " GPU-seconds", "some of the tenant's own work ending first"
    ),
    "deadline": CheckWords("time since the client's own deadline", " s", "a deadline that is still to come"),
    "deadline_hopeless": CheckWords(
        "its own prompt at an idle engine against the client's deadline",
        " s",
        "a deadline of at least {value} from its arrival",
    ),
    "predicted_wait": CheckWords("predicted wait", " s", _LONGER_WAIT),
    "expected_wait": CheckWords("expected wait", " s", _LONGER_WAIT),
    "pool_gpu_seconds": CheckWords(
        "work in the pool, with it",
        " GPU-seconds",
        "less work queued and running in pool {pool}, or its `max_gpu_seconds` × `headroom` being {value}",
    ),
    "waiting_bytes": CheckWords(
        "bodies of waiting requests, with it",
        " bytes",
        "fewer requests waiting, or `limits.max_waiting_bytes` of {value}",
    ),
    "class_queue_requests": CheckWords(
        "requests of its class waiting, with it",
        "",
        "fewer requests of class {class} waiting, or its `max_queue` being {value}",
    ),
    "class_queue_gpu_seconds": CheckWords(
        "work of its class waiting (with it, if `max_queue_gpu_seconds` is a number)",
        " GPU-seconds",
        "less work of class {class} waiting, or its `max_queue_gpu_seconds` being a number that allows for all of it",
    ),
    "pool_queue_requests": CheckWords(
        "requests waiting in the pool, with it",
        "",
        "fewer requests waiting, or `max_queue` of pool {pool} being {value}",
    ),
    "plan_models": CheckWords("what it serves is not among the `models` of the tenant's plan", is_plain=True),
    # What holds one that waits.
    "kv_tokens": CheckWords("KV cache booked, with it", " tokens", "room in an engine's KV cache"),
    "kv_forecast": CheckWords("KV cache foreseen, with it", " tokens", "room in an engine's KV cache"),
    "endpoint_requests": CheckWords(
        "requests at the engine, with it",
        "",
        "a free slot, or `max_inflight_requests` of pool {pool} being {value}",
    ),
    "pool_requests": CheckWords(
        "requests in flight, with it",
        "",
        "fewer in flight, or `max_pool_requests` of pool {pool} being {value}",
    ),
    "prefill_window": CheckWords("prompts under way in the engine", " s", "fewer prompts under way"),
    "prefill_pacing": CheckWords(
        "time until its prompt may enter", " s", "fewer streams that its prompt would slow down"
    ),
    "target_utilization": CheckWords(
        "utilisation of the engine", "", "a lower utilisation (`queue_policy` of pool {pool})"
    ),
    "admit_below_utilization": CheckWords(
        "utilisation of the pool",
        "",
        "a lower utilisation, or `admit_below_utilization` of class {class} being higher",
    ),
    "max_share": CheckWords(
        "part of the GPU time that its class had lately while others waited",
        "",
        "fewer requests of class {class}, or its `max_share` being higher",
    ),
    "group_share": CheckWords(
        "part of the GPU time of its group that its pool had lately, while another one waits that had less",
        "",
        "fewer requests in pool {pool}, or its `share` being higher",
    ),
    "endpoint_reserved": CheckWords("the engine is kept free for one that has waited longer"),
    "endpoint_entry": CheckWords("requests at an engine that comes back after failures, with it"),
    "endpoint_trial": CheckWords("requests at an engine that has just stood still, with it"),
    "endpoint_share": CheckWords("this replica has no share of the engine", is_plain=True),
    "endpoint_context": CheckWords(
        "prompt against this engine's context window", " tokens", "a shorter prompt"
    ),
    "endpoint_down": CheckWords("the engine is down", is_plain=True),
    # What ends a wait.
    "waited": CheckWords(
        "time waited",
        " s",
        "a place that came free within {limit}, or a longer wait being allowed: `wait_budget` of class {class}, and "
        "whatever deadline the client states",
    ),
    "whole_answer": CheckWords(
        "the least until its first token, with an answer to follow in the time that there is for the whole of it",
        " s",
        "a client that waits longer, a longer `whole_answer` of class {class}, or a place that came free sooner",
    ),
    "least_wait": CheckWords("the least it still had to wait", " s", "a place that came free within {limit}"),
    "own_prefill": CheckWords(
        "its own prompt against what was left of its time", " s", "a start {value} before its end"
    ),
    "rank": CheckWords(
        "rank of its class, and of the newcomer's (0 is the most important)", "", "a more important class"
    ),
    "same_class": CheckWords("its work, and the newcomer's", " GPU-seconds", "more room in its class"),
    "set_on_time": CheckWords(
        "work waiting in its class, which cannot all be on time",
        " GPU-seconds",
        "fewer requests of its class waiting",
    ),
    # What ends one that ran.
    "silence": CheckWords("time without a byte from the engine", " s", "an engine that answers"),
    "max_stream": CheckWords(
        "time that the stream took", " s", "nobody waiting, or a longer `max_stream` of class {class}"
    ),
    "other_endpoints": CheckWords("other engines that could be tried", "", "another engine in pool {pool}"),
    "attempts": CheckWords("attempts", "", "an engine that answers"),
    "answer_begun": CheckWords(
        "a part of the answer had been sent, so no other engine could begin anew", is_plain=True
    ),
}

_HUGE: Final = 1e15
_RULE: Final = "rule:"
FALLBACK: Final = "fallback:"
"""Begins the name of the check before those of a pool that a request fell back to; passed if it was taken there."""
_UNKNOWN: Final = CheckWords("")


def words_of(name: str) -> CheckWords:
    """What a check is about; of one without an entry, its name."""
    found = CHECK_WORDS.get(name, _UNKNOWN)
    if name.startswith(_RULE):
        rule = name.removeprefix(_RULE)
        return CheckWords(
            f"the operator's rule {rule} matched",
            remedy=f"a request or a moment that rule {rule} does not match",
        )
    if name.startswith(FALLBACK):
        return CheckWords(f"it fell back to pool {name.removeprefix(FALLBACK)}")
    return CheckWords(name.replace("_", " ")) if found is _UNKNOWN else found


def two_numbers(value: float, limit: float) -> tuple[str, str]:
    """Both to three digits, or to as many as it takes to tell them apart; three if nothing does."""
    for digits in (3, 6, 9):
        if number(value, digits) != number(limit, digits):
            return number(value, digits), number(limit, digits)
    return number(value), number(limit)


def number(value: float, digits: int = 3) -> str:
    """A number for people."""
    is_whole = float(value).is_integer() or abs(value) >= 10**digits - 0.5
    return f"{value:.0f}" if is_whole and abs(value) < _HUGE else f"{value:.{digits}g}"
