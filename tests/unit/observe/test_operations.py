"""What an operator can do over the admin API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.admission.model import Mode, ModeChange
from tests.unit.observe.records import ENDPOINT
from tests.unit.observe.snapshots import a_snapshot
from tests.unit.observe.test_admin import FakeProcess, client


async def test_modes_in_force_are_told() -> None:
    """The general one, that of each class of each pool, and what was switched live."""
    process = FakeProcess()
    process.core = replace(
        a_snapshot(), mode=Mode.SHADOW, live_modes=(ModeChange("p", "", Mode.BYPASS),)
    )  # fmt: skip
    async with client(process) as api:
        told = (await api.get("/api/mode")).json()
    assert "shadow" == told["mode"]
    assert [{"pool": "p", "class": None, "mode": "bypass"}] == told["live"]
    assert {"p": {"realtime": "enforce", "standard": "enforce", "batch": "enforce"}} == told["pools"]
    assert [] == process.asked


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"mode": "shadow"}, (Mode.SHADOW, "", "")),
        ({"mode": "bypass", "pool": "p"}, (Mode.BYPASS, "p", "")),
        ({"mode": "enforce", "pool": "p", "class": "batch"}, (Mode.ENFORCE, "p", "batch")),
        ({"mode": "configured", "class": "batch"}, (None, "", "batch")),
    ],
)
async def test_a_mode_is_switched(body: dict[str, str], asked: tuple[object, ...]) -> None:
    """For everything, a pool, a class, or a class of a pool; the answer tells what is in force then."""
    process = FakeProcess()
    async with client(process) as api:
        answer = await api.post("/api/mode", json=body)
    assert (200, "enforce") == (answer.status_code, answer.json()["mode"])
    assert [asked] == process.asked


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "mode"),
        (b"[]", "object"),
        (b"{", "JSON"),
        (b"[" * 5000, "JSON"),
        (b'{"mode": "off"}', "enforce, shadow, bypass, configured"),
        (b'{"mode": "shadow", "pool": "q"}', "no pool 'q'; there are: p"),
        (b'{"mode": "shadow", "class": "vip"}', "there are: realtime, standard, batch"),
        (b'{"mode": "shadow", "pol": "p"}', "pol"),
        (b'{"mode": "shadow", "pool": 5}', "pool"),
    ],
)
async def test_a_switch_that_cannot_be_meant_changes_nothing(body: bytes, said: str) -> None:
    """And says what is wrong with it."""
    process = FakeProcess()
    async with client(process) as api:
        answer = await api.post("/api/mode", content=body)
    assert (400, True) == (answer.status_code, said in answer.json()["error"])
    assert [] == process.asked


@pytest.mark.parametrize(
    "named", [ENDPOINT, f"{ENDPOINT}/", "10.0.0.1:8000"], ids=["id", "with a slash", "address"]
)
async def test_an_endpoint_is_drained_and_put_back(named: str) -> None:
    """By its address in whichever form; the answer tells how many requests it still has."""
    process = FakeProcess()
    async with client(process) as api:
        out = await api.post("/api/drain", json={"endpoint": named})
        assert (200, {"endpoint": ENDPOINT, "state": "up", "running_requests": 4}) == (
            out.status_code, out.json(),
        )  # fmt: skip
        await api.post("/api/drain", json={"endpoint": named, "undo": True})
    assert [(ENDPOINT, True), (ENDPOINT, False)] == process.asked


async def test_the_process_is_drained() -> None:
    """Without a body; what that takes is told."""
    process = FakeProcess()
    async with client(process) as api:
        answer = await api.post("/api/drain")
        assert (202, {"draining": True, "within_s": 30.0}) == (answer.status_code, answer.json())
        assert 405 == (await api.get("/api/drain")).status_code
    assert [("all",)] == process.asked


@pytest.mark.parametrize(
    "body",
    [
        {"enpoint": ENDPOINT},
        {"endpoint": "http://10.9.9.9:1"},
        {"endpoint": ""},
        {"undo": True},
        {"endpoint": 7},
        {"endpoint": None},
    ],
)
async def test_a_drain_that_cannot_be_meant_drains_nothing(body: dict[str, Any]) -> None:
    """A misspelt key above all must not take the whole process down."""
    process = FakeProcess()
    async with client(process) as api:
        answer = await api.post("/api/drain", json=body)
    assert (400, True) == (answer.status_code, bool(answer.json()["error"]))
    assert [] == process.asked


async def test_a_failed_core_is_told() -> None:
    """There is nothing to switch any more."""
    process = FakeProcess()
    process.core = None
    async with client(process) as api:
        assert 503 == (await api.get("/api/mode")).status_code
        assert 503 == (await api.post("/api/drain", json={"endpoint": ENDPOINT})).status_code
    assert [] == process.asked
