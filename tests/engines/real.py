"""Starts and stops real engines on free ports of 127.0.0.1, and waits for them to be well.

The programs and the models are those that `scripts/engines.sh` puts under `$FOREBAY_ENGINES`. An engine runs in a
process group of its own, which is ended as a whole: vLLM is several processes, and one of them outlives the others
when killed.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BLOCK_TOKENS = 32
"""KV block size: the smallest that vLLM's CPU attention takes."""


def engines_folder() -> Path:
    """Where `scripts/engines.sh` installs."""
    return Path(os.environ.get("FOREBAY_ENGINES") or Path(tempfile.gettempdir(), "forebay-engines"))


def is_installed(name: str) -> bool:
    """True if this engine (`vllm`, `llamacpp` or `sglang`) and the models are there."""
    root = engines_folder()
    return (root / name / ".ready").exists() and (root / "models" / "small.gguf").exists()


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class RealEngine:
    """A running engine."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """Status and body of a GET.

        Raises:
            OSError: no connection, or no answer in time.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def complete(self, timeout_s: float = 60.0, **body: Any) -> Any:
        """The JSON answer to a POST of this body to `/v1/completions`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
            )
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all its processes."""
        os.killpg(self.process.pid, number)

    def wait_healthy(self, timeout_s: float) -> None:
        """Returns when `/health` says 200.

        Raises:
            RuntimeError: with the end of the log, if the engine ends or is not well in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        raise RuntimeError(
            f"{self.name} did not become healthy within {timeout_s:.0f} s; its log ends:\n{tail}"
        )

    def stop(self) -> None:
        """Ends all its processes, gently at first."""
        for number, patience_s in ((signal.SIGCONT, 0.0), (signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
            try:
                self.signal(number)
            except ProcessLookupError:
                break
            if patience_s:
                try:
                    self.process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    continue
        self.process.wait()


def _start(name: str, port: int, command: Sequence[str], environment: dict[str, str]) -> RealEngine:
    log = engines_folder() / f"{name}-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            start_new_session=True,
        )
    return RealEngine(name, port, process, log)


def start_vllm(
    *,
    port: int | None = None,
    model: str = "small",
    kv_tokens: int = 2048,
    context_tokens: int = 1024,
    max_requests: int = 32,
    more: Sequence[str] = (),
) -> RealEngine:
    """Starts `vllm serve`; it needs half a minute and 2 GB.

    Args:
        kv_tokens: what requests can use; a multiple of the block size. One more block is never used.
        context_tokens: vLLM refuses to start if one request of this length does not fit the cache.
    """
    root, port = engines_folder(), port or free_port()
    command = [
        *(str(root / "vllm" / "bin" / "vllm"), "serve", str(root / "models" / model)),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", model),
        *("--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"),
        *("--max-model-len", str(context_tokens), "--max-num-seqs", str(max_requests)),
        *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(kv_tokens // BLOCK_TOKENS + 1)),
        *more,
    ]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return _start("vllm", port, command, environment)


def start_llamacpp(
    *,
    port: int | None = None,
    model: str = "small",
    slots: int = 4,
    context_tokens: int = 8192,
    more: Sequence[str] = (),
) -> RealEngine:
    """Starts llama.cpp's server; it needs half a second and 0.2 GB.

    Args:
        context_tokens: over all slots, each has its part.
    """
    root, port = engines_folder(), port or free_port()
    command = [
        *(str(root / "llamacpp" / "bin" / "python"), str(HERE / "llamacpp_server.py")),
        *("--model", str(root / "models" / f"{model}.gguf"), "--alias", model, "--port", str(port)),
        *("--slots", str(slots), "--context", str(context_tokens)),
        *more,
    ]
    return _start("llamacpp", port, command, {})


def start_sglang(*, model: str = "small", kv_tokens: int = 8192, context_tokens: int = 2048) -> RealEngine:
    """Starts SGLang's server without a GPU; it needs half a minute and 2 GB."""
    root, port = engines_folder(), free_port()
    command = [
        *(str(root / "sglang" / "bin" / "python"), "-m", "sglang.launch_server"),
        *(
            "--model-path",
            str(root / "models" / model),
            "--load-format",
            "dummy",
            "--served-model-name",
            model,
        ),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "bfloat16"),
        *(
            "--attention-backend",
            "torch_native",
            "--sampling-backend",
            "pytorch",
            "--grammar-backend",
            "none",
        ),
        *("--disable-overlap-schedule", "--skip-server-warmup", "--enable-metrics"),
        *("--context-length", str(context_tokens), "--max-total-tokens", str(kv_tokens)),
        *("--max-running-requests", "32"),
    ]
    environment = {
        "PYTHONPATH": str(HERE / "sglang_site"),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_USE_AITER": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    return _start("sglang", port, command, environment)


@contextmanager
def running(engine: RealEngine, timeout_s: float = 240.0) -> Iterator[RealEngine]:
    """The engine, well; it is stopped at the end."""
    try:
        engine.wait_healthy(timeout_s)
        yield engine
    finally:
        engine.stop()
