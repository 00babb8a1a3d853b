"""Half a minute in which everything goes wrong at once: clients that leave at every stage or read slowly, engines that
die, freeze and come back, engines that reset, stall, break off, refuse, lie about their load and send bytes that are no
HTTP. What is claimed is what holds whatever happens: every whole request is accounted for once, nothing is left behind,
nobody hangs, and the log tells of no failure of our own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import pytest

from tests.integration.fakes import (
    DONE,
    STREAM_HEAD,
    FakeEngine,
    Served,
    answer_chat,
    chat_answer,
    chunk,
    event,
    plain,
    post,
)
from tests.integration.processes import (
    BOUND_S,
    ServeProcess,
    client,
    engine_script,
    eventually,
    metrics,
    total,
    until_at_rest,
    until_up,
)

SEED = 11
LASTS_S = 20.0
CLIENTS = 60
ENGINES = 3
HOSTILE = 3
LONGEST_ANSWER_S = 25.0
"""A wait, a frozen engine and an answer take less than half of it."""
MODEL = "llama3-8b"


class Emulator:
    """An engine process that can be killed, frozen and started again on its port."""

    def __init__(self) -> None:
        self.port = 0

    async def start(self) -> None:
        """Starts it, on the port that it had before if it had one."""
        options = ("--port", str(self.port), "--speed", "20", "--max-num-seqs", "8")
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forebay", "engine", *options,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND_S):
            line = (await self.process.stdout.readline()).decode()
        self.port = int(line.split()[3].rpartition(":")[2])

    async def kill(self) -> None:
        """Ends it at once, frozen or not."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def restart(self, after_s: float) -> None:
        """Kills it and starts it again after a while."""
        await self.kill()
        await asyncio.sleep(after_s)
        await self.start()

    async def freeze(self, for_s: float) -> None:
        """Stops it where it is, and lets it go on."""
        self.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        self.process.send_signal(signal.SIGCONT)


class Hostile:
    """An engine that answers anything but what it should, until it is told to be good."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.good = False
        self.fake = FakeEngine(self._serve)
        self.did: Counter[str] = Counter()

    async def _serve(self, served: Served) -> None:
        if self.good:
            await engine_script()(served)
        elif served.request.method == "GET":
            await self._answer_get(served)
        else:
            how = self.random.choice(list(self.WAYS))
            self.did[how] += 1
            # On a closed connection uvloop raises an error of its own.
            with contextlib.suppress(RuntimeError):
                await self.WAYS[how](self, served)

    async def _answer_get(self, served: Served) -> None:
        """Mostly as it should, so that it is given requests: else garbage, its health, silence."""
        chance = self.random.random()
        if served.request.target == "/v1/models":
            await engine_script()(served)
        elif chance < 0.2:
            await served.send(self.random.randbytes(200))
            served.close()
        elif chance < 0.3:
            await served.send(plain(b"", "503 Service Unavailable"))
        elif chance < 0.35:
            await asyncio.sleep(3.0)
        elif served.request.target == "/metrics":
            lie = self.random.choice((b"NaN", b"-1", b"1e300", b"+Inf", b"3", b"x", b""))
            names = (b"vllm:num_requests_running", b"vllm:num_requests_waiting", b"vllm:kv_cache_usage_perc")
            await served.send(plain(b"".join([name + b" " + lie + b"\n" for name in names])))
        else:
            await served.send(plain(b"{}"))

    async def _well(self, served: Served) -> None:
        await answer_chat(served)

    async def _reset(self, served: Served) -> None:
        served.reset()

    async def _close(self, served: Served) -> None:
        served.close()

    async def _garbage(self, served: Served) -> None:
        await served.send(self.random.randbytes(self.random.randrange(1, 5000)))
        served.close()

    async def _refuse(self, served: Served) -> None:
        await served.send(plain(b'{"error":{"message":"busy"}}', "503 Service Unavailable"))

    async def _refuse_inside(self, served: Served) -> None:
        await served.stream(b'data: {"error":{"message":"busy","code":503}}\n\n', DONE)

    async def _stall(self, served: Served) -> None:
        await served.send(STREAM_HEAD)
        if self.random.random() < 0.5:
            await served.send_events(event("a"))
        await served.closed.wait()

    async def _hang(self, served: Served) -> None:
        await served.closed.wait()

    async def _break_off(self, served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send_events(
            *[event("x" * self.random.randrange(300)) for _ in range(self.random.randrange(6))]
        )
        if self.random.random() < 0.5:
            served.reset()
        else:
            served.close()

    async def _short_body(self, served: Served) -> None:
        await served.send(plain(chat_answer())[:-7])
        served.close()

    async def _bad_chunk(self, served: Served) -> None:
        await served.send(STREAM_HEAD + chunk(event("a")) + b"zz\r\n" + event("b"))
        await served.closed.wait()

    async def _give_up(self, served: Served) -> None:
        await served.stream(event("a"), event("", finish="abort"), DONE, gap_s=0.01)

    async def _flood(self, served: Served) -> None:
        await served.stream(*[event("x" * 20_000)] * 30, event("", finish="stop"), DONE)

    async def _too_much(self, served: Served) -> None:
        await served.send(plain(chat_answer()) + b"HTTP/1.1 200 OK\r\n" + self.random.randbytes(50))

    WAYS: ClassVar[dict[str, Callable[[Hostile, Served], Awaitable[None]]]] = {
        "well": _well,
        "reset": _reset,
        "close": _close,
        "garbage": _garbage,
        "refuse": _refuse,
        "refuse inside": _refuse_inside,
        "stall": _stall,
        "hang": _hang,
        "break off": _break_off,
        "short body": _short_body,
        "bad chunk": _bad_chunk,
        "give up": _give_up,
        "flood": _flood,
        "too much": _too_much,
    }


class Clients:
    """Sixty clients of all sorts, and what they saw."""

    def __init__(self, port: int, ends_at_s: float) -> None:
        self.port = port
        self.ends_at_s = ends_at_s
        self.random = random.Random(SEED)
        self.whole = 0
        """Requests that were sent to their last byte."""
        self.cut = 0
        self.seen: Counter[str] = Counter()

    async def run(self) -> None:
        """One client after the other, until the time is over."""
        loop = asyncio.get_running_loop()
        while loop.time() < self.ends_at_s:
            try:
                async with asyncio.timeout(LONGEST_ANSWER_S):
                    await self._one()
            except TimeoutError:
                self.seen["hung"] += 1
            except OSError:
                self.seen["reset"] += 1

    async def _one(self) -> None:
        how = self.random.choice(
            ("read", "read", "read", "cut", "leave", "read some", "half close", "rubbish", "read slowly")
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            await self._talk(how, reader, writer)
        finally:
            if self.random.random() < 0.5:
                with contextlib.suppress(OSError):
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _talk(self, how: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = self._request()
        if how == "rubbish":
            writer.write(self.random.randbytes(self.random.randrange(1, 300)) + b"\r\n\r\n")
            answer = await reader.read()
            assert not answer or answer.startswith(b"HTTP/1.1 400 ")
            return
        if how == "cut":
            self.cut += 1
            writer.write(data[: self.random.randrange(len(data))])
            await asyncio.sleep(self.random.random() * 0.1)
            return
        writer.write(data)
        await writer.drain()
        self.whole += 1
        if how == "leave":
            await asyncio.sleep(self.random.random() * 0.3)
        elif how == "read slowly":
            answer = b"so far"
            while answer:
                answer = await reader.read(20_000)
                await asyncio.sleep(self.random.random() * 0.2)
        elif how == "read some":
            await reader.read(self.random.randrange(1, 2000))
        else:
            if how == "half close":
                writer.write_eof()
            answer = await reader.read()
            if how == "read":
                self.seen[answer[9:12].decode() or "nothing"] += 1

    def _request(self) -> bytes:
        headers = self.random.choice(
            (
                "",
                "x-forebay-class: batch\r\n",
                "x-forebay-class: realtime\r\n",
                "x-forebay-deadline-ms: 50\r\n",
                "x-stainless-timeout: 0.3\r\n",
                f"x-forebay-session: {self.random.random()}\r\nx-request-id: {self.random.random()}\r\n",
            )
        )
        content = "x " * self.random.choice((1, 100, 1500))
        body: dict[str, object] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": content}],
            "stream": self.random.random() < 0.6,
            "max_tokens": self.random.choice((1, 20, 100)),
        }
        return post(body, headers=headers + "connection: close\r\n")


async def trouble(engines: list[Emulator], ends_at_s: float) -> None:
    """Kills and freezes one engine after the other; when it is over all of them run."""
    chance = random.Random(SEED)
    loop = asyncio.get_running_loop()
    while loop.time() < ends_at_s - 3.0:
        await asyncio.sleep(1.0)
        one = chance.choice(engines)
        if chance.random() < 0.4:
            await one.restart(chance.random())
        else:
            await one.freeze(chance.random() * 2.5)


@pytest.mark.timeout(120)
async def test_chaos_leaves_nothing_behind(tmp_path: Path) -> None:
    """Each whole request ends in one outcome; afterwards gauges, files and memory are where they were before."""
    engines = [Emulator() for _ in range(ENGINES)]
    hostile = [Hostile(number) for number in range(HOSTILE)]
    await asyncio.gather(*(one.start() for one in engines), *(one.fake.start() for one in hostile))
    path = tmp_path / "forebay.yaml"
    ports = [*(one.port for one in engines), *(one.fake.port for one in hostile)]
    addresses = ", ".join(f"'http://127.0.0.1:{port}'" for port in ports)
    path.write_text(
        f"pools:\n- {{endpoints: [{addresses}], models: ['*'], max_inflight_requests: 8, max_queue: 30}}\n"
        "classes: {realtime: {idle_stream: 2s}, standard: {ttft: 2s, idle_stream: 3s},"
        " batch: {ttft: 5s, idle_stream: 4s}}\n"
        "limits: {answer_timeout: 4s}\n"
    )
    try:
        async with client() as http, ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            before = await metrics(http, gateway)
            loop = asyncio.get_running_loop()
            clients = Clients(int(gateway.url.rpartition(":")[2]), loop.time() + LASTS_S)
            await asyncio.gather(
                trouble(engines, clients.ends_at_s), *(clients.run() for _ in range(CLIENTS))
            )
            for one in hostile:
                one.good = True
            assert clients.seen["hung"] == 0
            assert clients.whole > 1000, clients.seen
            assert set(Hostile.WAYS) == set(sum((one.did for one in hostile), Counter()))
            assert {"200", "429"} <= set(clients.seen), clients.seen
            assert {"500", "nothing"}.isdisjoint(clients.seen), clients.seen

            after = await until_at_rest(http, gateway)
            assert clients.whole == total(after, "forebay_requests_total")
            gone_early = total(after, "forebay_early_answers_total", 'reason="client_gone"')
            assert gone_early <= clients.cut

            async def files_closed() -> bool:
                return (await metrics(http, gateway))["process_open_fds"] <= before["process_open_fds"] + 2

            await eventually(files_closed)
            await until_up(http, gateway)
            grown = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
            assert grown < 48 * 1024 * 1024
            gateway.signal()
            assert 0 == await gateway.exit_code()
            log = await gateway.log()
            assert "Traceback" not in log
            assert '"level": "error"' not in log
    finally:
        await asyncio.gather(*(one.kill() for one in engines), *(one.fake.stop() for one in hostile))
