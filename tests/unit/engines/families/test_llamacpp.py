from __future__ import annotations

import pytest

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading
from forebay.engines.families.llamacpp import FAMILY
from forebay.engines.reading import Answer, Look
from tests.unit.engines.pages import (
    answer,
    llamacpp_models,
    llamacpp_page,
    llamacpp_props,
    llamacpp_slots,
    vllm_models,
    vllm_page,
)

NO_METRICS = answer(b'{"error":{"code":501,"message":"This server does not support metrics endpoint."}}', 501)


def look(**changes: Answer) -> Look:
    """What a server with four slots answers, but for the changes."""
    answers = {
        "/metrics": answer(llamacpp_page(), server="llama.cpp"),
        "/v1/models": answer(llamacpp_models()),
        "/slots": answer(llamacpp_slots(2048, 2048, 2048, 2048)),
        "/props": answer(llamacpp_props()),
    }
    return Look(answers | {f"/{path}": changed for path, changed in changes.items()})


def read(body: bytes, path: str = "/metrics") -> EngineSample:
    """The sample that a body makes."""
    reading = FAMILY.read(path, answer(body))
    assert reading is not None
    return reading.sample


def test_reads_a_whole_page() -> None:
    """Requests and token counters are read; the KV cache and steps, of which it says nothing, are unknown."""
    assert EngineSample(
        at_s=10.0,
        took_s=0.005,
        running=4,
        waiting=20,
        prompt_tokens_total=400,
        output_tokens_total=0,
        cached_tokens_total=7,
    ) == read(llamacpp_page())


def test_f059_no_kv_ratio() -> None:
    """F059: without a KV gauge the usage is unknown; an older server's gauge is used."""
    assert read(llamacpp_page()).kv_usage is None
    assert read(llamacpp_page(more="llamacpp:kv_cache_usage_ratio 0.25")).kv_usage == 0.25


def test_f061_odd_values() -> None:
    """F061: nonsense is unknown and named, the rest is used."""
    found = read(llamacpp_page(processing="NaN", deferred=-3))
    assert (found.running, found.waiting, found.prompt_tokens_total) == (None, None, 400)
    assert found.doubtful == ("llamacpp:requests_processing", "llamacpp:requests_deferred")


def test_slots_stand_in_for_metrics() -> None:
    """A server started without metrics is sampled by its slots, which know nothing of waiting requests."""
    assert FAMILY.sample_path(look(metrics=NO_METRICS)) == "/slots"
    assert FAMILY.sample_path(look()) == "/metrics"
    assert FAMILY.sample_path(look(metrics=NO_METRICS, slots=answer(b"", 501))) == "/metrics"
    assert EngineSample(at_s=10.0, took_s=0.005, running=3) == read(
        llamacpp_slots(9, 9, 9, 9, busy=3), "/slots"
    )


@pytest.mark.parametrize("body", [b"{}", b"", b"null"])
def test_odd_slots_are_no_sample(body: bytes) -> None:
    """What is no list of slots is no sample."""
    with pytest.raises(NoReading):
        FAMILY.read("/slots", answer(body))


def test_odd_slot_is_not_busy() -> None:
    """Entries that are no slots are not counted."""
    assert read(b'[1,null,{},{"is_processing":1},{"is_processing":true}]', "/slots").running == 1


def test_process_is_marked_by_its_header() -> None:
    """The header with the process's start marks it."""
    reading = FAMILY.read("/metrics", answer(llamacpp_page(), process_start_time_unix="1296326627"))
    assert reading is not None
    assert reading.process == "1296326627"


def test_describes_itself() -> None:
    """Slots, their context and the habits of its HTTP server are said."""
    assert EngineInfo(
        kind=EngineKind.LLAMACPP,
        models=("tiny", "small"),
        checks_model_names=False,
        context_tokens=2048,
        kv_tokens=4 * 2048,
        max_requests=4,
        linger_s=1.0,
        aborts_unstreamed=False,
        reports_load=True,
        counts_while_running=False,
        closes_after_stream=True,
    ) == FAMILY.describe(look())


def test_props_stand_in_for_slots() -> None:
    """Where the slots are not shown, their number and context come from the properties."""
    found = FAMILY.describe(look(slots=answer(b"", 501), props=answer(llamacpp_props(slots=2, context=512))))
    assert (found.max_requests, found.context_tokens, found.kv_tokens) == (2, 512, 1024)


def test_nothing_known_of_slots() -> None:
    """Where neither is shown, limits are unknown."""
    found = FAMILY.describe(look(slots=answer(b"", 501), props=answer(b"{}")))
    assert (found.max_requests, found.context_tokens, found.kv_tokens) == (None, None, None)


def test_shared_cache_is_counted_once() -> None:
    """Slots that each show the model's whole length share one cache, and it is not counted once per slot."""
    found = FAMILY.describe(
        Look(
            {
                "/metrics": answer(llamacpp_page()),
                "/v1/models": answer(llamacpp_models(context=8192, trained=8192)),
                "/slots": answer(llamacpp_slots(8192, 8192, 8192, 8192)),
            }
        )
    )
    assert (found.max_requests, found.context_tokens, found.kv_tokens) == (4, 8192, 8192)


def test_claims_its_own() -> None:
    """Its header, its metric names, its signature and its properties each give it away."""
    for path, proof in (
        ("/metrics", answer(llamacpp_page())),
        ("/metrics", answer(NO_METRICS.body, 501, server="llama.cpp")),
        ("/v1/models", answer(llamacpp_models())),
        ("/props", answer(llamacpp_props())),
    ):
        assert FAMILY.claims(Look({path: proof}))
    assert not FAMILY.claims(
        Look({"/metrics": answer(vllm_page()), "/v1/models": answer(vllm_models("tiny"))})
    )
    assert not FAMILY.claims(Look())
