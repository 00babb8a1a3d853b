"""Replays a trace against a server: the same sizes at the same moments, as an open loop, and what users felt.

Owns how a row becomes a request: a chat of synthetic text with the row's number of prompt tokens. Requests of one
session begin alike, so that a prefix cache finds what it would have found; others have nothing in common. What the
trace does not say is filled in: the class (the objectives' default), the client's limit (the next power of two above
the answer, at least 256).

The text's length is measured first: one request asks the server how many tokens it makes of known text. It also shows
whether the server is there, serves the model, and takes the fields that only some engines know.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from forebay.admission.settings import ClassSettings
from forebay.config import ConfigError, load, to_settings
from forebay.http.client import FetchFailed, Upstream, fetch
from forebay.load.chat import BYTES_PER_TOKEN, TEMPLATE_TOKENS, prompt_text
from forebay.load.felt import Felt, Report, summarise
from forebay.load.generator import Counts, OpenLoop, Target
from forebay.load.synthetic import read_source
from forebay.load.traces import TraceError, TraceRow
from forebay.load.workload import Arrival, client_limit_tokens
from forebay.profiles import load_profile

__all__ = ["Objectives", "Plan", "Replay", "ReplayFailed", "Replayed", "read_objectives", "read_plan"]

MAX_ROWS: Final = 1_000_000
"""Requests of one replay: all are planned before the first is sent, so that reading holds up none. About 500 MB."""
_PATH: Final = "/v1/chat/completions"
_PROBE_TOKENS: Final = 400
_PROBE_S: Final = 60.0
_ANSWER_BYTES: Final = 4 << 20
_PLACEHOLDER: Final = [{"endpoints": ["http://127.0.0.1:8000"]}]
_NAME: Final = re.compile(r"[!-~]([ -~]{0,126}[!-~])?")


class ReplayFailed(Exception):
    """Nothing was replayed; the message says why."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """What counts as met."""

    classes: tuple[ClassSettings, ...]
    default_class: str


def read_objectives(path: Path | None) -> Objectives:
    """Those of the `classes` of a file, which may be a whole configuration; without one those of zero configuration.

    Raises: ConfigError.
    """
    pools = {"pools": ("--slo", _PLACEHOLDER)}
    try:
        loaded = load(path, environ={}, options=pools if path is None else {})
    except ConfigError as error:
        if path is None:
            raise
        try:
            loaded = load(path, environ={}, options=pools)
        except ConfigError:
            raise error from None
    settings = to_settings(loaded, memory_limit_bytes=1 << 30, read_profile=load_profile)
    return Objectives(settings.classes, settings.default_class)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is going to be sent."""

    arrivals: Sequence[Arrival]
    origins: Mapping[int, TraceRow]
    """The rows of those that belong to a session, a tenant, or share a prefix, by index."""

    @property
    def duration_s(self) -> float:
        """To the last arrival."""
        return self.arrivals[-1].at_s if self.arrivals else 0.0


def read_plan(source: str, objectives: Objectives, *, speed: float = 1.0, limit: int | None = None) -> Plan:
    """Plan the requests of a trace.

    Args:
        source: a file, or `synthetic:NAME`.
        objectives: its classes are those that a trace may name.
        speed: 2 sends everything in half the time.
        limit: the first so many rows only.

    Raises:
        TraceError: the trace cannot be read, is too long, or names a class without objectives.
    """
    known = {entry.name for entry in objectives.classes}
    arrivals: list[Arrival] = []
    origins: dict[int, TraceRow] = {}
    for index, row in enumerate(read_source(source, limit)):
        if index == MAX_ROWS:
            raise TraceError(f"{source}: has more than {MAX_ROWS} requests; take the first ones with --limit")
        name = row.class_name or objectives.default_class
        if name not in known:
            raise TraceError(
                f"{source}: request {index + 1} is of class {name!r}, which has no objectives; known are "
                f"{', '.join(sorted(known))} (--slo)"
            )
        output = max(row.output_tokens, 1)
        arrivals.append(
            Arrival(
                index=index,
                at_s=row.at_s / speed,
                class_name=name,
                prompt_tokens=max(row.prompt_tokens, 1),
                output_tokens=output,
                limit_tokens=row.limit_tokens or client_limit_tokens(output),
                stream=row.stream,
            )
        )
        if row.session or row.tenant or row.cached_tokens:
            origins[index] = row
    if not arrivals:
        raise TraceError(f"{source}: there is not one request in it")
    return Plan(arrivals, origins)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it."""

    report: Report
    stopped: bool
    """Somebody ended it before its time; what was not sent by then is not in the report."""


class Replay:
    """One replay. `prepare`, then `run`."""

    def __init__(
        self,
        plan: Plan,
        targets: Sequence[Target],
        *,
        model: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        label: str = "replay",
        exact: bool = False,
    ) -> None:
        """See the module.

        Args:
            plan: what to send.
            targets: asked in turn.
            model: its name; None asks the first target for the only one that it serves.
            headers: of every request, as `authorization`.
            label: begins every prompt: two replays with different ones share no prefix.
            exact: answers of the trace's length, by `ignore_eos`, of engines that know it.
        """
        self._plan = plan
        self._targets = targets
        self._model = model
        self._headers = headers
        self._label = label
        self._exact = exact
        self._extras = True
        self._bytes_per_token = float(BYTES_PER_TOKEN)
        self._client: OpenLoop | None = None

    @property
    def counts(self) -> Counts:
        """How far it has got."""
        return Counts() if self._client is None else replace(self._client.counts)

    async def prepare(self) -> None:
        """Find the model and measure the text. Raises: ReplayFailed."""
        upstream = self._targets[0].upstream()
        try:
            if self._model is None:
                self._model = await self._only_model(upstream)
            status, body = await self._probe(upstream)
            if status == 400:
                self._extras = False
                status, body = await self._probe(upstream)
        finally:
            upstream.close()
        if status == 200:
            if not body.lstrip().startswith(b"{"):
                raise ReplayFailed(
                    f"the target answers a chat with no JSON: {body[:100].decode(errors='replace')!r}"
                )
            self._measure(body)
        elif status not in {
            429,
            503,
            529,
        }:  # those who are busy can be measured no more than those who do not count
            raise ReplayFailed(f"the target answers {status}: {body[:300].decode(errors='replace')}")

    async def run(self, objectives: Objectives, *, tail_s: float) -> Replayed:
        """Send everything, and wait for answers for so long after the last. SIGINT and SIGTERM end it early."""
        plan = self._plan
        self._client = client = OpenLoop(
            self._targets,
            self._compose,
            path=_PATH,
            headers=self._headers,
            own_headers=self._own_headers if plan.origins else None,
        )
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        sending = asyncio.ensure_future(client.run(plan.arrivals, tail_s=tail_s))
        with _signals(sending) as received:
            try:
                felt: list[Felt] = await sending
            except asyncio.CancelledError:
                if not received:
                    raise
                felt = client.felt
        spent_s = loop.time() - began_s
        duration_s = min(plan.duration_s, spent_s) if received else plan.duration_s
        report = summarise(felt, objectives.classes, duration_s=max(duration_s, 1e-3))
        return Replayed(report, stopped=bool(received))

    # Requests

    def _compose(self, arrival: Arrival) -> bytes:
        stream = {"stream": True, "stream_options": {"include_usage": True}} if arrival.stream else {}
        limit = arrival.output_tokens if self._exact else arrival.limit_tokens
        return self._body(self._text(arrival), limit, arrival.output_tokens, stream)

    def _body(self, text: str, limit: int, output: int, more: Mapping[str, object]) -> bytes:
        body: dict[str, object] = {"model": self._model, "max_tokens": limit, **more}
        if self._extras:
            body["emulator_output_tokens"] = output  # others take it for an unknown field
        if self._exact:
            body["ignore_eos"] = True
        return json.dumps({**body, "messages": [{"role": "user", "content": text}]}).encode()

    def _text(self, arrival: Arrival) -> str:
        size, ratio = arrival.prompt_tokens, self._bytes_per_token
        own = f"{self._label} {arrival.index}. "
        row = self._plan.origins.get(arrival.index)
        if row is not None and row.session:
            return prompt_text(f"{self._label} session {row.session}. ", size, ratio)
        if row is not None and row.cached_tokens:
            shared = prompt_text(f"{self._label} shared. ", min(row.cached_tokens, size), ratio)
            return (shared + own + prompt_text("", size, ratio))[: len(prompt_text("", size, ratio))]
        return prompt_text(own, size, ratio)

    def _own_headers(self, arrival: Arrival) -> str:
        row = self._plan.origins.get(arrival.index)
        if row is None:
            return ""
        named = (("x-forebay-tenant", row.tenant), ("x-forebay-session", row.session))
        return "".join(f"{key}: {value}\r\n" for key, value in named if _NAME.fullmatch(value))

    # Before the first

    async def _only_model(self, upstream: Upstream) -> str:
        status, body = await self._ask(upstream, b"GET", b"/v1/models", b"")
        names = _models(body) if status == 200 else []
        if len(names) == 1:
            return names[0]
        found = (
            f"it serves {', '.join(names[:10])}"
            if names
            else f"it answers {status} when asked for its models"
        )
        raise ReplayFailed(f"say which model to ask for with --model: {found}")

    async def _probe(self, upstream: Upstream) -> tuple[int, bytes]:
        text = prompt_text(f"{self._label} measure. ", _PROBE_TOKENS)
        return await self._ask(upstream, b"POST", _PATH.encode(), self._body(text, 1, 1, {}))

    async def _ask(self, upstream: Upstream, method: bytes, path: bytes, body: bytes) -> tuple[int, bytes]:
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in self._headers]
        if body:
            headers.append((b"content-type", b"application/json"))
        try:
            head, answer = await fetch(
                upstream,
                method,
                path,
                timeout_s=_PROBE_S,
                max_bytes=_ANSWER_BYTES,
                headers=headers,
                body=body,
            )
        except FetchFailed as failure:
            raise ReplayFailed(f"http://{upstream.authority.decode()} does not answer: {failure}") from None
        return head.status, answer

    def _measure(self, body: bytes) -> None:
        try:
            tokens = msgspec.json.decode(body, type=_Probed).usage.prompt_tokens - TEMPLATE_TOKENS
        except (msgspec.MsgspecError, RecursionError):
            return
        if tokens > 0:
            sent = len(prompt_text("", _PROBE_TOKENS))
            self._bytes_per_token = min(16.0, max(1.0, sent / tokens))


class _Counted(msgspec.Struct):
    prompt_tokens: int


class _Probed(msgspec.Struct):
    usage: _Counted


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _models(body: bytes) -> list[str]:
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except (msgspec.MsgspecError, RecursionError):
        return []


@contextmanager
def _signals(task: asyncio.Future[list[Felt]]) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM ends the sending; which came is in the list."""
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield received
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
