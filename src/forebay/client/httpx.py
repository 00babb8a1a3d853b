"""The transports of `forebay.client` for httpx, which the OpenAI and Anthropic SDKs used before httpx2.

httpx2 is httpx with another name as far as a transport sees it, so the ones for httpx2 do the work.
"""

from __future__ import annotations

from typing import Final, Self, cast

import httpx2

from forebay.client import transports
from forebay.client.policy import RetryBudget, RetryPolicy

try:
    import httpx
except ModuleNotFoundError as error:
    raise ImportError(
        "forebay.client.httpx needs httpx: pip install httpx (or use forebay.client)"
    ) from error

__all__ = ["AsyncRetryTransport", "RetryTransport"]

HTTPX: Final = transports.Library(
    (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError), httpx.ByteStream
)
LIMITS: Final = httpx.Limits(max_connections=1000, max_keepalive_connections=100)


class RetryTransport(httpx.BaseTransport):
    """For `httpx.Client`; arguments as for httpx2."""

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
    ) -> None:
        sender = cast("httpx2.BaseTransport", inner or httpx.HTTPTransport(limits=LIMITS))
        self._retrying = transports.RetryTransport(sender, policy=policy, budget=budget, library=HTTPX)
        self.budget = self._retrying.budget

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return cast("httpx.Response", self._retrying.handle_request(cast("httpx2.Request", request)))

    def __enter__(self) -> Self:
        self._retrying.__enter__()
        return self

    def close(self) -> None:
        self._retrying.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient`; arguments as for httpx2."""

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        policy: RetryPolicy | None = None,
        budget: RetryBudget | None = None,
    ) -> None:
        sender = cast("httpx2.AsyncBaseTransport", inner or httpx.AsyncHTTPTransport(limits=LIMITS))
        self._retrying = transports.AsyncRetryTransport(sender, policy=policy, budget=budget, library=HTTPX)
        self.budget = self._retrying.budget

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._retrying.handle_async_request(cast("httpx2.Request", request))
        return cast("httpx.Response", answer)

    async def __aenter__(self) -> Self:
        await self._retrying.__aenter__()
        return self

    async def aclose(self) -> None:
        await self._retrying.aclose()
