"""Requests that begin alike, in front of engines that keep what prompts begin with."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.integration.processes import BOUND_S, ServeProcess, client, until_up

MODEL = "llama3-8b"
DOCUMENTS = 24
QUESTIONS = 6


@asynccontextmanager
async def emulator() -> AsyncIterator[str]:
    """An emulated engine in a process of its own; its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "forebay", "engine", "--port", "0", "--speed", "20",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(BOUND_S):
            yield (await process.stdout.readline()).decode().split()[3]
    finally:
        process.kill()
        await process.wait()


async def counted(http: httpx.AsyncClient, url: str, name: str) -> float:
    """A counter of an engine."""
    page = (await http.get(f"{url}/metrics")).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name}{{"))


async def test_questions_about_one_document_go_to_the_engine_that_has_it() -> None:
    """Of three engines with equal load most later questions find their document cached, and all three work."""
    dice = random.Random(5)
    words = ["river", "basin", "turbine", "gate", "flow", "spill", "head", "tide", "lock", "weir"]
    texts = [" ".join(dice.choices(words, k=1200)) for _ in range(DOCUMENTS)]
    asked = [(number, text) for number, text in enumerate(texts) for _ in range(QUESTIONS)]
    dice.shuffle(asked)
    async with emulator() as one, emulator() as two, emulator() as three, client() as http:
        engines = (one, two, three)
        upstreams = [option for url in engines for option in ("--upstream", url)]
        async with ServeProcess(*upstreams) as gateway:
            await until_up(http, gateway)
            places = asyncio.Semaphore(3)

            async def ask(number: int, text: str) -> int:
                messages = [
                    {"role": "user", "content": f"{number}: {text} What is it about? {dice.random()}"}
                ]
                async with places:
                    answer = await http.post(
                        f"{gateway.url}/v1/chat/completions",
                        json={"model": MODEL, "messages": messages, "max_tokens": 20, "stream": True},
                    )
                return answer.status_code

            assert {200} == set(await asyncio.gather(*(ask(number, text) for number, text in asked)))
            prompt = [await counted(http, url, "vllm:prompt_tokens_total") for url in engines]
            cached = sum([await counted(http, url, "vllm:prefix_cache_hits_total") for url in engines])
    # Chosen blindly, 54 % of all would be cached, and 83 % where each document is worked out once.
    assert cached / sum(prompt) > 0.62
    assert min(prompt) > sum(prompt) / 3 / 3
