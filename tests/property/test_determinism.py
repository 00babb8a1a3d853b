"""The controller in processes of their own: the same history gives the same decisions, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"

_SCRIPT = """
import hashlib, random
from forebay.admission.controller import Controller
from forebay.admission.events import *
from forebay.admission.model import *
from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from forebay.gateway.refusals import decision_header

names = tuple(EndpointId(f"http://engine-{n}:8000") for n in range(4))
pools = tuple(
    PoolSettings(f"pool-{n}", max_gpu_s=40.0, max_inflight_requests=n or None, max_queue=30) for n in range(2)
)
draw = random.Random("history")
controller = Controller(Settings(pools), 0.0)
digest, said, now, running = hashlib.sha256(), {}, 0.0, {}

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
        event = Arrived(Demand(
            TicketId(number), draw.choice(pools).name, draw.choice(["realtime", "standard", "batch"]), "m",
            draw.random() < 0.8, draw.randint(1, 9000), 500, max_output_tokens=draw.choice([None, 20, 900]),
        ))
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
assert {"Dispatch", "Hold", "Refuse", "Evict", "Abort", "Settle"} <= set(said), said
print(digest.hexdigest())
"""


def _digest(hash_seed: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.strip()


def test_decisions_do_not_depend_on_the_hash_seed() -> None:
    """The same events give the same effects, word for word, under three hash seeds."""
    digests = {_digest(hash_seed) for hash_seed in ("0", "1", "4242")}
    assert 1 == len(digests)
    assert 64 == len(digests.pop())


@pytest.mark.skipif("TEST_COMPILED" not in os.environ, reason="compares builds: make test-compiled")
def test_compiled_build_decides_as_the_sources_do() -> None:
    """The same events give the same effects and the same `x-forebay-decision`, word for word, in both builds."""
    assert _digest("0", PYTHONPATH=str(SOURCES)) == _digest("0")
