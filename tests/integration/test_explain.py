"""Why a request was treated so, asked of a running gateway; and `docs/how-to/debug-a-429.md`, step by step."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from forebay.cli.main import cli
from forebay.observe.decision_stream import READERS
from tests.integration.fakes import chat
from tests.integration.processes import (
    BOUND_S,
    ServeProcess,
    client,
    engine,
    eventually,
    hang,
    until_up,
    until_waiting,
)

CHAT = "/v1/chat/completions"
ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs/how-to/debug-a-429.md"


def narrow(folder: Path, endpoint: str, *, max_queue: int = 1) -> str:
    """A file with one endpoint that runs one request while so many wait."""
    path = folder / "forebay.yaml"
    path.write_text(
        f"pools:\n- {{endpoints: ['{endpoint}'], max_inflight_requests: 1, max_queue: {max_queue}}}\n"
        "displace: off\n"
    )
    return str(path)


async def explain(gateway: ServeProcess, request_id: str) -> tuple[int, str]:
    """`forebay explain`: exit code and what it says."""
    command = ["explain", request_id, "--admin", gateway.admin_url]
    result = await asyncio.to_thread(CliRunner().invoke, cli, command)
    return result.exit_code, result.output


async def test_a_429_is_explained_from_its_id(tmp_path: Path) -> None:
    """While one runs and one waits, the third is refused: each is explained, by our id and by its client's."""
    async with engine(hang) as fake, client() as http:
        path = narrow(tmp_path, fake.endpoint)
        async with ServeProcess("-c", path) as gateway:
            await until_up(http, gateway)
            url = f"{gateway.url}{CHAT}"
            calls = [
                asyncio.ensure_future(http.post(url, json=chat(), headers={"x-request-id": f"call/{number}"}))
                for number in range(2)
            ]
            await until_waiting(http, gateway, 1)
            refused = await http.post(url, json=chat())
            assert 429 == refused.status_code
            code, said = await explain(gateway, refused.headers["x-forebay-id"])
            assert 0 == code
            assert "It was refused at once (queue_full): The waiting line is full." in said
            assert re.search(r"^pool_queue_requests +DECIDED +2 +1 ", said, re.MULTILINE)
            assert "`max_queue` of pool default being 2." in said

            states = {}
            for number in range(2):
                answer = (await http.get(f"{gateway.admin_url}/api/requests/call/{number}")).json()
                states[answer["state"]] = answer
                assert f"call/{number}" == answer["request_id"]
            waiter = states["waiting"]
            assert (0, None) == (waiter["position"], waiter["endpoint"])
            assert waiter["predicted_wait_s"] >= 0
            assert waiter["waits_at_most_s"] > 0
            assert fake.endpoint == states["running"]["endpoint"]
            _, said = await explain(gateway, waiter["request_id"])
            assert "It waits now" in said
            assert "`endpoint_requests`" in said
            code, said = await explain(gateway, "nobody")
            assert (1, True) == (code, "nothing is known of this request" in said)
            for call in calls:
                call.cancel()


async def test_decisions_are_told_as_they_are_made() -> None:
    """As server-sent events, to a bounded number of readers, and until the process ends."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        await until_up(http, gateway)
        url, events = f"{gateway.admin_url}/api/decisions", {"accept": "text/event-stream"}
        for _ in range(READERS + 1):  # those who leave make room
            async with http.stream("GET", url, headers=events) as stream:
                assert 200 == stream.status_code
                await anext(stream.aiter_lines())
        async with http.stream("GET", url, headers=events) as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            answer = await http.post(f"{gateway.url}{CHAT}", json=chat())
            told: dict[str, Any] = {}
            async with asyncio.timeout(BOUND_S):
                async for line in lines:
                    if line.startswith("data: "):
                        told = json.loads(line.removeprefix("data: "))
                        break
            assert (answer.headers["x-forebay-id"], "dispatch") == (told["id"], told["action"])
            gateway.signal()
            async with asyncio.timeout(BOUND_S):
                assert "" == "".join([line async for line in lines])
        assert 0 == await gateway.exit_code()
        assert "Traceback" not in await gateway.log()


async def test_readers_of_decisions_are_bounded() -> None:
    """One more than may is told to come back."""
    async with engine() as fake, client() as http, ServeProcess("--upstream", fake.endpoint) as gateway:
        url, events = f"{gateway.admin_url}/api/decisions", {"accept": "text/event-stream"}

        async def is_let_in() -> bool:
            async with http.stream("GET", url, headers=events) as stream:
                return stream.status_code == 200

        async with contextlib.AsyncExitStack() as readers:
            for _ in range(READERS):
                stream = await readers.enter_async_context(http.stream("GET", url, headers=events))
                assert 200 == stream.status_code
            assert not await is_let_in()
        await eventually(is_let_in)


# The page


def blocks(language: str) -> list[str]:
    """The code of the page in one language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


async def run(commands: str, gateway: ServeProcess, **more: str) -> str:
    """What the commands of the page print, with the addresses of this gateway in place of the usual ones."""
    text = commands.replace("http://127.0.0.1:8080", gateway.url)
    environ = {
        **os.environ,
        **more,
        "FOREBAY_ADMIN": gateway.admin_url,
        "ADMIN": gateway.admin_url,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    process = await asyncio.create_subprocess_exec(
        "bash", "-euc", text.replace("http://127.0.0.1:9321", gateway.admin_url),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environ,
    )  # fmt: skip
    async with asyncio.timeout(BOUND_S):
        out, err = await process.communicate()
    assert 0 == process.returncode, (commands, out, err)
    return out.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="runs the page's curl: apt-get install curl")
async def test_the_how_to_works(tmp_path: Path) -> None:
    """Its configuration gives its 429, each of its commands runs, and what it says of their output is so."""
    (config,) = blocks("yaml")
    _, busy, ask, why, watch, numbers = blocks("sh")
    (asked,) = re.findall(r"-d '(.*)' >", busy)
    async with engine(hang) as fake, client() as http:
        path = tmp_path / "forebay.yaml"
        path.write_text(config.replace("http://127.0.0.1:8000", fake.endpoint))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            url = f"{gateway.url}{CHAT}"
            calls = [asyncio.ensure_future(http.post(url, json=json.loads(asked))) for _ in range(2)]
            await until_waiting(http, gateway, 1)
            head = await run(ask, gateway)
            assert head.startswith("HTTP/1.1 429")
            for name in ("x-forebay-id", "x-forebay-reason", "retry-after", "x-queue-predict-wait"):
                assert f"\n{name}: " in head
            request_id = re.findall(r"^x-forebay-id: (\S+)", head, re.MULTILINE)[0]
            page = HOW_TO.read_text(encoding="utf-8")
            example = page.partition("```text\n")[2].partition("```")[0]
            said = await run(why.replace("5f1c9a0b3d7e-2a", request_id), gateway)
            assert shape(example) == shape(said)
            assert "decision" in await run(watch, gateway)
            assert "queue_full" in await run(numbers, gateway)
            for call in calls:
                call.cancel()


def shape(said: str) -> list[str]:
    """What a text says, but for its numbers, ids and spaces."""
    plain = re.sub(r"[0-9a-f]+-[0-9a-f]+|\d[\d.]*(e-?\d+)?", "N", said)
    return [re.sub(r"\s+", " ", line).strip() for line in plain.splitlines()]
