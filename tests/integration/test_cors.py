"""Calls from web pages, as browsers make them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.fakes import Served, chat, chat_answer, plain
from tests.integration.processes import ServeProcess, client, engine, until_up

CHAT = "/v1/chat/completions"
PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def configure(path: Path, endpoint: str, **keys: Any) -> None:
    """One pool, and the page."""
    pool = {"name": "p", "endpoints": [endpoint]}
    path.write_text(yaml.safe_dump({"pools": [pool], "cors_origins": [PAGE], **keys}))


async def any_page(served: Served) -> None:
    """An engine that lets every page read, as vLLM does."""
    await served.send(plain(chat_answer(), headers=b"Access-Control-Allow-Origin: *\r\n"))


async def test_f077_preflights_use_up_nothing_and_refusals_can_be_read(tmp_path: Path) -> None:
    """A hundred preflights without a key, then seven calls with five allowed: two 429s, each with its CORS lines."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        configure(
            path,
            fake.endpoint,
            plans={"free": {"requests_per_second": 0.01, "requests_burst": 5}},
            tenants=[{"name": "acme", "plan": "free", "keys": [f"sha256:{sha256(b'sk-1').hexdigest()}"]}],
        )
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            url = f"{gateway.url}{CHAT}"
            for _ in range(100):
                answer = await http.options(url, headers=PREFLIGHT)
                assert 204 == answer.status_code
                assert PAGE == answer.headers["access-control-allow-origin"]
                assert "authorization,content-type" == answer.headers["access-control-allow-headers"]
                assert "POST" in answer.headers["access-control-allow-methods"]
            headers = {"origin": PAGE, "authorization": "Bearer sk-1"}
            answers = [await http.post(url, json=chat(), headers=headers) for _ in range(7)]
            assert [200] * 5 + [429] * 2 == [answer.status_code for answer in answers]
            denied = await http.post(url, json=chat(), headers={"origin": PAGE, "authorization": "Bearer no"})
            assert 401 == denied.status_code
            for answer in (*answers, denied):
                assert PAGE == answer.headers["access-control-allow-origin"]
                assert "retry-after" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize(("origin", "told"), [(PAGE, PAGE), ("https://evil.example", None), (None, "*")])
async def test_pages_are_told_by_us_and_not_by_the_engine(
    tmp_path: Path, origin: str | None, told: str | None
) -> None:
    """An engine that lets every page read does not open what was configured; others see what it says."""
    path = tmp_path / "forebay.yaml"
    async with engine(any_page) as fake, client() as http:
        configure(path, fake.endpoint)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            headers = {} if origin is None else {"origin": origin}
            answer = await http.post(f"{gateway.url}{CHAT}", json=chat(), headers=headers)
            assert 200 == answer.status_code
            assert ([] if told is None else [told]) == answer.headers.get_list("access-control-allow-origin")


async def test_without_pages_nothing_is_changed() -> None:
    """What the engine tells browsers passes, and OPTIONS says no more than which methods there are."""
    async with (
        engine(any_page) as fake,
        client() as http,
        ServeProcess("--upstream", fake.endpoint) as gateway,
    ):
        await until_up(http, gateway)
        answer: httpx.Response = await http.post(
            f"{gateway.url}{CHAT}", json=chat(), headers={"origin": PAGE}
        )
        assert "*" == answer.headers["access-control-allow-origin"]
        asked = await http.options(f"{gateway.url}{CHAT}", headers=PREFLIGHT)
        assert (204, None) == (asked.status_code, asked.headers.get("access-control-allow-origin"))
