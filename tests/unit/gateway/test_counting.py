from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.events import Arrived, ClientLeft
from forebay.gateway import counting
from forebay.gateway.apis import ADMITTED
from forebay.gateway.counting import Counted, Overhead, PromptCounter
from forebay.gateway.ports import PoolView, Serving
from forebay.gateway.prompt_texts import Texts
from tests.unit.gateway.doubles import ENDPOINTS, Desk, ScriptedExchange, chat_body, plain_head

CHAT = "/v1/chat/completions"


def words(texts: list[str]) -> int:
    """A tokenizer of sorts: a token for each word."""
    return sum(len(text.split()) for text in texts)


def texts(path: str, **fields: Any) -> Texts:
    """What is counted of a body."""
    read = ADMITTED[path].texts
    assert read is not None
    found = read(json.dumps(fields).encode())
    assert found is not None
    return found


def test_texts_are_what_the_readers_count() -> None:
    """All texts of a body, in its API's shape; messages are counted, and tools are told apart."""
    turns = [
        {"role": "system", "content": "a b"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "c"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
    ]
    chat = texts(CHAT, messages=turns)
    assert (["a b", "c"], 2, True) == (chat.texts, chat.turns, chat.plain)
    tools = texts(CHAT, messages=turns, tools=[{"name": "t"}])
    assert (3, False) == (len(tools.texts), tools.plain)
    message = texts("/v1/messages", system="a", messages=turns)
    assert (["a", "a b", "c"], 3) == (message.texts, message.turns)
    response = texts("/v1/responses", instructions="a", input="b")
    assert (["a", "b"], 2) == (response.texts, response.turns)
    assert ["a", "b"] == texts("/v1/completions", prompt=["a", "b"]).texts
    assert ["a"] == texts("/v1/embeddings", input="a").texts
    assert ["q", "q", "a", "b"] == texts("/v1/rerank", query="q", documents=["a", "b"]).texts


def test_texts_have_the_readers_bytes() -> None:
    """What is counted has as many bytes as the reader says."""
    for path, fields in (
        (CHAT, {"messages": [{"content": "héllo"}, {"content": ["x", {"text": "y"}]}]}),
        ("/v1/messages", {"messages": [{"content": [{"type": "tool_result", "content": "héllo"}]}]}),
        ("/v1/completions", {"prompt": "héllo"}),
        ("/score", {"text_1": "q", "text_2": ["a", "bc"]}),
    ):
        body = json.dumps(fields).encode()
        assert ADMITTED[path].read(body).prompt_bytes == sum(
            len(t.encode()) for t in texts(path, **fields).texts
        )


def test_the_template_is_learned() -> None:
    """From prompts of several lengths: what a request and what each message adds."""
    overhead = Overhead(3.0, 4.0)
    assert [7, 39] == [overhead.expect(messages) for messages in (1, 9)]
    for turn in range(200):
        overhead.observe(1 + turn % 5, 10 + 6 * (1 + turn % 5))
    assert [16, 40] == [overhead.expect(messages) for messages in (1, 5)]
    overhead.observe(1, 10**6)
    overhead.observe(1, -5)
    assert 16 == overhead.expect(1)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4096)), max_size=50), st.integers(0, 1000))
def test_overheads_are_never_negative(cases: list[tuple[int, int]], messages: int) -> None:
    """Whatever was seen."""
    overhead = Overhead(3.0, 4.0)
    for seen, tokens in cases:
        overhead.observe(seen, tokens)
    assert overhead.expect(messages) >= 0


def test_what_templates_lay_out_anew_teaches_nothing() -> None:
    """Tools are in a prompt in another form than in the body."""
    overhead = Overhead(3.0, 4.0)
    Counted(10, Texts([], 1, plain=False), overhead).learn(500)
    assert 7 == overhead.expect(1)
    Counted(10, Texts([], 1), overhead).learn(500)
    assert overhead.expect(1) > 7


def test_how_much_is_counted_is_bounded() -> None:
    """A prompt that is too long, or one too many, is estimated instead."""
    counter = PromptCounter(words)
    assert [False, True, False] == [counter.takes(size) for size in (0, 1, counting.LONGEST_BYTES + 1)]
    counter.pending_bytes = counting.PENDING_BYTES - 5
    assert [True, False] == [counter.takes(size) for size in (5, 6)]


class Bench:
    """A gateway whose pool has a tokenizer that waits until it may go on."""

    def __init__(self, count: Any = words) -> None:
        self.go_on = threading.Event()

        def slow(given: list[str]) -> int:
            assert self.go_on.wait(10.0)
            tokens: int = count(given)
            return tokens

        self.counter = PromptCounter(slow)
        self.desk = Desk()
        self.serve(self.counter)
        self.desk.core.on_arrival = self.desk.core.dispatch

    def serve(self, counter: PromptCounter | None) -> None:
        """From now on."""
        pool = PoolView("p", ENDPOINTS, ("m",), checks_model_names=True, counter=counter)
        self.desk.directory.serving = Serving((pool,))

    async def settled(self) -> None:
        """Until the count is there."""
        self.go_on.set()
        async with asyncio.timeout(10.0):
            while self.counter.pending_bytes:  # noqa: ASYNC110 - a thread has no event
                await asyncio.sleep(0.001)

    @property
    def arrived(self) -> list[Arrived]:
        """What the core was told."""
        return [event for event in self.desk.core.events if isinstance(event, Arrived)]


async def test_a_prompt_is_counted_before_it_is_decided_on() -> None:
    """The core hears of the exact count; its usage teaches the template, and what waits is accounted for."""
    bench = Bench()
    for _ in range(60):
        bench.go_on.clear()
        seen = len(bench.arrived)
        bench.desk.request(chat_body(messages=[{"role": "user", "content": "one two three"}]))
        assert len(bench.arrived) == seen
        assert bench.desk.bodies.taken_bytes > 0
        await bench.settled()
        assert bench.desk.bodies.taken_bytes == 0
        sink = bench.desk.calls[-1].sink
        sink.on_head(plain_head())
        sink.on_data(b'{"usage": {"prompt_tokens": 23, "completion_tokens": 1}}')
        sink.on_end()
    assert (10, 23) == tuple(bench.arrived[n].demand.prompt_tokens for n in (0, -1))
    bench.desk.gateway.close()


async def test_a_client_that_leaves_meanwhile_is_gone() -> None:
    """Nothing is fed, and no byte stays accounted for."""
    bench = Bench()
    exchange: ScriptedExchange = bench.desk.request()
    exchange.leave()
    await bench.settled()
    assert (0, []) == (bench.desk.bodies.taken_bytes, bench.desk.core.told(ClientLeft) + bench.arrived)
    bench.desk.gateway.close()


async def test_a_configuration_that_comes_meanwhile_counts() -> None:
    """The request is looked at anew: here its pool has no tokenizer any more."""
    bench = Bench()
    bench.desk.request()
    bench.serve(None)
    bench.desk.gateway.reconfigure(bench.desk.gateway.settings)
    await bench.settled()
    assert [None] == [event.demand.prompt_tokens for event in bench.arrived]
    bench.desk.gateway.close()


async def test_a_count_that_fails_is_an_estimate() -> None:
    """What goes wrong in the tokenizer is nobody's error."""

    def broken(given: list[str]) -> int:
        raise ValueError(given)

    bench = Bench(broken)
    bench.desk.request()
    await bench.settled()
    assert [None] == [event.demand.prompt_tokens for event in bench.arrived]
    bench.desk.gateway.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "messages": []}',
        b'{"model": "m", "messages": [{"content": "' + b"x" * (counting.LONGEST_BYTES + 1) + b'"}]}',
    ],
    ids=["empty", "long"],
)
async def test_what_is_not_counted_goes_on_at_once(body: bytes) -> None:
    """As without a tokenizer."""
    bench = Bench()
    bench.desk.request(body)
    assert [None] == [event.demand.prompt_tokens for event in bench.arrived]
    bench.desk.gateway.close()
