"""The other gateways for LLM engines that run without a cluster: smg, vllm-router and LiteLLM, each as lean as it goes.

Each comes from PyPI into an environment of its own under `.cache/peers`, with the versions and hashes of its file in
`locks/`; a changed file makes the environment anew. They get one worker or one thread, no access log, no retries that
could matter, the simplest policy that they have, and one engine. Whatever cannot be installed or does not run is
reported by name, with the reason.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from benchmarks.overhead.peers import HERE, ROOT, CannotRun, Peer, free_port, running

__all__ = ["ROUTERS", "Router"]

LOCKS: Final = HERE / "locks"
ENVIRONMENTS: Final = ROOT / ".cache" / "peers"
READY_S: Final = 120.0
"""LiteLLM alone takes ten seconds to start on an idle machine."""
QUESTION: Final = json.dumps(
    {"model": "stub", "max_tokens": 16, "stream": False, "messages": [{"role": "user", "content": "Ready?"}]}
)

Router = Callable[[Peer], AbstractContextManager[Peer]]


@contextlib.contextmanager
def smg(stub: Peer) -> Iterator[Peer]:
    port = free_port()
    command = [_program("smg", "smg"), "launch", *_arguments(stub, port)]
    with _ready("smg", command, port, {"TOKIO_WORKER_THREADS": "1"}) as peer:
        yield peer


@contextlib.contextmanager
def vllm_router(stub: Peer) -> Iterator[Peer]:
    port = free_port()
    command = [_program("vllm-router", "vllm-router"), *_arguments(stub, port)]
    with _ready("vllm-router", command, port, {"TOKIO_WORKER_THREADS": "1"}) as peer:
        yield peer


@contextlib.contextmanager
def litellm(stub: Peer) -> Iterator[Peer]:
    port = free_port()
    model = {"model": "openai/stub", "api_base": f"{stub.url}/v1", "api_key": "none"}
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # on loopback, for a minute
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        # JSON is YAML.
        json.dump({"model_list": [{"model_name": "stub", "litellm_params": model}]}, config)
        config.flush()
        command = [_program("litellm", "litellm"), "--config", config.name, "--num_workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        with _ready("litellm", command, port, environment) as peer:
            yield peer


ROUTERS: Final[dict[str, Router]] = {"smg": smg, "vllm-router": vllm_router, "litellm": litellm}


def _arguments(stub: Peer, port: int) -> list[str]:
    """Of the two routers that have a common ancestor."""
    arguments = ["--worker-urls", stub.url, "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--policy", "round_robin", "--disable-retries", "--log-level", "error"]
    # Their defaults refuse some of the 200 streams.
    arguments += ["--max-concurrent-requests", "100000"]
    return [*arguments, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]


def _program(name: str, command: str) -> str:
    """The program, in an environment that is made on first use, and whenever its lock file changes."""
    lock, environment = LOCKS / f"{name}.lock", ENVIRONMENTS / name
    wanted, made_of = lock.read_text(), environment / ".made-of"
    if not made_of.exists() or made_of.read_text() != wanted:
        print(f"installing {name} into an environment of its own …", file=sys.stderr, flush=True)
        venv.create(environment, with_pip=True, clear=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        done = subprocess.run(
            [*pip, "install", "--require-hashes", "-r", str(lock)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            shutil.rmtree(environment, ignore_errors=True)
            raise CannotRun(f"{name} could not be installed: {done.stderr.strip()[-300:]}")
        made_of.write_text(wanted)
    program: Path = environment / "bin" / command
    if not program.exists():
        raise CannotRun(f"{name} is installed and has no program {command}")
    return str(program)


@contextlib.contextmanager
def _ready(name: str, command: list[str], port: int, environment: dict[str, str]) -> Iterator[Peer]:
    """A router from its first answer on: it is up before it knows its engine."""
    with running(name, command, port, "/v1/models", os.environ | environment, ready_s=READY_S) as peer:
        until_s, status = time.monotonic() + READY_S, 0
        while status != 200:
            if time.monotonic() > until_s or peer.process.poll() is not None:
                raise CannotRun(f"{name} does not answer a chat request: status {status}")
            time.sleep(0.2)
            status = _ask(port)
        yield peer


def _ask(port: int) -> int:
    """The status of one chat request; 0 if there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/v1/chat/completions", QUESTION, {"content-type": "application/json"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
