"""What classes are held to, as users meet it: stream limits, ceilings, and classes that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.integration.fakes import (
    MODEL,
    STREAM_HEAD,
    FakeEngine,
    Script,
    Served,
    chat,
    chat_answer,
    chunk,
    event,
    plain,
)
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    engine_script,
    eventually,
    first_pool,
    hang,
    metrics,
    until_at_rest,
    until_up,
    until_waiting,
)

CHAT = "/v1/chat/completions"


def write(path: Path, fake: FakeEngine, classes: dict[str, Any], **pool: Any) -> None:
    """A file with one pool of this engine and these classes."""
    entry = {"name": "p", "endpoints": [fake.endpoint], **pool}
    config = {"pools": [entry], "classes": classes, "default_class": next(iter(classes))}
    path.write_text(yaml.safe_dump(config, sort_keys=False))


async def talk_on(served: Served) -> None:
    """A stream that would not end for a minute."""
    await served.send(STREAM_HEAD)
    for _ in range(1200):
        if served.closed.is_set():
            return
        await served.send(chunk(event("a")))
        await asyncio.sleep(0.05)


async def test_a_stream_over_its_limit_makes_room_for_one_that_waits(tmp_path: Path) -> None:
    """Alone it goes on; when another waits it is ended by an error event, and the other one starts."""
    path = tmp_path / "forebay.yaml"
    async with engine(talk_on) as fake, client() as http:
        write(path, fake, {"chat": {"ttft": "30s", "max_stream": "1s"}}, max_inflight_requests=1)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            url = f"{gateway.url}{CHAT}"
            async with http.stream("POST", url, json=chat(stream=True)) as first:
                pieces = first.aiter_text()
                read = [await anext(pieces)]
                loop = asyncio.get_running_loop()
                until_s = loop.time() + 1.5
                while loop.time() < until_s:
                    read.append(await anext(pieces))
                async with http.stream("POST", url, json=chat(stream=True)) as second:
                    started = await anext(second.aiter_text())
                    assert '"a"' in started
                    with contextlib.suppress(httpx.RemoteProtocolError):  # it is cut without its last chunk
                        while True:
                            read.append(await anext(pieces))
            text = "".join(read)
            error = json.loads(text.strip().rsplit("data: ", 1)[1])["error"]
            assert "stream_limit" == error["code"]
            assert "[DONE]" not in text


async def test_a_class_waits_at_its_ceiling_and_others_do_not(tmp_path: Path) -> None:
    """Of four places one is for batch; a second one waits beside room, and a chat starts in it."""
    path = tmp_path / "forebay.yaml"
    classes: dict[str, Any] = {"chat": {"ttft": "30s"}, "batch": {"admit_below_utilization": 0.25}}
    async with engine(hang) as fake, client() as http:
        write(path, fake, classes, max_inflight_requests=4)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            url, batch = f"{gateway.url}{CHAT}", {"x-forebay-class": "batch"}
            calls = [asyncio.ensure_future(http.post(url, json=chat(), headers=batch)) for _ in range(2)]
            await until_waiting(http, gateway, 1)
            calls.append(asyncio.ensure_future(http.post(url, json=chat())))
            while sum(request.method == "POST" for request in fake.requests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await until_waiting(http, gateway, 1)
            decisions = (await http.get(f"{gateway.admin_url}/api/decisions")).json()
            assert "admit_below_utilization" in json.dumps(decisions)
            for call in calls:
                call.cancel()


async def test_by_deadline_a_long_answer_that_is_wanted_whole_starts_before_a_short_one(
    tmp_path: Path,
) -> None:
    """R19: both are due a minute after they came, and the one that came later takes longer."""
    path = tmp_path / "forebay.yaml"
    go_on, order = asyncio.Event(), list[int]()

    async def when_told(served: Served) -> None:
        order.append(json.loads(served.request.body)["max_tokens"])
        await go_on.wait()
        await served.send(plain(chat_answer()))

    async with engine(when_told) as fake, client() as http:
        classes = {"chat": {"ttft": "60s", "whole_answer": "60s", "order": "edf"}}
        write(path, fake, classes, max_inflight_requests=1)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            calls: list[asyncio.Future[httpx.Response]] = []
            for waiting, max_tokens in enumerate((1, 8, 4000)):
                body = chat(max_tokens=max_tokens)
                calls.append(asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=body)))
                await eventually(lambda: _is(bool(order)))
                await until_waiting(http, gateway, waiting)
            go_on.set()
            assert [200] * 3 == [answer.status_code for answer in await asyncio.gather(*calls)]
    assert [1, 4000, 8] == order


async def _is(done: bool) -> bool:
    return done


async def test_classes_come_and_go_while_requests_wait(tmp_path: Path) -> None:
    """A class that is taken away serves those who wait in it and takes no more; a new one is there at once."""
    path = tmp_path / "forebay.yaml"
    go_on = asyncio.Event()

    async def when_told(served: Served) -> None:
        await go_on.wait()
        await served.send(plain(chat_answer()))

    async with engine(when_told) as fake, client() as http:
        write(path, fake, {"chat": {"ttft": "60s"}, "old": {"ttft": "60s"}}, max_inflight_requests=1)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)

            def ask(name: str) -> asyncio.Future[httpx.Response]:
                headers = {"x-forebay-class": name}
                return asyncio.ensure_future(http.post(f"{gateway.url}{CHAT}", json=chat(), headers=headers))

            async def classes() -> list[str]:
                return [entry["name"] for entry in (await first_pool(http, gateway))["classes"]]

            waiting = [ask("chat"), ask("old"), ask("old")]
            await until_waiting(http, gateway, 2)
            write(path, fake, {"new": {"ttft": "60s"}, "chat": {"ttft": "60s"}}, max_inflight_requests=1)
            assert 200 == (await http.post(f"{gateway.admin_url}/api/reload")).status_code
            assert ["new", "chat", "old"] == await classes()
            assert 400 == (await ask("old")).status_code
            waiting.append(ask("new"))
            await until_waiting(http, gateway, 3)
            go_on.set()
            assert [200] * 4 == [answer.status_code for answer in await asyncio.gather(*waiting)]

            async def gone() -> bool:
                return await classes() == ["new", "chat"]

            await eventually(gone)
            await until_at_rest(http, gateway)


async def test_later_calls_of_a_session_keep_its_class(tmp_path: Path) -> None:
    """The second call names no class and is served in that of the first; another session's is not."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:
        write(path, fake, {"chat": {"ttft": "30s"}, "batch": {}})
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)

            async def served_in(**headers: str) -> str:
                asked = {
                    "x-forebay-explain": "1",
                    **{name.replace("_", "-"): v for name, v in headers.items()},
                }
                answer = await http.post(f"{gateway.url}{CHAT}", json=chat(), headers=asked)
                return str(json.loads(answer.headers["x-forebay-decision"])["class"])

            assert "batch" == await served_in(x_forebay_session="one", x_forebay_class="batch")
            assert "batch" == await served_in(x_forebay_session="one")
            assert "chat" == await served_in(x_forebay_session="two")
            assert "chat" == await served_in(x_forebay_session="one", x_forebay_class="chat")


async def test_a_session_keeps_no_class_that_its_plan_does_not_grant(tmp_path: Path) -> None:
    """Neither one that a rule gave to a call, nor one that a reload took out of the plan."""
    path = tmp_path / "forebay.yaml"
    async with engine() as fake, client() as http:

        def grant(*classes: str) -> None:
            config = {
                "pools": [{"name": "p", "endpoints": [fake.endpoint]}],
                "plans": {"p": {"classes": list(classes)}},
                "anonymous": {"plan": "p"},
                "rules": [{"name": "tiny", "when": "request.max_tokens == 7", "then": {"class": "realtime"}}],
            }
            path.write_text(yaml.safe_dump(config))

        grant("batch")
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)

            async def served_in(session: str, max_tokens: int = 50, **headers: str) -> str:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                asked = {"x-forebay-explain": "1", "x-forebay-session": session, **named}
                body = chat(max_tokens=max_tokens)
                answer = await http.post(f"{gateway.url}{CHAT}", json=body, headers=asked)
                return str(json.loads(answer.headers["x-forebay-decision"])["class"])

            async def reload(*classes: str) -> None:
                grant(*classes)
                assert 200 == (await http.post(f"{gateway.admin_url}/api/reload")).status_code

            assert "realtime" == await served_in("one", 7)
            assert "batch" == await served_in("one")
            await reload("realtime", "batch")
            assert "realtime" == await served_in("two", x_forebay_class="realtime")
            assert "realtime" == await served_in("two")
            await reload("batch")
            assert "batch" == await served_in("two")


async def test_one_session_does_not_fill_a_queue_for_good(tmp_path: Path) -> None:
    """However many requests name it, one that waits is left alone; a more important one gets the place of another."""
    path = tmp_path / "forebay.yaml"
    async with engine(hang) as fake, client() as http:
        classes: dict[str, Any] = {"realtime": {}, "batch": {}}
        write(path, fake, classes, max_inflight_requests=1, max_queue=2)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)

            def ask(**headers: str) -> asyncio.Task[httpx.Response]:
                named = {name.replace("_", "-"): value for name, value in headers.items()}
                return asyncio.create_task(http.post(f"{gateway.url}{CHAT}", json=chat(), headers=named))

            async def one_runs() -> bool:
                return any(request.method == "POST" for request in fake.requests)

            flood: list[asyncio.Task[httpx.Response]] = []
            for waiting in range(3):
                flood.append(ask(x_forebay_class="batch", x_forebay_session="one"))
                await eventually(one_runs)
                await until_waiting(http, gateway, waiting)
            first = ask(x_forebay_class="realtime")
            (gone,), _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
            assert flood[2] is gone
            assert "displaced" == gone.result().json()["error"]["code"]
            second = await ask(x_forebay_class="realtime")
            assert "queue_full" == second.json()["error"]["code"]
            for task in (*flood, first):
                task.cancel()
            await asyncio.gather(*flood, first, return_exceptions=True)


async def test_a_pool_limits_answers_that_have_no_limit(tmp_path: Path) -> None:
    """A stream ends at it with an error event; with `inject_limit` the engine is asked for it and for nothing else."""
    path = tmp_path / "forebay.yaml"
    async with engine(talk_on) as fake, engine() as short, client() as http:
        write(path, fake, {"chat": {"ttft": "30s"}}, max_output_tokens=20)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            url = f"{gateway.url}{CHAT}"
            read: list[str] = []
            with contextlib.suppress(httpx.RemoteProtocolError):
                async with http.stream("POST", url, json=chat(stream=True)) as stream:
                    pieces = stream.aiter_text()
                    while True:
                        read.append(await anext(pieces))
            assert '"stream_limit"' in "".join(read)
            assert 20 <= "".join(read).count('"content": "a"') <= 25
            assert [413] == [(await http.post(url, json=chat(max_tokens=21))).status_code]
            write(path, short, {"chat": {"ttft": "30s"}}, max_output_tokens=20, inject_limit=True)
            assert 200 == (await http.post(f"{gateway.admin_url}/api/reload")).status_code
            await until_up(http, gateway)
            spaced = json.dumps({"model": MODEL, "messages": [], "n": 1.0}, indent=3).encode()
            assert 200 == (await http.post(url, content=spaced)).status_code
        sent = next(request.body for request in short.requests if request.method == "POST")
        assert 20 == json.loads(sent)["max_tokens"]
        assert spaced == sent.replace(b'"max_tokens":20,', b"")


async def test_whole_answers_are_judged_by_the_objective_of_their_class(tmp_path: Path) -> None:
    """One of a third of a second: too late for the one class, and met in the other, also by a reload."""
    path = tmp_path / "forebay.yaml"

    async def slowly(served: Served) -> None:
        await asyncio.sleep(0.3)
        await served.send(plain(chat_answer()))

    async def met(http: httpx.AsyncClient, gateway: ServeProcess, class_name: str) -> float:
        answer = await http.post(
            f"{gateway.url}{CHAT}", json=chat(max_tokens=5), headers={"x-forebay-class": class_name}
        )
        assert 200 == answer.status_code
        series = await metrics(http, gateway)
        return series[f'forebay_goodput_total{{class="{class_name}",pool="p"}}']

    async with engine(slowly) as fake, client() as http:
        classes = {
            "hasty": {"ttft": "5s", "whole_answer": "100ms"},
            "patient": {"ttft": "50ms", "whole_answer": "20s", "wait_budget": "5s"},
        }
        write(path, fake, classes)
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            assert (0.0, 1.0) == (await met(http, gateway, "hasty"), await met(http, gateway, "patient"))
            classes["hasty"]["whole_answer"] = "20s"
            write(path, fake, classes)
            assert 200 == (await http.post(f"{gateway.admin_url}/api/reload")).status_code
            assert 1.0 == await met(http, gateway, "hasty")


async def test_a_capped_class_owes_nothing_for_what_a_class_at_its_ceiling_could_not_use(
    tmp_path: Path,
) -> None:
    """R17, R21: chats start while a document waits at its ceiling. When others come, chats have all of their share."""
    path, go_on = tmp_path / "forebay.yaml", asyncio.Semaphore(0)

    async def one_by_one(served: Served) -> None:
        await go_on.acquire()
        await served.send(plain(chat_answer()))

    async with engine(one_by_one) as fake, client() as http:
        classes: dict[str, Any] = {
            "chat": {"ttft": "30s", "max_share": 0.3},
            "other": {"ttft": "30s"},
            "batch": {"ttft": "30s", "admit_below_utilization": 0.3},
        }
        write(path, fake, classes, max_inflight_requests=2, profile={"tokens_per_gpu_second": 100})
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)

            def ask(name: str) -> asyncio.Task[httpx.Response]:
                url, headers = f"{gateway.url}{CHAT}", {"x-forebay-class": name}
                return asyncio.ensure_future(http.post(url, json=chat(), headers=headers))

            def came() -> int:
                return sum(request.method == "POST" for request in fake.requests)

            calls = [ask("chat"), ask("chat")]
            await fake.until(lambda: came() == 2)
            calls.append(ask("batch"))
            await until_waiting(http, gateway, 1)
            go_on.release()
            await asyncio.wait(calls[:2], return_when=asyncio.FIRST_COMPLETED)
            calls.append(ask("chat"))
            await fake.until(lambda: came() == 3)
            calls.append(ask("other"))
            await until_waiting(http, gateway, 2)
            calls.append(ask("chat"))
            await until_waiting(http, gateway, 3)
            kept = (await http.get(f"{gateway.admin_url}/api/decisions")).text
            assert "admit_below_utilization" in kept
            assert "endpoint_requests" in kept
            assert "max_share" not in kept
            for _ in calls:
                go_on.release()
            assert {200} == {answer.status_code for answer in await asyncio.gather(*calls)}
            await until_at_rest(http, gateway)


async def test_one_that_only_an_engine_that_is_away_could_serve_slows_nobody_down(tmp_path: Path) -> None:
    """R17: a document waits for the one engine that takes it. Of a capped class all start that there is room for."""
    path = tmp_path / "forebay.yaml"

    def of_context(tokens: int) -> Script:
        listed = plain(json.dumps({"data": [{"id": MODEL, "max_model_len": tokens}]}).encode())

        async def script(served: Served) -> None:
            if served.request.target == "/v1/models":
                await served.send(listed)
            else:
                await engine_script(hang)(served)

        return script

    async with (
        engine(script=of_context(1000)) as small,
        engine(script=of_context(100_000)) as large,
        client() as http,
    ):
        classes: dict[str, Any] = {"chat": {"ttft": "30s", "max_share": 0.3}, "batch": {"ttft": "600s"}}
        endpoints = [small.endpoint, large.endpoint]
        profile = {"tokens_per_gpu_second": 100}
        write(path, small, classes, endpoints=endpoints, max_inflight_requests=4, profile=profile)
        async with ServeProcess("-c", str(path)) as gateway:
            await eventually(lambda: _up(http, gateway, 2))
            await large.stop()
            await eventually(lambda: _up(http, gateway, 1))
            url, batch = f"{gateway.url}{CHAT}", {"x-forebay-class": "batch"}
            document = chat(messages=[{"role": "user", "content": "word " * 20_000}])
            calls = [asyncio.ensure_future(http.post(url, json=document, headers=batch))]
            await until_waiting(http, gateway, 1)
            calls += [asyncio.ensure_future(http.post(url, json=chat())) for _ in range(4)]
            await small.until(lambda: sum(request.method == "POST" for request in small.requests) == 4)
            assert 1 == (await first_pool(http, gateway))["waiting_requests"]
            for call in calls:
                call.cancel()


async def _up(http: httpx.AsyncClient, gateway: ServeProcess, count: int) -> bool:
    """True if so many engines are up."""
    endpoints = (await first_pool(http, gateway))["endpoints"]
    return bool(count == sum(endpoint["state"] == "up" for endpoint in endpoints))
