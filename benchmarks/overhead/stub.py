"""A stub inference engine that costs next to nothing, so that what is measured is the proxy in front of it.

Speaks just enough: `POST` anything gives a fixed chat answer of about 1 kB, or, when the body asks for
`"stream": true`, a stream of small SSE events at a steady pace, each written by itself. `GET /metrics`
and `/v1/models` are those of an idle vLLM, so that a gateway that looks for engine load finds it. Request
headers steer one answer: `x-stub-delay-ms`, `x-stub-events`, `x-stub-gap-ms`.

`GET /counters` tells how many answers and events were written: the measure of work done that does not depend
on any client. A stream that its reader does not take is paused, and its events are not counted.

Run as a script: prints the port and serves until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import cast

import uvloop

MODEL = "stub"
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"stub",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
LAST_EVENTS = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"stub",'
    b'"choices":[],"usage":{"prompt_tokens":100,"total_tokens":200,"completion_tokens":100}}\n\ndata: [DONE]\n\n'
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="stub"}} {running}.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="stub"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="stub"}} 0.1
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{{engine="0",model_name="stub"}} 0.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="stub"}} {prompt_tokens}.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="stub"}} {output_tokens}.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}"}} 1.0
"""


def _whole(status: str, content_type: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _chat_answer() -> bytes:
    answer = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1700000000,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "word " * 140}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 140, "total_tokens": 240},
    }
    return _whole("200 OK", "application/json", json.dumps(answer).encode())


CHAT_ANSWER = _chat_answer()
MODELS_ANSWER = _whole(
    "200 OK",
    "application/json",
    json.dumps(
        {
            "object": "list",
            "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 131072}],
        }
    ).encode(),
)
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_STEER = re.compile(rb"\r\nx-stub-(delay-ms|events|gap-ms):\s*(\d+)", re.IGNORECASE)


class Totals:
    """What this stub has done since it started."""

    def __init__(self, kv_blocks: int) -> None:
        self.kv_blocks = kv_blocks
        self.answers = 0
        self.events = 0
        self.streams = 0
        self.running = 0


class StubProtocol(asyncio.Protocol):
    """One connection: requests one after another, no pipelining."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.buffer = b""
        self.paused = False
        self.events_left = 0
        self.gap_s = 0.0
        self.due_s = 0.0
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its base class
        self.transport.set_write_buffer_limits(high=16_384)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.events_left:
            self.events_left = 0
            self.totals.running -= 1

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        head_end = self.buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self.buffer[:head_end]
        declared = _LENGTH.search(head)
        whole = head_end + 4 + (int(declared[1]) if declared else 0)
        if declared is None and _CHUNKED.search(head):
            # Looked through for one field only, so the framing may stay in it.
            whole = len(self.buffer) if self.buffer.endswith(b"\r\n0\r\n\r\n") else len(self.buffer) + 1
        if len(self.buffer) < whole:
            return
        body, self.buffer = self.buffer[head_end + 4 : whole], b""
        if head.startswith(b"GET "):
            self.transport.write(self.look_up(head.split(b" ", 2)[1]))
            return
        self.answer(head, body)

    def look_up(self, path: bytes) -> bytes:
        totals = self.totals
        if path == b"/v1/models":
            return MODELS_ANSWER
        if path == b"/metrics":
            text = METRICS.format(
                running=totals.running,
                prompt_tokens=100 * totals.answers,
                output_tokens=140 * totals.answers,
                blocks=totals.kv_blocks,
            )
            return _whole("200 OK", "text/plain; version=0.0.4; charset=utf-8", text.encode())
        if path == b"/counters":
            return _whole("200 OK", "application/json", json.dumps(vars(totals)).encode())
        if path == b"/version":
            return _whole("200 OK", "application/json", b'{"version":"0.32.0"}')
        if path == b"/health":
            return _whole("200 OK", "text/plain", b"")
        return _whole("404 Not Found", "application/json", b'{"detail":"Not Found"}')

    def answer(self, head: bytes, body: bytes) -> None:
        steer = {name: int(value) for name, value in _STEER.findall(head)} if b"\r\nx-stub-" in head else {}
        self.totals.running += 1
        if b'"stream":true' in body or b'"stream": true' in body:
            self.events_left = steer.get(b"events", 100)
            self.gap_s = steer.get(b"gap-ms", 20) / 1000
            self.transport.write(STREAM_HEAD)
            # Streams that begin together would stay in step; a golden-ratio offset spreads them over the gap.
            self.totals.streams += 1
            self.due_s = self.loop.time() + self.gap_s * (self.totals.streams * 0.6180339887 % 1)
            self.loop.call_at(self.due_s, self.next_event)
            return
        delay_ms = steer.get(b"delay-ms", 0)
        if delay_ms:
            self.loop.call_later(delay_ms / 1000, self.write_answer)
        else:
            self.write_answer()

    def write_answer(self) -> None:
        self.totals.running -= 1
        self.totals.answers += 1
        self.transport.write(CHAT_ANSWER)

    def next_event(self) -> None:
        if not self.events_left:
            return  # the reader went away
        if not self.paused:
            self.events_left -= 1
            self.totals.events += 1
            last = LAST_EVENTS if self.events_left == 0 else b""
            event = EVENT + last
            self.transport.write(b"%x\r\n%s\r\n%s" % (len(event), event, b"0\r\n\r\n" if last else b""))
            if last:
                self.totals.running -= 1
                self.totals.answers += 1
                return
        self.due_s += self.gap_s
        self.loop.call_at(self.due_s, self.next_event)


async def serve(port: int, kv_blocks: int) -> None:
    """Serve on a port (0: any free one), print it, and go on until cancelled."""
    totals = Totals(kv_blocks)
    server = await asyncio.get_running_loop().create_server(
        lambda: StubProtocol(totals), "127.0.0.1", port, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--kv-blocks", type=int, default=62_500, help="of 16 tokens, in its metrics")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.kv_blocks))
