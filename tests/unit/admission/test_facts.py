from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.admission.facts import (
    ENGINE_FACTS,
    REQUEST_FACTS,
    EngineFact,
    FactValue,
    Scene,
    key_of,
    least_loaded,
)
from forebay.admission.model import EndpointState
from tests.unit.admission.build import Site, reading

PYTHON_TYPES = {"int": int, "double": float, "string": str, "bool": bool}
ENGINE = {fact.name: fact for fact in ENGINE_FACTS}


def told(site: Site, name: str, now: float = 0.0, rates: dict[str, float] | None = None) -> FactValue | None:
    """The value of a fact about engines."""
    return ENGINE[name].read(Scene(site.pool, rates or {}, now))


def test_every_fact_of_requests_has_a_value_of_its_type() -> None:
    """Whatever the client has left out."""
    site = Site()
    ticket = site.ticket(1, max_output_tokens=None, model="")
    values = {fact.name: fact.read(ticket.demand, ticket.cost, site.pool) for fact in REQUEST_FACTS}
    for fact in REQUEST_FACTS:
        assert type(values[fact.name]) is PYTHON_TYPES[fact.kind], fact.name
    assert (0, "", 0) == (
        values["request.max_tokens"],
        values["request.session"],
        values["request.retry_count"],
    )


def test_facts_of_requests_are_what_their_names_say() -> None:
    """The default request is a GPU-second of work."""
    site = Site()
    ticket = site.ticket(1, retry_count=2, session="s", tenant="acme", plan="free")
    values = {fact.name: fact.read(ticket.demand, ticket.cost, site.pool) for fact in REQUEST_FACTS}
    assert {
        "request.model": "llama",
        "request.stream": True,
        "request.max_tokens": 99,
        "request.prompt_tokens": 100,
        "request.output_tokens": 99,
        "request.tokens": 199,
        "request.samples": 1,
        "request.cost": 1.0,
        "request.body_bytes": 1000,
        "request.retry_count": 2,
        "request.session": "s",
        "tenant.name": "acme",
        "tenant.plan": "free",
        "class": "standard",
    } == values


@pytest.mark.parametrize("fact", ENGINE_FACTS, ids=lambda fact: fact.name)
def test_every_fact_of_engines_has_a_value_of_its_type_or_none(fact: EngineFact) -> None:
    """With an engine that says everything, and with none that is up."""
    site = Site()
    site.endpoint().sample = reading(0.0, running=3, waiting=1, kv_usage=0.5)
    value = fact.read(Scene(site.pool, {"a": 5.0}, 1.0))
    assert type(value) is PYTHON_TYPES[fact.kind]
    site.endpoint().state = EndpointState.DOWN
    nothing = fact.read(Scene(site.pool, {}, 1.0))
    assert (nothing is None) == fact.of_endpoint


def test_short_names_say_what_the_engine_says_else_what_we_know() -> None:
    """R11: running and waiting sequences, KV cache in use, tokens per second."""
    site = Site()
    booked = site.running(1).cost.kv_tokens
    assert (1, 0) == (told(site, "running_seq_count"), told(site, "waiting_seq_count"))
    assert pytest.approx(booked / 100_000) == told(site, "gpu_cache_usage_perc")
    assert told(site, "generation_tput") is None
    site.endpoint().sample = reading(0.0, running=40, waiting=2, kv_usage=0.91)
    assert (40, 2) == (told(site, "running_seq_count"), told(site, "waiting_seq_count"))
    assert 0.91 == told(site, "gpu_cache_usage_perc")
    assert 250.0 == told(site, "generation_tput", rates={"a": 250.0})


def test_what_nobody_knows_is_no_guess() -> None:
    """KV cache of an engine that says neither its size nor its use; the age of a reading that never came."""
    site = Site()
    endpoint = site.endpoint()
    endpoint.pool_settings = replace(endpoint.pool_settings, law=None)
    endpoint.find_kv_limit()
    assert told(site, "gpu_cache_usage_perc") is None
    assert told(site, "endpoint.sample_age") is None
    endpoint.sample = reading(1.0)
    assert 2.0 == told(site, "endpoint.sample_age", 3.0)


def test_the_pool_counts_what_waits_and_what_runs() -> None:
    """In requests and in GPU-seconds."""
    site = Site()
    site.running(1)
    site.queued(2)
    site.queued(3)
    assert (1, 2) == (told(site, "pool.inflight_requests"), told(site, "pool.queue_requests"))
    assert (1.0, 2.0) == (told(site, "pool.inflight_gpu_seconds"), told(site, "pool.queue_gpu_seconds"))
    assert (1, 1.0) == (told(site, "pool.endpoints"), told(site, "pool.drain_rate"))


def test_the_least_loaded_endpoint_has_the_fewest_sequences_and_is_up() -> None:
    """Running and waiting together; the first of several."""
    site = Site(endpoints=("a", "b", "c"))
    site.endpoint("a").sample = reading(0.0, running=5, waiting=0)
    site.endpoint("b").sample = reading(0.0, running=1, waiting=3)
    site.endpoint("c").sample = reading(0.0, running=0, waiting=0)
    site.endpoint("c").state = EndpointState.STALLED
    least = least_loaded(site.pool)
    assert least is not None
    assert "b" == least.id


def test_names_of_two_words_have_a_key_of_one() -> None:
    """And no two names have the same."""
    assert "request__model" == key_of("request.model")
    keys = [fact.key for fact in REQUEST_FACTS] + [fact.key for fact in ENGINE_FACTS]
    assert len(keys) == len(set(keys))


def test_gpus_are_as_busy_as_they_say_for_as_long_as_that_is_fresh() -> None:
    """Then it is what is seen of the pool."""
    site = Site()
    assert 0.0 == told(site, "gpu_utilization", 0.0)
    site.pool.gpu_load.read(0.8, 1.0)
    assert (0.8, 0.8, 0.0) == tuple(told(site, "gpu_utilization", now) for now in (1.0, 6.0, 6.1))
    assert 0.0 == told(site, "pool.utilization", 1.0)
