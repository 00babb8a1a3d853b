"""The admin API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from forebay.admission.model import EndpointId, Mode, TicketId
from forebay.admission.snapshot import Snapshot, TicketView
from forebay.gateway.early_answers import EarlyAnswer, EarlyAnswers
from forebay.gateway.refusals import plain_error
from forebay.observe.admin import AdminAccess, admin_app
from forebay.observe.decision_stream import DecisionStream
from forebay.observe.decisions import RecentDecisions
from forebay.observe.metrics import Metrics
from tests.unit.observe.records import record, refusal_record
from tests.unit.observe.snapshots import a_snapshot

CREDENTIAL = "correct-horse"
LOOPBACK = AdminAccess(on_loopback=True)
API = ("/api/snapshot", "/api/decisions", "/api/requests/abc-1")


@dataclass(frozen=True)
class Reload:
    """What came of a reload."""

    applied: bool
    changed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class FakeProcess:
    """A gateway that is what a test says."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.core: Snapshot | None = a_snapshot()
        self.reloads: list[str] = []
        self.outcome = Reload(applied=True, changed=("grace",))
        self.asked: list[tuple[object, ...]] = []
        self.states: dict[TicketId, TicketView] = {}
        self.early = EarlyAnswers()

    def unready_reason(self) -> str | None:
        return self.reason

    def uptime_s(self) -> float:
        return 12.5

    def snapshot(self) -> Snapshot | None:
        return self.core

    def ticket_of(self, request_id: str) -> TicketId | None:
        return TicketId(int(request_id[4:])) if request_id.startswith("abc-") else None

    def ids_of(self, ticket: TicketId) -> dict[str, str]:
        return {"id": f"abc-{ticket}", "request_id": f"client/{ticket}"}

    def look_up(self, ticket: TicketId) -> TicketView | None:
        return self.states.get(ticket)

    def answered_early(self, ticket: TicketId) -> EarlyAnswer | None:
        return self.early.of_ticket(ticket)

    def named_early(self, request_id: str) -> TicketId | None:
        return self.early.named(request_id.encode())

    def wall_clock_s(self, at_s: float) -> float:
        return 1_700_000_000.0 + at_s

    async def reload(self, reason: str) -> Reload:
        self.reloads.append(reason)
        return self.outcome

    def change_mode(self, mode: Mode | None, pool: str, class_name: str) -> None:
        self.asked.append((mode, pool, class_name))

    def drain_endpoint(self, endpoint: EndpointId, *, out: bool) -> None:
        self.asked.append((endpoint, out))

    def drain(self) -> float:
        self.asked.append(("all",))
        return 30.0


@asynccontextmanager
async def client(
    process: FakeProcess, access: AdminAccess = LOOPBACK, decisions: RecentDecisions | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API, without sockets."""
    stream = DecisionStream(lambda _: lambda: None)
    app = admin_app(process, Metrics(process.snapshot), decisions or RecentDecisions(), stream, access)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as opened:
        yield opened


async def test_health_and_readiness_are_two_things() -> None:
    """A process that shuts down is healthy but not ready, and says why."""
    process = FakeProcess()
    async with client(process) as http:
        assert (200, 200) == (
            (await http.get("/healthz")).status_code,
            (await http.get("/readyz")).status_code,
        )
        process.reason = "draining"
        answer = await http.get("/readyz")
        assert (503, "draining\n") == (answer.status_code, answer.text)
        assert 200 == (await http.get("/healthz")).status_code


async def test_index_names_every_path() -> None:
    """The first page tells what there is."""
    async with client(FakeProcess()) as http:
        text = (await http.get("/")).text
    assert all(
        path in text for path in ("/healthz", "/readyz", "/metrics", "/api/snapshot", "/api/requests/ID")
    )


async def test_metrics_are_prometheus_text() -> None:
    """Metrics come in the text format with its content type."""
    async with client(FakeProcess()) as http:
        answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "forebay_queue_requests" in answer.text


async def test_snapshot_is_json() -> None:
    """The snapshot is the core's own, with the process's state beside it."""
    process = FakeProcess()
    async with client(process) as http:
        body = (await http.get("/api/snapshot")).json()
        assert (True, 12.5, "p") == (body["ready"], body["uptime_s"], body["pools"][0]["name"])
        assert "up" == body["pools"][0]["endpoints"][0]["state"]
        process.core = None
        answer = await http.get("/api/snapshot")
    assert (503, True) == (answer.status_code, "error" in answer.json())


async def test_decisions_come_newest_first_and_are_limited() -> None:
    """Recent decisions are listed, as many as asked for."""
    ring = RecentDecisions()
    for number in range(5):
        ring.add(record(ticket=TicketId(number)))
    async with client(FakeProcess(), decisions=ring) as http:
        body = (await http.get("/api/decisions?limit=2")).json()
        assert [4, 3] == [entry["ticket"] for entry in body["decisions"]]
        assert 5 == len((await http.get("/api/decisions")).json()["decisions"])


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "00000001", "1" * 5000, "٣"])
async def test_limits_that_are_none_are_refused(limit: str) -> None:
    """A limit that is no number, or too large, is a 400 with the range."""
    async with client(FakeProcess()) as http:
        answer = await http.get("/api/decisions", params={"limit": limit})
    assert (400, True) == (answer.status_code, "1 to 1000" in answer.json()["error"])


async def test_decisions_of_one_request_are_found_by_its_id() -> None:
    """A request is looked up by the id that its client was given; an unknown one is a 404."""
    ring = RecentDecisions()
    ring.add(refusal_record(ticket=TicketId(7)))
    async with client(FakeProcess(), decisions=ring) as http:
        body = (await http.get("/api/requests/abc-7")).json()
        assert (7, "queue_full") == (body["ticket"], body["decisions"][0]["outcome"])
        for unknown in ("abc-8", "nonsense", "%00"):
            assert 404 == (await http.get(f"/api/requests/{unknown}")).status_code


@pytest.mark.parametrize("path", API)
async def test_api_is_closed_off_loopback_without_a_credential(path: str) -> None:
    """Open to the network and without a credential, the API says how to open it; health and metrics answer."""
    async with client(FakeProcess(), AdminAccess(on_loopback=False)) as http:
        answer = await http.get(path, headers={"authorization": "Bearer "})
        assert (403, True) == (answer.status_code, "admin_token" in answer.text)
        for open_path in ("/", "/healthz", "/readyz", "/metrics"):
            assert 200 == (await http.get(open_path)).status_code


@pytest.mark.parametrize("on_loopback", [True, False])
@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {CREDENTIAL}", 200),
        (f"bearer   {CREDENTIAL}", 200),
        ("Bearer wrong", 401),
        ("Bearer caf\u00e9", 401),
        (f"Basic {CREDENTIAL}", 401),
        (CREDENTIAL, 401),
        ("", 401),
    ],
)
async def test_configured_credential_is_asked_for(authorization: str, status: int, on_loopback: bool) -> None:
    """With a credential configured, the API takes exactly that one, from wherever."""
    access = AdminAccess(on_loopback=on_loopback, credential=CREDENTIAL)
    async with client(FakeProcess(), access) as http:
        answer = await http.get("/api/snapshot", headers={b"authorization": authorization.encode("latin-1")})
    assert status == answer.status_code
    assert CREDENTIAL not in answer.text


async def test_other_methods_and_paths_are_refused() -> None:
    """What is not there is a 404, and what only tells something takes no POST."""
    async with client(FakeProcess()) as http:
        assert 404 == (await http.get("/api/nothing")).status_code
        assert 405 == (await http.post("/api/snapshot")).status_code


async def test_a_clients_report_leads_to_its_decisions() -> None:
    """Decisions carry both ids and the time on the wall, and a request is found by the name its client gave it."""
    ring = RecentDecisions()
    for number in (7, 8):
        ring.add(record(ticket=TicketId(number), at_s=0.25))
    async with client(FakeProcess(), decisions=ring) as http:
        (shown,) = (await http.get("/api/decisions?limit=1")).json()["decisions"]
        assert ("abc-8", "client/8", "2023-11-14T22:13:20.250Z") == (
            shown["id"], shown["request_id"], shown["at"],
        )  # fmt: skip
        found = (await http.get("/api/requests/client/7")).json()
        assert (7, ["abc-7"]) == (found["ticket"], [entry["id"] for entry in found["decisions"]])
        assert 404 == (await http.get("/api/requests/client/9")).status_code


async def test_a_reload_is_asked_for_by_post_and_told() -> None:
    """What was applied, or 400 with what is wrong; nothing happens on a GET."""
    process = FakeProcess()
    async with client(process) as api:
        assert 405 == (await api.get("/api/reload")).status_code
        done = await api.post("/api/reload")
        assert (200, ["grace"]) == (done.status_code, done.json()["changed"])
        process.outcome = Reload(applied=False, problems=("forebay.yaml:3:1: pools: none",))
        refused = await api.post("/api/reload")
        assert (400, ["forebay.yaml:3:1: pools: none"]) == (refused.status_code, refused.json()["problems"])
    assert 2 == len(process.reloads)


@pytest.mark.parametrize(
    ("origin", "status"),
    [(None, 200), ("http://localhost", 200), ("https://evil.example", 403), ("null", 403)],
)
async def test_pages_of_others_cannot_make_a_browser_reload(origin: str | None, status: int) -> None:
    """A page of another origin that an operator looks at reaches this port through the browser."""
    process = FakeProcess()
    async with client(process) as api:
        headers = {} if origin is None else {"origin": origin}
        assert status == (await api.post("/api/reload", headers=headers)).status_code
    assert (status == 200) is bool(process.reloads)


async def test_a_reload_needs_the_credential() -> None:
    """As everything under /api/ off loopback."""
    process = FakeProcess()
    async with client(process, AdminAccess(on_loopback=False, credential="secret-1")) as api:
        assert 401 == (await api.post("/api/reload")).status_code
        headers = {"authorization": "Bearer secret-1"}
        assert 200 == (await api.post("/api/reload", headers=headers)).status_code
    assert 1 == len(process.reloads)


async def test_what_was_answered_without_a_decision_can_be_asked_about() -> None:
    """By either id: what its client was told, and that there was nothing to decide."""
    process = FakeProcess()
    process.early.add(
        TicketId(7), 5.0, plain_error(401, "invalid_api_key", "This key is not known."), b"mine"
    )
    async with client(process) as api:
        by_own = (await api.get("/api/requests/abc-7")).json()
        assert by_own == (await api.get("/api/requests/mine")).json()
        assert "ended" == by_own["state"]
        assert [
            "It was answered at once with 401 (invalid_api_key), before any decision was needed.",
            "This key is not known.",
        ] == by_own["explanation"]["summary"]
        assert 404 == (await api.get("/api/requests/abc-8")).status_code
        assert 404 == (await api.get("/api/requests/other")).status_code


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9321", 200),
        ("127.0.0.1", 200),
        ("127.0.0.2:9321", 200),
        ("[::1]:9321", 200),
        ("evil.example:9321", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
async def test_a_page_whose_name_now_points_here_is_kept_out(host: str, status: int) -> None:
    """Without a credential the API is for who asks for this machine by a name of its own (DNS rebinding)."""
    async with client(FakeProcess()) as api:
        assert status == (await api.get("/api/snapshot", headers={"host": host})).status_code
        assert 200 == (await api.get("/metrics", headers={"host": host})).status_code
    async with client(FakeProcess(), AdminAccess(on_loopback=True, credential=CREDENTIAL)) as api:
        headers = {"host": host, "authorization": f"Bearer {CREDENTIAL}"}
        assert 200 == (await api.get("/api/snapshot", headers=headers)).status_code
