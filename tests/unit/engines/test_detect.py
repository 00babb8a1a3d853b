from __future__ import annotations

import asyncio

import pytest

from forebay.admission.model import EngineKind
from forebay.engines.detect import Finding, find_out
from forebay.engines.reading import Answer, ReadFailed
from tests.unit.engines.pages import (
    answer,
    llamacpp_models,
    llamacpp_page,
    llamacpp_props,
    llamacpp_slots,
    models_of,
    sglang_models,
    sglang_page,
    tgi_info,
    tgi_page,
    triton_page,
    vllm_models,
    vllm_page,
)
from tests.unit.engines.scripted import HANGS, REFUSED, ScriptedEngine, run


def engine(answers: dict[str, Answer | ReadFailed]) -> ScriptedEngine:
    """An engine with these answers, and 404 for all else."""
    return ScriptedEngine(**answers)


def vllm(**changes: Answer | ReadFailed) -> ScriptedEngine:
    """A vLLM."""
    answers: dict[str, Answer | ReadFailed] = {
        "/metrics": answer(vllm_page()),
        "/v1/models": answer(vllm_models("tiny")),
    }
    return engine(answers | changes)


def llamacpp(**changes: Answer | ReadFailed) -> ScriptedEngine:
    """A llama.cpp server."""
    answers: dict[str, Answer | ReadFailed] = {
        "/metrics": answer(llamacpp_page(), server="llama.cpp"),
        "/v1/models": answer(llamacpp_models()),
        "/slots": answer(llamacpp_slots(2048, 2048)),
        "/props": answer(llamacpp_props(slots=2)),
    }
    return engine(answers | changes)


def test_vllm_is_found_in_one_look() -> None:
    """Two questions, asked at once, are enough for vLLM; the first sample comes with them."""
    reader = vllm()
    finding = run(find_out(reader))
    assert (finding.info.kind, finding.info.models) == (EngineKind.VLLM, ("tiny",))
    assert sorted(reader.asked) == [(100.0, "/metrics"), (100.0, "/v1/models")]
    assert finding.sample is not None
    assert (finding.sample_path, finding.sample.status, finding.has_holes) == ("/metrics", 200, False)


def test_llamacpp_is_found() -> None:
    """llama.cpp is recognised and asked for its slots."""
    finding = run(find_out(llamacpp()))
    assert (finding.info.kind, finding.info.max_requests, finding.info.context_tokens) == (
        EngineKind.LLAMACPP,
        2,
        2048,
    )
    assert not finding.has_holes


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        (EngineKind.SGLANG, {"/metrics": answer(sglang_page()), "/v1/models": answer(sglang_models())}),
        (EngineKind.SGLANG, {"/v1/models": answer(sglang_models())}),
        (EngineKind.TGI, {"/metrics": answer(tgi_page()), "/info": answer(tgi_info())}),
        (EngineKind.TGI, {"/metrics": answer(b""), "/info": answer(tgi_info())}),
        (EngineKind.TRTLLM, {"/metrics": answer(triton_page())}),
        (EngineKind.TRTLLM, {"/v1/models": answer(models_of("tensorrt_llm"))}),
    ],
)
def test_other_families_are_found(kind: EngineKind, answers: dict[str, Answer | ReadFailed]) -> None:
    """Each is recognised by its metrics, by its list of models, or by what it says of itself."""
    finding = run(find_out(engine(answers)))
    assert finding.info.kind is kind
    assert finding.sample is not None


def test_llamacpp_without_metrics_is_whole() -> None:
    """A 501 is an answer that stays: there is nothing to look for again."""
    finding = run(find_out(llamacpp(**{"/metrics": answer(b"{}", 501, server="llama.cpp")})))
    assert (finding.info.kind, finding.sample_path, finding.has_holes) == (
        EngineKind.LLAMACPP,
        "/slots",
        False,
    )


def test_llamacpp_is_found_by_its_properties() -> None:
    """A server that hides its name, its metrics and its signature is found by its properties."""
    reader = engine({"/props": answer(llamacpp_props()), "/v1/models": answer(b'{"data":[{"id":"m"}]}')})
    assert run(find_out(reader)).info.kind is EngineKind.LLAMACPP


def test_anything_else_is_openai() -> None:
    """A server that answers, and that nobody claims, is served as one with the OpenAI API."""
    finding = run(find_out(engine({"/v1/models": answer(b'{"data":[{"id":"m"}]}'), "/health": answer()})))
    assert (finding.info.kind, finding.info.models, finding.sample_path, finding.has_holes) == (
        EngineKind.OPENAI,
        ("m",),
        "/health",
        False,
    )


def test_a_server_that_knows_no_path_is_openai() -> None:
    """A server that has only its inference routes is served."""
    assert run(find_out(engine({}))).info.kind is EngineKind.OPENAI


def test_configured_kind_is_not_guessed() -> None:
    """With a kind given, only what that family wants to see is asked, and the answers cannot change the kind."""
    reader = llamacpp()
    finding = run(find_out(reader, kind=EngineKind.VLLM))
    assert finding.info.kind is EngineKind.VLLM
    assert {"/metrics", "/v1/models"} == {path for _, path in reader.asked}
    reader = vllm()
    assert run(find_out(reader, kind=EngineKind.OPENAI)).info.kind is EngineKind.OPENAI
    assert "/metrics" not in {path for _, path in reader.asked}


def test_refused_connection_is_unreachable() -> None:
    """Where nothing listens, the failure says so."""
    reader = vllm()
    reader.down = REFUSED
    with pytest.raises(ReadFailed) as failure:
        run(find_out(reader))
    assert failure.value.unreachable


def test_silence_is_not_unreachable() -> None:
    """An engine that takes connections and answers nothing is not gone, and costs a bounded time."""
    reader = vllm()
    reader.delays_s = dict.fromkeys(("/metrics", "/v1/models"), HANGS)

    async def story() -> float:
        with pytest.raises(ReadFailed) as failure:
            await find_out(reader, timeout_s=2.0)
        assert not failure.value.unreachable
        return asyncio.get_running_loop().time() - 100.0

    assert run(story()) <= 2.5


@pytest.mark.parametrize("status", [500, None])
def test_f062_broken_metrics_do_not_hide_the_engine(status: int | None) -> None:
    """F062: an engine whose metrics fail or hang is found by its models, soon, and the finding says what is missing."""
    reader = vllm()
    if status is None:
        reader.delays_s["/metrics"] = 60.0
    else:
        reader.answers["/metrics"] = answer(b"Internal Server Error", status)

    async def story() -> tuple[Finding, float]:
        return await find_out(reader), asyncio.get_running_loop().time() - 100.0

    finding, took_s = run(story())
    assert (finding.info.kind, finding.info.models, finding.info.reports_load) == (
        EngineKind.VLLM,
        ("tiny",),
        False,
    )
    assert finding.has_holes
    assert took_s < 1.0


def test_hanging_metrics_and_no_models() -> None:
    """An engine of which only a missing page answers is served meanwhile, as one without metrics."""
    reader = engine({"/metrics": answer(vllm_page())})
    reader.delays_s["/metrics"] = HANGS
    finding = run(find_out(reader))
    assert (finding.info.kind, finding.has_holes) == (EngineKind.OPENAI, True)


def test_loading_engine_is_not_described() -> None:
    """An engine that answers everything with 503 is still loading: it is not taken for something else."""
    loading = answer(b'{"error":{"message":"Loading model","code":503}}', 503, server="llama.cpp")
    with pytest.raises(ReadFailed, match="not ready"):
        run(find_out(engine({"/metrics": loading, "/v1/models": loading})))


def test_failure_of_ours_is_not_hidden() -> None:
    """A reader's own mistake comes out as what it is."""

    class Broken:
        async def get(self, path: str, *, timeout_s: float, max_bytes: int) -> Answer:
            raise ZeroDivisionError(path)

    with pytest.raises(ZeroDivisionError):
        run(find_out(Broken()))


def test_cancelled_look_leaves_nothing_behind() -> None:
    """Giving up a look gives up its questions."""
    reader = vllm()
    reader.delays_s = dict.fromkeys(("/metrics", "/v1/models"), HANGS)

    async def story() -> None:
        look = asyncio.ensure_future(find_out(reader))
        await asyncio.sleep(0.1)
        look.cancel()
        await asyncio.wait([look])
        assert look.cancelled()

    run(story())
    assert reader.in_flight == 0


@pytest.mark.parametrize(
    ("models", "doubt"),
    [
        (answer(b"<html>Nothing matches the given URI</html>", 404), "/v1/models answered 404"),
        (answer(b"<html>Hello</html>"), "/v1/models answered with no list of models"),
        (answer(b"[]"), "/v1/models answered with no list of models"),
        (answer(b'{"data":[]}'), ""),
        (answer(b"{}", 401), ""),
        (answer(b"{}", 500), ""),
    ],
)
def test_what_looks_like_no_engine_is_doubted(models: Answer, doubt: str) -> None:
    """A web server without a list of models is served, and doubted; one that hides its list or is unwell is not."""
    finding = run(find_out(engine({"/v1/models": models})))
    assert (finding.info.kind, finding.doubt) == (EngineKind.OPENAI, doubt)


def test_engines_that_are_recognised_are_not_doubted() -> None:
    """An engine known by its metrics is one, whatever its list of models says."""
    assert run(find_out(vllm(**{"/v1/models": answer(b"{}", 404)}))).doubt == ""
