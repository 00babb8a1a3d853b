"""A driver for one baseline that knows nothing of its insides: it tells events and keeps an account of the effects."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.admission.effects import Abort, Dispatch, Effect, Evict, Hold, Refuse, Settle
from forebay.admission.events import (
    Arrived,
    AttemptFailed,
    ClientLeft,
    Described,
    Ended,
    EndpointsChanged,
    Event,
    Failure,
    FirstTokenCame,
    Progressed,
    Sampled,
)
from forebay.admission.model import (
    Demand,
    EndpointId,
    EngineInfo,
    EngineKind,
    EngineSample,
    Refusal,
    TicketId,
    Usage,
)
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from forebay.simulate.baselines.per_pool import PerPool
from forebay.simulate.baselines.pool_law import PoolLaw
from forebay.simulate.baselines.registry import BASELINES

SETTINGS = Settings((PoolSettings("p"),))


class Bench:
    """One policy, and what became of every ticket."""

    def __init__(
        self,
        name: str,
        *,
        engines: int = 1,
        settings: Settings = SETTINGS,
        kv_tokens: int = 100_000,
        max_requests: int = 256,
    ) -> None:
        base, _, argument = name.partition(":")
        policy = BASELINES[base][1](argument)(settings, 0.0)
        assert isinstance(policy, PerPool)
        self.policy = policy
        self.now = 0.0
        self.demands: dict[int, Demand] = {}
        self.waiting: dict[int, None] = {}
        self.running: dict[int, EndpointId] = {}
        self.over: dict[int, str] = {}
        self.refusals: dict[int, Refusal] = {}
        self.started: list[int] = []
        self.attempts: dict[int, int] = {}
        self.tell(EndpointsChanged("p", tuple(EndpointId(f"e{n}") for n in range(engines))))
        info = EngineInfo(EngineKind.VLLM, kv_tokens=kv_tokens, max_requests=max_requests)
        for n in range(engines):
            self.tell(Described(EndpointId(f"e{n}"), info))
            self.sample(f"e{n}")

    @property
    def law(self) -> PoolLaw:
        """The law of the only pool."""
        return self.policy.laws["p"]

    def tell(self, event: Event) -> None:
        """Something happens."""
        self._carry_out(self.policy.handle(event, self.now))

    def pass_time(self, until_s: float) -> None:
        """Wake it whenever it asks to be, until then."""
        for _ in range(100_000):
            due_s = self.policy.next_deadline()
            if due_s is None or due_s > until_s:
                break
            self.now = max(self.now, due_s)
            self._carry_out(self.policy.wake(self.now))
        else:
            raise AssertionError("it asks to be woken without end")
        self.now = until_s

    def arrive(
        self,
        ticket: int,
        class_name: str = "standard",
        *,
        prompt: int = 100,
        limit: int | None = 256,
        tenant: str = "anonymous",
        stream: bool = True,
        samples: int = 1,
        plan: str = "",
        by_s: float | None = None,
        patience_s: float | None = None,
    ) -> None:
        """A request comes."""
        demand = Demand(
            TicketId(ticket),
            "p",
            class_name,
            "m",
            stream,
            prompt * 4,
            prompt * 4,
            tenant,
            max_output_tokens=limit,
            samples=samples,
            plan=plan,
            first_token_by_s=by_s,
            patience_until_s=None if patience_s is None else self.now + patience_s,
        )
        self.demands[ticket] = demand
        self.tell(Arrived(demand))
        assert (ticket in self.waiting) + (ticket in self.running) + (ticket in self.over) == 1

    def first_token(self, ticket: int) -> None:
        """Its prompt is done."""
        self.tell(FirstTokenCame(TicketId(ticket)))

    def progress(self, ticket: int, events: int) -> None:
        """Tokens of it came."""
        self.tell(Progressed(self.running[ticket], ((TicketId(ticket), events),)))

    def end(self, ticket: int, output: int = 10, *, outcome: Outcome = Outcome.COMPLETED) -> None:
        """Its answer is whole."""
        del self.running[ticket]
        self.over[ticket] = outcome.value
        usage = Usage(self.demands[ticket].prompt_bytes // 4, output)
        self.tell(Ended(TicketId(ticket), outcome, usage if outcome is Outcome.COMPLETED else None, output))

    def leave(self, ticket: int) -> None:
        """Its client goes away."""
        self.waiting.pop(ticket, None)
        self.running.pop(ticket, None)
        self.over[ticket] = Outcome.CLIENT_GONE.value
        self.tell(ClientLeft(TicketId(ticket)))

    def fail(self, ticket: int, failure: Failure = Failure.REFUSED) -> None:
        """Its attempt fails."""
        self.tell(AttemptFailed(TicketId(ticket), self.running[ticket], failure))

    def sample(
        self, endpoint: str = "e0", *, running: int | None = None, waiting: int = 0, kv: float = 0.0
    ) -> None:
        """An engine is read; by default it runs what was sent to it."""
        if running is None:
            running = sum(at == endpoint for at in self.running.values())
        sample = EngineSample(self.now, running=running, waiting=waiting, kv_usage=kv)
        self.tell(Sampled(EndpointId(endpoint), sample))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            assert not isinstance(effect, Settle)
            ticket = int(effect.ticket)
            assert ticket not in self.over
            if isinstance(effect, Dispatch):
                self.waiting.pop(ticket, None)
                assert effect.attempt == self.attempts.get(ticket, 0) + 1
                self.attempts[ticket] = effect.attempt
                self.running[ticket] = effect.endpoint
                self.started.append(ticket)
            elif isinstance(effect, Hold):
                assert ticket not in self.waiting
                self.waiting[ticket] = None
            elif isinstance(effect, Refuse):
                assert ticket not in self.waiting
                assert ticket not in self.running
                self.over[ticket] = effect.refusal.outcome.value
                self.refusals[ticket] = effect.refusal
            elif isinstance(effect, Evict):
                del self.waiting[ticket]
                self.over[ticket] = effect.refusal.outcome.value
                self.refusals[ticket] = effect.refusal
            elif isinstance(effect, Abort):
                del self.running[ticket]
                self.over[ticket] = effect.outcome.value
