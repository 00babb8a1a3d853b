from __future__ import annotations

import os
import subprocess
import sys

_SCRIPT = """
import hashlib, random
from forebay.enginemodel import Engine, EngineConfig, EngineProfile, Request, StepLaw, chain_keys, token_keys
law = StepLaw(10.0, 8, 1.0, 2.0, 0.01, 0.001, 0.1, 0.5, 0.25)
profile = EngineProfile("toy", "toy", "none", 1, "bf16", "bf16", law, 400, 4, 8, 32, 200, "made up")
engine = Engine(profile, EngineConfig.from_profile(profile, kv_tokens=160))
draw = random.Random("arrivals")
digest = hashlib.sha256()
now, request_id = 0.0, 0
for _ in range(1500):
    if draw.random() < 0.3:
        prompt, output = draw.randint(1, 60), draw.randint(1, 60)
        if draw.random() < 0.5:
            keys = chain_keys(draw.randint(0, 3), min(40, prompt), 4)
        else:
            keys = token_keys([draw.randint(0, 1) for _ in range(prompt)], 4)
        engine.submit(Request(request_id, prompt, output, keys))
        request_id += 1
    if draw.random() < 0.02:
        engine.abort(draw.randint(0, request_id))
    result = engine.step(now)
    if result is not None:
        now = result.end_s
        digest.update(repr(result).encode())
digest.update(repr(engine.statistics()).encode())
assert engine.statistics().preemptions > 0 and engine.statistics().prefix_hits_tokens > 0
print(digest.hexdigest())
"""


def _digest(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    return done.stdout.strip()


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    """The same submissions give the same steps, to the last digit, under three hash seeds."""
    digests = {_digest(hash_seed) for hash_seed in ("0", "1", "4242")}
    assert len(digests) == 1
    assert len(next(iter(digests))) == 64
