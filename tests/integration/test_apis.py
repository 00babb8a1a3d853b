"""Every API that is served, through the gateway: what engines answer, what it counts for, errors in its own shape."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from forebay.admission.outcomes import Outcome
from forebay.admission.settings import PoolSettings, Settings
from tests.integration.fakes import (
    MODEL,
    STREAM_HEAD,
    FakeEngine,
    Served,
    Stack,
    chat,
    chat_answer,
    chunk,
    eventually,
    plain,
    post,
    running,
)
from tests.integration.processes import ServeProcess, client, engine, until_up
from tests.integration.test_quota import limits, tenants
from tests.integration.test_quota import post as post_as_acme
from tests.integration.test_tenants import KEY, write

MESSAGE: dict[str, object] = {
    "model": MODEL,
    "max_tokens": 20,
    "messages": [{"role": "user", "content": "hi"}],
}
FORM = (
    b'--X\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
    b'--X\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff\r\n--X--\r\n'
    % MODEL.encode()
)


def events(*data: str, named: bool = False) -> bytes:
    """A stream of events, with names where the API has them."""
    name = "event: x\n" if named else ""
    return "".join(f"{name}data: {one}\n\n" for one in data).encode()


STREAMS: dict[str, tuple[dict[str, object], bytes, tuple[int, int]]] = {
    "/v1/messages": (
        MESSAGE,
        events(
            '{"type":"message_start","message":{"usage":{"input_tokens":4,"cache_read_input_tokens":10,"output_tokens":1}}}',
            '{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}',
            '{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}',
            '{"type":"message_stop"}',
            named=True,
        ),
        (14, 15),
    ),
    "/v1/responses": (
        {"model": MODEL, "input": "hi"},
        events(
            '{"type":"response.created","response":{"usage":null,"error":null}}',
            '{"type":"response.output_text.delta","delta":"x"}',
            '{"response":{"usage":{"input_tokens":15,"output_tokens":4}},"type":"response.incomplete"}',
            named=True,
        ),
        (15, 4),
    ),
    "/completion": (
        {"prompt": "hi"},
        events(
            '{"content":"x","stop":false,"tokens_predicted":1,"tokens_evaluated":6}',
            '{"content":"","stop":true,"tokens_predicted":2,"tokens_evaluated":6,"stop_type":"limit"}',
        ),
        (6, 2),
    ),
    "/generate": (
        {"text": "hi", "sampling_params": {"max_new_tokens": 2}},
        events(
            '{"text":"a","meta_info":{"finish_reason":null,"prompt_tokens":3,"completion_tokens":1}}',
            '{"text":"ab","meta_info":{"finish_reason":{"type":"length"},"prompt_tokens":3,"completion_tokens":2}}',
            "[DONE]",
        ),
        (3, 2),
    ),
    "/generate_stream": (
        {"inputs": "hi", "parameters": {"max_new_tokens": 2}},
        events(
            '{"token":{"text":"a"},"generated_text":null,"details":null}',
            '{"token":{"text":"b"},"generated_text":"ab",'
            '"details":{"finish_reason":"length","generated_tokens":2,"input_length":3}}',
        ),
        (3, 2),
    ),
    "/inference/v1/generate": (
        {"model": MODEL, "token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2}},
        events(
            '{"choices":[{"token_ids":[5],"finish_reason":null}]}',
            '{"choices":[{"token_ids":[6],"finish_reason":"length"}]}',
            '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}',
            "[DONE]",
        ),
        (3, 2),
    ),
    f"/v2/models/{MODEL}/generate_stream": (
        {"text_input": "hi", "max_tokens": 2},
        events('{"text_output":"a"}', '{"text_output":"b"}'),
        (9, 2),
    ),
}


@pytest.mark.parametrize("path", STREAMS)
async def test_streams_of_every_api_are_relayed_and_counted(path: str) -> None:
    """Each arrives byte for byte, is whole, and its usage counts; without one the events stand for tokens."""
    body, sent, (prompt_tokens, output_tokens) = STREAMS[path]

    async def script(served: Served) -> None:
        await served.stream(sent)

    engine_ = FakeEngine(script)
    async with running(Stack([engine_])) as stack:
        reply = await stack.ask(post({**body, "stream": True}, path))
        assert (200, sent) == (reply.status, reply.body)
        (settled,) = await stack.settled(1)
        assert (Outcome.COMPLETED, prompt_tokens, output_tokens) == (
            settled.outcome,
            settled.prompt_tokens,
            settled.output_tokens,
        )
        await stack.idle()


def answer(**more: object) -> bytes:
    """A whole answer."""
    return json.dumps({"id": "x", **more}).encode()


WHOLE: list[tuple[str, dict[str, object], bytes, tuple[int, int]]] = [
    ("/v1/messages", MESSAGE, answer(usage={"input_tokens": 14, "output_tokens": 4}), (14, 4)),
    (
        "/v1/responses",
        {"input": "hi"},
        answer(usage={"input_tokens": 15, "output_tokens": 4}, user=None),
        (15, 4),
    ),
    (
        "/v1/embeddings",
        {"input": "hi"},
        answer(data=[0.1] * 90_000, usage={"prompt_tokens": 4, "total_tokens": 4}),
        (4, 0),
    ),
    ("/v1/rerank", {"query": "q", "documents": ["d"]}, answer(usage={"total_tokens": 9}, results=[]), (9, 0)),
    ("/score", {"text_1": "q", "text_2": "d"}, answer(usage={"prompt_tokens": 9}), (9, 0)),
    ("/pooling", {"input": [1, 2, 3]}, answer(usage={"prompt_tokens": 3, "completion_tokens": 0}), (3, 0)),
    ("/classify", {"input": [[1, 2], [3]]}, answer(data=[]), (3, 0)),
    ("/completion", {"prompt": "hi"}, answer(tokens_predicted=4, tokens_evaluated=6, stop=True), (6, 4)),
    ("/infill", {"input_prefix": "a"}, answer(tokens_predicted=4, tokens_evaluated=6, stop=True), (6, 4)),
    ("/generate", {"text": "x"}, answer(meta_info={"prompt_tokens": 3, "completion_tokens": 2}), (3, 2)),
    ("/v1/images/generations", {"prompt": "a cat", "n": 2}, answer(data=[]), (0, 0)),
    ("/v1/audio/speech", {"input": "hi"}, b"\x00\xff\x00", (0, 0)),
]


@pytest.mark.parametrize(("path", "body", "sent", "tokens"), WHOLE, ids=[case[0] for case in WHOLE])
async def test_answers_of_every_api_are_relayed_and_counted(
    path: str, body: dict[str, object], sent: bytes, tokens: tuple[int, int]
) -> None:
    """Each arrives as it is, and counts for what the engine said of it, also behind megabytes of embeddings."""

    async def script(served: Served) -> None:
        await served.send(plain(sent))

    engine_ = FakeEngine(script)
    async with running(Stack([engine_])) as stack:
        data = {"model": MODEL, **body}
        reply = await stack.ask(post(data, path))
        assert (200, sent) == (reply.status, reply.body)
        assert json.dumps(data).encode() == engine_.requests[0].body
        (settled,) = await stack.settled(1)
        assert (Outcome.COMPLETED, *tokens) == (settled.outcome, settled.prompt_tokens, settled.output_tokens)
        await stack.idle()


async def test_a_form_goes_to_the_pool_of_its_model() -> None:
    """A recording reaches the engine as it is; a model that is not served is told before it does."""
    engine_ = FakeEngine(answer_empty)
    async with running(Stack([engine_])) as stack:
        head = "content-type: multipart/form-data; boundary=X\r\n"
        path = "/v1/audio/transcriptions"
        assert (await stack.ask(post(FORM, path, head))).status == 200
        assert FORM == engine_.requests[0].body
        other = await stack.ask(post(FORM.replace(MODEL.encode(), b"other"), path, head))
        assert (404, "model_not_found") == (other.status, other.error()["code"])
        assert (await stack.ask(post(b"{}", path, head))).status == 400
        await stack.idle()


async def answer_empty(served: Served) -> None:
    """An object with nothing in it."""
    await served.send(plain(b"{}"))


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{", 400, "invalid_request_error"),
        (b'{"max_tokens": 0}', 400, "invalid_request_error"),
        (b'{"messages": 7}', 400, "invalid_request_error"),
        (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "invalid_request_error"),
        (b'{"model": "other", "max_tokens": 1}', 404, "not_found_error"),
    ],
    ids=["syntax", "limit", "messages", "deep", "model"],
)
async def test_f084_messages_have_errors_of_their_own_shape(body: bytes, status: int, kind: str) -> None:
    """F084: what is wrong is told in Anthropic's shape, with our code in it and nothing of the input."""
    engine_ = FakeEngine()
    async with running(Stack([engine_])) as stack:
        for path in ("/v1/messages", "/v1/messages/count_tokens")[: 1 if b'max_tokens": 0' in body else 2]:
            if path.endswith("tokens") and b"messages" in body and b"[[" not in body:
                continue  # of a count only the model is read
            reply = await stack.ask(post(body, path))
            told = json.loads(reply.body)
            assert (status, "error", kind) == (reply.status, told["type"], told["error"]["type"])
            assert told["error"]["code"] == reply.headers["x-forebay-reason"]
        assert engine_.requests == []
        get = await stack.ask(b"GET /v1/messages HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (405, "error") == (get.status, json.loads(get.body)["type"])
        await stack.idle()


async def test_refusals_of_messages_can_be_retried() -> None:
    """A refusal for overload has Anthropic's shape, and the headers that its SDK goes by."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(answer(usage={"input_tokens": 1, "output_tokens": 1})))

    pool = PoolSettings("default", max_inflight_requests=1, max_queue=0)
    engine_ = FakeEngine(script)
    async with running(Stack([engine_], settings=Settings(pools=(pool,)))) as stack:
        first = asyncio.create_task(stack.ask(post(MESSAGE, "/v1/messages")))
        await eventually(lambda: engine_.running == 1)
        refused = await stack.ask(post(MESSAGE, "/v1/messages"))
        told = json.loads(refused.body)["error"]
        assert (429, "rate_limit_error", "queue_full") == (refused.status, told["type"], told["code"])
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        release.set()
        assert (await first).status == 200
        await stack.idle()


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/messages", MESSAGE), ("/v1/responses", {"model": MODEL, "input": "x"})]
)
async def test_f021_a_stream_that_breaks_says_so_in_its_apis_way(path: str, body: dict[str, object]) -> None:
    """F021: the error is an event with a name, which these clients look for; the answer has no clean end."""

    async def script(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send(chunk(events('{"type":"x"}', named=True)))
        await asyncio.sleep(0.05)
        served.reset()

    async with running(Stack([FakeEngine(script)])) as stack:
        reader = await stack.client()
        await reader.send(post({**body, "stream": True}, path))
        await reader.head()
        seen, whole = await reader.pieces()
        assert not whole
        assert b'\n\nevent: error\ndata: {"' in seen
        told = json.loads(seen.rpartition(b"data: ")[2])
        assert ("error", "upstream_interrupted") == (told["type"], told["error"]["code"])
        (settled,) = await stack.settled(1)
        assert settled.outcome is Outcome.UPSTREAM_INTERRUPTED
        await stack.idle()


async def test_f021_a_response_that_failed_is_no_success() -> None:
    """F021: a failure inside the stream reaches the client and is counted as one."""
    sent = events(
        '{"type":"response.created","response":{"error":null}}',
        '{"type":"response.output_text.delta","delta":"x"}',
        '{"type":"response.failed","response":{"error":{"code":"server_error","message":"x"},"usage":null}}',
        named=True,
    )

    async def script(served: Served) -> None:
        await served.stream(sent)

    async with running(Stack([FakeEngine(script)])) as stack:
        reply = await stack.ask(post({"model": MODEL, "input": "x", "stream": True}, "/v1/responses"))
        assert sent == reply.body
        (settled,) = await stack.settled(1)
        assert settled.outcome is Outcome.UPSTREAM_INTERRUPTED


async def test_a_refusal_inside_a_stream_of_messages_is_an_answer() -> None:
    """An engine that says 200 and then that it is overloaded has refused: another one is tried, or 529 is told."""
    error = '{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'

    async def busy(served: Served) -> None:
        await served.stream(events(error, named=True))

    async with running(Stack([FakeEngine(busy)])) as stack:
        reply = await stack.ask(post({**MESSAGE, "stream": True}, "/v1/messages"))
        assert (529, json.loads(error)) == (reply.status, json.loads(reply.body))
        await stack.idle()


@pytest.mark.parametrize(
    ("path", "body", "usage"),
    [
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "word " * 400}], "max_tokens": 1},
            "input",
        ),
        ("/v1/responses", {"input": "word " * 400, "max_output_tokens": 1}, "input"),
        ("/v1/embeddings", {"input": ["word " * 200, "word " * 200]}, "prompt"),
        ("/v1/embeddings", {"input": [list(range(200)), list(range(200))]}, "prompt"),
        ("/v1/rerank", {"query": "word " * 200, "documents": ["word " * 200]}, "total"),
    ],
)
async def test_f031_every_api_is_metered(tmp_path: Path, path: str, body: dict[str, Any], usage: str) -> None:
    """F031: whatever API is called, input and output count, and the second long prompt is refused."""
    counts = {"input": {"input_tokens": 400, "output_tokens": 1}, "prompt": {"prompt_tokens": 401}}
    sent = answer(usage=counts.get(usage, {"total_tokens": 401}))

    async def script(served: Served) -> None:
        await served.send(plain(sent))

    file = tmp_path / "forebay.yaml"
    async with engine(script) as fake, client() as http:
        write(file, fake, **tenants(tokens_per_second=0.001, burst=600))
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            assert 200 == (await post_as_acme(http, gateway, path, body)).status_code
            refused = await post_as_acme(http, gateway, path, body)
            assert "rate_limit_exceeded quota_tokens" == refused.headers["x-forebay-reason"]
            assert (600, 199) == limits(refused, "tokens")


async def test_f033_counting_tokens_is_no_inference(tmp_path: Path) -> None:
    """F033: counting uses up nothing, waits behind nothing, and an unknown key may not count."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        if served.request.target == "/v1/chat/completions":
            await release.wait()
            await served.send(plain(chat_answer()))
        else:
            await served.send(plain(b'{"count":3}'))

    file = tmp_path / "forebay.yaml"
    counts: list[tuple[str, dict[str, Any]]] = [
        ("/tokenize", {"model": MODEL, "prompt": "x"}),
        ("/detokenize", {"model": MODEL, "tokens": [1]}),
        ("/v1/messages/count_tokens", {"model": MODEL, "messages": []}),
    ]
    async with engine(script) as fake, client() as http:
        pool = {"max_inflight_requests": 1, "max_queue": 1}
        write(file, fake, pool=pool, **tenants(requests_per_second=0.001, requests_burst=2))
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            chats = [
                asyncio.create_task(post_as_acme(http, gateway, "/v1/chat/completions", chat()))
                for _ in range(2)
            ]
            await fake.until(lambda: fake.running == 1)
            for _ in range(10):
                for path, body in counts:
                    reply = await post_as_acme(http, gateway, path, body)
                    assert (200, {"count": 3}) == (reply.status_code, reply.json())
            for path, body in counts:
                assert 401 == (await http.post(f"{gateway.url}{path}", json=body)).status_code
            release.set()
            assert [200, 200] == [(await one).status_code for one in chats]


async def test_further_paths_are_passed_where_they_are_listed(tmp_path: Path) -> None:
    """404 until `passthrough` lists it, with any method then, and again when it does not; what is admitted stays so."""
    seen: list[tuple[str, str, bytes]] = []

    async def script(served: Served) -> None:
        seen.append((served.request.method, served.request.target, served.request.body))
        if served.request.target.startswith("/v1/models"):
            await served.send(plain(json.dumps({"data": [{"id": MODEL}]}).encode()))
        elif served.request.target == "/stream":
            await served.stream(b"data: a\n\n", b"data: b\n\n")
        else:
            await served.send(plain(b'{"is_sleeping":false}'))

    file = tmp_path / "forebay.yaml"
    async with engine(script=script) as fake, client() as http:
        write(file, fake)
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            assert 404 == (await http.post(f"{gateway.url}/sleep", json={})).status_code
            write(file, fake, pool={"passthrough": ["/sleep", "/lora/*", "/stream", "/v1/*"]})
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            reply = await http.post(f"{gateway.url}/sleep?level=1", content=b'{"a": 1}')
            assert (200, {"is_sleeping": False}) == (reply.status_code, reply.json())
            assert ("POST", "/sleep?level=1", b'{"a": 1}') == seen[-1]
            assert 200 == (await http.delete(f"{gateway.url}/lora/one")).status_code
            assert "DELETE" == seen[-1][0]
            assert b"data: a\n\ndata: b\n\n" == (await http.get(f"{gateway.url}/stream")).content
            assert "PUT" in (await http.options(f"{gateway.url}/sleep")).headers["allow"]
            for path in ("/sleepy", "/lora/..%2fsleep", "/lora//x", "/lora/"):
                assert 404 == (await http.get(f"{gateway.url}{path}")).status_code
            bad = await http.post(f"{gateway.url}/v1/chat/completions", content=b"{")
            assert (400, "invalid_request") == (bad.status_code, bad.json()["error"]["code"])
            write(file, fake)
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 404 == (await http.post(f"{gateway.url}/sleep")).status_code


async def test_pictures_and_sound_cost_what_is_configured(tmp_path: Path) -> None:
    """Each picture counts, a recording counts once; a reload changes both."""
    file = tmp_path / "forebay.yaml"
    async with engine(answer_empty) as fake, client() as http:

        async def costs(gateway: ServeProcess) -> list[float]:
            pictures = {"model": MODEL, "prompt": "a cat", "n": 3}
            explain = {"x-forebay-explain": "1"}
            form = {**explain, "content-type": "multipart/form-data; boundary=X"}
            replies = [
                await http.post(f"{gateway.url}/v1/images/generations", json=pictures, headers=explain),
                await http.post(f"{gateway.url}/v1/audio/transcriptions", content=FORM, headers=form),
            ]
            return [json.loads(reply.headers["x-forebay-decision"])["cost_gpu_s"] for reply in replies]

        write(file, fake, pool={"image_gpu_seconds": 2, "audio_gpu_seconds": 0.5, "gpus": 2})
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            assert [6.0, 0.5] == await costs(gateway)
            write(file, fake, pool={"image_gpu_seconds": 1, "audio_gpu_seconds": 0.25})
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert [3.0, 0.25] == await costs(gateway)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/responses", {"input": "x"}, "max_output_tokens"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}]}, "max_tokens"),
        ("/completion", {"prompt": "x"}, "n_predict"),
        ("/generate", {"inputs": "x"}, "parameters.max_new_tokens"),
    ],
)
async def test_limits_hold_on_every_api(tmp_path: Path, path: str, body: dict[str, Any], field: str) -> None:
    """A plan may ask for one, a pool refuses a higher one and writes its own into the field that the API has."""
    file = tmp_path / "forebay.yaml"
    outer, _, inner = field.rpartition(".")

    def stated(limit: int) -> dict[str, Any]:
        return {**body, outer: {inner: limit}} if outer else {**body, field: limit}

    async with engine(answer_empty) as fake, client() as http:
        write(file, fake, pool={"max_output_tokens": 100, "inject_limit": True})
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            model = {"model": MODEL}
            assert 413 == (await http.post(f"{gateway.url}{path}", json={**model, **stated(101)})).status_code
            assert 200 == (await http.post(f"{gateway.url}{path}", json={**model, **body})).status_code
            sent = json.loads(fake.requests[-1].body)
            assert 100 == (sent[outer][inner] if outer else sent[field])
            write(file, fake, **tenants(require_max_tokens=True))
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            assert 400 == (await post_as_acme(http, gateway, path, body)).status_code
            assert 200 == (await post_as_acme(http, gateway, path, stated(5))).status_code


async def test_an_unknown_key_is_told_in_the_shape_of_messages(tmp_path: Path) -> None:
    """401 with Anthropic's type; its SDK sends the key as `x-api-key`."""
    file = tmp_path / "forebay.yaml"
    async with engine(answer_empty) as fake, client() as http:
        write(file, fake, **tenants(max_inflight=5))
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            url = f"{gateway.url}/v1/messages"
            denied = await http.post(url, json=MESSAGE, headers={"x-api-key": "wrong"})
            assert (401, "authentication_error") == (denied.status_code, denied.json()["error"]["type"])
            assert 200 == (await http.post(url, json=MESSAGE, headers={"x-api-key": KEY})).status_code


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/embeddings", {"input": "x"}),
    ],
)
async def test_another_model_is_asked_for_on_every_api(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    """A rule gives another model, in the field that the API has it in, and nothing else of the body changes."""
    file = tmp_path / "forebay.yaml"
    rule = {"name": "small", "when": "request.model == 'big'", "then": {"model": MODEL}}
    async with engine(answer_empty) as fake, client() as http:
        write(file, fake, pool={"models": [MODEL, "big"]}, rules=[rule])
        async with ServeProcess("-c", str(file)) as gateway:
            await until_up(http, gateway)
            reply = await http.post(f"{gateway.url}{path}", json={"model": "big", **body})
            assert (200, MODEL) == (reply.status_code, reply.headers["x-forebay-model"])
            assert {"model": MODEL, **body} == json.loads(fake.requests[-1].body)


async def test_f054_bounds_hold_for_every_api() -> None:
    """F054: with room for one and one place to wait, whatever API is called: one runs, one waits, four are refused."""
    release = asyncio.Event()

    async def script(served: Served) -> None:
        await release.wait()
        await served.send(plain(answer(usage={"prompt_tokens": 1})))

    pool = PoolSettings("default", max_inflight_requests=1, max_queue=1)
    fake = FakeEngine(script)
    asks = [
        post({"model": MODEL, "input": "x"}, "/v1/embeddings"),
        post(MESSAGE, "/v1/messages"),
        post({"model": MODEL, "input": "x"}, "/v1/responses"),
    ] * 2
    async with running(Stack([fake], settings=Settings(pools=(pool,)))) as stack:
        asking = [asyncio.create_task(stack.ask(data)) for data in asks]
        await eventually(lambda: sum(task.done() for task in asking) == 4)
        assert (1, 1) == (fake.running, stack.waiting)
        assert {429} == {task.result().status for task in asking if task.done()}
        release.set()
        assert 2 == [(await task).status for task in asking].count(200)
        await stack.idle()


async def test_what_an_engine_says_before_it_begins_is_no_first_token() -> None:
    """The head of a response is held until there is something of an answer: until then another engine can be tried."""
    begun = events('{"type":"response.created","response":{"tools":"' + "x" * 9000 + '"}}', named=True)
    rest = STREAMS["/v1/responses"][1]

    async def dies(served: Served) -> None:
        await served.send(STREAM_HEAD)
        await served.send(chunk(begun))
        await asyncio.sleep(0.05)
        served.reset()

    async def answers(served: Served) -> None:
        await served.stream(rest)

    scripts = iter([dies, answers])

    async def script(served: Served) -> None:
        await next(scripts)(served)

    async with running(Stack([FakeEngine(script), FakeEngine(script)])) as stack:
        reply = await stack.ask(post({"model": MODEL, "input": "x", "stream": True}, "/v1/responses"))
        assert (200, rest) == (reply.status, reply.body)
        (settled,) = await stack.settled(1)
        assert (Outcome.COMPLETED, 2) == (settled.outcome, settled.attempts)
        await stack.idle()
