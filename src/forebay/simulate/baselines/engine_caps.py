"""vLLM's own caps: an engine that refuses, behind a plain load balancer.

Read in vLLM 0.32.0, `AsyncLLM.check_admission` (pull request 49445, July 2026) and `SchedulerConfig`:

- `--max-num-queued-reqs`: refused if the requests in the engine, running and waiting, and the new one's samples would
  be more than this;
- `--max-num-queued-tokens`: refused if the prompt tokens of the requests still in prefill are this many already. The
  new prompt itself is not counted, a prompt counts in full until its first token, and prefix hits count as well.

Both are off by default; the second is meant to be time to first token × prefill rate. The answer is 503 without
Retry-After, meant for the balancer to try another engine: here all are tried, the least loaded first.

Not faithful: an answer that is not streamed does not tell of its first token here, so it is in prefill until a later
stream at the same engine is not; and each sample counts, but not each of several prompts in one request.
"""

from __future__ import annotations

from forebay.admission.model import Check, EndpointId, Usage
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import Settings
from forebay.simulate.baselines.pool_law import Place, PoolLaw, Request

__all__ = ["EngineCaps"]


class EngineCaps(PoolLaw):
    """One cap, or both; None is off."""

    def __init__(
        self, pool: str, settings: Settings, *, max_requests: int | None = None, max_tokens: int | None = None
    ) -> None:
        super().__init__(pool, settings)
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._prefilling: dict[EndpointId, int] = {}
        """Prompt tokens of the requests there that have no first token yet."""
        self._counted: dict[int, EndpointId] = {}

    def arrived(self, request: Request, now: float) -> None:
        """Ask one engine after the other."""
        asked: tuple[EndpointId, ...] = ()
        check = Check("endpoints", 0, 1, False)
        while (place := self.least_loaded(without=asked)) is not None:
            refusal = self.refusal_of(place, request)
            if refusal is None:
                self.start(request, place, now)
                return
            check = refusal
            asked = (*asked, place.id)
        self.refuse(request, Outcome.QUEUE_FULL, check, now)

    def refusal_of(self, place: Place, request: Request) -> Check | None:
        """What this engine would refuse it for."""
        if self.max_requests is not None:
            held = sum(running.demand.samples for running in place.running.values())
            if held + request.demand.samples > self.max_requests:
                return Check("max_num_queued_reqs", held, self.max_requests, False)
        tokens = self._prefilling.get(place.id, 0)
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return Check("max_num_queued_tokens", tokens, self.max_tokens, False)
        return None

    def prefilled(self, request: Request) -> None:
        """Its prompt is no longer in prefill."""
        self._end_prefill(request)

    def stopped(self, request: Request, outcome: Outcome | None, usage: Usage | None, now: float) -> None:
        """It is out of the engine."""
        self._end_prefill(request)

    def started(self, request: Request, place: Place) -> None:
        """Its prompt is in prefill."""
        self._counted[request.number] = place.id
        self._prefilling[place.id] = self._prefilling.get(place.id, 0) + request.prompt_tokens

    def _end_prefill(self, request: Request) -> None:
        endpoint = self._counted.pop(request.number, None)
        if endpoint is not None:
            self._prefilling[endpoint] -= request.prompt_tokens
            if not self._prefilling[endpoint]:
                del self._prefilling[endpoint]
