from __future__ import annotations

import pytest

from forebay.admission.model import EngineInfo, EngineKind, EngineSample
from forebay.engines.base import NoReading
from forebay.engines.families.openai import FAMILY
from forebay.engines.reading import Look
from tests.unit.engines.pages import answer


def test_health_proves_life_where_it_exists() -> None:
    """A server with a health page is asked for that, any other for its models."""
    assert FAMILY.sample_path(Look({"/health": answer()})) == "/health"
    assert FAMILY.sample_path(Look({"/health": answer(b"", 404)})) == "/v1/models"
    assert FAMILY.sample_path(Look()) == "/v1/models"


@pytest.mark.parametrize("status", [200, 401, 404, 405])
def test_any_answer_is_a_proof_of_life(status: int) -> None:
    """A refusal of the list proves that the server lives; nothing is known of its load."""
    reading = FAMILY.read("/v1/models", answer(b"", status))
    assert reading is not None
    assert (EngineSample(at_s=10.0, took_s=0.005), None) == (reading.sample, reading.process)


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 500), ("/v1/models", 503), ("/health", 502), ("/health", 404)]
)
def test_a_server_that_says_it_is_unwell_is_believed(path: str, status: int) -> None:
    """A server error, or a health page that is not 200, is no proof of life."""
    with pytest.raises(NoReading):
        FAMILY.read(path, answer(b"", status))


@pytest.mark.parametrize("status", [500, 503])
def test_its_health_says_that_it_takes_no_work(status: int) -> None:
    """That is a reading, and is taken at its word, also if it says so from the start."""
    reading = FAMILY.read("/health", answer(b"", status))
    assert reading is not None
    assert reading.sample.unready == f"its /health says {status}"
    assert FAMILY.sample_path(Look({"/health": answer(b"", status)})) == "/health"


def test_describes_what_little_is_known() -> None:
    """Models and a context length are taken from the list; no load is promised."""
    body = (
        b'{"data":[{"id":"a","context_length":4096},{"id":"b","max_model_len":"8192"},'
        b'{"id":"c","max_model_len":-1}]}'
    )
    assert EngineInfo(kind=EngineKind.OPENAI, models=("a", "b", "c"), context_tokens=8192) == FAMILY.describe(
        Look({"/v1/models": answer(body)})
    )


def test_claims_nobody() -> None:
    """The fallback claims nobody: it takes what is left."""
    assert not FAMILY.claims(Look({"/v1/models": answer(b'{"data":[{"id":"a"}]}')}))
