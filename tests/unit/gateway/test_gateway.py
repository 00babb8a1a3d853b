from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forebay.admission.model import TicketId
from forebay.admission.outcomes import Outcome
from forebay.gateway.gateway import POLLER_HEADER
from forebay.gateway.identity import Access
from forebay.gateway.ports import GatewaySettings, PoolView, Serving
from tests.unit.gateway.doubles import POOL, Desk, ScriptedExchange, chat_body


def test_ids_are_one_of_a_kind() -> None:
    """Ids of two gateways differ, and an id holds its ticket."""
    first, second = Desk().gateway, Desk().gateway
    assert first.own_id(TicketId(255)).endswith(b"-ff")
    assert first.own_id(TicketId(1)) != second.own_id(TicketId(1))


def test_a_new_view_is_used_from_the_next_request_on() -> None:
    """When the directory has another view, models and classes are looked up in it."""
    desk = Desk()
    assert desk.request(chat_body(model="new")).status == 404
    desk.directory.serving = replace(desk.directory.serving, pools=(replace(POOL, models=("new",)),))
    assert desk.request(chat_body(model="new")).status is None
    assert len(desk.core.events) == 1


def test_draining_takes_nothing_new() -> None:
    """While draining, inference is refused before its body is read; lists and probes go on."""
    desk = Desk()
    desk.directory.serving = replace(desk.directory.serving, draining=True)
    exchange = desk.request()
    assert (503, "draining", None) == (exchange.status, exchange.error()["code"], exchange.arrive)
    assert 1 <= int(exchange.headers[b"retry-after"]) <= 2
    health = ScriptedExchange(b"", path="/healthz")
    health.head.method = b"GET"
    desk.gateway.on_request(health)
    assert health.status == 200


def test_what_is_refused_unread_was_offered() -> None:
    """R60: by somebody who would be let in, and that could be served; of several pools nobody knows which."""
    desk = Desk()
    told: list[tuple[object, ...]] = []
    desk.gateway.early.on_refusal = lambda *refusal: told.append(refusal)
    desk.gateway.reconfigure(GatewaySettings(max_body_bytes=10))
    desk.request(b"x" * 11)
    desk.gateway.reconfigure(GatewaySettings())
    desk.request(chat_body(model="unknown"))
    desk.request(b"no json")
    serving = desk.directory.serving
    desk.directory.serving = replace(serving, draining=True, pools=(POOL, replace(POOL, name="other")))
    desk.request()
    desk.directory.serving = replace(desk.directory.serving, access=Access(anonymous=None))
    assert desk.request().status == 503
    assert told == [
        (POOL.name, "standard", "anonymous", Outcome.REQUEST_TOO_LARGE),
        ("", "standard", "anonymous", Outcome.DRAINING),
    ]


def test_settings_are_taken_over_live() -> None:
    """New bounds count from the next request on; what is taken stays taken."""
    desk = Desk()
    desk.gateway.reconfigure(GatewaySettings(max_body_bytes=10, max_waiting_bytes=5))
    assert desk.request(b"x" * 11).status == 413
    assert desk.request(b"x" * 6).status == 413
    assert desk.bodies.limit_bytes == 5


def test_protocol_errors_have_the_apis_shape() -> None:
    """What the HTTP layer refuses is told in the same shape as everything else, and counted."""
    desk = Desk()
    headers, body = desk.gateway.protocol_error(431, "head_too_large", "the head is longer than 65536 bytes")
    error = json.loads(body)["error"]
    assert ("head_too_large", "The head is longer than 65536 bytes.") == (error["code"], error["message"])
    assert (b"content-type", b"application/json") in headers
    assert desk.gateway.early.counts == {"head_too_large": 1}


def test_nothing_is_configured_yet() -> None:
    """Without a pool a request is told that no model is served."""
    desk = Desk()
    desk.directory.serving = Serving(())
    assert desk.request().status == 404
    assert desk.request(chat_body(model=None)).status == 400


def test_engine_defaults_of_completions_are_known() -> None:
    """/v1/completions without a limit is costed by what the engine generates then."""
    desk = Desk()
    for engine, limit in (("vllm", 16), ("llamacpp", None)):
        desk.directory.serving = Serving((replace(POOL, engine=engine),))
        exchange = ScriptedExchange(b'{"model":"m","prompt":"x"}', path="/v1/completions")
        desk.gateway.on_request(exchange)
        assert desk.core.events[-1].demand.max_output_tokens == limit  # type: ignore[union-attr]


def test_one_pool_without_names_takes_any() -> None:
    """A pool that has not said what it serves is sent what comes."""
    desk = Desk()
    desk.directory.serving = Serving((PoolView("p"),))
    assert desk.request(chat_body(model="whatever")).status is None


def test_its_own_polls_are_not_an_engines_answers(caplog: pytest.LogCaptureFixture) -> None:
    """An endpoint that leads back to the gateway looks unready to it, told once; polls of others are answered."""
    desk = Desk()
    statuses = []
    for asker in (desk.gateway.mark, desk.gateway.mark, Desk().gateway.mark):
        exchange = ScriptedExchange(b"", [(POLLER_HEADER, asker)], path="/v1/models")
        exchange.head.method = b"GET"
        desk.gateway.on_request(exchange)
        statuses.append(exchange.status)
    assert [503, 503, 200] == statuses
    assert ["leads back to the gateway itself" in line.getMessage() for line in caplog.records] == [True]
