"""httpx2 transports that retry by `forebay.client.policy`: the only part that has a clock, chance and a connection.

They wrap a transport that does the sending, and hand its answers on untouched and unread: a stream passes as it comes.
An answer that is handed on is final, whatever becomes of its body: nothing is sent again once a caller has got a byte.

One thing is changed on answers. Where a retry was possible and was decided against, `x-should-retry: false` is put on,
which SDKs obey: their own retries, if they are left on, do not multiply these.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import Final, Self

import anyio
import httpx2

from forebay.client.policy import Call, RetryBudget, RetryPolicy

__all__ = ["AsyncRetryTransport", "Library", "RetryTransport"]

_log = logging.getLogger("forebay.client")
_chance: Final = random.SystemRandom().random  # processes that were forked do not draw alike


@dataclass(frozen=True, slots=True)
class Library:
    """What differs between httpx2 and httpx, which are one in all else."""

    failures: tuple[type[Exception], ...]
    """Attempts without an answer that may have one if repeated. Time-outs of answers are not among them."""
    bodies: type
    """Request bodies that can be sent twice."""


HTTPX2: Final = Library(
    (httpx2.NetworkError, httpx2.ConnectTimeout, httpx2.RemoteProtocolError), httpx2.ByteStream
)

LIMITS: Final = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
"""As the SDKs have them. httpx2's own would queue calls beyond the hundredth where nobody sees them."""


class _Retrying:
    """What both transports do between sending and waiting."""

    def __init__(self, library: Library, policy: RetryPolicy | None, budget: RetryBudget | None) -> None:
        self._library = library
        self._policy = policy or RetryPolicy()
        self.budget = budget or RetryBudget()

    def _begin(self, request: httpx2.Request) -> Call:
        return Call(
            self._policy,
            self.budget,
            time.monotonic(),
            headers=request.headers,
            timeout_s=request.extensions.get("timeout", {}).get("read"),
            can_repeat=isinstance(request.stream, self._library.bodies),
        )

    def _attempt(self, call: Call, request: httpx2.Request) -> httpx2.Request:
        """The request as it is sent this time; its caller's own stays as it is."""
        now = time.monotonic()
        attempt = type(request)(
            request.method,
            request.url,
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions},
        )
        attempt.headers.update(call.headers(now))
        if call.retries and (left_s := call.timeout_left_s(now)) is not None:
            own: dict[str, float | None] = request.extensions["timeout"]
            attempt.extensions["timeout"] = {
                step: left_s if limit_s is None else min(limit_s, left_s) for step, limit_s in own.items()
            }
        return attempt

    def _failed(self, call: Call, request: httpx2.Request, error: Exception) -> float | None:
        wait_s = call.failed(now=time.monotonic(), chance=_chance())
        _tell(request, type(error).__name__, call, wait_s)
        return wait_s

    def _answered(
        self, call: Call, request: httpx2.Request, attempt: httpx2.Request, answer: httpx2.Response
    ) -> float | None:
        status, headers = answer.status_code, answer.headers
        wait_s = call.answered(status, headers, now=time.monotonic(), wall=time.time(), chance=_chance())
        if wait_s is not None or call.is_last_word(status, headers):
            _tell(request, str(status), call, wait_s)
        if wait_s is None:
            if call.is_last_word(status, headers):
                headers["x-should-retry"] = "false"
            if "timeout" in request.extensions:  # between the bytes of the body the caller's own counts again
                attempt.extensions["timeout"] = request.extensions["timeout"]
        return wait_s


class RetryTransport(_Retrying, httpx2.BaseTransport):
    """For `httpx2.Client`.

    Args:
        inner: what sends; a new `httpx2.HTTPTransport` by default.
        budget: one that is shared with other clients; a new one by default.
    """

    def __init__(
        self,
        inner: httpx2.BaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
        library: Library = HTTPX2,
    ) -> None:
        super().__init__(library, policy, budget)
        self._inner = inner or httpx2.HTTPTransport(limits=LIMITS)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        call = self._begin(request)
        while True:
            attempt = self._attempt(call, request)
            try:
                answer = self._inner.handle_request(attempt)
            except self._library.failures as error:
                wait_s = self._failed(call, request, error)
                if wait_s is None:
                    raise
            else:
                wait_s = self._answered(call, request, attempt, answer)
                if wait_s is None:
                    return answer
                answer.close()
            time.sleep(wait_s)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def close(self) -> None:
        self._inner.close()


class AsyncRetryTransport(_Retrying, httpx2.AsyncBaseTransport):
    """The same for `httpx2.AsyncClient`, on asyncio or trio."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
        library: Library = HTTPX2,
    ) -> None:
        super().__init__(library, policy, budget)
        self._inner = inner or httpx2.AsyncHTTPTransport(limits=LIMITS)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call = self._begin(request)
        while True:
            attempt = self._attempt(call, request)
            try:
                answer = await self._inner.handle_async_request(attempt)
            except self._library.failures as error:
                wait_s = self._failed(call, request, error)
                if wait_s is None:
                    raise
            else:
                wait_s = self._answered(call, request, attempt, answer)
                if wait_s is None:
                    return answer
                await answer.aclose()
            await anyio.sleep(wait_s)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def aclose(self) -> None:
        await self._inner.aclose()


def _tell(request: httpx2.Request, what: str, call: Call, wait_s: float | None) -> None:
    """Log what became of an attempt: without the query, which may hold a key."""
    then = "given up" if wait_s is None else f"retry {call.retries} in {wait_s:.2f} s"
    _log.info("%s %s: %s; %s", request.method, request.url.path, what, then)
