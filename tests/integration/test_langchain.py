"""LangChain as client, unmodified: answers, streams, more calls at once than are served at once, and a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
import yaml
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from forebay.runtime.children import Children
from tests.integration.processes import ServeProcess, client, until_at_rest, until_up

MODEL = "small"


@asynccontextmanager
async def serving(folder: Path, **pool: object) -> AsyncIterator[ServeProcess]:
    """A gateway before one emulated engine that is a hundred times as fast as a real one."""
    async with Children() as children, client() as http:
        emulated = await children.start(
            "engine", ("engine", "--port", "0", "--model", MODEL, "--speed", "100")
        )
        path = folder / "forebay.yaml"
        path.write_text(yaml.safe_dump({"pools": [{"name": "p", "endpoints": [emulated.url], **pool}]}))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            yield gateway
            await until_at_rest(http, gateway)


def options(gateway: ServeProcess, http: openai.DefaultAsyncHttpxClient, **more: object) -> dict[str, object]:
    """What LangChain's documentation has for servers of one's own. The client is given so that it can be closed."""
    return {
        "model": MODEL,
        "base_url": f"{gateway.url}/v1",
        "api_key": SecretStr("any"),
        "max_retries": 0,
        "http_async_client": http,
        **more,
    }


async def test_answers_streams_and_many_at_once(tmp_path: Path) -> None:
    """Whole answers and streams with their usage; forty calls where two are served at a time all come back."""
    async with (
        serving(tmp_path, max_inflight_requests=2) as gateway,
        openai.DefaultAsyncHttpxClient() as http,
    ):
        chat = ChatOpenAI.model_validate(options(gateway, http, max_tokens=8, stream_usage=True))
        answer = await chat.ainvoke("Tell me about weirs.")
        assert answer.usage_metadata is not None
        assert 8 == answer.usage_metadata["output_tokens"]
        chunks = [chunk async for chunk in chat.astream("And about locks?")]
        assert len(chunks) > 4
        assert 8 == sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata)
        assert 40 == len(await chat.abatch([f"Question {number}" for number in range(40)]))
        # Without `check_embedding_ctx_length` off it sends tokens of a tokenizer that is not the engine's.
        vectors = OpenAIEmbeddings.model_validate(options(gateway, http, check_embedding_ctx_length=False))
        assert 2 == len(await vectors.aembed_documents(["one", "two"]))


async def test_a_refusal_is_told_with_its_code(tmp_path: Path) -> None:
    """LangChain raises what the SDK below it raises, with our message and code."""
    async with serving(tmp_path, max_output_tokens=10) as gateway, openai.DefaultAsyncHttpxClient() as http:
        chat = ChatOpenAI.model_validate(options(gateway, http, max_tokens=1000))
        with pytest.raises(openai.APIStatusError) as refused:
            await chat.ainvoke("Tell me everything.")
        assert (413, "request_too_large") == (refused.value.status_code, refused.value.code)
