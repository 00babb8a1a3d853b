"""What the how-to pages tell people to write, run as it is written."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.integration.fakes import chat
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    first_pool,
    hang,
    until_up,
    until_waiting,
)

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def configuration_of(page: str, *endpoints: str) -> str:
    """The YAML of a page, with other endpoints."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(), flags=re.DOTALL)
    changed, count = re.subn(r"endpoints: \[.*?\]", f"endpoints: [{', '.join(endpoints)}]", text)
    assert count == 1
    return str(changed)


async def test_chat_is_protected_from_batch(tmp_path: Path) -> None:
    """Batch starts while the engine is used little and waits after that; a chat starts at once beside it."""
    path = tmp_path / "forebay.yaml"
    async with engine(hang) as fake, client() as http:
        text = configuration_of("protect-chat-from-batch.md", fake.endpoint)
        path.write_text(text.replace("- name: llama", "- name: llama\n    max_inflight_requests: 10"))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            url = f"{gateway.url}/v1/chat/completions"
            batch = {"x-forebay-class": "batch"}
            calls = [asyncio.ensure_future(http.post(url, json=chat(), headers=batch)) for _ in range(8)]
            await until_waiting(http, gateway, 2)
            calls += [asyncio.ensure_future(http.post(url, json=chat())) for _ in range(4)]
            while (await first_pool(http, gateway))["in_flight_requests"] < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await until_waiting(http, gateway, 2)
            for call in calls:
                call.cancel()
