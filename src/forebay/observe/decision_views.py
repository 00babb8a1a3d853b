"""What the admin API tells about decisions: the recent ones, those to come, and all about one request.

For: `admin`, which guards these paths. Shows records as they are, with what a client's report can be matched by: the
ids of its request and the time on the wall.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from starlette.responses import Response, StreamingResponse

from forebay.admission.model import DecisionRecord, Settlement, TicketId
from forebay.observe.decision_stream import DecisionStream, TooManyReaders
from forebay.observe.decisions import RecentDecisions
from forebay.observe.explanation import explain, unasked
from forebay.observe.operations import json_answer

if TYPE_CHECKING:
    from starlette.requests import Request

    from forebay.admission.snapshot import TicketView

__all__ = ["Asked", "DecisionViews"]

_MAX_DECISIONS: Final = 1000
_EVENTS: Final = "text/event-stream"
_UNKNOWN: Final = (
    "nothing is known of this request here. The process that answered it knows it, if it is one of the last, by "
    "its x-forebay-id or by the x-request-id that its client sent"
)


class Asked(Protocol):
    """What is asked of the running gateway."""

    def ticket_of(self, request_id: str) -> TicketId | None:
        """The ticket behind an `x-forebay-id`; None if the text is no such id."""

    def ids_of(self, ticket: TicketId) -> dict[str, str]:
        """`id`: its `x-forebay-id`. `request_id`: the `x-request-id` that its client sent, if it sent one."""

    def look_up(self, ticket: TicketId) -> TicketView | None:
        """One request as it is now; None if it is over, or was never known."""

    def answered_early(self, ticket: TicketId) -> Unasked | None:
        """What was answered under this id without a decision; None if nothing was, or too long ago."""

    def named_early(self, request_id: str) -> TicketId | None:
        """The latest request so answered that its client named so."""

    def wall_clock_s(self, at_s: float) -> float:
        """Seconds since the epoch of a moment on the core's clock."""


class Unasked(Protocol):
    """An answer without a decision."""

    @property
    def at_s(self) -> float:
        """When, on the core's clock."""

    @property
    def status(self) -> int:
        """Of HTTP."""

    @property
    def code(self) -> str:
        """The error's code."""

    @property
    def body(self) -> bytes:
        """What the client was told."""


class DecisionViews:
    """One coroutine per path."""

    def __init__(self, process: Asked, decisions: RecentDecisions, stream: DecisionStream) -> None:
        self._process = process
        self._decisions = decisions
        self._stream = stream

    async def decisions(self, request: Request) -> Response:
        """The last ones; or those to come, if the client takes events."""
        if _EVENTS in request.headers.get("accept", ""):
            return self._live()
        text = request.query_params.get("limit", "100")
        if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= _MAX_DECISIONS):
            return json_answer({"error": f"limit is a number from 1 to {_MAX_DECISIONS}"}, 400)
        latest = self._decisions.latest(int(text))
        return json_answer({"decisions": [self._shown(record) for record in latest]})

    def _live(self) -> Response:
        try:
            events = self._stream.open(self._shown)
        except TooManyReaders:
            error = f"{self._stream.readers} read decisions already, or the process ends; try again later"
            return json_answer({"error": error}, 503)
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(events, media_type=_EVENTS, headers=headers)

    async def request(self, request: Request) -> Response:
        """All about one request."""
        request_id = request.path_params["request_id"]
        ticket = self._process.ticket_of(request_id) or self._named(request_id)
        if ticket is None:
            return json_answer({"error": _UNKNOWN}, 404)
        records, state = self._decisions.of_ticket(ticket), self._process.look_up(ticket)
        if not records and state is None:
            return self._unasked(ticket)
        end = self._decisions.end_of(ticket)
        return json_answer(
            {
                "ticket": ticket,
                **self._process.ids_of(ticket),
                **self._state(state),
                "explanation": explain(records, end, state),
                "decisions": [self._shown(record) for record in records],
                "end": None if end is None else self._end(end),
            }
        )

    def _named(self, request_id: str) -> TicketId | None:
        """The latest request that its client named so. A scan: only people ask."""
        tickets = (record.ticket for record in self._decisions.latest(_MAX_DECISIONS))
        found = (t for t in tickets if self._process.ids_of(t).get("request_id") == request_id)
        return next(found, None) or self._process.named_early(request_id)

    def _unasked(self, ticket: TicketId) -> Response:
        """One that was answered before any decision, as far as that is remembered."""
        answer = self._process.answered_early(ticket)
        if answer is None:
            return json_answer({"error": _UNKNOWN}, 404)
        return json_answer(
            {
                "ticket": ticket,
                **self._process.ids_of(ticket),
                "state": "ended",
                "explanation": unasked(answer.status, answer.code, answer.body),
                "decisions": [],
                "end": None,
                "answered_early": {
                    "at": self._time(answer.at_s),
                    "status": answer.status,
                    "code": answer.code,
                },
            }
        )

    def _state(self, view: TicketView | None) -> dict[str, Any]:
        """`state` and what goes with it; of one that is over nothing more."""
        if view is None:
            return {"state": "ended"}
        shown: dict[str, Any] = msgspec.to_builtins(view)
        return {"state": shown.pop("phase"), "since": self._time(shown.pop("since_s")), **shown}

    def _shown(self, record: DecisionRecord) -> dict[str, Any]:
        shown: dict[str, Any] = msgspec.to_builtins(record)
        return {**self._process.ids_of(record.ticket), "at": self._time(record.at_s), **shown}

    def _end(self, end: Settlement) -> dict[str, Any]:
        return {"at": self._time(end.at_s), **msgspec.to_builtins(end)}

    def _time(self, at_s: float) -> str:
        """A moment on the core's clock as time on the wall."""
        at = datetime.fromtimestamp(self._process.wall_clock_s(at_s), UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
