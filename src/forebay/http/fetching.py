"""One whole bounded answer at a time, for pollers.

For: the reading of metrics, model lists and health, never for the request path: each fetch makes a future and a
timer. Owns its answer until it is returned. Never retries, except that a stale idle connection is replaced as for
any call.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forebay.http.call import CallFailure
from forebay.http.message import Headers, ResponseHead, encode_request_head

if TYPE_CHECKING:
    from forebay.http.client import Upstream

__all__ = ["FetchFailed", "fetch"]


class FetchFailed(Exception):
    """A fetch brought no whole answer."""

    def __init__(self, message: str, kind: CallFailure | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        """None if the answer took too long or was too large."""


class _Collected:
    """A sink that keeps one bounded answer."""

    __slots__ = ("_max_bytes", "_pieces", "_size_bytes", "answer", "head")

    def __init__(self, answer: asyncio.Future[tuple[ResponseHead, bytes]], max_bytes: int) -> None:
        self.answer = answer
        self.head: ResponseHead | None = None
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._max_bytes = max_bytes

    def on_head(self, head: ResponseHead) -> None:
        self.head = head

    def on_data(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes > self._max_bytes:
            self._fail(FetchFailed(f"the answer is longer than {self._max_bytes} bytes"))
        else:
            self._pieces.append(data)

    def on_end(self) -> None:
        if self.head is not None and not self.answer.done():
            self.answer.set_result((self.head, b"".join(self._pieces)))

    def on_failure(self, kind: CallFailure, detail: str) -> None:
        self._fail(FetchFailed(f"{kind.value}: {detail}", kind))

    def _fail(self, error: FetchFailed) -> None:
        self._pieces.clear()
        if not self.answer.done():
            self.answer.set_exception(error)


async def fetch(
    upstream: Upstream,
    method: bytes,
    path: bytes,
    *,
    timeout_s: float,
    max_bytes: int,
    headers: Headers | None = None,
    body: bytes = b"",
) -> tuple[ResponseHead, bytes]:
    """One whole answer, for pollers. Not for the request path: it makes a future and a timer.

    Args:
        headers: Further fields; Host and the length are added.
        max_bytes: Longest body that is kept.

    Raises:
        FetchFailed: no connection, no whole answer in `timeout_s`, or more than `max_bytes`. Any status is an
            answer.
    """
    fields = [(b"host", upstream.authority), *(headers or ())]
    head = encode_request_head(method, path, fields, content_length=len(body) if body else None)
    sink = _Collected(asyncio.get_running_loop().create_future(), max_bytes)
    call = upstream.send(head, body, sink)
    try:
        async with asyncio.timeout(timeout_s):
            return await sink.answer
    except TimeoutError:
        raise FetchFailed(f"no whole answer within {timeout_s} s") from None
    finally:
        call.abort()
