"""The baselines by name, with what each takes behind a colon: `static:64`, `litellm:rpm=600,tpm=100000`.

What takes a number has one also where none is given, so that a first look needs no thought. It is nobody's best: the
benchmark sweeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from forebay.admission.settings import Settings
from forebay.simulate.baselines.engine_caps import EngineCaps
from forebay.simulate.baselines.gradient2 import Gradient2
from forebay.simulate.baselines.least_request import LeastRequest
from forebay.simulate.baselines.llm_d import LlmD, SoftReflective, Static
from forebay.simulate.baselines.per_pool import per_pool
from forebay.simulate.baselines.pool_law import PoolLaw
from forebay.simulate.baselines.rate_limits import Bucket, Count, FixedWindow, RateLimits, SlidingWindow
from forebay.simulate.baselines.static import FixedDepth, StaticConcurrency
from forebay.simulate.baselines.vtc import VirtualTokenCounter
from forebay.simulate.policy import PolicyMaker

__all__ = ["BASELINES", "numbers"]

MOST: Final = 1_000_000_000
"""The largest number that a name may carry: nobody means more."""

USUAL_CAPS: Final = "reqs=320"
"""vLLM's own default is no cap; its advice is `max_num_seqs` and the queue that one wants: 256 and 64."""
USUAL_RATES: Final = "rpm=1000,tpm=1000000"
"""Nobody's default: a number that looks like those in examples."""

Maker = Callable[[str], PolicyMaker]
"""Takes what stands behind the colon. Raises ValueError, which says what it would take."""


def numbers(argument: str, keys: tuple[str, ...]) -> dict[str, int]:
    """Reads `key=number,key=number`, or a bare number where there is only one key. At least one must be given."""
    shape = "a number" if len(keys) == 1 else ", ".join(f"{key}=NUMBER" for key in keys) + " (one or more)"
    found: dict[str, int] = {}
    for part in argument.split(","):
        key, equals, text = part.partition("=")
        if not equals and len(keys) == 1:
            key, text = keys[0], part
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MOST))
        if key not in keys or key in found or not is_number or not 1 <= int(text) <= MOST:
            raise ValueError(f"it takes {shape} behind a colon, at least 1, not {argument[:60]!r}")
        found[key] = int(text)
    return found


def _plain(law: Callable[[str, Settings], PoolLaw]) -> Maker:
    def make(argument: str) -> PolicyMaker:
        if argument:
            raise ValueError("it takes nothing behind a colon")
        return per_pool(law)

    return make


def _with_number(law: Callable[[str, Settings, int], PoolLaw], usual: str) -> Maker:
    def make(argument: str) -> PolicyMaker:
        (number,) = numbers(argument or usual, ("limit",)).values()
        return per_pool(lambda pool, settings: law(pool, settings, number))

    return make


def _vllm_caps(argument: str) -> PolicyMaker:
    given = numbers(argument or USUAL_CAPS, ("reqs", "tokens"))
    return per_pool(partial(EngineCaps, max_requests=given.get("reqs"), max_tokens=given.get("tokens")))


def _rates(count: Callable[[int], Count]) -> Maker:
    def make(argument: str) -> PolicyMaker:
        given = numbers(argument or USUAL_RATES, ("rpm", "tpm"))
        return per_pool(
            partial(RateLimits, count=count, rpm=given.get("rpm", 0), tpm=given.get("tpm", 0)),
        )

    return make


def _llm_d(ceilings: type[SoftReflective | Static]) -> Maker:
    return _plain(lambda pool, settings: LlmD(pool, settings, ceilings(len(settings.classes))))


BASELINES: Final[Mapping[str, tuple[str, Maker]]] = {
    "least-request": ("no control: every request goes to the engine with the fewest", _plain(LeastRequest)),
    "static": (
        "at most N in flight per engine, a ranked queue in front (static:64)",
        _with_number(StaticConcurrency, "64"),
    ),
    "fixed-depth": (
        "at most N per engine, the next is refused (fixed-depth:96)",
        _with_number(FixedDepth, "96"),
    ),
    "vllm-caps": ("vLLM's own queue caps (vllm-caps:reqs=320,tokens=40000)", _vllm_caps),
    "litellm": ("RPM and TPM per tenant in fixed windows (litellm:rpm=600,tpm=100000)", _rates(FixedWindow)),
    "kong": ("the same in sliding windows (kong:tpm=100000)", _rates(SlidingWindow)),
    "token-bucket": ("the same as buckets (token-bucket:rpm=600)", _rates(Bucket)),
    "gradient2": ("Netflix's adaptive concurrency limit", _plain(Gradient2)),
    "llm-d": ("llm-d's flow control: bands, deadlines, soft reflective ceilings", _llm_d(SoftReflective)),
    "llm-d-static": ("the same with its default ceilings", _llm_d(Static)),
    "vtc": ("fair tokens between tenants, worst-case KV cache, no refusals", _plain(VirtualTokenCounter)),
}
"""Summary and maker of each, in the order in which they are listed."""
