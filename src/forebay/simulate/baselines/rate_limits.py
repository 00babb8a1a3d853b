"""Requests and tokens per minute for each tenant, as API gateways limit them: blind to the engine.

Three ways to count, each for requests (RPM) and for tokens (TPM), 0 being no limit:

- `FixedWindow`: a minute that begins with its first request (LiteLLM, `parallel_request_limiter_v3`);
- `SlidingWindow`: this minute's count and the last one's, weighed by how much of it is still in view (Kong's *Rate
  Limiting Advanced* and *AI Rate Limiting Advanced*, where a sliding window is the default);
- `Bucket`: refilled at the rate, one minute deep (Envoy's `local_ratelimit`, and the way plans are often written).

Requests count when they come, in Kong's windows those that are refused as well (`disable_penalty: false`). Tokens count
when the answer ends, prompt and output together (LiteLLM's `total`, Kong's `total_tokens`): what is in flight counts as
nothing, so a burst goes through before its tokens are known. That is how they are, and a known complaint. A refusal
says when the window ends or the bucket has something again. What is let in goes to the engine with the fewest in
flight.

Left out: limits per model, team and user beside those per key; shared counters; LiteLLM's and Kong's newer estimates of
prompts before the call. An answer that is cut off counts the tokens that were seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from forebay.admission.model import Check, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.simulate.baselines.pool_law import PoolLaw, Request

__all__ = ["Bucket", "Count", "FixedWindow", "RateLimits", "SlidingWindow"]

WINDOW_S: Final = 60.0
MOST_TENANTS: Final = 100_000
"""Counted at once; the one longest counted is forgotten first."""


class FixedWindow:
    """A minute that begins with the first use."""

    counts_refused = False

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._began_s = -math.inf
        self._used = 0.0

    def has_room(self, now: float, *, newcomer: int) -> bool:
        """Up to the limit; with tokens, as long as any are left."""
        self._roll(now)
        return self._used + max(newcomer, 1) <= self.per_minute

    def add(self, amount: float, now: float) -> None:
        """It falls into the window of now, also where its request came in an earlier one."""
        self._roll(now)
        self._used += amount

    def room_in_s(self, now: float) -> float:
        """Until the window ends."""
        return max(self._began_s + WINDOW_S - now, 0.0)

    def _roll(self, now: float) -> None:
        if now - self._began_s >= WINDOW_S:
            self._began_s, self._used = now, 0.0


class SlidingWindow:
    """This minute's count and what is still in view of the last one's."""

    counts_refused = True

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._minute = 0
        self._used = 0.0
        self._used_before = 0.0

    def has_room(self, now: float, *, newcomer: int) -> bool:
        """Up to the limit; with tokens, as long as any are left."""
        return self._rate(now) + max(newcomer, 1) <= self.per_minute

    def add(self, amount: float, now: float) -> None:
        """It falls into the minute of now."""
        self._roll(now)
        self._used += amount

    def room_in_s(self, now: float) -> float:
        """Until the last minute is out of view, or if this one's use is too much already, this one."""
        self._roll(now)
        left_s = (self._minute + 1) * WINDOW_S - now
        return left_s if self._used < self.per_minute else left_s + WINDOW_S

    def _rate(self, now: float) -> float:
        self._roll(now)
        in_view = 1 - (now / WINDOW_S - self._minute)
        return self._used + self._used_before * in_view

    def _roll(self, now: float) -> None:
        minute = int(now // WINDOW_S)
        if minute != self._minute:
            self._used_before = self._used if minute == self._minute + 1 else 0.0
            self._minute, self._used = minute, 0.0


class Bucket:
    """Refilled at the rate, one minute deep."""

    counts_refused = False

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = 0.0

    def has_room(self, now: float, *, newcomer: int) -> bool:
        """Something must be in it."""
        return self._refilled(now) >= max(newcomer, 1)

    def add(self, amount: float, now: float) -> None:
        """The level may go below nothing, which is paid back first."""
        self._level, self._at_s = self._refilled(now) - amount, now

    def room_in_s(self, now: float) -> float:
        """Until one is in it."""
        return max(1 - self._refilled(now), 0.0) * WINDOW_S / self.per_minute

    def _refilled(self, now: float) -> float:
        return min(self._level + (now - self._at_s) * self.per_minute / WINDOW_S, float(self.per_minute))


Count: TypeAlias = FixedWindow | SlidingWindow | Bucket
"""What one tenant has used of one limit."""


@dataclass(slots=True)
class _Tenant:
    requests: Count | None
    tokens: Count | None


class RateLimits(PoolLaw):
    """RPM and TPM per tenant."""

    def __init__(
        self,
        pool: str,
        settings: Settings,
        count: Callable[[int], Count],
        *,
        rpm: int = 0,
        tpm: int = 0,
    ) -> None:
        super().__init__(pool, settings)
        self._count = count
        self.rpm, self.tpm = rpm, tpm
        self._tenants: dict[str, _Tenant] = {}

    def arrived(self, request: Request, now: float) -> None:
        """Start it, or refuse it."""
        tenant = self._tenant(request.demand.tenant)
        requests, tokens = tenant.requests, tenant.tokens
        over = ""
        retry_after_s = 0.0
        if requests is not None and not requests.has_room(now, newcomer=1):
            over, retry_after_s = "requests_per_minute", requests.room_in_s(now)
        if tokens is not None and not tokens.has_room(now, newcomer=0):
            over, retry_after_s = "tokens_per_minute", max(retry_after_s, tokens.room_in_s(now))
        if requests is not None and (not over or requests.counts_refused):
            requests.add(1, now)
        place = self.least_loaded()
        if over or place is None:
            check = Check(over, 1, 0, False)
            self.refuse(
                request, Outcome.RATE_LIMIT_EXCEEDED, check, now, retry_after_s=max(retry_after_s, 1.0)
            )
        else:
            self.start(request, place, now)

    def stopped(self, request: Request, outcome: Outcome | None, usage: Usage | None, now: float) -> None:
        """What it took is known now."""
        tokens = self._tenant(request.demand.tenant).tokens
        if tokens is None or outcome is None:
            return
        if usage is not None:
            tokens.add(usage.prompt_tokens + usage.output_tokens, now)
        elif request.first_s is not None:
            tokens.add(request.prompt_tokens + request.output_events, now)

    def _tenant(self, name: str) -> _Tenant:
        found = self._tenants.get(name)
        if found is None:
            if len(self._tenants) >= MOST_TENANTS:
                del self._tenants[next(iter(self._tenants))]
            requests = self._count(self.rpm) if self.rpm else None
            tokens = self._count(self.tpm) if self.tpm else None
            found = self._tenants[name] = _Tenant(requests, tokens)
        return found
