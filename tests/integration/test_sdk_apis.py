"""SDKs as clients of the other APIs, through the gateway to the emulated engine, and what it all came to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from forebay.emulator import EmulatorServer, EmulatorSettings
from forebay.profiles import DEFAULT_PROFILE, load_profile
from tests.integration.processes import ServeProcess, client, metrics, total, until_at_rest, until_up

MODEL = "llama3-8b"


@pytest.fixture
async def engine() -> AsyncIterator[EmulatorServer]:
    """An emulated engine, fifty times as fast as a real one."""
    async with EmulatorServer(
        EmulatorSettings(load_profile(DEFAULT_PROFILE), model=MODEL, speed=50.0)
    ) as running:
        yield running


async def until_settled(http: httpx.AsyncClient, gateway: ServeProcess, count: int) -> dict[str, float]:
    """All series, once so many requests have come to their ends."""
    series = await until_at_rest(http, gateway)
    assert count == total(series, "forebay_requests_total", 'outcome="completed"')
    return series


async def test_the_openai_sdk_gets_responses_and_embeddings(engine: EmulatorServer) -> None:
    """Whole and streamed responses, and embeddings of several inputs, are what the SDK expects."""
    async with ServeProcess("--upstream", engine.url) as gateway, client() as http:
        await until_up(http, gateway)
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as sdk:
            extra = {"ignore_eos": True}
            whole = await sdk.responses.create(
                model=MODEL, input="hello", max_output_tokens=5, extra_body=extra
            )
            assert len(whole.output_text.split()) == 5
            assert whole.usage is not None
            assert whole.usage.output_tokens == 5
            stream = await sdk.responses.create(
                model=MODEL, input="hello", max_output_tokens=5, stream=True, extra_body=extra
            )
            events = [event async for event in stream]
            assert events[-1].type == "response.completed"
            text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
            assert len(text.split()) == 5
            vectors = await sdk.embeddings.create(model=MODEL, input=["a", "b", "c"], encoding_format="float")
            assert [0, 1, 2] == [entry.index for entry in vectors.data]
            with pytest.raises(openai.BadRequestError, match="max_output_tokens"):
                await sdk.responses.create(model=MODEL, input="x", max_output_tokens=0)
            with pytest.raises(openai.NotFoundError):
                await sdk.embeddings.create(model="other", input="x", encoding_format="float")
        await until_settled(http, gateway, 3)


async def test_the_anthropic_sdk_runs_unmodified(engine: EmulatorServer) -> None:
    """Whole and streamed messages, counts of tokens, and errors of its own types."""
    turns: Any = [{"role": "user", "content": "hello there"}]
    async with ServeProcess("--upstream", engine.url) as gateway, client() as http:
        await until_up(http, gateway)
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as sdk:
            body: Any = {"ignore_eos": True}
            whole = await sdk.messages.create(model=MODEL, max_tokens=6, messages=turns, extra_body=body)
            assert ("max_tokens", 6) == (whole.stop_reason, whole.usage.output_tokens)
            async with sdk.messages.stream(
                model=MODEL, max_tokens=6, messages=turns, extra_body=body
            ) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                final = await stream.get_final_message()
            assert len(text.split()) == 6
            assert (whole.usage.input_tokens, 6) == (final.usage.input_tokens, final.usage.output_tokens)
            counted = await sdk.messages.count_tokens(model=MODEL, messages=turns)
            assert whole.usage.input_tokens == counted.input_tokens
            with pytest.raises(anthropic.NotFoundError, match="not served here"):
                await sdk.messages.create(model="other", max_tokens=6, messages=turns)
            with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
                await sdk.messages.create(model=MODEL, max_tokens=0, messages=turns)
        await until_settled(http, gateway, 2)


async def test_rankings_and_counts(engine: EmulatorServer) -> None:
    """What has no SDK."""
    async with ServeProcess("--upstream", engine.url) as gateway, client() as http:
        await until_up(http, gateway)
        ranked = await http.post(
            f"{gateway.url}/v1/rerank", json={"model": MODEL, "query": "q", "documents": ["a", "b"]}
        )
        assert [0, 1] == [entry["index"] for entry in ranked.json()["results"]]
        scored = await http.post(f"{gateway.url}/score", json={"model": MODEL, "text_1": "q", "text_2": "a"})
        assert len(scored.json()["data"]) == 1
        counted = await http.post(f"{gateway.url}/tokenize", json={"model": MODEL, "prompt": "12345678"})
        assert counted.json()["count"] == 2
        words = await http.post(f"{gateway.url}/detokenize", json={"model": MODEL, "tokens": [0, 1]})
        assert len(words.json()["prompt"].split()) == 2
        await until_settled(http, gateway, 2)
        assert not total(await metrics(http, gateway), "forebay_refusals_total")
