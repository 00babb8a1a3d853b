"""What an operator can do over the admin API: reload, switch modes, take an endpoint out of use, shut down.

For: `admin`, which guards these paths like all others of `/api/`. Reads the request, says what is wrong with it in
words that name the fix, and asks the process. Decides nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response

from forebay.admission.model import EndpointState, Mode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from forebay.admission.model import EndpointId
    from forebay.admission.snapshot import EndpointView, Snapshot

__all__ = ["Operated", "Operations", "Reloaded", "json_answer"]

CONFIGURED = "configured"
"""In place of a mode: what the configuration says."""
T = TypeVar("T", bound=msgspec.Struct)
_MODES = ", ".join([*(mode.value for mode in Mode), CONFIGURED])
_FAILED = "the decision core has failed; see the log"
_NAMED = 20
"""Names that an error lists."""


class Reloaded(Protocol):
    """What came of a reload; shown as it is."""

    @property
    def applied(self) -> bool:
        """Whether the new configuration is in force."""


class Operated(Protocol):
    """What is asked of the running gateway."""

    def snapshot(self) -> Snapshot | None:
        """The core as it is; None if it cannot be asked any more."""

    async def reload(self, reason: str) -> Reloaded:
        """Read the configuration anew and apply it, or say why not."""

    def change_mode(self, mode: Mode | None, pool: str, class_name: str) -> None:
        """Switch what is done with decisions; None goes back to the configuration. Empty names mean all."""

    def drain_endpoint(self, endpoint: EndpointId, *, out: bool) -> None:
        """Give an endpoint no more requests, or give it some again."""

    def drain(self) -> float:
        """Shut down as SIGTERM would; returns the longest that it takes, in seconds."""


class _ModeBody(msgspec.Struct, forbid_unknown_fields=True):
    mode: str
    pool: str = ""
    class_name: str = msgspec.field(default="", name="class")


class _DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    undo: bool = False


class _Unfit(Exception):
    """The request cannot be meant; the text says why."""


class Operations:
    """One coroutine per path."""

    def __init__(self, process: Operated) -> None:
        self._process = process

    async def reload(self, _: Request) -> Response:
        result = await self._process.reload("asked for over the admin API")
        return json_answer(result, 200 if result.applied else 400)

    async def mode(self, request: Request) -> Response:
        """GET tells the modes in force, POST switches one and tells them."""
        snapshot = self._process.snapshot()
        if snapshot is None:
            return json_answer({"error": _FAILED}, 503)
        if request.method == "POST":
            try:
                body = await _body(request, _ModeBody)
                self._change_mode(body, snapshot)
            except _Unfit as unfit:
                return json_answer({"error": str(unfit)}, 400)
            snapshot = self._process.snapshot() or snapshot
        return json_answer(_modes_of(snapshot))

    def _change_mode(self, body: _ModeBody, snapshot: Snapshot) -> None:
        if body.mode != CONFIGURED and body.mode not in {mode.value for mode in Mode}:
            raise _Unfit(f"mode is one of: {_MODES}")
        _known("pool", body.pool, [pool.name for pool in snapshot.pools])
        _known("class", body.class_name, [entry.name for entry in snapshot.pools[0].classes])
        mode = None if body.mode == CONFIGURED else Mode(body.mode)
        self._process.change_mode(mode, body.pool, body.class_name)

    async def drain(self, request: Request) -> Response:
        """The whole process, or one endpoint of it."""
        try:
            body = await _body(request, _DrainBody)
            if body.endpoint is not msgspec.UNSET:
                return self._drain_endpoint(body.endpoint, out=not body.undo)
        except _Unfit as unfit:
            return json_answer({"error": str(unfit)}, 400)
        if body.undo:
            error = "the drain of the whole process cannot be undone; name an endpoint to put that back"
            return json_answer({"error": error}, 400)
        return json_answer({"draining": True, "within_s": self._process.drain()}, 202)

    def _drain_endpoint(self, named: str, *, out: bool) -> Response:
        snapshot = self._process.snapshot()
        if snapshot is None:
            return json_answer({"error": _FAILED}, 503)
        endpoints = {str(view.id): view for view in _in_use(snapshot)}
        wanted = named.rstrip("/")
        endpoint = endpoints.get(wanted) or endpoints.get(f"http://{wanted}")
        if endpoint is None:
            _known("endpoint", wanted, list(endpoints))
            raise _Unfit("endpoint is empty; leave it out to drain the whole process")
        self._process.drain_endpoint(endpoint.id, out=out)
        after = next((view for view in _in_use(self._process.snapshot()) if view.id == endpoint.id), endpoint)
        return json_answer(
            {
                "endpoint": after.id,
                "state": after.state.value,
                "running_requests": after.running_requests + after.draining_requests,
            }
        )


def _in_use(snapshot: Snapshot | None) -> Iterable[EndpointView]:
    """Endpoints that are configured."""
    for pool in snapshot.pools if snapshot is not None else ():
        for view in pool.endpoints:
            if view.state is not EndpointState.REMOVED:
                yield view


def _modes_of(snapshot: Snapshot) -> dict[str, Any]:
    """What is in force where, and what of it was switched live."""
    return {
        "mode": snapshot.mode.value,
        "live": [
            {"pool": change.pool or None, "class": change.class_name or None, "mode": change.mode.value}
            for change in snapshot.live_modes
        ],
        "pools": {
            pool.name: {entry.name: entry.mode.value for entry in pool.classes} for pool in snapshot.pools
        },
    }


async def _body(request: Request, shape: type[T]) -> T:
    """What was sent. Raises: _Unfit."""
    sent = await request.body()
    try:
        return msgspec.json.decode(sent or b"{}", type=shape)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Unfit(f"the body is a JSON object: {error}") from None


def _known(what: str, name: str, names: list[str]) -> None:
    """Raises: _Unfit for a name that is not there; an empty one means all."""
    if name and name not in names:
        shown = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        raise _Unfit(f"there is no {what} {name[:100]!r}; there are: {shown}")


def json_answer(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")
