"""Exact counting in a process: what a tokenizer changes, also after a reload, and that it blocks nobody."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from tests.integration.fakes import chat
from tests.integration.processes import ServeProcess, client, engine, until_up
from tests.integration.test_quota import post, tenants
from tests.integration.test_tenants import CHAT, write


def write_tokenizer(path: Path) -> None:
    """A token for each letter."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(path))


async def test_prompts_are_counted_exactly(tmp_path: Path) -> None:
    """More letters than the bucket holds tokens can never pass with the tokenizer, and do by the usual estimate."""
    file = tmp_path / "forebay.yaml"
    write_tokenizer(tmp_path / "tokenizer.json")
    body = chat(messages=[{"role": "user", "content": "x" * 200}], max_tokens=1)
    async with engine() as fake, client() as http:
        write(file, fake, pool={"tokenizer": "tokenizer.json"}, **tenants(tokens_per_second=100, burst=150))
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            refused = await post(http, gateway, CHAT, body)
            assert (400, "request_exceeds_quota") == (refused.status_code, refused.json()["error"]["code"])
            write(file, fake, **tenants(tokens_per_second=100, burst=150))
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 200 == (await post(http, gateway, CHAT, body)).status_code
            write(file, fake, pool={"tokenizer": "nowhere.json"})
            bad = (await http.post(f"{gateway.admin_url}/api/reload")).json()
            assert not bad["applied"]
            assert "tokenizer" in json.dumps(bad)


async def test_counting_does_not_block_others(tmp_path: Path) -> None:
    """While long prompts are counted, the gateway answers; and all of them come to their end."""
    file = tmp_path / "forebay.yaml"
    write_tokenizer(tmp_path / "tokenizer.json")
    long = chat(messages=[{"role": "user", "content": "word " * 80_000}], max_tokens=1)
    async with engine() as fake, client() as http:
        write(file, fake, pool={"tokenizer": str(tmp_path)})
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            asking = [asyncio.create_task(http.post(f"{gateway.url}{CHAT}", json=long)) for _ in range(4)]
            longest = 0.0
            while not all(task.done() for task in asking):
                began = time.perf_counter()
                assert 200 == (await http.get(f"{gateway.url}/healthz")).status_code
                longest = max(longest, time.perf_counter() - began)
            assert {200} == {task.result().status_code for task in asking}
            assert longest < 1.0
