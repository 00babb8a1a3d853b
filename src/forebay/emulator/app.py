"""The routes of the emulated engine, and the fan-out of each step to the answers under way.

Owns the table of live choices: a request is in it from submission until its last token, or until its client has
left, and in the engine no longer than that. Never decides timing (`realtime`) or wording (`wording`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from forebay.emulator import errors, generation, other_apis, other_wording
from forebay.emulator.answers import JSON_HEADERS, Answer, Choice, StreamAnswer, WholeAnswer
from forebay.emulator.errors import RequestRefused
from forebay.emulator.generation import Generation, GenerationRules
from forebay.emulator.lengths import Prompt
from forebay.emulator.metrics import CONTENT_TYPE, MetricsText, RequestMetrics
from forebay.emulator.realtime import RealTimeEngine
from forebay.emulator.wording import AnswerWording, Wording, filler
from forebay.enginemodel import EngineConfig, Request, StepResult
from forebay.http.exchange import BodyFailure, Exchange
from forebay.http.message import Headers, get_header

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
REQUEST_ID_BYTES_MAX: Final = 128
VERSION: Final = "0.32.0+forebay.emulator"

_Route = Callable[[Exchange], None]


class _MakeWording(Protocol):
    def __call__(self, *, answer_id: str, created: int, model: str, prompt_tokens: int) -> Wording: ...


@dataclass(frozen=True, slots=True)
class _Api:
    """How requests of one path are read and answered."""

    read: Callable[[bytes, GenerationRules], Generation]
    prefix: str
    """Of its answers' ids."""
    wording: _MakeWording | None = None
    """None: as chats and completions are."""


_EMBEDDINGS = _Api(other_apis.read_embeddings, "embd", other_wording.EmbeddingsWording)
_RERANK = _Api(other_apis.read_scores, "score", other_wording.RerankWording)
_SCORE = _Api(other_apis.read_scores, "score", other_wording.ScoresWording)
_APIS: Final = {
    "/v1/chat/completions": _Api(generation.read_chat, "chatcmpl"),
    "/v1/completions": _Api(generation.read_completion, "cmpl"),
    "/v1/messages": _Api(other_apis.read_messages, "chatcmpl", other_wording.MessagesWording),
    "/v1/responses": _Api(other_apis.read_responses, "resp", other_wording.ResponsesWording),
    "/v1/embeddings": _EMBEDDINGS,
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/score": _SCORE,
    "/v1/score": _SCORE,
}


class EmulatorApp:
    """Answers requests as vLLM would."""

    def __init__(
        self,
        *,
        config: EngineConfig,
        model: str,
        seed: int,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._model = model
        self._clock = clock
        self._wall_clock = wall_clock
        self._created_s = wall_clock()
        self._rules = GenerationRules(model, config.context_tokens, seed)
        self._ids = random.Random(f"{seed}:answer-ids")
        self._engine: RealTimeEngine | None = None
        self._live: dict[int, Choice] = {}
        self._answers: dict[int, Answer] = {}
        self._next_id = 0
        self._last_step_s = clock()
        self._closing = False
        self._metrics = RequestMetrics(config.context_tokens)
        self._metrics_text = MetricsText(model=model, config=config, created_s=self._created_s)
        self._routes: dict[str, tuple[bytes, _Route]] = {
            **{path: (b"POST", partial(self._read_generation, api)) for path, api in _APIS.items()},
            "/tokenize": (b"POST", partial(self._read_body_of, self._tokenize)),
            "/detokenize": (b"POST", partial(self._read_body_of, self._detokenize)),
            "/v1/messages/count_tokens": (b"POST", partial(self._read_body_of, self._count_tokens)),
            "/v1/models": (b"GET", self._models),
            "/metrics": (b"GET", self._show_metrics),
            "/version": (b"GET", self._version),
            "/health": (b"GET", self._health),
            "/ping": (b"GET", self._health),
            "/load": (b"GET", self._load),
        }

    def attach(self, engine: RealTimeEngine) -> None:
        """Set the engine; before the first request."""
        self._engine = engine

    def close(self) -> None:
        """End all answers with what there is. Later requests are answered with an error."""
        self._closing = True
        for answer in list(self._answers.values()):
            answer.cut()
            for choice in answer.choices:
                if self._live.pop(choice.request_id, None) is not None:
                    self._metrics.finished["abort"] += 1
        self._answers.clear()

    # -- from the HTTP server -----------------------------------------------------------------------------------

    def on_request(self, exchange: Exchange) -> None:
        """A request's head is there."""
        route = self._routes.get(exchange.head.path)
        if route is None:
            exchange.respond(404, JSON_HEADERS, errors.NOT_FOUND)
            return
        method, handler = route
        if exchange.head.method != method:
            exchange.respond(405, [*JSON_HEADERS, (b"allow", method)], errors.METHOD_NOT_ALLOWED)
            return
        handler(exchange)

    def protocol_error(self, status: int, code: str, message: str) -> tuple[Headers, bytes]:
        """The answer to something that is not HTTP."""
        return JSON_HEADERS, errors.error_body(status, message, code, None)

    # -- from the engine ----------------------------------------------------------------------------------------

    def on_step(self, result: StepResult) -> None:
        """A step is over: pass its tokens on."""
        now_s = self._clock()
        self._count_step(result, now_s)
        live = self._live
        for request_id in result.tokens:
            choice = live.get(request_id)
            if choice is not None:
                choice.answer.give(choice)
        for request_id in result.finished:
            choice = live.pop(request_id, None)
            if choice is not None:
                self._count_finished(choice, now_s)
                self._forget_if_done(choice.answer)
        self._last_step_s = now_s

    def _count_step(self, result: StepResult, now_s: float) -> None:
        live, metrics = self._live, self._metrics
        started_s = now_s - self._require_engine().to_real_s(result.duration_s)
        for request_id in result.admitted:
            if (choice := live.get(request_id)) is not None:
                choice.admitted_s = max(started_s, choice.arrived_s)
        for request_id in result.preempted:
            if (choice := live.get(request_id)) is not None:
                choice.preemptions += 1
                if choice.generated:
                    choice.held_since_s = self._last_step_s
        for request_id in result.first_tokens:
            if (choice := live.get(request_id)) is not None:
                choice.first_s = now_s
                metrics.first_token_s.observe(now_s - choice.arrived_s)
        for request_id in result.resumed:
            if (choice := live.get(request_id)) is not None:
                metrics.token_gap_s.observe(now_s - choice.held_since_s)
        if result.decoding:
            # All of these had their last token at the end of the step before.
            metrics.token_gap_s.observe(now_s - self._last_step_s, result.decoding)

    def _count_finished(self, choice: Choice, now_s: float) -> None:
        metrics, sample = self._metrics, choice.sample
        metrics.finished[choice.finish_reason] += 1
        metrics.e2e_s.observe(now_s - choice.arrived_s)
        metrics.queue_s.observe(choice.admitted_s - choice.arrived_s)
        metrics.inference_s.observe(now_s - choice.admitted_s)
        metrics.prefill_s.observe(choice.first_s - choice.admitted_s)
        metrics.decode_s.observe(now_s - choice.first_s)
        metrics.prompt_tokens.observe(sample.prompt.tokens)
        metrics.generation_tokens.observe(sample.output_tokens)
        metrics.limit_tokens.observe(sample.limit_tokens)
        metrics.preemptions.observe(choice.preemptions)
        if sample.output_tokens > 1:
            metrics.tpot_s.observe((now_s - choice.first_s) / (sample.output_tokens - 1))

    # -- generation ---------------------------------------------------------------------------------------------

    def _read_generation(self, api: _Api, exchange: Exchange) -> None:
        media_type = (
            (get_header(exchange.head.headers, b"content-type") or b"").split(b";")[0].strip().lower()
        )
        if media_type != b"application/json":
            message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
            self._refuse(exchange, RequestRefused(400, message, "Bad Request"))
            return
        self._read_body(exchange, partial(self._generate, exchange, api))

    def _read_body(self, exchange: Exchange, on_body: Callable[[bytes], None]) -> None:
        exchange.read_body(BODY_BYTES_MAX, on_body, partial(self._body_failed, exchange))

    def _body_failed(self, exchange: Exchange, failure: BodyFailure) -> None:
        if failure is BodyFailure.TOO_LARGE:
            refusal = RequestRefused(413, f"The body is larger than {BODY_BYTES_MAX} bytes.")
        elif failure is BodyFailure.TIMEOUT:
            refusal = RequestRefused(408, "The body did not come in time.")
        else:
            refusal = RequestRefused(400, "The body is broken: its chunked coding cannot be read.")
        self._refuse(exchange, refusal)

    def _generate(self, exchange: Exchange, api: _Api, raw: bytes) -> None:
        try:
            wanted = api.read(raw, self._rules)
        except RequestRefused as refusal:
            self._refuse(exchange, refusal)
            return
        if self._closing:
            message = "cannot schedule new futures after shutdown"
            self._refuse(exchange, RequestRefused(500, message, "InternalServerError"))
            return
        self._begin(exchange, api, wanted)

    def _begin(self, exchange: Exchange, api: _Api, wanted: Generation) -> None:
        engine = self._require_engine()
        answer_id, created = self._answer_id(exchange, api.prefix), int(self._wall_clock())
        wording: Wording
        if api.wording is None:
            wording = AnswerWording(
                chat=wanted.chat,
                answer_id=answer_id,
                created=created,
                model=self._model,
                prompt_tokens=wanted.prompt_tokens,
                continuous_usage=wanted.continuous_usage,
            )
        else:
            wording = api.wording(
                answer_id=answer_id, created=created, model=self._model, prompt_tokens=wanted.prompt_tokens
            )
        form = StreamAnswer if wanted.stream else WholeAnswer
        answer = form(exchange, wording, wanted, self._next_id, self._clock())
        self._next_id += len(answer.choices)
        exchange.on_disconnect = partial(self._client_left, answer)
        self._answers[answer.number] = answer
        self._metrics.samples.observe(wanted.samples_per_prompt)
        prompt: Prompt | None = None
        keys: Sequence[int] = ()
        for choice in answer.choices:
            if choice.sample.prompt is not prompt:  # samples of one prompt follow each other
                prompt = choice.sample.prompt
                keys = prompt.block_keys(self._config.block_size) if self._config.prefix_caching else ()
            self._live[choice.request_id] = choice
            engine.submit(Request(choice.request_id, prompt.tokens, choice.sample.output_tokens, keys))

    def _client_left(self, answer: Answer) -> None:
        engine = self._require_engine()
        for choice in answer.choices:
            if self._live.pop(choice.request_id, None) is not None:
                engine.abort(choice.request_id)
        self._answers.pop(answer.number, None)

    def _forget_if_done(self, answer: Answer) -> None:
        if all(choice.complete for choice in answer.choices):
            self._answers.pop(answer.number, None)

    def _answer_id(self, exchange: Exchange, prefix: str) -> str:
        asked = get_header(exchange.head.headers, b"x-request-id")
        if asked:
            return f"{prefix}-{asked[:REQUEST_ID_BYTES_MAX].decode('latin-1')}"
        return f"{prefix}-{self._ids.getrandbits(64):016x}"

    def _require_engine(self) -> RealTimeEngine:
        if self._engine is None:
            raise RuntimeError("attach an engine before requests come")
        return self._engine

    @staticmethod
    def _refuse(exchange: Exchange, refusal: RequestRefused) -> None:
        exchange.respond(refusal.status, JSON_HEADERS, refusal.body())

    # -- the small routes ---------------------------------------------------------------------------------------

    def _models(self, exchange: Exchange) -> None:
        model = {
            "id": self._model,
            "object": "model",
            "created": int(self._created_s),
            "owned_by": "vllm",
            "root": self._model,
            "parent": None,
            "max_model_len": self._config.context_tokens,
            "permission": [],
        }
        self._respond_json(exchange, {"object": "list", "data": [model]})

    def _show_metrics(self, exchange: Exchange) -> None:
        engine = self._require_engine()
        text = self._metrics_text.render(engine.statistics, self._metrics, engine.lag_s)
        exchange.respond(200, [(b"content-type", CONTENT_TYPE)], text)

    def _version(self, exchange: Exchange) -> None:
        self._respond_json(exchange, {"version": VERSION})

    def _load(self, exchange: Exchange) -> None:
        self._respond_json(exchange, {"server_load": len(self._answers)})

    @staticmethod
    def _health(exchange: Exchange) -> None:
        exchange.respond(200, [], b"")

    def _read_body_of(self, answer: Callable[[bytes], object], exchange: Exchange) -> None:
        self._read_body(exchange, partial(self._answer_json, exchange, answer))

    def _answer_json(self, exchange: Exchange, answer: Callable[[bytes], object], raw: bytes) -> None:
        try:
            self._respond_json(exchange, answer(raw))
        except RequestRefused as refusal:
            self._refuse(exchange, refusal)

    def _tokenize(self, raw: bytes) -> object:
        prompt = generation.read_tokenize(raw)
        return {
            "count": prompt.tokens,
            "max_model_len": self._config.context_tokens,
            "tokens": list(range(prompt.tokens)),
            "token_strs": None,
        }

    @staticmethod
    def _detokenize(raw: bytes) -> object:
        return {"prompt": filler(0, generation.read_detokenize(raw)).decode("ascii")}

    @staticmethod
    def _count_tokens(raw: bytes) -> object:
        tokens = other_apis.read_count(raw).tokens
        return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}

    @staticmethod
    def _respond_json(exchange: Exchange, body: object) -> None:
        exchange.respond(200, JSON_HEADERS, msgspec.json.encode(body))
