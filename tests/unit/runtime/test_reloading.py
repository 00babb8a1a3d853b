"""Where endpoints go when a configuration changes, over the real core; the file and the processes: integration."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from forebay.admission.events import Arrived, Described, Event
from forebay.admission.model import EndpointId, EngineInfo, EngineKind
from forebay.admission.settings import ClassSettings, PlanSettings, Settings
from forebay.admission.snapshot import Snapshot
from forebay.config import ConfigError, ConfigProblem, load
from forebay.runtime.driver import Driver
from forebay.runtime.prepared import Prepared, prepare
from forebay.runtime.reloading import Reloading, with_kept
from forebay.runtime.serving import ServingDirectory
from tests.unit.runtime.doubles import Clock, Kept, Timers, demand


def configured(**pools: list[str]) -> Prepared:
    """Pools with endpoints of these names."""
    entries = [{"name": name, "endpoints": [f"http://{e}:1" for e in ends]} for name, ends in pools.items()]
    return prepare(load(None, environ={}, options={"pools": ("--upstream", entries)}))


class Running:
    """A core with this configuration, and the next one to be read."""

    def __init__(self, first: Prepared) -> None:
        clock = Clock()
        self.driver = Driver(first.settings, cast(asyncio.AbstractEventLoop, Timers(clock)), clock=clock)
        self.next: Prepared | ConfigError = first
        self.taken: list[Prepared] = []
        self.looked_at: list[EndpointId] = []
        self.reloading = Reloading(first, self._read, self.driver, self.taken.append, self.looked_at.append)
        self.reloading._place_endpoints()

    def _read(self) -> Prepared:
        if isinstance(self.next, ConfigError):
            raise self.next
        return self.next

    def places(self) -> dict[str, list[str]]:
        """The endpoints of each pool."""
        snapshot = self.driver.snapshot()
        assert snapshot is not None
        return {pool.name: [view.id for view in pool.endpoints] for pool in snapshot.pools}


async def test_endpoints_come_go_and_change_places() -> None:
    """All at once where nothing runs there: one that moves leaves its pool and joins the other in the same reload."""
    running = Running(configured(one=["a", "b"], two=["c"]))
    running.next = configured(one=["b", "c"], two=["d"])
    result = await running.reloading.reload("test")
    assert (True, ("pools[0].endpoints", "pools[1].endpoints")) == (result.applied, result.changed)
    assert {"one": ["http://b:1", "http://c:1"], "two": ["http://d:1"]} == running.places()
    assert ([running.next], 1) == (running.taken, running.reloading.reloads)
    assert [] == running.looked_at  # their pollers begin with the reload and tell by themselves


async def test_a_request_that_a_reload_itself_lets_in_comes_by_the_new_configuration() -> None:
    """As when a client's next one is read because its last was answered: plan, pool and its engines are there."""
    before, after = configured(one=["a"]), configured(one=["a"], two=["b"])
    before, after = (
        replace(p, settings=replace(p.settings, plans=(PlanSettings(plan),), pools=pools))
        for p, plan, pools in (
            (before, "old", (replace(before.settings.pools[0], max_inflight_requests=1),)),
            (after, "new", after.settings.pools),
        )
    )
    running = Running(before)
    driver, core = running.driver, EndpointId("http://a:1")
    driver.feed(Described(core, EngineInfo(EngineKind.VLLM)))

    def plan() -> str:
        return (running.taken[-1] if running.taken else before).settings.plans[0].name

    def ask(pool: str, listener: Kept) -> None:
        ticket = driver.new_ticket()
        driver.register(ticket, listener)
        driver.feed(Arrived(replace(demand(ticket), pool=pool, tenant="acme", plan=plan())))

    ask("one", Kept())
    waiter, later = Kept(), Kept()
    waiter.act = lambda what: ask("two", later) if what.startswith("dispatch") else None
    ask("one", waiter)
    running.next = after
    assert (await running.reloading.reload("test")).applied
    assert (["hold", "dispatch 1"], ["hold"]) == (waiter.told, later.told)


async def test_a_configuration_that_cannot_be_used_changes_nothing() -> None:
    """The problems are the answer."""
    running = Running(configured(one=["a"]))
    running.next = ConfigError([ConfigProblem("f.yaml", "pools", "none", 3)], ("a warning",))
    result = await running.reloading.reload("test")
    assert (False, ("f.yaml:3: pools: none",), ("a warning",)) == (
        result.applied, result.problems, result.warnings,
    )  # fmt: skip
    assert (True, [], {"one": ["http://a:1"]}) == (running.reloading.failed, running.taken, running.places())


def test_a_class_that_is_in_use_keeps_its_place() -> None:
    """It stands behind those that stood before it, as far as they are still there; its settings are the old ones."""

    def named(names: str, budget_s: float) -> tuple[ClassSettings, ...]:
        return tuple(ClassSettings(name, budget_s, 0.1, budget_s) for name in names)

    def merged(new: str, old: str, used: str) -> str:
        return "".join(c.name for c in with_kept(named(new, 1.0), named(old, 2.0), tuple(used)))

    assert "abc" == merged("ac", "abc", "ab")
    assert "ac" == merged("ac", "abc", "c")
    assert "bac" == merged("ac", "bca", "b")
    assert "cxab" == merged("cxa", "acb", "b")
    assert "bcx" == merged("x", "abc", "bc")
    kept = with_kept(named("a", 1.0), named("ab", 2.0), ("a", "b"))
    assert [1.0, 2.0] == [c.ttft_s for c in kept]


class Failed:
    """A core that cannot be asked any more, and what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def reconfigure(self, settings: Settings, then: Callable[[], None]) -> None:
        self.told.append(settings)

    def feed(self, event: Event) -> None:
        self.told.append(event)

    def snapshot(self) -> Snapshot | None:
        return None

    def classes_in_use(self) -> tuple[str, ...]:
        return ()


async def test_a_core_that_has_failed_is_told_nothing() -> None:
    """Not once a second either: the process is ending."""
    first, core, looked_at = configured(one=["a"]), Failed(), list[EndpointId]()
    reloading = Reloading(first, lambda: first, core, lambda _: None, looked_at.append)
    reloading._finish_moves()
    assert ([], []) == (core.told, looked_at)


async def test_while_it_is_read_the_event_loop_has_its_turns() -> None:
    """In a thread, which gives way often and in which nothing is looked through for garbage; also if it is broken."""
    running = Running(configured(one=["a"]))
    seen: list[tuple[bool, bool, bool]] = []
    usual_s, read = sys.getswitchinterval(), running._read

    def watched() -> Prepared:
        aside = threading.current_thread() is not threading.main_thread()
        seen.append((aside, gc.isenabled(), sys.getswitchinterval() < usual_s / 4))
        return read()

    running.reloading._read = watched
    running.next = configured(one=["b"])
    assert (await running.reloading.reload("test")).applied
    running.next = ConfigError([ConfigProblem("a file", "pools", "no")])
    assert not (await running.reloading.reload("test")).applied
    assert [(True, False, True)] * 2 == seen
    assert (True, usual_s) == (gc.isenabled(), sys.getswitchinterval())


def test_thousands_of_tenants_are_put_in_force_in_milliseconds() -> None:
    """What the event loop has to do for it does not grow with them: all else was done in the thread."""

    def with_tenants(generation: str) -> Prepared:
        tenants = [
            {
                "name": f"t{number}",
                "plan": "p",
                "keys": [f"sha256:{hashlib.sha256(f'{generation}{number}'.encode()).hexdigest()}"],
            }
            for number in range(2000)
        ]
        rules = [
            {
                "name": f"r{n}",
                "when": f"request.model.matches('a{n}.*{generation}')",
                "then": {"class": "batch"},
            }
            for n in range(60)
        ]
        config = {
            "pools": [{"name": "one", "endpoints": ["http://a:1"]}],
            "plans": {"p": {"tokens_per_second": 100}},
            "tenants": tenants,
            "rules": rules,
        }
        return prepare(
            load(None, environ={}, options={key: ("test", value) for key, value in config.items()})
        )

    running = Running(with_tenants("x"))
    directory = ServingDirectory([], running.reloading.prepared.access)
    running.reloading._take_over = lambda prepared: directory.reconfigure(prepared.pools(), prepared.access)
    took_s: list[float] = []
    for generation in "yzyzy":
        read = running.reloading._compared(with_tenants(generation))
        assert len(read.differing) >= 2000
        began_s = time.thread_time()
        assert running.reloading._apply(read).applied
        took_s.append(time.thread_time() - began_s)
    assert min(took_s) < 0.02
