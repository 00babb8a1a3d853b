"""The controller in processes of their own: the same history gives the same decisions, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
RULES = [("weighted", "lower"), ("strict", "same"), ("weighted", "off")]
"""`class_order` and `displace` of the settings."""

_SCRIPT = """
import hashlib, random, sys
from dataclasses import replace
from forebay.admission.controller import Controller
from forebay.admission.events import *
from forebay.admission.model import *
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import *
from forebay.gateway.refusals import decision_header

names = tuple(EndpointId(f"http://engine-{n}:8000") for n in range(4))
pools = tuple(
    PoolSettings(f"pool-{n}", max_gpu_s=40.0, max_inflight_requests=n or None, max_queue=30) for n in range(2)
)
draw = random.Random("history")
classes = tuple(
    replace(c, order=order, max_share=share, short_tokens=100, short_weight=2.0)
    for c, order, share in zip(ZERO_CONFIGURATION_CLASSES, Order, (0.6, 1.0, 1.0))
)
settings = Settings(
    pools, classes=classes, class_order=ClassOrder(sys.argv[1]), displace=Displace(sys.argv[2])
)
controller = Controller(settings, 0.0)
digest, said, now, running, gone = hashlib.sha256(), {}, 0.0, {}, []
demands = {}
learned = {"steps": 300, "finished": 300, "error_jumps": 0, "guard_trips": 0, "phase": "cautious"}
assert controller._pools["pool-1"].learning.restore(learned, 0.0)

def carry_out(effects):
    digest.update(repr(effects).encode())
    for effect in effects:
        kind = type(effect).__name__
        if kind in ("Dispatch", "Refuse", "Evict"):
            record = effect.record if kind == "Dispatch" else effect.refusal.record
            digest.update(decision_header(record))
        said[kind] = said.get(kind, 0) + 1
        if kind == "Dispatch":
            running[effect.ticket] = effect.endpoint
        elif kind == "Hold":
            running.pop(effect.ticket, None)
        elif kind == "Settle":
            running.pop(effect.settlement.ticket, None)
            outcome = effect.settlement.outcome
            said[outcome.value] = said.get(outcome.value, 0) + 1
            if outcome is Outcome.DISPLACED:
                gone.append(effect.settlement.ticket)

carry_out(controller.handle(EndpointsChanged("pool-0", names[:2]), now))
carry_out(controller.handle(EndpointsChanged("pool-1", names[2:]), now))
for name in names:
    info = EngineInfo(EngineKind.VLLM, kv_tokens=9000, context_tokens=4096, counts_while_running=True)
    carry_out(controller.handle(Described(name, info), now))
for number in range(4000):
    now += draw.choice([0.0, 0.001, 0.01, 0.3])
    while (due := controller.next_deadline()) is not None and due <= now:
        carry_out(controller.wake(now))
    ticket = draw.choice(list(running)) if running else None
    what = draw.random()
    if what < 0.5 or ticket is None:
        demand = Demand(
            TicketId(number), draw.choice(pools).name, draw.choice(["realtime", "standard", "batch"]), "m",
            draw.random() < 0.8, draw.randint(1, 9000), 500, max_output_tokens=draw.choice([None, 20, 900]),
            tenant=draw.choice(["one", "two", "three", "four"]), session=draw.choice([None, None, "x", "y"]),
            patience_until_s=draw.choice([None, None, now + 1.0]),
        )
        if gone and draw.random() < 0.2:
            again = demands[gone[draw.randrange(len(gone))]]
            demand = replace(again, ticket=TicketId(number), retry_count=1, patience_until_s=None)
        demands[number] = demand
        event = Arrived(demand)
    elif what < 0.7:
        event = Ended(ticket, Outcome.COMPLETED, Usage(draw.randint(1, 3000), draw.randint(1, 600)))
    elif what < 0.75:
        event = ClientLeft(ticket, 3)
    elif what < 0.8:
        event = AttemptFailed(ticket, running[ticket], draw.choice(list(Failure)))
    elif what < 0.9:
        event = Progressed(running[ticket], [(ticket, draw.randint(0, 9))], 0.02)
    else:
        sample = EngineSample(now, running=draw.randint(0, 9), waiting=0, kv_usage=0.3, steps_total=number)
        event = Sampled(draw.choice(names), sample)
    carry_out(controller.handle(event, now))
digest.update(repr(controller.snapshot()).encode())
wanted = {"Dispatch", "Hold", "Refuse", "Evict", "Abort", "Settle", "queue_timeout"}
wanted |= set() if settings.displace is Displace.OFF else {"displaced"}
assert wanted <= set(said), said
print(digest.hexdigest())
"""


def _digest(hash_seed: str, class_order: str, displace: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, class_order, displace],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.strip()


@pytest.mark.parametrize(("class_order", "displace"), RULES)
def test_decisions_do_not_depend_on_the_hash_seed(class_order: str, displace: str) -> None:
    """The same events give the same effects, word for word, under three hash seeds."""
    digests = {_digest(hash_seed, class_order, displace) for hash_seed in ("0", "1", "4242")}
    assert 1 == len(digests)
    assert 64 == len(digests.pop())


def test_other_rules_give_other_decisions() -> None:
    """The digests tell decisions apart: each of the rule sets has its own."""
    assert len(RULES) == len({_digest("0", *rules) for rules in RULES})


@pytest.mark.skipif("TEST_COMPILED" not in os.environ, reason="compares builds: make test-compiled")
@pytest.mark.parametrize(("class_order", "displace"), RULES)
def test_compiled_build_decides_as_the_sources_do(class_order: str, displace: str) -> None:
    """The same events give the same effects and the same `x-forebay-decision`, word for word, in both builds."""
    sources = _digest("0", class_order, displace, PYTHONPATH=str(SOURCES))
    assert sources == _digest("0", class_order, displace)
