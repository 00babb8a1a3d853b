"""Configurations that change under load, sound and broken, by every way in which files change (F088).

While they do, no request fails that the policy in force would not itself refuse: here it never would.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.fakes import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    FakeEngine,
    Served,
    answer_chat,
    chat,
    event,
)
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    metrics,
    total,
    until_at_rest,
    until_up,
)

CHAT = "/v1/chat/completions"
FAILED, RELOADS = "forebay_config_reload_failed", "forebay_config_reloads_total"
KEYS = {"acme": "sk-acme-7f3a9", "guest": "sk-guest-1b2c3"}
CLASSES = ("realtime", "standard", "batch")


def sound(dice: random.Random, *engines: FakeEngine) -> dict[str, Any]:
    """Any configuration under which everything that this test sends is served."""
    pool = {
        "name": "p",
        "endpoints": [e.endpoint for e in engines],
        "max_queue": dice.choice([None, 100]),
        "max_inflight_requests": dice.choice([None, 2, 8]),
        "headroom": dice.choice([0.5, 0.9]),
        "poll_interval": dice.choice(["200ms", "1s"]),
        "queue_policy": dice.choice([None, "latency", "throughput"]),
        "mode": dice.choice([None, None, "enforce", "shadow", "bypass"]),
    }
    classes: dict[str, dict[str, Any]] = {
        name: {
            "ttft": "30s",
            "weight": dice.choice([1, 5]),
            "order": dice.choice(["sjf", "fifo", "edf"]),
            "max_share": dice.choice([0.3, 1.0]),
            "max_queue": dice.choice([None, 100]),
        }
        for name in dice.sample(CLASSES, len(CLASSES))
    }
    if dice.random() < 0.3:
        classes["extra"] = {"ttft": "9s"}
    return {
        "pools": [{key: value for key, value in pool.items() if value is not None}],
        "classes": {
            name: {key: value for key, value in entry.items() if value is not None}
            for name, entry in classes.items()
        },
        "default_class": "standard",
        "mode": dice.choice(["enforce", "enforce", "shadow", "bypass"]),
        "class_order": dice.choice(["weighted", "strict"]),
        "displace": "off",
        "overload_status": dice.choice([429, 503]),
        "grace": dice.choice(["10s", "20s"]),
        "plans": {"any": {"weight": dice.choice([1, 4])}},
        "tenants": [
            {"name": name, "plan": "any", "keys": [f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"]}
            for name, key in KEYS.items()
        ],
        "anonymous": {"plan": "any"},
    }


def spoilt(dice: random.Random, config: dict[str, Any]) -> str:
    """The same with one thing wrong."""
    text = yaml.safe_dump(config)
    ways: list[Callable[[], str]] = [
        lambda: text[: dice.randrange(1, len(text) // 2)] + "\n  ]: {",
        lambda: text + "max_in_flight: 3\n",
        lambda: text.replace("headroom: 0.", "headroom: 9"),
        lambda: yaml.safe_dump({**config, "tenants": config["tenants"] * 2}),
        lambda: yaml.safe_dump({**config, "pools": [{**config["pools"][0], "max_queue": 0.9}]}),
        lambda: yaml.safe_dump({**config, "pools": config["pools"] * 2}),
        lambda: yaml.safe_dump({**config, "default_class": "nobody"}),
        lambda: yaml.safe_dump({**config, "mode": "off"}),
        lambda: yaml.safe_dump({**config, "grace": 5}),
        lambda: text + text,
        lambda: "",
        lambda: "\x00\xff",
        lambda: "[" * 2000,
    ]
    return dice.choice(ways)()


class Load:
    """Clients that ask again and again, of every class and tenant; what they get is kept."""

    def __init__(self, http: httpx.AsyncClient, gateway: ServeProcess) -> None:
        self.answered = 0
        self.odd: list[tuple[int, str]] = []
        self._over = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._ask(http, gateway, number)) for number in range(8)]

    async def _ask(self, http: httpx.AsyncClient, gateway: ServeProcess, number: int) -> None:
        headers = {"x-forebay-class": CLASSES[number % 3]}
        if number % 4:
            headers["authorization"] = f"Bearer {list(KEYS.values())[number % 2]}"
        body = chat(stream=number % 2 == 0)
        while not self._over.is_set():
            try:
                answer = await http.post(f"{gateway.url}{CHAT}", json=body, headers=headers)
            except httpx.HTTPError as error:
                self.odd.append((0, repr(error)))
                continue
            self.answered += 1
            if answer.status_code != 200:
                self.odd.append((answer.status_code, answer.text))

    async def end(self) -> None:
        """No more; each client takes its last answer."""
        self._over.set()
        await asyncio.gather(*self._tasks)


@asynccontextmanager
async def long_stream(
    http: httpx.AsyncClient, gateway: ServeProcess, go_on: asyncio.Event
) -> AsyncIterator[None]:
    """A stream that runs meanwhile, and must come to its end."""
    body = {**chat(stream=True), "long": True}
    async with http.stream("POST", f"{gateway.url}{CHAT}", json=body) as stream:
        pieces = stream.aiter_text()
        await anext(pieces)
        yield
        go_on.set()
        assert "[DONE]" in "".join([piece async for piece in pieces])


def engines_with_a_long_stream(go_on: asyncio.Event) -> Callable[[Served], Any]:
    """An engine that answers at once, but for the one stream that goes on until it is let end."""

    async def answer(served: Served) -> None:
        if b'"long"' not in served.request.body:
            await answer_chat(served)
            return
        await served.send(STREAM_HEAD)
        while not go_on.is_set() and not served.closed.is_set():
            await served.send_events(event("a"))
            await asyncio.sleep(0.1)
        await served.send_events(DONE)
        await served.send(LAST_CHUNK)

    return answer


@pytest.mark.timeout(120)
async def test_reloads_under_load_fail_nothing(tmp_path: Path) -> None:
    """Sound and broken configurations in random order: each is answered for, and requests notice nothing."""
    path, dice, go_on = tmp_path / "forebay.yaml", random.Random(11), asyncio.Event()
    script = engines_with_a_long_stream(go_on)
    async with engine(script) as first, engine(script) as second, client() as http:
        path.write_text(yaml.safe_dump(sound(dice, first, second)))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            async with long_stream(http, gateway, go_on):
                load = Load(http, gateway)
                statuses = []
                for _ in range(80):
                    config = sound(
                        dice, *dice.choice([(first,), (second,), (first, second), (second, first)])
                    )
                    broken = dice.random() < 0.35
                    path.write_text(spoilt(dice, config) if broken else yaml.safe_dump(config))
                    answer = await http.post(f"{gateway.admin_url}/api/reload")
                    told = answer.json()
                    assert (400 if broken else 200) == answer.status_code, (path.read_text(), told)
                    assert told["problems"] if broken else not told["problems"]
                    assert float(broken) == total(await metrics(http, gateway), FAILED)
                    assert 200 == (await http.get(f"{gateway.admin_url}/readyz")).status_code
                    statuses.append(answer.status_code)
                await load.end()
            assert (True, True) == (statuses.count(200) > 30, statuses.count(400) > 15)
            assert [] == load.odd
            assert load.answered > 200
            series = await until_at_rest(http, gateway)
            assert statuses.count(200) == total(series, RELOADS)
            gateway.signal()
            assert 0 == await gateway.exit_code()
            assert "Traceback" not in await gateway.log()


@pytest.mark.timeout(120)
async def test_files_change_in_every_way_under_load(tmp_path: Path) -> None:
    """Half written, gone and back, and as Kubernetes swaps a mounted ConfigMap: what is whole is in force within
    seconds, and what is not changes nothing.
    """
    dice, go_on = random.Random(12), asyncio.Event()
    script = engines_with_a_long_stream(go_on)
    async with engine(script) as first, engine(script) as second, client() as http:
        # As the kubelet mounts it: the file is a link into a folder, which is a link to the present revision.
        texts = [yaml.safe_dump(sound(dice, first, second)) for _ in range(4)]
        path = mounted(tmp_path, 0, texts[0])
        async with ServeProcess("-c", str(path)) as gateway:

            async def until(name: str, value: float) -> None:
                async def reached() -> bool:
                    return total(await metrics(http, gateway), name) == value

                await eventually(reached)

            await until_up(http, gateway)
            async with long_stream(http, gateway, go_on):
                load = Load(http, gateway)
                mounted(tmp_path, 1, texts[1])
                await until(RELOADS, 1.0)
                mounted(
                    tmp_path, 2, "pools: ["
                )  # somebody's edit is wrong: the revision before stays in force
                await until(FAILED, 1.0)
                target = tmp_path / "..data" / "forebay.yaml"
                target.unlink()
                await asyncio.sleep(1.5)
                assert 1.0 == total(await metrics(http, gateway), RELOADS)
                target.write_text(texts[2][: len(texts[2]) // 2])
                await asyncio.sleep(0.3)
                target.write_text(texts[2])
                await until(RELOADS, 2.0)
                await until(FAILED, 0.0)
                mounted(tmp_path, 3, texts[3])
                await until(RELOADS, 3.0)
                await load.end()
                last = sound(dice, first, second)
                mounted(tmp_path, 4, yaml.safe_dump({**last, "tenants": last["tenants"][:1]}))
                await until(RELOADS, 4.0)
                for name, status in (("acme", 200), ("guest", 401)):  # a tenant that is gone is refused
                    own = {"authorization": f"Bearer {KEYS[name]}"}
                    answer = await http.post(f"{gateway.url}{CHAT}", json=chat(), headers=own)
                    assert status == answer.status_code
            assert [] == load.odd
            assert load.answered > 100
            await until_at_rest(http, gateway)
            gateway.signal()
            assert 0 == await gateway.exit_code()
            assert "Traceback" not in await gateway.log()


def mounted(folder: Path, revision: int, text: str) -> Path:
    """Put a revision in place at once, by a rename of the link that all names go through. Returns the file's name."""
    data = folder / f"..revision_{revision}"
    data.mkdir()
    (data / "forebay.yaml").write_text(text)
    link = folder / "..data_tmp"
    link.symlink_to(data.name)
    link.replace(folder / "..data")
    path = folder / "forebay.yaml"
    if not path.is_symlink():
        path.symlink_to("..data/forebay.yaml")
    return path
