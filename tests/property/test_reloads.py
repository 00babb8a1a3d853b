"""Random configurations for a running gateway: pools, groups, rules, quotas, ceilings, fallbacks, classes and plans
come, go and change while requests of all kinds are under way, and nobody is lost or told what is not so.

The real reload and the real driver, with a clock that stands still in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from forebay.admission.effects import Abort, Dispatch, Hold
from forebay.admission.events import (
    Arrived,
    AttemptFailed,
    ClientLeft,
    Described,
    Ended,
    Failure,
    FirstTokenCame,
    Progressed,
    Sampled,
    SampleMissed,
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
from forebay.config import ConfigError, load
from forebay.gateway.asks import Ask, BadRequest
from forebay.gateway.identity import Denied
from forebay.runtime.driver import Driver
from forebay.runtime.prepared import Prepared, prepare
from forebay.runtime.reloading import Reloading
from tests.property.driving import audit_books
from tests.unit.runtime.doubles import Clock, Timers

HOSTS = [f"http://10.0.0.{n}:8000" for n in range(1, 8)]
CLASSES = ("realtime", "standard", "batch", "extra")
PLANS = ("free", "gold", "odd")
MODELS = ("m1", "m2", "ft-1")
CONDITIONS = (
    "true",
    "running_seq_count > 1",
    "pool.queue_requests > 2",
    "request.max_tokens > 100",
    "class == 'batch' && pool.utilization > 0.2",
    "tenant.plan == 'free'",
    "request.model.startsWith('ft') || endpoint.sample_age > 1.0",
    "1 / pool.inflight_requests > 3",
)


class Chance:
    """Draws parts of configurations."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def some(self, **choices: list[Any]) -> dict[str, Any]:
        """A mapping with some of these keys, each with one of its values."""
        return {key: self.dice.choice(values) for key, values in choices.items() if self.dice.random() < 0.4}

    def config(self) -> dict[str, Any]:
        """A whole configuration; most are sound."""
        dice = self.dice
        names = dice.sample(("a", "b", "c", "d"), dice.randint(1, 4))
        hosts = dice.sample(HOSTS, len(HOSTS))
        classes = dice.sample(CLASSES, dice.randint(1, 4))
        plans = dice.sample(PLANS, dice.randint(0, 3))
        config: dict[str, Any] = {
            "pools": [self.pool(name, hosts, names[place + 1 :]) for place, name in enumerate(names)],
            "classes": {name: {"ttft": "5s", **self.one_class()} for name in classes},
            "default_class": dice.choice(classes),
            "plans": {name: self.plan(classes) for name in plans},
            "tenants": [
                {"name": name, **({"plan": dice.choice(plans)} if plans and dice.random() < 0.8 else {})}
                for name in dice.sample(("t1", "t2", "t3"), dice.randint(0, 3))
            ],
            "trusted_proxies": ["10.0.0.0/8"],
            "rules": [
                {"name": f"r{n}", "when": dice.choice(CONDITIONS), "then": self.action(names, classes)}
                for n in range(dice.choice([0, 0, 1, 4]))
            ],
            **self.some(
                mode=["enforce", "shadow", "bypass"],
                class_order=["weighted", "strict"],
                displace=["off", "lower", "same"],
                retries=["prefer", "equal", "penalise"],
                refuse_hopeless=[True],
                limits=[{"max_waiting_bytes": 2000}],
            ),
        }
        if plans and dice.random() < 0.5:
            config["anonymous"] = {"plan": dice.choice(plans)}
        return config

    def pool(self, name: str, hosts: list[str], others: list[str]) -> dict[str, Any]:
        """With one endpoint or two of its own, and fallbacks that make no circle."""
        dice = self.dice
        entry = self.some(
            max_queue=[0, 1, 5],
            max_inflight_requests=[1, 2],
            max_pool_requests=[1, 3],
            max_inflight_tokens=[500],
            max_gpu_seconds=[0.5, 5],
            max_output_tokens=[50],
            inject_limit=[False],
            queue_policy=["latency", "throughput"],
            hold_without_endpoints=["1s"],
            wait_predictor=["plain"],
            pass_priority=[True],
            profile=["learn", {"tokens_per_gpu_second": 500}],
            gpus=[1, 4],
            models=[["m1"], ["m2", "ft-*"], ["m1", "m2"]],
            mode=["enforce", "shadow", "bypass"],
        )
        if others and dice.random() < 0.5:
            entry["fallback"] = dice.choice(others)
        if dice.random() < 0.5:
            entry |= {"group": dice.choice(["g", "h"]), **self.some(share=[0.0, 0.2, 0.25])}
        endpoints = [hosts.pop() for _ in range(dice.choice([1, 1, 2])) if hosts]
        return {"name": name, "endpoints": endpoints, **entry}

    def one_class(self) -> dict[str, Any]:
        """Ceilings and bounds."""
        return self.some(
            max_share=[0.2, 0.5],
            admit_below_utilization=[0.1, 0.5],
            max_queue=[0, 2],
            max_queue_gpu_seconds=[1],
            wait_budget=["0s", "2s"],
            weight=[1, 5],
            value=[1, 3],
            order=["fifo", "edf", "sjf"],
            never_refuse=[True, False, False],
            on_stale=["refuse", "admit", "last_known"],
            max_stream=["1s", "none"],
            idle_stream=["3s"],
            mode=["enforce", "shadow", "bypass"],
            short_tokens=[50],
        )

    def plan(self, classes: list[str]) -> dict[str, Any]:
        """Quotas."""
        entry = self.some(
            classes=[self.dice.sample(classes, self.dice.randint(1, len(classes)))],
            weight=[1, 3],
            never_refuse=[True, False, False],
            models=[["m1"], ["m*"]],
            tokens_per_second=[0, 50, 1000],
            requests_per_second=[0, 1, 20],
            max_inflight=[0, 1, 5],
            max_inflight_gpu_seconds=[0.2],
            require_max_tokens=[True],
        )
        if "tokens_per_second" in entry:
            entry |= self.some(bill=["cap", "estimate"])
        return entry

    def action(self, pools: list[str], classes: list[str]) -> dict[str, Any]:
        """Of each kind."""
        return cast(
            "dict[str, Any]",
            self.dice.choice(
                [
                    {"refuse": {"retry_after": "2s"}},
                    {"refuse": {"priority": "low"}},
                    {"accept": True},
                    {"class": self.dice.choice(classes)},
                    {"pool": self.dice.choice(pools)},
                    {"pool": self.dice.choice(pools), "model": "m2", "class": self.dice.choice(classes)},
                ]
            ),
        )


def read(config: dict[str, Any]) -> Prepared:
    """As a file with this would be. Raises: ConfigError."""
    return prepare(load(None, environ={}, options={key: ("test", value) for key, value in config.items()}))


class Client:
    """One request: what it is told, in a legal order."""

    request_id = None

    def __init__(self) -> None:
        self.where = "new"
        self.endpoint: EndpointId | None = None

    def on_dispatch(self, effect: Dispatch) -> None:
        assert self.where in ("new", "waiting")
        self.where, self.endpoint = "running", effect.endpoint

    def on_hold(self, effect: Hold) -> None:
        assert self.where in ("new", "running")
        self.where, self.endpoint = "waiting", None

    def on_refuse(self, refusal: Refusal, evicted: bool) -> None:
        assert self.where == ("waiting" if evicted else "new")
        assert refusal.retry_after_s is None or refusal.outcome.may_pass_later
        self.where = "over"

    def on_abort(self, effect: Abort) -> None:
        assert self.where == "running"
        self.where = "over"


class Running:
    """A gateway without its sockets."""

    def __init__(self, prepared: Prepared, dice: random.Random) -> None:
        self.dice = dice
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.errors: list[str] = []
        self.driver = Driver(
            prepared.settings,
            cast(asyncio.AbstractEventLoop, self.timers),
            clock=self.clock,
            on_error=self.errors.append,
        )
        self.settled = 0
        self.driver.delivery.observe(settlements=[lambda _: self._settle()], records=[])
        self.clients: dict[TicketId, Client] = {}
        self.reloading = Reloading(prepared, lambda: prepared, self.driver, self._take_over, lambda _: None)
        self._take_over(prepared)
        self.reloading._place_endpoints()

    def _settle(self) -> None:
        self.settled += 1

    def _take_over(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.access = prepared.access

    def reload(self, prepared: Prepared) -> None:
        """As asked for by the operator."""
        self.reloading._apply(self.reloading._compared(prepared))

    def places(self) -> dict[EndpointId, str]:
        """Where each endpoint is."""
        snapshot = self.driver.snapshot()
        assert snapshot is not None
        return {view.id: pool.name for pool in snapshot.pools for view in pool.endpoints}

    def arrive(self) -> None:
        """A request of any kind, told apart by the table in force."""
        dice, access = self.dice, self.access
        headers = (
            [(b"x-forebay-tenant", dice.choice([b"t1", b"t2", b"t3", b"x"]))] if dice.random() < 0.7 else []
        )
        model = dice.choice([*MODELS, None])
        pool = dice.choice(self.prepared.config.pools)
        ask = Ask(
            model, dice.random() < 0.5, prompt_bytes=400, max_output_tokens=dice.choice([None, 20, 200])
        )
        try:
            tenant = access.identify(headers, "10.0.0.1")
            given = None if tenant.plan is None else tenant.plan.check(ask, tuple(pool.models or ()))
        except (Denied, BadRequest):
            return
        claimed = dice.choice([None, *access.classes])
        ticket, client = self.driver.new_ticket(), Client()
        now = self.clock()
        demand = Demand(
            ticket,
            pool.name,
            access.class_for(tenant, claimed),
            given or model or "",
            ask.stream,
            ask.prompt_bytes,
            600,
            tenant=tenant.name,
            max_output_tokens=ask.max_output_tokens,
            first_token_by_s=dice.choice([None, None, now + 1.0]),
            patience_until_s=dice.choice([None, None, now + 3.0]),
            session=dice.choice([None, None, "s"]),
            retry_count=dice.choice([0, 0, 1]),
            plan="" if tenant.plan is None else tenant.plan.name,
            class_claimed=claimed is not None,
        )
        self.clients[ticket] = client
        self.driver.register(ticket, client)
        self.driver.feed(Arrived(demand))
        assert client.where != "new", "an arrival is answered at once"

    def move(self) -> None:
        """Something happens to one request."""
        open_ones = [(t, c) for t, c in self.clients.items() if c.where in ("waiting", "running")]
        if not open_ones:
            return
        ticket, client = self.dice.choice(open_ones)
        step = self.dice.random()
        if client.where == "waiting" or client.endpoint is None:
            if step < 0.2:
                client.where = "over"
                self.driver.feed(ClientLeft(ticket))
        elif step < 0.3:
            self.driver.feed(FirstTokenCame(ticket))
            self.driver.feed(Progressed(client.endpoint, [(ticket, 3)], 0.02))
        elif step < 0.4:
            self.driver.feed(AttemptFailed(ticket, client.endpoint, self.dice.choice(list(Failure))))
        elif step < 0.5:
            client.where = "over"
            self.driver.feed(ClientLeft(ticket))
        else:
            self.end(ticket, client)

    def end(self, ticket: TicketId, client: Client) -> None:
        """Its answer is whole."""
        client.where = "over"
        self.driver.feed(Ended(ticket, Outcome.COMPLETED, Usage(100, self.dice.choice([1, 20, 300]))))

    def look(self) -> None:
        """An engine is looked at, or cannot be."""
        places = list(self.places())
        if not places:
            return  # all of them move at once
        endpoint = self.dice.choice(places)
        step = self.dice.random()
        if step < 0.1:
            self.driver.feed(SampleMissed(endpoint, unreachable=self.dice.random() < 0.5))
        elif step < 0.5:
            models = tuple(self.dice.sample(MODELS, 2))
            kind = self.dice.choice([EngineKind.VLLM, EngineKind.LLAMACPP])
            self.driver.feed(Described(endpoint, EngineInfo(kind, models, kv_tokens=4000, reports_load=True)))
        else:
            running = self.dice.choice([0, 1, 4])
            tokens = int(self.clock() * 100)
            sample = EngineSample(self.clock(), 0.01, running, 0, 0.3, output_tokens_total=tokens)
            self.driver.feed(Sampled(endpoint, sample))

    def pass_time(self, seconds: float) -> None:
        """Timers fire as they are due."""
        until_s = self.clock() + seconds
        for _ in range(10_000):
            armed = self.timers.armed
            if not armed or armed[0].due_s > until_s:
                break
            self.timers.fire(max(armed[0].due_s, self.clock()))
        else:
            raise AssertionError("woken again and again without time passing")
        self.clock.now_s = until_s

    def check(self) -> None:
        """Nothing has failed, and all accounts agree."""
        assert self.driver.broken is None
        assert [] == self.errors
        audit_books(self.driver._controller)
        open_ones = sum(client.where != "over" for client in self.clients.values())
        assert open_ones == self.driver.delivery.open_tickets
        assert len(self.clients) == open_ones + self.settled

    def close(self) -> None:
        """Everything comes to its end, and what was kept for it is gone."""
        for _ in range(20):
            for ticket, client in self.clients.items():
                if client.where == "running":
                    self.end(ticket, client)
            self.pass_time(100.0)
        for ticket, client in self.clients.items():
            if client.where != "over":  # never refused, and no engine came
                client.where = "over"
                self.driver.feed(ClientLeft(ticket))
        self.pass_time(2000.0)
        self.reloading._finish_moves()
        self.pass_time(10.0)
        self.reloading._finish_moves()
        self.check()
        snapshot = self.driver.snapshot()
        assert snapshot is not None
        assert (0, 0) == (snapshot.tickets, snapshot.waiting_bytes)
        config = self.prepared.config
        wanted = {pool.name: sorted(str(endpoint) for endpoint in pool.endpoints) for pool in config.pools}
        assert wanted == {pool.name: sorted(view.id for view in pool.endpoints) for pool in snapshot.pools}


def step(running: Running, chance: Chance) -> None:
    """One random thing."""
    ways: list[tuple[float, Callable[[], None]]] = [
        (0.45, running.arrive),
        (0.7, running.move),
        (0.85, running.look),
        (0.95, lambda: running.pass_time(chance.dice.choice([0.01, 0.3, 2.0, 6.0]))),
    ]
    drawn = chance.dice.random()
    for below, way in ways:
        if drawn < below:
            way()
            return
    if chance.dice.random() < 0.3:
        running.reloading._finish_moves()
    try:
        prepared = read(chance.config())
    except ConfigError:
        return
    running.reload(prepared)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_reloaded_nobody_is_lost(seed: int) -> None:
    """Every request is told one legal story, the books agree after each step, and the last configuration remains."""
    dice = random.Random(seed)
    chance = Chance(dice)
    while True:
        try:
            running = Running(read(chance.config()), dice)
            break
        except ConfigError:
            continue
    for _ in range(250):
        step(running, chance)
        running.check()
    running.close()
