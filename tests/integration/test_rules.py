"""Rules, fallbacks and priorities as a client and an engine see them, through a gateway process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.integration.fakes import FakeEngine, Served, chat_answer, plain
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    metrics,
    total,
    until_at_rest,
    until_up,
    until_waiting,
)

CHAT = "/v1/chat/completions"
BODY = (
    b'{ "model":"big",\t"messages": [{"role":"user","content":"\\"model\\":\\"big\\" \xc3\xa9"}],'
    b' "tools":[{"model":"big"}],"temperature":1.50e-1 , "max_tokens":7,"user":"m"}\n'
)


def serves(model: str, *, slow: bool = False) -> Any:
    """An engine that lists this model, and answers chats at once or never."""

    async def script(served: Served) -> None:
        if served.request.method == "POST":
            if slow:
                await served.closed.wait()
            await served.send(plain(chat_answer()))
        elif served.request.target == "/v1/models":
            await served.send(plain(json.dumps({"object": "list", "data": [{"id": model}]}).encode()))
        else:
            await served.send(plain(b"{}", "404 Not Found"))

    return script


def file_with(path: Path, big: FakeEngine, small: FakeEngine, *rules: dict[str, Any], **pool: Any) -> Path:
    """Two pools and these rules."""
    pools = [
        {"name": "big", "endpoints": [big.endpoint], "models": ["big"], **pool},
        {"name": "small", "endpoints": [small.endpoint], "models": ["small"]},
    ]
    path.write_text(yaml.safe_dump({"pools": pools, "rules": list(rules), "state_file": "none"}))
    return path


async def post(
    http: httpx.AsyncClient, gateway: ServeProcess, body: bytes = BODY, **headers: str
) -> httpx.Response:
    """A chat of these very bytes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.post(
        f"{gateway.url}{CHAT}", content=body, headers={"content-type": "application/json", **named}
    )


def posted(fake: FakeEngine) -> list[bytes]:
    """Bodies that the engine was sent."""
    return [request.body for request in fake.requests if request.method == "POST"]


async def test_a_rule_changes_the_model_field_and_no_other_byte(tmp_path: Path) -> None:
    """R13: nested fields, text that looks alike, spaces and numbers go through as they came."""
    rule = {"name": "little", "when": "request.max_tokens < 10", "then": {"model": "small"}}
    async with engine(script=serves("big")) as big, engine(script=serves("small")) as small, client() as http:
        path = file_with(tmp_path / "f.yaml", big, small, rule)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            answer = await post(http, gateway, x_forebay_explain="1")
            assert (200, "small") == (answer.status_code, answer.headers["x-forebay-model"])
            decision = json.loads(answer.headers["x-forebay-decision"])
            assert ("small", "small", "rule:little") == (
                decision["pool"],
                decision["model"],
                decision["checks"][0][0],
            )
            assert [BODY.replace(b'"model":"big",\t', b'"model":"small",\t')] == posted(small)
            other = BODY.replace(b'"max_tokens":7', b'"max_tokens":70')
            answer = await post(http, gateway, other)
            assert (200, False) == (answer.status_code, "x-forebay-model" in answer.headers)
            assert [other] == posted(big)
            await until_at_rest(http, gateway)


async def test_a_rule_refuses_with_its_own_retry_after(tmp_path: Path) -> None:
    """R11: 429 with the rule's name; requests that it does not mean go on; nothing stays on the books."""
    rule = {
        "name": "short",
        "when": "request.max_tokens < 10",
        "then": {"refuse": {"retry_after": "2500ms", "priority": "low"}},
    }
    async with engine(script=serves("big")) as big, engine(script=serves("small")) as small, client() as http:
        path = file_with(tmp_path / "f.yaml", big, small, rule)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            answer = await post(http, gateway)
            assert (429, "rule_refused rule:short") == (
                answer.status_code,
                answer.headers["x-forebay-reason"],
            )
            assert answer.json()["error"]["code"] == "rule_refused"
            assert "rule 'short'" in answer.json()["error"]["message"]
            assert 2500 <= int(answer.headers["retry-after-ms"]) <= 3250
            assert answer.headers["retry-after"] in ("3", "4")
            assert 200 == (await post(http, gateway, x_forebay_class="realtime")).status_code
            series = await until_at_rest(http, gateway)
            assert 1.0 == total(series, "forebay_rule_matches_total", 'rule="short"')
            assert 1.0 == total(series, "forebay_refusals_total", 'reason="rule_refused"')


async def test_a_rule_that_cannot_be_evaluated_is_skipped_counted_and_told(tmp_path: Path) -> None:
    """This engine tells nothing of its cache; the log says so once."""
    rule = {"name": "blind", "when": "gpu_cache_usage_perc > 0.9", "then": {"refuse": {}}}
    async with engine(script=serves("big")) as big, engine(script=serves("small")) as small, client() as http:
        path = file_with(tmp_path / "f.yaml", big, small, rule)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            assert 200 == (await post(http, gateway)).status_code

            async def counted() -> bool:
                return total(await metrics(http, gateway), "forebay_rule_errors_total", 'rule="blind"') >= 1

            await eventually(counted)
            gateway.signal()
            await gateway.exit_code()
            assert "rule blind: " in await gateway.log()


async def test_a_full_pool_falls_back_to_a_smaller_model(tmp_path: Path) -> None:
    """R13: and where that is full as well the first pool's refusal is told."""
    async with (
        engine(script=serves("big", slow=True)) as big,
        engine(script=serves("small")) as small,
        client() as http,
    ):
        path = file_with(
            tmp_path / "f.yaml", big, small, max_inflight_requests=1, max_queue=0, fallback="small"
        )
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            first = asyncio.ensure_future(post(http, gateway))
            await big.until(lambda: len(posted(big)) == 1)
            answer = await post(http, gateway, x_forebay_explain="1")
            decision = json.loads(answer.headers["x-forebay-decision"])
            assert (200, "small", "small") == (
                answer.status_code,
                answer.headers["x-forebay-model"],
                decision["pool"],
            )
            assert "fallback:small" in [check[0] for check in decision["checks"]]
            assert [BODY.replace(b'"model":"big",\t', b'"model":"small",\t')] == posted(small)
            assert 1.0 == total(await metrics(http, gateway), "forebay_fallbacks_total", 'pool="big"')
            first.cancel()
            await until_at_rest(http, gateway)
        await small.stop()
        async with ServeProcess("-c", str(path)) as gateway:
            await eventually(lambda: until_first_is_up(http, gateway))
            first = asyncio.ensure_future(post(http, gateway))
            await big.until(lambda: len(posted(big)) == 2)

            async def small_is_down() -> bool:
                series = await metrics(http, gateway)
                key = f'forebay_endpoint_state{{endpoint="{small.endpoint}",pool="small",state="down"}}'
                return series.get(key) == 1.0

            await eventually(small_is_down)
            answer = await post(http, gateway)
            assert (429, "queue_full") == (answer.status_code, answer.json()["error"]["code"])
            first.cancel()


async def until_first_is_up(http: httpx.AsyncClient, gateway: ServeProcess) -> bool:
    """True once the pool `big` can take work."""
    pools = (await http.get(f"{gateway.admin_url}/api/snapshot")).json()["pools"]
    return bool(pools[0]["endpoints"][0]["state"] == "up")


async def test_priorities_are_passed_down_in_one_field(tmp_path: Path) -> None:
    """R25: what the client says of its own priority does not count; everything else is as it was."""
    async with engine(script=serves("big")) as big, engine(script=serves("small")) as small, client() as http:
        path = file_with(tmp_path / "f.yaml", big, small, engine="vllm", pass_priority=True)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            for name in ("realtime", "standard", "batch"):
                assert 200 == (await post(http, gateway, x_forebay_class=name)).status_code
            own = BODY.replace(b'"max_tokens":7', b'"priority": -99')
            assert 200 == (await post(http, gateway, own, x_forebay_class="batch")).status_code
            rest = BODY.removeprefix(b"{")
            assert [b'{"priority":%d,' % number + rest for number in (-2, -1, 0)] == posted(big)[:3]
            assert own.replace(b'"priority": -99', b'"priority": 0') == posted(big)[3]
            message = b'{"model":"big","max_tokens":7,"messages":[{"role":"user","content":"hi"}]}'
            url = f"{gateway.url}/v1/messages"
            await http.post(url, content=message, headers={"x-forebay-class": "batch"})
            assert message == posted(big)[4], "that route has no such field: it counts as 0, before nobody"


async def test_a_preferred_retry_is_served_before_first_tries(tmp_path: Path) -> None:
    """R12: known by the header that the operator names."""
    go = asyncio.Event()

    async def one_by_one(served: Served) -> None:
        if served.request.method == "POST":
            await go.wait()
            await served.send(plain(chat_answer()))
        else:
            await serves("big")(served)

    async with engine(script=one_by_one) as big, client() as http:
        path = tmp_path / "f.yaml"
        pool = {"name": "big", "endpoints": [big.endpoint], "max_inflight_requests": 1}
        policy = {"retries": "prefer", "retry_header": "X-Attempt", "state_file": "none"}
        path.write_text(yaml.safe_dump({"pools": [pool], **policy}))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            calls = []
            for number, headers in enumerate(({}, {}, {"x_attempt": "1"})):
                body = BODY.replace(b'"user":"m"', b'"user":"%d"' % number)
                calls.append(asyncio.ensure_future(post(http, gateway, body, **headers)))
                if number:
                    await until_waiting(http, gateway, number)
                else:
                    await big.until(lambda: len(posted(big)) == 1)
            go.set()
            assert [200] * 3 == [answer.status_code for answer in await asyncio.gather(*calls)]
            assert ["0", "2", "1"] == [json.loads(body)["user"] for body in posted(big)]


async def test_gpus_say_themselves_how_busy_they_are(tmp_path: Path) -> None:
    """R11: from a DCGM exporter, the mean over the pool's own; without a fresh one what is seen of the pool."""
    busy = {"big-0": 95.0, "big-1": 99.0, "other": 0.0}

    async def exporter(served: Served) -> None:
        lines = "".join(
            f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",pod="{pod}"}} {value}\n' for pod, value in busy.items()
        )
        await served.send(plain(lines.encode() if busy else b"", "200 OK" if busy else "500 Broken"))

    rule = {"name": "hot", "when": "gpu_utilization > 0.9", "then": {"refuse": {"retry_after": "3s"}}}
    async with (
        engine(script=serves("big")) as big,
        engine(script=serves("small")) as small,
        engine(script=exporter) as node,
        client() as http,
    ):
        told = {"exporters": [node.endpoint], "labels": {"pod": "big-*"}}
        path = file_with(tmp_path / "f.yaml", big, small, rule, gpu_metrics=told)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)

            async def read(value: float | None) -> bool:
                series = await metrics(http, gateway)
                return series.get('forebay_gpu_utilization{pool="big"}') == value

            async def answered(status: int) -> bool:
                return (await post(http, gateway)).status_code == status

            await eventually(lambda: read(0.97))
            await eventually(lambda: answered(429))
            assert "rule_refused" == (await post(http, gateway)).json()["error"]["code"]
            small_body = BODY.replace(b'"model":"big",\t', b'"model":"small",\t')
            assert 200 == (await post(http, gateway, small_body)).status_code
            busy["big-0"] = 31.0
            await eventually(lambda: read(0.65))
            await eventually(lambda: answered(200))
            busy["big-0"] = 99.0
            await eventually(lambda: answered(429))
            busy.clear()
            await eventually(lambda: read(None))
            await eventually(lambda: answered(200))
            # A reload that wants it no more lets the exporter alone.
            file_with(tmp_path / "f.yaml", big, small, rule)
            assert (await http.post(f"{gateway.admin_url}/api/reload")).json()["applied"]
            asked = len(node.requests)
            await asyncio.sleep(1.2)
            assert asked == len(node.requests)
            gateway.signal()
            assert 0 == await gateway.exit_code()
            assert "GPU metrics of" in await gateway.log()


async def test_a_reload_does_not_blind_a_rule_that_asks_for_a_rate(tmp_path: Path) -> None:
    """R11: with `on_error: match` each reload would refuse everybody until the engine was read twice more."""
    rule = {
        "name": "fast",
        "when": "generation_tput > 1000.0",
        "then": {"refuse": {}},
        "on_error": "match",
    }

    async def counts(served: Served) -> None:
        if served.request.target == "/metrics":
            page = (
                b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 5\n"
            )
            await served.send(plain(page))
        else:
            await serves("big")(served)

    async with engine(script=counts) as big, engine(script=serves("small")) as small, client() as http:
        path = file_with(tmp_path / "f.yaml", big, small, rule)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)

            async def is_known() -> bool:
                return (await post(http, gateway)).status_code == 200

            await eventually(is_known)
            assert (await http.post(f"{gateway.admin_url}/api/reload")).status_code == 200
            assert [200] * 5 == [(await post(http, gateway)).status_code for _ in range(5)]
