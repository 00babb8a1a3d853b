"""`forebay serve` as a process: zero configuration, dead and hung engines, wrong ports and files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.integration.fakes import MODEL, chat, event
from tests.integration.processes import BOUND_S, ServeProcess, client, engine, eventually, hang, until_up


async def run_to_end(*arguments: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a `forebay serve` that cannot start."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FOREBAY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay", "serve", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**kept, **(environ or {})},
    )  # fmt: skip
    async with asyncio.timeout(BOUND_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def dead_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def test_zero_configuration_serves(tmp_path: Path) -> None:
    """With one URL and nothing else, chats pass, plain and streamed, and the process ends cleanly."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        assert gateway.lines[0].startswith("forebay listening on http://127.0.0.1:")
        assert gateway.lines[1].startswith("admin on http://127.0.0.1:")
        answer = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
        assert (200, "hello") == (answer.status_code, answer.json()["choices"][0]["message"]["content"])
        assert answer.headers["x-forebay-id"]
        streamed = await http.post(f"{gateway.url}/v1/chat/completions", json=chat(stream=True))
        assert event("a").decode() in streamed.text
        assert streamed.text.endswith("data: [DONE]\n\n")
        await until_up(http, gateway)
        models = (await http.get(f"{gateway.url}/v1/models")).json()
        assert [MODEL] == [model["id"] for model in models["data"]]
        gateway.signal()
        assert 0 == await gateway.exit_code()


async def test_first_requests_before_any_sample_are_served() -> None:
    """Requests that come the moment the listener is up wait for the first look at the engine and pass."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        answers = await asyncio.gather(
            *(http.post(f"{gateway.url}/v1/chat/completions", json=chat()) for _ in range(20))
        )
        assert [200] * 20 == [answer.status_code for answer in answers]


async def test_ready_while_engines_are_dead() -> None:
    """Readiness is about the gateway: it is ready, and requests get 503 with Retry-After in bounded time."""
    async with client() as http, ServeProcess("--upstream", f"http://127.0.0.1:{dead_port()}") as gateway:
        assert 200 == (await http.get(f"{gateway.admin_url}/readyz")).status_code
        answer = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
        assert (503, "no_endpoints") == (answer.status_code, answer.json()["error"]["code"])
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert 200 == (await http.get(f"{gateway.admin_url}/readyz")).status_code


async def test_engine_that_comes_back_is_used_again() -> None:
    """An engine that starts after the gateway, or again, is found without anybody's help."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        await until_up(http, gateway)
        await fake.stop()
        answer = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
        assert answer.status_code in (502, 503)
        await fake.start(fake.port)

        async def served() -> bool:
            return (await http.post(f"{gateway.url}/v1/chat/completions", json=chat())).status_code == 200

        await eventually(served)


async def test_an_engine_that_says_nothing_from_the_start_holds_nobody_up() -> None:
    """A server that takes connections and answers nothing is no engine yet: the answer is 503, in a few seconds."""
    async with (
        engine(script=hang) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint) as gateway,
    ):
        for stream in (False, True):
            answer = await http.post(
                f"{gateway.url}/v1/chat/completions",
                json=chat(stream=stream),
                headers={"x-forebay-class": "batch"},
            )
            assert (503, "no_endpoints") == (answer.status_code, answer.json()["error"]["code"])
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert not [request for request in fake.requests if request.method == "POST"]


async def test_health_answers_while_the_engine_hangs() -> None:
    """With an engine that takes everything and answers nothing, health, readiness, metrics and models answer."""
    async with (
        engine(script=hang) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint) as gateway,
    ):
        stuck = [
            asyncio.create_task(http.post(f"{gateway.url}/v1/chat/completions", json=chat()))
            for _ in range(20)
        ]
        await fake.until(lambda: len(fake.requests) > 0)
        for url in (
            f"{gateway.url}/healthz",
            f"{gateway.url}/v1/models",
            f"{gateway.admin_url}/healthz",
            f"{gateway.admin_url}/readyz",
            f"{gateway.admin_url}/metrics",
            f"{gateway.admin_url}/api/snapshot",
        ):
            assert 200 == (await http.get(url, timeout=5.0)).status_code
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_file_is_used(tmp_path: Path) -> None:
    """Pools, classes and the overload status come from the file; the environment overrides it."""
    async with engine(hang) as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        path.write_text(
            f"pools:\n- {{name: llama, endpoints: ['{fake.endpoint}'], max_inflight_requests: 1, max_queue: 0}}\n"
            "classes: {only: {ttft: 2s}}\ndefault_class: only\noverload_status: 503\n"
        )
        async with ServeProcess("-c", str(path), environ={"FOREBAY_OVERLOAD_STATUS": "529"}) as gateway:
            await until_up(http, gateway)
            running = asyncio.create_task(http.post(f"{gateway.url}/v1/chat/completions", json=chat()))
            await fake.until(lambda: any(request.method == "POST" for request in fake.requests))
            refused = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
            assert (529, "queue_full") == (refused.status_code, refused.json()["error"]["code"])
            pool = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()["pools"][0]
            assert ("llama", ["only"]) == (pool["name"], [entry["name"] for entry in pool["classes"]])
            running.cancel()


async def test_body_limit_comes_from_the_file(tmp_path: Path) -> None:
    """A body over `limits.max_body` is a 413 that names the limit."""
    async with engine() as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        path.write_text(f"pools:\n- endpoints: ['{fake.endpoint}']\nlimits: {{max_body: 4KiB}}\n")
        async with ServeProcess("--config", str(path)) as gateway:
            answer = await http.post(f"{gateway.url}/v1/chat/completions", content=b"x" * 10_000)
            assert (413, "4096") == (answer.status_code, "4096" if "4096" in answer.text else answer.text)


@pytest.mark.parametrize("key", ["listen", "admin"])
async def test_port_in_use_is_told(key: str) -> None:
    """A taken port ends the start with exit code 1 and a message that names the address and the option."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        others = {"listen": "--admin", "admin": "--listen"}
        code, out, err = await run_to_end(
            "--upstream", "http://127.0.0.1:9", f"--{key}", address, others[key], "127.0.0.1:0"
        )
    assert (1, "") == (code, out)
    assert f"Error: cannot listen on {address} ({key}): another program uses it" in err
    assert f"--{key}" in err
    assert "Traceback" not in err


async def test_address_of_another_machine_is_told() -> None:
    """An address that is not ours is an error of the start, with the reason of the system."""
    code, _, err = await run_to_end("--upstream", "http://127.0.0.1:9", "--listen", "192.0.2.1:80")
    assert 1 == code
    assert "cannot listen on 192.0.2.1:80 (listen)" in err
    assert "Traceback" not in err


async def test_bad_configuration_ends_with_2(tmp_path: Path) -> None:
    """A wrong file is told with file, line and fix, in the exit code for wrong usage."""
    path = tmp_path / "forebay.yaml"
    path.write_text("pools:\n- endpoint: [http://a]\n")
    code, out, err = await run_to_end("-c", str(path))
    assert (2, "") == (code, out)
    assert f"{path}:2:3: pools[0].endpoint: unknown key; did you mean endpoints?" in err
    assert "Traceback" not in err


async def test_interrupt_ends_like_terminate() -> None:
    """Ctrl-C drains too, and leaves no traceback."""
    async with engine() as fake, ServeProcess("--upstream", fake.endpoint) as gateway:
        gateway.signal(signal.SIGINT)
        assert 0 == await gateway.exit_code()
        assert "Traceback" not in await gateway.log()


async def test_log_is_json_without_prompts() -> None:
    """Off a terminal the log is one JSON object per line, and what clients wrote is not in it."""
    async with engine(hang) as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        secret = "the-prompt-is-nobody's-business"
        body = chat() | {"messages": [{"role": "user", "content": secret}]}
        headers = {"authorization": "Bearer sk-very-secret"}
        leaving = asyncio.create_task(
            http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)
        )
        await fake.until(lambda: any(request.method == "POST" for request in fake.requests))
        leaving.cancel()
        await fake.until(lambda: all(served.closed.is_set() for served in fake.served if served.request.body))
        gateway.signal()
        assert 0 == await gateway.exit_code()
        log = await gateway.log()
        assert '"event": "client left"' in log
        assert all(line.startswith("{") for line in log.splitlines())
        assert secret not in log
        assert "sk-very-secret" not in log


async def test_a_gateway_that_is_its_own_engine_is_refused() -> None:
    """An upstream that is the gateway's own address ends the start with exit code 2 and says so."""
    port = dead_port()
    code, out, err = await run_to_end("--upstream", f"http://localhost:{port}", "--listen", f"0.0.0.0:{port}")
    assert (2, "") == (code, out)
    assert f"http://localhost:{port} is this gateway's own listen address (0.0.0.0:{port})" in err


async def test_a_loop_through_another_address_is_not_used() -> None:
    """An endpoint that leads back to the gateway by a way that its configuration does not show gets no requests."""
    relays: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(copy(source, sink))
            relays.add(task)
            task.add_done_callback(relays.discard)

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()

    detour = await asyncio.start_server(forward, "127.0.0.1", 0)
    port = detour.sockets[0].getsockname()[1]
    gateway = ServeProcess("--upstream", f"http://127.0.0.1:{port}")
    async with client() as http, gateway:
        answer = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
        assert (503, "no_endpoints") == (answer.status_code, answer.json()["error"]["code"])
        gateway.signal()
        assert 0 == await gateway.exit_code()
        assert "leads back to the gateway itself" in await gateway.log()
    detour.close()
    await asyncio.gather(*relays)


async def test_changes_of_an_engine_are_logged() -> None:
    """An engine that comes up, goes and comes back leaves a line each time."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        await until_up(http, gateway)
        await fake.stop()

        async def gone() -> bool:
            pool = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()["pools"][0]
            return bool(pool["endpoints"][0]["state"] == "down")

        await eventually(gone)
        await fake.start(fake.port)
        await until_up(http, gateway)
        gateway.signal()
        assert 0 == await gateway.exit_code()
        lines = [json.loads(line) for line in (await gateway.log()).splitlines()]
        changes = [(line["was"], line["state"]) for line in lines if line["event"].startswith("endpoint ")]
        assert [("starting", "up"), ("up", "down"), ("down", "up")] == changes


async def test_what_was_learned_outlives_the_process(tmp_path: Path) -> None:
    """At its end a gateway leaves what it learned in the state file, and the next one takes it up without complaint."""
    path = tmp_path / "state" / "learned.json"
    environ = {"FOREBAY_STATE_FILE": str(path)}
    async with engine() as fake, client() as http:
        for _ in range(2):
            async with ServeProcess("--upstream", fake.endpoint, environ=environ) as gateway:
                await until_up(http, gateway)
                answer = await http.post(f"{gateway.url}/v1/chat/completions", json=chat())
                assert 200 == answer.status_code
                gateway.signal()
                assert 0 == await gateway.exit_code()
                assert "state file" not in (await gateway._log).decode()
            learned = json.loads(path.read_bytes())["learned"]
            assert ["default"] == list(learned)
            assert [path] == list(path.parent.iterdir())
