from __future__ import annotations

import json

import pytest

from forebay.admission.model import EndpointId
from forebay.gateway.ports import EndpointView, PoolView, Serving
from forebay.gateway.routing import Routing, Unroutable

VLLM = PoolView(
    "a", models=("llama", "llama-lora"), checks_model_names=True, context_tokens=2048, engine="vllm"
)
LLAMACPP = PoolView("b", models=("tiny",), engine="llamacpp")
SILENT = PoolView("c")
PATTERNED = PoolView("d", models=("ft-*",), checks_model_names=True)


def routed(model: str | None, *pools: PoolView) -> str:
    """Name of the pool for a model."""
    return Routing(Serving(pools)).pool_for(model).name


def unroutable(model: str | None, *pools: PoolView) -> tuple[int, str, str]:
    """Status, code and message of the refusal."""
    with pytest.raises(Unroutable) as caught:
        routed(model, *pools)
    error = json.loads(caught.value.answer.body)["error"]
    return caught.value.answer.status, error["code"], error["message"]


def test_names_find_their_pool() -> None:
    """A listed name goes to the pool that lists it, a pattern to the pool that has it."""
    pools = (VLLM, LLAMACPP, PATTERNED)
    assert ["a", "b", "d", "d"] == [routed(m, *pools) for m in ("llama-lora", "tiny", "ft-x", "ft-x")]


def test_unknown_names_where_engines_check() -> None:
    """A single pool whose engines refuse unknown names: 404, naming what is served."""
    status, code, message = unroutable("nope", VLLM)
    assert (404, "model_not_found") == (status, code)
    assert "llama, llama-lora" in message
    assert "nope" not in message


def test_unknown_names_where_engines_do_not_look() -> None:
    """A single pool whose engine ignores the name, or has not said yet, gets the request."""
    assert ["b", "c"] == [routed("nope", LLAMACPP), routed("nope", SILENT)]


def test_unknown_names_among_several_pools() -> None:
    """With several pools an unknown name is 404, unless one of them may turn out to serve it."""
    assert unroutable("nope", VLLM, LLAMACPP)[0] == 404
    assert routed("nope", VLLM, SILENT) == "c"


def test_no_name() -> None:
    """No model named: the only pool, or 400 naming the models."""
    assert routed(None, VLLM) == "a"
    status, code, message = unroutable(None, VLLM, LLAMACPP)
    assert (400, "invalid_request") == (status, code)
    assert "llama" in message
    assert "tiny" in message


def test_resolved_patterns_are_bounded() -> None:
    """Names that clients make up do not fill memory."""
    routing = Routing(Serving((VLLM, PATTERNED)))
    for number in range(5_000):
        routing.pool_for(f"ft-{number}")
    assert len(routing._memo) <= 1_024


def test_the_model_list_is_merged() -> None:
    """All pools' names are listed once, with what is known of them; patterns are not names."""
    listed = json.loads(Routing(Serving((VLLM, LLAMACPP, PATTERNED))).model_list().body)
    assert listed["object"] == "list"
    assert [("llama", "vllm"), ("llama-lora", "vllm"), ("tiny", "llamacpp")] == [
        (entry["id"], entry["owned_by"]) for entry in listed["data"]
    ]
    assert listed["data"][0]["max_model_len"] == 2048


def test_one_model_is_shown() -> None:
    """A single model is shown, and an unknown one is 404."""
    routing = Routing(Serving((VLLM,)))
    assert json.loads(routing.model_entry("llama").body)["id"] == "llama"
    assert routing.model_entry("nope").status == 404


def test_whether_a_model_is_served_is_not_known_before_the_engines_have_said() -> None:
    """As long as one has not, it may be there: a 404 would tell the client not to ask again."""
    answer = Routing(Serving((VLLM, PoolView("silent", ())))).model_entry("nope")
    assert 503 == answer.status
    assert b"2" == dict(answer.headers)[b"retry-after"]


def test_endpoints_of_all_pools() -> None:
    """Endpoints are listed pool by pool."""
    views = [EndpointView(EndpointId(f"e{n}"), "127.0.0.1", n) for n in range(3)]
    serving = Serving((PoolView("a", tuple(views[:2])), PoolView("b", tuple(views[2:]))))
    assert views == Routing(serving).endpoints()
