"""How an engine is asked: what this package needs of an HTTP client, and what it makes of the answers.

The client itself lives elsewhere and is handed in: nothing here opens a socket. What comes back is another process's
text, so every way of looking into it is bounded and none raises on odd content.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

__all__ = ["ANSWER_BYTES", "Answer", "EngineReader", "Look", "ReadFailed"]

ANSWER_BYTES: Final = 4 * 1024 * 1024
"""The largest answer that is taken, before and after decompression."""
MODELS_LISTED: Final = 1000
"""The most models of one engine that are looked at."""
MODEL_NAME_CHARS: Final = 512


class ReadFailed(Exception):
    """An engine could not be read."""

    def __init__(self, detail: str, *, unreachable: bool) -> None:
        super().__init__(detail)
        self.unreachable = unreachable
        """True if no connection could be made: evidence that the process is gone."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of an engine to a GET."""

    status: int
    body: bytes
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Names in lower case."""
    at_s: float = 0.0
    """When it was asked, on the driver's clock."""
    took_s: float = 0.0

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    def plain_body(self) -> bytes | None:
        """The body without its content coding; None if that cannot be undone within the size limit.

        We ask for no coding, but some servers and proxies compress whatever is asked.
        """
        coding = (self.header(b"content-encoding") or b"identity").strip().lower()
        if coding == b"identity":
            return self.body
        if coding not in {b"gzip", b"x-gzip", b"deflate"}:
            return None
        inflater = zlib.decompressobj(wbits=47)  # either zlib or gzip framing, told by its first bytes
        try:
            body = inflater.decompress(self.body, ANSWER_BYTES)
        except zlib.error:
            return None
        return body if inflater.eof else None


class EngineReader(Protocol):
    """Asks one engine. An implementation sends `Accept-Encoding: identity` and follows no redirect."""

    async def get(self, path: str, *, timeout_s: float, max_bytes: int) -> Answer:
        """The answer, whatever its status.

        Raises:
            ReadFailed: no answer within `timeout_s`, a broken one, or one above `max_bytes`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """What an engine answered to a handful of paths. Paths that gave no answer are absent."""

    answers: Mapping[str, Answer] = field(default_factory=dict)

    def body(self, path: str) -> bytes | None:
        """The body of a 200 answer; None for any other."""
        answer = self.answers.get(path)
        return answer.plain_body() if answer is not None and answer.status == 200 else None

    def header(self, name: bytes) -> bytes | None:
        """The header of the first answer that has it."""
        return next((value for answer in self.answers.values() if (value := answer.header(name))), None)

    def json(self, path: str) -> object:
        """The JSON value of a 200 answer; None for any other, and for what is no JSON."""
        body = self.body(path)
        if body is None:
            return None
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            return None

    def models(self) -> list[Mapping[str, object]]:
        """Entries of `/v1/models` that have a usable name."""
        match self.json("/v1/models"):
            case {"data": list(entries)}:
                return [
                    entry
                    for entry in entries[:MODELS_LISTED]
                    if isinstance(entry, dict) and _is_name(entry.get("id"))
                ]
        return []

    def model_names(self) -> tuple[str, ...]:
        """Names that the engine says it answers to, each once, in its own order."""
        return tuple(dict.fromkeys(self._named()))

    def is_owned_by(self, owner: str) -> bool:
        """True if the list of models names this program as their owner."""
        return any(entry.get("owned_by") == owner for entry in self.models())

    def _named(self) -> Iterator[str]:
        for entry in self.models():
            yield str(entry["id"])
            match entry.get("aliases"):
                case list(aliases):
                    yield from (alias for alias in aliases[:MODELS_LISTED] if _is_name(alias))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MODEL_NAME_CHARS
