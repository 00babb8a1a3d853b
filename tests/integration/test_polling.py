"""The poller over real sockets: engines that are slow, hung, unwell, odd, gone and back."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from forebay.admission.events import Described, Sampled, SampleMissed
from forebay.admission.model import EndpointId, EngineKind
from forebay.engines import EndpointPoller, Rhythm
from forebay.runtime.polling import EngineClient
from tests.unit.engines.pages import (
    llamacpp_models,
    llamacpp_page,
    llamacpp_props,
    llamacpp_slots,
    vllm_models,
    vllm_page,
)
from tests.unit.engines.watching import EventLog

QUICK = Rhythm(interval_s=0.01, scrape_multiple=0.0, timeout_s=0.4, retry_s=0.02, slow_retry_s=0.02)


class FakeEngine:
    """A server that answers GETs with raw bytes, as a test says, and can hang, die and come back."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.answers = answers
        self.awake = asyncio.Event()
        """Cleared, it makes the engine take requests and answer none."""
        self.awake.set()
        self.requests: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listens, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Dies: nothing listens any more, and open connections are cut."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                await self.awake.wait()
                path = head.split(b" ", 2)[1].decode()
                writer.write(self.answers.get(path, whole(b"{}", b"404 Not Found")))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


def whole(body: bytes, status: bytes = b"200 OK", *fields: bytes) -> bytes:
    """An answer with a length."""
    return b"\r\n".join((b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *fields, b"", body))


def chunked(body: bytes, size: int = 1000) -> bytes:
    """The same in chunks."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def vllm() -> dict[str, bytes]:
    """The answers of a vLLM."""
    return {"/metrics": whole(vllm_page()), "/v1/models": whole(vllm_models("tiny"))}


class Watched(EventLog):
    """An engine, a poller on it, and what it told."""

    def __init__(self, engine: FakeEngine) -> None:
        super().__init__()
        self.engine = engine


@asynccontextmanager
async def polling(
    answers: dict[str, bytes], rhythm: Rhythm = QUICK, kind: EngineKind | None = None
) -> AsyncIterator[Watched]:
    """A running engine that is polled."""
    engine = FakeEngine(answers)
    await engine.start()
    watched = Watched(engine)
    client = EngineClient("127.0.0.1", engine.port)
    poller = EndpointPoller(EndpointId("e"), client, watched.took, rhythm=rhythm, kind=kind)
    poller.start()
    try:
        yield watched
    finally:
        await poller.stop()
        client.close()
        await engine.stop()


async def test_vllm_is_described_and_sampled() -> None:
    """A vLLM is found without being told, and sampled over and over."""
    async with polling(vllm()) as watched:
        info = (await watched.next(Described)).info
        assert (info.kind, info.models, info.kv_tokens, info.context_tokens) == (
            EngineKind.VLLM,
            ("tiny",),
            2048 - 32,
            2048,
        )
        first = (await watched.next(Sampled)).sample
        second = (await watched.next(Sampled)).sample
        assert (first.running, first.waiting, first.steps_total) == (6, 1, 2060)
        assert first.at_s < second.at_s
        assert 0 < first.took_s < 10


async def test_llamacpp_closes_and_is_sampled_all_the_same() -> None:
    """llama.cpp is found, and a server that closes after each answer is read like any other."""
    answers = {
        "/metrics": whole(llamacpp_page(), b"200 OK", b"Server: llama.cpp", b"Connection: close"),
        "/v1/models": whole(llamacpp_models()),
        "/slots": whole(llamacpp_slots(2048, 2048, busy=1)),
        "/props": whole(llamacpp_props()),
    }
    async with polling(answers) as watched:
        info = (await watched.next(Described)).info
        assert (info.kind, info.max_requests, info.closes_after_stream) == (EngineKind.LLAMACPP, 2, True)
        for _ in range(3):
            sample = (await watched.next(Sampled)).sample
            assert (sample.running, sample.waiting, sample.kv_usage) == (4, 20, None)


async def test_anything_else_gives_a_sign_of_life() -> None:
    """A server that has only an OpenAI API is described with its models and sampled without numbers."""
    async with polling({"/v1/models": whole(b'{"data":[{"id":"m"}]}')}) as watched:
        info = (await watched.next(Described)).info
        assert (info.kind, info.models, info.reports_load) == (EngineKind.OPENAI, ("m",), False)
        sample = (await watched.next(Sampled)).sample
        assert (sample.running, sample.waiting, sample.kv_usage) == (None, None, None)


@pytest.mark.parametrize(
    "page",
    [
        chunked(vllm_page()),
        whole(gzip.compress(vllm_page()), b"200 OK", b"Content-Encoding: gzip"),
        whole(vllm_page().replace(b"\n", b"\r\n")),
        whole(vllm_page() + b"# EOF"),
    ],
    ids=["chunked", "gzip", "crlf", "openmetrics"],
)
async def test_f061_odd_transport(page: bytes) -> None:
    """F061: chunks, gzip that nobody asked for and odd line ends change nothing."""
    async with polling(vllm() | {"/metrics": page}) as watched:
        sample = (await watched.next(Sampled)).sample
        assert (sample.running, sample.waiting, sample.doubtful) == (6, 1, ())


async def test_no_compression_is_asked_for() -> None:
    """The engine is asked not to compress, which would cost it more than it saves us."""
    async with polling(vllm()) as watched:
        await watched.next(Sampled)
        assert all(b"accept-encoding: identity" in head.lower() for head in watched.engine.requests)


async def test_f061_page_of_20_megabytes() -> None:
    """F061: a page of 20 MB is given up at the limit; the engine is described, and read again once it is well."""
    page = b"# " + b"x" * 98 + b"\n"
    async with polling(vllm() | {"/metrics": whole(page * 207_000 + vllm_page())}) as watched:
        assert (await watched.next(Described)).info.kind is EngineKind.VLLM
        assert not (await watched.next(SampleMissed)).unreachable
        watched.engine.answers["/metrics"] = whole(vllm_page())
        assert (await watched.next(Sampled)).sample.running == 6


async def test_f062_failing_metrics_recover() -> None:
    """F062: with /metrics at 500 the engine is still found; when it works again so does sampling."""
    async with polling(vllm() | {"/metrics": whole(b"oops", b"500 Internal Server Error")}) as watched:
        assert (await watched.next(Described)).info.kind is EngineKind.VLLM
        assert not (await watched.next(SampleMissed)).unreachable
        watched.engine.answers["/metrics"] = whole(vllm_page())
        assert (await watched.next(Sampled)).sample.running == 6
        assert (await watched.next(Described)).info.kv_tokens == 2048 - 32


async def test_hung_engine_times_out_and_recovers() -> None:
    """An engine that takes requests and answers none gives missed samples, not an outage; then samples again."""
    async with polling(vllm()) as watched:
        await watched.next(Sampled)
        watched.engine.awake.clear()
        for _ in range(2):
            assert not (await watched.next(SampleMissed)).unreachable
        watched.engine.awake.set()
        await watched.next(Sampled)


async def test_restarted_engine_is_found_anew() -> None:
    """A killed engine is unreachable; what comes back on its port is described before it is sampled."""
    async with polling(vllm()) as watched:
        await watched.next(Sampled)
        await watched.engine.stop()
        await watched.next(SampleMissed, lambda missed: missed.unreachable)
        watched.engine.answers = vllm() | {"/v1/models": whole(vllm_models("other"))}
        await watched.engine.start()
        assert (await watched.next(Described)).info.models == ("other",)
        await watched.next(Sampled)


async def test_quick_restart_is_noticed() -> None:
    """A restart between two samples is seen by the counters, and the engine is described again."""
    async with polling(vllm()) as watched:
        await watched.next(Sampled)
        watched.engine.answers["/metrics"] = whole(vllm_page(output_tokens=(1.0,), started="1.9e9"))
        await watched.next(Described)
        assert (await watched.next(Sampled)).sample.output_tokens_total == 1


@pytest.mark.parametrize(
    "raw",
    [b"\x00\x01\x02", b"HTTP/1.1 banana\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"],
    ids=["bytes", "status", "cut"],
)
async def test_what_is_no_answer_is_a_missed_sample(raw: bytes) -> None:
    """An engine that answers with something else than HTTP, or stops in mid-answer, is missed and polled on."""
    async with polling(vllm()) as watched:
        await watched.next(Sampled)
        watched.engine.answers["/metrics"] = raw
        await watched.next(SampleMissed)
        watched.engine.answers["/metrics"] = whole(vllm_page())
        await watched.next(Sampled)


async def test_nothing_is_left_behind() -> None:
    """After the end of polling no task and no connection remains."""
    before = asyncio.all_tasks()
    async with polling(vllm()) as watched:
        await watched.next(Sampled)
        watched.engine.awake.clear()
        await asyncio.sleep(0)
    assert {task for task in asyncio.all_tasks() - before if "_serve" not in repr(task)} == set()
