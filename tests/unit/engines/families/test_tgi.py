from __future__ import annotations

import json

import pytest

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading
from forebay.engines.exposition import PAGE_BYTES
from forebay.engines.families.tgi import FAMILY
from forebay.engines.reading import Look
from tests.unit.engines.pages import answer, models_of, tgi_info, tgi_page


def sample(page: bytes) -> EngineSample:
    """The sample that a page makes."""
    reading = FAMILY.read("/metrics", answer(page))
    assert reading is not None
    return reading.sample


def test_a_page_is_read() -> None:
    """The running batch, the queue, tokens of what has ended and the passes of both kinds are read."""
    assert sample(tgi_page()) == EngineSample(
        at_s=10.0,
        took_s=0.005,
        running=5,
        waiting=3,
        prompt_tokens_total=4200,
        output_tokens_total=9300,
        steps_total=940,
    )


def test_f061_a_bad_value_is_unknown_and_named() -> None:
    """F061: a NaN queue is unknown, and the rest is used."""
    found = sample(tgi_page(queue="NaN"))
    assert (found.waiting, found.running, found.doubtful) == (None, 5, ("tgi_queue_size",))


def test_what_it_was_started_with_is_found() -> None:
    """Model, window, token budget and bound on requests come from `/info`."""
    look = Look(
        {
            "/metrics": answer(tgi_page()),
            "/info": answer(tgi_info(max_batch_total_tokens=16000)),
            "/v1/models": answer(status=404),
        }
    )
    assert FAMILY.claims(look)
    assert FAMILY.describe(look) == EngineInfo(
        EngineKind.TGI,
        models=("org/tiny",),
        context_tokens=4096,
        kv_tokens=16000,
        max_requests=128,
        reports_load=True,
        counts_while_running=True,
    )


def test_an_idle_server_is_known_by_its_info() -> None:
    """Before its first request there is no series of its own; a budget that is not set is not known."""
    look = Look({"/metrics": answer(b""), "/info": answer(tgi_info(max_batch_total_tokens=None))})
    assert FAMILY.claims(look)
    info = FAMILY.describe(look)
    assert (info.kv_tokens, info.reports_load, info.counts_while_running) == (None, False, False)
    assert FAMILY.sample_path(look) == "/metrics"


def test_the_name_in_the_list_of_models_is_preferred() -> None:
    """A list of models says by which names the server is asked."""
    look = Look({"/info": answer(tgi_info()), "/v1/models": answer(models_of("org/tiny", "served"))})
    assert FAMILY.describe(look).models == ("served",)


def test_without_metrics_the_list_of_models_is_the_sign_of_life() -> None:
    """A server whose metrics are elsewhere is looked at all the same."""
    look = Look({"/metrics": answer(status=404), "/info": answer(tgi_info())})
    assert FAMILY.sample_path(look) == "/v1/models"
    assert FAMILY.read("/v1/models", answer()) is not None


@pytest.mark.parametrize(
    "info", [b"", b"[]", b'{"version":"1"}', json.dumps({"max_total_tokens": 3}).encode()]
)
def test_others_are_not_claimed(info: bytes) -> None:
    """Another program's `/info` does not make it TGI."""
    assert not FAMILY.claims(Look({"/metrics": answer(b"te_queue_size 3\n"), "/info": answer(info)}))


@pytest.mark.parametrize("page", [answer(tgi_page(), 500), answer(b"x 1\n" * (PAGE_BYTES // 4 + 1))])
def test_what_cannot_be_read_is_no_sample(page: object) -> None:
    """An error, and a page without end, are no sample."""
    with pytest.raises(NoReading):
        FAMILY.read("/metrics", page)  # type: ignore[arg-type]
