from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self

import httpx
import httpx2
import pytest

import forebay.client
import forebay.client.httpx as legacy
from forebay.client import RetryBudget, RetryPolicy

FAST = RetryPolicy(first_backoff_s=0.001, longest_backoff_s=0.001)
NOW_AGAIN = {"retry-after-ms": "1"}
URL = "http://server/v1/chat/completions?key=secret"

Answer = httpx2.Response | Exception


class Server:
    """An inner transport of either library, synchronous or not, that gives these answers and keeps what it was sent."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        self.timeouts: list[float] = []
        self.closed = False

    def handle_request(self, request: Any) -> Any:
        self.requests.append(request)
        self.timeouts.append(max(request.extensions["timeout"].values()))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def handle_async_request(self, request: Any) -> Any:
        return self.handle_request(request)

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    @property
    def counts(self) -> list[str | None]:
        """The retry counts that it was told."""
        return [request.headers.get("x-stainless-retry-count") for request in self.requests]


Post = Callable[..., Awaitable[Any]]
KINDS = ("httpx2", "httpx2-async", "httpx", "httpx-async")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which library, and whether it waits or awaits."""
    return str(request.param)


@pytest.fixture
def library(kind: str) -> Any:
    """The library."""
    return httpx2 if kind.startswith("httpx2") else httpx


@pytest.fixture
def post(kind: str, library: Any) -> Post:
    """Posts through the transport to a server, and closes it."""
    ours: Any = forebay.client if library is httpx2 else legacy

    async def post_async(server: Any, content: Any = b"{}", **options: Any) -> Any:
        timeout, headers = options.pop("timeout", 5.0), options.pop("headers", {})
        transport = ours.AsyncRetryTransport(server, policy=options.pop("policy", FAST), **options)
        async with library.AsyncClient(transport=transport, timeout=timeout) as client:
            return await client.post(URL, content=content, headers=headers)

    def post_sync(server: Any, content: Any = b"{}", **options: Any) -> Any:
        timeout, headers = options.pop("timeout", 5.0), options.pop("headers", {})
        transport = ours.RetryTransport(server, policy=options.pop("policy", FAST), **options)
        with library.Client(transport=transport, timeout=timeout) as client:
            return client.post(URL, content=content, headers=headers)

    async def in_thread(server: Any, content: Any = b"{}", **options: Any) -> Any:
        return await asyncio.to_thread(post_sync, server, content, **options)

    return post_async if kind.endswith("async") else in_thread


async def test_a_refused_call_comes_back_and_says_so(post: Post, library: Any) -> None:
    """R12, R33: it is sent again, byte for byte, with its count and what is left of its time-out."""
    closed = []

    class Unread(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def close(self) -> None:
            closed.append(True)

        async def aclose(self) -> None:
            closed.append(True)

    refused = library.Response(429, headers=NOW_AGAIN, stream=Unread())
    server = Server(refused, library.Response(503), library.Response(200, json={"ok": True}))
    answer = await post(server, b'{"model": "m"}', headers={"x-forebay-class": "batch"})
    assert (200, {"ok": True}) == (answer.status_code, answer.json())
    assert [None, "1", "2"] == server.counts
    assert [b'{"model": "m"}'] * 3 == [b"".join(request.stream) for request in server.requests]
    assert ["batch"] * 3 == [request.headers["x-forebay-class"] for request in server.requests]
    left = [int(request.headers["x-forebay-deadline-ms"]) for request in server.requests]
    assert left == sorted(left, reverse=True)
    assert 4000 < left[2] < left[0] <= 4750
    assert [True] == closed  # its connection is given back
    assert server.closed
    assert None is answer.request.headers.get("x-stainless-retry-count")  # the caller's request is as it was


async def test_the_time_out_is_of_the_call_and_not_of_an_attempt(post: Post, library: Any) -> None:
    """R33: a retry has what is left of it for its head; between the bytes of the body it is the caller's again."""
    server = Server(library.Response(429, headers={"retry-after-ms": "50"}), library.Response(200))
    await post(server, timeout=3.0)
    first, second = server.timeouts
    assert first == 3.0
    assert 1.0 < second <= 2.95
    assert [3.0, 3.0] == [request.extensions["timeout"]["read"] for request in server.requests]


async def test_what_cannot_be_in_time_is_handed_on_at_once(post: Post, library: Any) -> None:
    """R33: a slot behind the deadline is not waited for, and no layer above is to retry."""
    server = Server(
        library.Response(429, headers={"retry-after": "4"}, json={"error": {"code": "queue_full"}})
    )
    answer = await post(server, timeout=3.0)
    assert (429, "queue_full") == (answer.status_code, answer.json()["error"]["code"])
    assert ("false", "4") == (answer.headers["x-should-retry"], answer.headers["retry-after"])


@pytest.mark.parametrize("status", [400, 401, 413])
async def test_what_never_can_pass_is_handed_on_untouched(post: Post, library: Any, status: int) -> None:
    """R33: nobody retries a 400, a 401 or a 413."""
    server = Server(library.Response(status, headers=NOW_AGAIN))
    answer = await post(server)
    assert status == answer.status_code
    assert "x-should-retry" not in answer.headers
    assert 1 == len(server.requests)


@pytest.mark.parametrize("name", ["ConnectError", "ConnectTimeout", "ReadError", "RemoteProtocolError"])
async def test_an_attempt_without_an_answer_is_made_again(post: Post, library: Any, name: str) -> None:
    """Connections that are refused or break before the answer are tried again, and the last failure is raised."""
    failure = getattr(library, name)
    server = Server(failure("broken"), library.Response(200))
    assert 200 == (await post(server)).status_code
    server = Server(*(failure(str(n)) for n in range(4)))
    with pytest.raises(failure, match="3"):
        await post(server)
    assert [None, "1", "2", "3"] == server.counts


@pytest.mark.parametrize("name", ["ReadTimeout", "PoolTimeout", "UnsupportedProtocol"])
async def test_times_that_ran_out_and_mistakes_are_raised(post: Post, library: Any, name: str) -> None:
    """Who got no answer in time has no time left for another; a mistake stays one."""
    server = Server(getattr(library, name)("no"))
    with pytest.raises(getattr(library, name)):
        await post(server)


async def test_an_answer_that_breaks_off_is_not_asked_for_again(post: Post, library: Any) -> None:
    """F042: once a byte of the body was handed on nothing is sent again."""

    class Broken(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield b"data: a\n\n"
            raise library.ReadError("reset")

        async def __aiter__(self) -> Any:
            for part in self:
                yield part

    server = Server(library.Response(200, stream=Broken()))
    with pytest.raises(library.ReadError):
        await post(server)
    assert 1 == len(server.requests)


async def test_a_body_that_is_read_once_is_sent_once(post: Post, library: Any, kind: str) -> None:
    """What cannot be sent twice is not; its answer is not marked, since who made it can make it anew."""

    async def parts() -> Any:
        yield b"part"

    server = Server(library.Response(429, headers=NOW_AGAIN))
    answer = await post(server, parts() if kind.endswith("async") else iter([b"part"]))
    assert 429 == answer.status_code
    assert "x-should-retry" not in answer.headers


async def test_clients_share_a_budget_that_they_are_given(post: Post, library: Any) -> None:
    """F043: all calls together make no more retries than the budget has, however many clients they go through."""
    budget = RetryBudget(ratio=0.1, reserve=2)
    attempts = 0
    for _ in range(20):
        server = Server(*(library.Response(503) for _ in range(4)))
        answer = await post(server, budget=budget)
        assert (503, "false") == (answer.status_code, answer.headers["x-should-retry"])
        attempts += len(server.requests)
    assert (
        20 + 2 + 1 == attempts
    )  # the first two calls add nothing to a full budget; the others earn one retry


async def test_the_log_tells_what_is_done_and_no_key(
    post: Post, library: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Each retry and each giving up is a line without query."""
    with caplog.at_level(logging.INFO, "forebay.client"):
        await post(
            Server(library.ConnectError("x"), library.Response(503)), policy=RetryPolicy(max_retries=1)
        )
    first, second = [record.message for record in caplog.records if record.name == "forebay.client"]
    assert first.startswith("POST /v1/chat/completions: ConnectError; retry 1 in 0.")
    assert "POST /v1/chat/completions: 503; given up" == second


def test_without_httpx2_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install has no httpx2: the import names the extra."""
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "forebay.client")
    with pytest.raises(ImportError, match=r"pip install 'forebay\[client\]'"):
        importlib.import_module("forebay.client")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "forebay.client.httpx")
    with pytest.raises(ImportError, match=r"pip install httpx \(or use forebay.client\)"):
        importlib.import_module("forebay.client.httpx")
