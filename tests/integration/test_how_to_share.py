"""docs/how-to/guaranteed-share.md, followed word for word but for the ports."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.processes import ServeProcess, client, metrics, until_up

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "guaranteed-share.md"
TEXT = PAGE.read_text(encoding="utf-8")
LOAD_S = 6.0


def block(language: str, containing: str) -> str:
    """The page's block of this language with these words."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


def body(**changes: Any) -> dict[str, Any]:
    """What the page's `curl` sends, with some of it changed."""
    data = re.findall(r"-d '(.*)'", block("sh", "curl -si"))
    assert data[0] == data[1]
    sent: dict[str, Any] = json.loads(data[0])
    return {**sent, **changes}


async def a_key() -> tuple[str, str]:
    """What the page's commands make: a key and its digest."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", block("sh", "sha256sum") + 'echo "$KEY"', stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    digest, key = said.decode().splitlines()
    return key, digest.split()[0]


class Engine:
    """The page's `forebay engine`, with a free port."""

    async def __aenter__(self) -> str:
        words = block("sh", "forebay engine").split()[1:]
        words[words.index("--port") + 1] = "0"
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forebay", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdout is not None
        async with asyncio.timeout(20):
            line = (await self._process.stdout.readline()).decode()
        (port,) = re.findall(r":(\d+)\b", line)
        return str(port)

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()


async def ask(
    http: httpx.AsyncClient,
    gateway: ServeProcess,
    key: str | None = None,
    class_name: str | None = None,
    **changes: Any,
) -> httpx.Response:
    """The page's request."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    if class_name is not None:
        headers["x-forebay-class"] = class_name
    return await http.post(f"{gateway.url}/v1/chat/completions", json=body(**changes), headers=headers)


async def keep_asking(
    http: httpx.AsyncClient,
    gateway: ServeProcess,
    key: str | None,
    statuses: list[int],
    class_name: str | None = None,
) -> None:
    """One caller who sends its next request when the last was answered."""
    while True:
        answer = await ask(http, gateway, key, class_name)
        statuses.append(answer.status_code)
        if answer.status_code != 200:
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """R18, R20, R62: keys, limits and headers as shown, and under load acme gets its share and no refusal.

    Also while the others claim several classes.
    """
    key, digest = await a_key()
    async with Engine() as port, client() as http:
        path = tmp_path / "forebay.yaml"
        text = (
            block("yaml", "tenants:")
            .replace("sha256:" + 64 * "0", f"sha256:{digest}")
            .replace(":8001", f":{port}")
        )
        path.write_text(text)
        check = [sys.executable, "-m", *block("sh", "forebay check").split()[:2], str(path)]
        checked = await asyncio.to_thread(subprocess.run, check, capture_output=True, text=True, check=False)
        assert (0, "") == (checked.returncode, checked.stderr)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            acme, other = await ask(http, gateway, key), await ask(http, gateway)
            assert (200, 200) == (acme.status_code, other.status_code)
            assert not [name for name in acme.headers if name.startswith("x-ratelimit")]
            for line in block("text", "x-ratelimit").splitlines():
                name, _, value = line.partition(": ")
                shown, found = re.sub(r"\d+", "N", value), re.sub(r"[\d.]+", "N", other.headers[name])
                assert shown.rstrip("ms") == found.rstrip("ms")
            assert "20000" == other.headers["x-ratelimit-limit-tokens"]
            refused = await http.post(
                f"{gateway.url}/v1/chat/completions",
                json={name: value for name, value in body().items() if name != "max_tokens"},
            )
            assert (400, "max_tokens") == (refused.status_code, refused.json()["error"]["param"])
            assert 401 == (await ask(http, gateway, key[:-1])).status_code

            before = await metrics(http, gateway)
            of_acme: list[int] = []
            of_others: list[int] = []
            crowd: list[tuple[str | None, list[int], str | None]] = [(key, of_acme, None)] * 12
            for claimed in (None, "batch", "realtime"):
                crowd += [(None, of_others, claimed)] * 6
            callers = [asyncio.ensure_future(keep_asking(http, gateway, *whose)) for whose in crowd]
            await asyncio.sleep(LOAD_S)
            after = await metrics(http, gateway)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)

            def gpu_s(tenant: str) -> float:
                (name,) = [
                    n
                    for n in after
                    if n.startswith("forebay_tenant_gpu_seconds_total") and f'"{tenant}"' in n
                ]
                return after[name] - before.get(name, 0.0)

            assert {200} == set(of_acme)
            assert 0.6 <= gpu_s("acme") / (gpu_s("acme") + gpu_s("anonymous")) <= 0.9
            assert len(of_others) > 10
