"""The other APIs of real engines through the gateway: what their SDKs show, and that each request comes to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.engines.real import RealEngine, running, start_llamacpp
from tests.integration.processes import ServeProcess, client, total, until_at_rest, until_up

pytestmark = [pytest.mark.engines, pytest.mark.timeout(600)]

TURNS: Any = [{"role": "user", "content": "Tell me about weirs."}]


@pytest.fixture(params=["vllm", "llamacpp", "sglang"], scope="module")
def engine(request: pytest.FixtureRequest) -> RealEngine:
    """Each of the engines in turn."""
    found: RealEngine = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def embedder() -> Iterator[RealEngine]:
    """A llama.cpp that embeds."""
    with running(start_llamacpp(more=("--embeddings",))) as engine:
        yield engine


@asynccontextmanager
async def gateway(engine: RealEngine) -> AsyncIterator[tuple[ServeProcess, httpx.AsyncClient]]:
    """A gateway in front of it; at the end every request has come to its own end, and nothing is held."""
    async with ServeProcess("--upstream", engine.url) as process, client() as http:
        await until_up(http, process)
        yield process, http
        series = await until_at_rest(http, process)
        for outcome in ("upstream_interrupted", "upstream_failed", "client_gone"):
            assert not total(series, "forebay_requests_total", f'outcome="{outcome}"')


async def test_the_anthropic_sdk(engine: RealEngine) -> None:
    """Whole and streamed messages, and their tokens counted beforehand."""
    async with (
        gateway(engine) as (process, _),
        anthropic.AsyncAnthropic(base_url=process.url, api_key="any", max_retries=0) as sdk,
    ):
        counted = await sdk.messages.count_tokens(model="small", messages=TURNS)
        whole = await sdk.messages.create(model="small", max_tokens=8, messages=TURNS)
        assert 0 < whole.usage.output_tokens <= 8
        cached = whole.usage.cache_read_input_tokens or 0
        assert counted.input_tokens == whole.usage.input_tokens + cached
        async with sdk.messages.stream(model="small", max_tokens=8, messages=TURNS) as stream:
            final = await stream.get_final_message()
        assert 0 < final.usage.output_tokens <= 8


async def test_langchain(engine: RealEngine) -> None:
    """Whole answers, streams with their usage, and several at once."""
    async with gateway(engine) as (process, _), openai.DefaultAsyncHttpxClient() as http:
        chat = ChatOpenAI.model_validate(
            {
                "model": "small",
                "base_url": f"{process.url}/v1",
                "api_key": SecretStr("any"),
                "max_tokens": 8,
                "max_retries": 0,
                "stream_usage": True,
                "http_async_client": http,
            }
        )
        whole = await chat.ainvoke("Tell me about weirs.")
        assert whole.usage_metadata is not None
        assert 0 < whole.usage_metadata["output_tokens"] <= 8
        chunks = [chunk async for chunk in chat.astream("And about locks?")]
        assert 0 < sum(c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata) <= 8
        assert 6 == len(await chat.abatch([f"Question {number}" for number in range(6)]))


async def test_responses(engine: RealEngine) -> None:
    """Whole and streamed, to the event that ends them."""
    async with (
        gateway(engine) as (process, _),
        openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key="any", max_retries=0) as sdk,
    ):
        whole = await sdk.responses.create(model="small", input="Tell me about weirs.", max_output_tokens=16)
        assert whole.usage is not None
        assert 0 < whole.usage.output_tokens <= 16
        stream = await sdk.responses.create(
            model="small", input="Tell me about weirs.", max_output_tokens=16, stream=True
        )
        events = [event async for event in stream]
        assert events[-1].type in ("response.completed", "response.incomplete")


async def test_tokens_are_counted(engine: RealEngine) -> None:
    """Each engine in its own form."""
    async with gateway(engine) as (process, http):
        body = {"model": "small", "prompt": "hello", "content": "hello"}
        counted = await http.post(f"{process.url}/tokenize", json=body)
        words = await http.post(
            f"{process.url}/detokenize", json={"model": "small", "tokens": counted.json()["tokens"]}
        )
        assert "hello" in "".join(str(value) for value in words.json().values())


@pytest.mark.parametrize("stream", [True, False])
async def test_llamacpps_own_route(llamacpp: RealEngine, stream: bool) -> None:
    """Also with several prompts in one request."""
    async with gateway(llamacpp) as (process, http):
        for prompt in ("hello", ["hello", "there"], [1, 2, 3]):
            body = {"prompt": prompt, "n_predict": 4, "stream": stream}
            reply = await http.post(f"{process.url}/completion", json=body)
            assert 200 == reply.status_code
            assert "tokens_predicted" in reply.text


async def test_embeddings(embedder: RealEngine) -> None:
    """Of several inputs, in OpenAI's form and in llama.cpp's own."""
    async with gateway(embedder) as (process, http):
        async with openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key="any", max_retries=0) as sdk:
            vectors = await sdk.embeddings.create(
                model="small", input=["hello", "there"], encoding_format="float"
            )
        assert [0, 1] == [entry.index for entry in vectors.data]
        assert 200 == (await http.post(f"{process.url}/embedding", json={"content": "hello"})).status_code


async def test_what_an_engine_does_not_serve_is_its_own_error(engine: RealEngine) -> None:
    """An engine without a model for it says so itself: its status passes, and it stays in use."""
    async with gateway(engine) as (process, http):
        body: dict[str, Any] = {"model": "small", "query": "q", "documents": ["d"]}
        assert (await http.post(f"{process.url}/v1/rerank", json=body)).status_code in (400, 404, 501)
        body = {"model": "small", "prompt": "hello", "max_tokens": 2}
        assert 200 == (await http.post(f"{process.url}/v1/completions", json=body)).status_code
