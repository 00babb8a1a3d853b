"""docs/how-to/write-a-rule.md, followed word for word but for the ports."""

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

from tests.integration.processes import ServeProcess, client, eventually, metrics, until_up

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-rule.md"


def block(language: str, containing: str) -> str:
    """The page's block of this language with these words."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


def body(**changes: Any) -> dict[str, Any]:
    """What the page's `curl` sends, with some of it changed."""
    (data,) = re.findall(r"-d '(.*)'", block("sh", "curl -si"))
    sent: dict[str, Any] = json.loads(data)
    return {**sent, **changes}


class Engines:
    """The page's `forebay engine` commands, each with a free port."""

    async def __aenter__(self) -> dict[str, str]:
        self._processes = []
        ports = {}
        for command in block("sh", "forebay engine").splitlines():
            words = command.split()[1:]
            port = words[words.index("--port") + 1]
            words[words.index("--port") + 1] = "0"
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "forebay",
                *words,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            self._processes.append(process)
            assert process.stdout is not None
            async with asyncio.timeout(20):
                line = (await process.stdout.readline()).decode()
            (found,) = re.findall(r":(\d+)\b", line)
            ports[port] = found
        return ports

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            await process.wait()


def file_at(path: Path, ports: dict[str, str]) -> Path:
    """The page's file, with those ports."""
    text = block("yaml", "rules:")
    for old, new in ports.items():
        text = text.replace(f":{old}", f":{new}")
    path.write_text(text)
    return path


async def ask(
    http: httpx.AsyncClient, gateway: ServeProcess, sent: dict[str, Any], **headers: str
) -> httpx.Response:
    """The page's request, with these headers besides."""
    return await http.post(
        f"{gateway.url}/v1/chat/completions",
        json=sent,
        headers={"x-forebay-explain": "1", **{k.replace("_", "-"): v for k, v in headers.items()}},
    )


@pytest.mark.slow
async def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """R10, R11, R13: each rule is seen at work, and a changed file is taken over."""
    async with Engines() as ports, client() as http:
        path = file_at(tmp_path / "forebay.yaml", ports)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            answer = await ask(http, gateway, body(max_tokens=5))
            decision = json.loads(answer.headers["x-forebay-decision"])
            assert (200, "standard", "big") == (answer.status_code, decision["class"], decision["pool"])
            assert "x-forebay-model" not in answer.headers
            calls = [asyncio.ensure_future(ask(http, gateway, body(stream=True)))]
            answer = await ask(http, gateway, body(max_tokens=5), x_forebay_session="script-7")
            decision = json.loads(answer.headers["x-forebay-decision"])
            assert (200, "small") == (answer.status_code, decision["pool"])
            assert "rule:scripts-use-the-small-model" == decision["checks"][0][0]
            assert ("llama-8b", "llama-8b") == (answer.headers["x-forebay-model"], answer.json()["model"])
            answer = await ask(http, gateway, body(max_tokens=200_000))
            assert 429 == answer.status_code
            assert "rule_refused rule:no-novels" == answer.headers["x-forebay-reason"]

            async def counted() -> bool:
                series = await metrics(http, gateway)
                return 1.0 <= series.get('forebay_rule_matches_total{rule="big-answers"}', 0.0)

            await eventually(counted)
            for call in calls:
                call.cancel()
            path.write_text(path.read_text().replace("request.max_tokens > 100000", "request.max_tokens > 3"))
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 429 == (await ask(http, gateway, body(max_tokens=5))).status_code


def test_the_page_is_checked_as_it_says(tmp_path: Path) -> None:
    """The file is in order, and the misspelt name gives the message that is shown."""
    path = file_at(tmp_path / "forebay.yaml", {})

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "forebay", "check", "forebay.yaml"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert 0 == check().returncode
    path.write_text(path.read_text().replace("request.max_tokens > 4096", "request.max_token > 4096"))
    said = check()
    assert 2 == said.returncode
    assert block("text", "did you mean").strip() == said.stderr.splitlines()[0]
