"""The bytes of answers in the form of the other APIs, as vLLM lays them out: messages, responses, embeddings, scores.

As in `wording`: a streamed token costs one concatenation, and JSON is encoded per answer.
"""

from __future__ import annotations

from typing import Final

import msgspec

from forebay.emulator.wording import Wording

_encode: Final = msgspec.json.encode
_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}
EMBEDDING_SIZE: Final = 8


class _OfOneAnswer(Wording):
    """What all of them know of their answer."""

    def __init__(self, *, answer_id: str, created: int, model: str, prompt_tokens: int) -> None:
        self._id = answer_id
        self._created = created
        self._model = model
        self._prompt_tokens = prompt_tokens

    def usage_chunk(self, output_tokens: int) -> bytes:
        return b""

    def _usage(self, output_tokens: int) -> dict[str, int]:
        return {"input_tokens": self._prompt_tokens, "output_tokens": output_tokens}


def _event(kind: str, **more: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **more}))


class MessagesWording(_OfOneAnswer):
    """Anthropic's Messages API."""

    closing = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

    def opening(self, index: int) -> bytes:
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
            b'"delta":{"type":"text_delta","text":"'
        )

    def role_chunk(self, index: int) -> bytes:
        begun = {**self._message([]), "stop_reason": None, "usage": self._usage(0)}
        block = {"type": "text", "text": ""}
        return _event("message_start", message=begun) + _event(
            "content_block_start", index=0, content_block=block
        )

    def text_chunk(self, opening: bytes, text: bytes, given: int) -> bytes:
        return b'%b%b"}}\n\n' % (opening, text)

    def last_chunk(self, opening: bytes, text: bytes, given: int, reason: bytes, whole: bytes) -> bytes:
        stop = {"stop_reason": _stop_reason(reason.decode()), "stop_sequence": None}
        return b"".join(
            (
                self.text_chunk(opening, text, given) if text else b"",
                _event("content_block_stop", index=0),
                _event("message_delta", delta=stop, usage=self._usage(given)),
            )
        )

    def whole(self, texts: list[tuple[bytes, str]], output_tokens: int) -> bytes:
        ((text, reason),) = texts
        content = [{"type": "text", "text": text.decode("ascii")}]
        return _encode(
            {
                **self._message(content),
                "stop_reason": _stop_reason(reason),
                "stop_sequence": None,
                "usage": self._usage(output_tokens),
            }
        )

    def _message(self, content: list[dict[str, str]]) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
        }


def _stop_reason(reason: str) -> str:
    return _STOP_REASONS.get(reason, reason)


class ResponsesWording(_OfOneAnswer):
    """OpenAI's Responses API."""

    closing = b""
    tells_whole_text = True

    def opening(self, index: int) -> bytes:
        return (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"msg_1",'
            b'"output_index":0,"content_index":0,"logprobs":[],"sequence_number":4,"delta":"'
        )

    def role_chunk(self, index: int) -> bytes:
        begun = self._response([], "in_progress", None)
        place = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
        return b"".join(
            (
                _event("response.created", response=begun, sequence_number=0),
                _event("response.in_progress", response=begun, sequence_number=1),
                _event(
                    "response.output_item.added",
                    item=_item("", "in_progress"),
                    output_index=0,
                    sequence_number=2,
                ),
                _event("response.content_part.added", part=_part(""), sequence_number=3, **place),
            )
        )

    def text_chunk(self, opening: bytes, text: bytes, given: int) -> bytes:
        return b'%b%b"}\n\n' % (opening, text)

    def last_chunk(self, opening: bytes, text: bytes, given: int, reason: bytes, whole: bytes) -> bytes:
        said = whole.decode("ascii")
        place = {"output_index": 0, "item_id": "msg_1", "content_index": 0, "sequence_number": 5}
        return b"".join(
            (
                self.text_chunk(opening, text, given) if text else b"",
                _event("response.output_text.done", text=said, logprobs=[], **place),
                _event("response.content_part.done", part=_part(said), **place),
                _event(
                    "response.output_item.done",
                    item=_item(said, "completed"),
                    output_index=0,
                    sequence_number=6,
                ),
                _event(
                    "response.completed", response=self._done(said, reason.decode(), given), sequence_number=7
                ),
            )
        )

    def whole(self, texts: list[tuple[bytes, str]], output_tokens: int) -> bytes:
        ((text, reason),) = texts
        return _encode(self._done(text.decode("ascii"), reason, output_tokens))

    def _done(self, text: str, reason: str, output_tokens: int) -> dict[str, object]:
        cut = reason == "length"
        response = self._response(
            [_item(text, "completed")], "incomplete" if cut else "completed", output_tokens
        )
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        return response

    def _response(
        self, output: list[dict[str, object]], status: str, output_tokens: int | None
    ) -> dict[str, object]:
        usage: dict[str, object] | None = None
        if output_tokens is not None:
            usage = {
                **self._usage(output_tokens),
                "total_tokens": self._prompt_tokens + output_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": status,
            "usage": usage,
        }


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _item(text: str, status: str) -> dict[str, object]:
    content = [_part(text)] if text else []
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}


class _PooledWording(_OfOneAnswer):
    """What is never streamed."""

    def opening(self, index: int) -> bytes:
        return b""

    def role_chunk(self, index: int) -> bytes:
        return b""

    def text_chunk(self, opening: bytes, text: bytes, given: int) -> bytes:
        return b""

    def last_chunk(self, opening: bytes, text: bytes, given: int, reason: bytes, whole: bytes) -> bytes:
        return b""

    def _prompt_usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens,
            "completion_tokens": 0,
        }


class EmbeddingsWording(_PooledWording):
    """One vector for each input; its numbers say nothing."""

    def whole(self, texts: list[tuple[bytes, str]], output_tokens: int) -> bytes:
        data = [
            {
                "index": index,
                "object": "embedding",
                "embedding": [1.0 / (1 + index + n) for n in range(EMBEDDING_SIZE)],
            }
            for index in range(len(texts))
        ]
        return _encode(
            {
                "id": self._id,
                "object": "list",
                "created": self._created,
                "model": self._model,
                "data": data,
                "usage": self._prompt_usage(),
            }
        )


class ScoresWording(_PooledWording):
    """One score for each pair, falling in their order."""

    def whole(self, texts: list[tuple[bytes, str]], output_tokens: int) -> bytes:
        data = [
            {"index": index, "object": "score", "score": 1.0 / (2 + index)} for index in range(len(texts))
        ]
        return _encode(
            {
                "id": self._id,
                "object": "list",
                "created": self._created,
                "model": self._model,
                "data": data,
                "usage": self._prompt_usage(),
            }
        )


class RerankWording(_PooledWording):
    """The same, as a ranking of documents."""

    def whole(self, texts: list[tuple[bytes, str]], output_tokens: int) -> bytes:
        results = [{"index": index, "relevance_score": 1.0 / (2 + index)} for index in range(len(texts))]
        return _encode(
            {"id": self._id, "model": self._model, "usage": self._prompt_usage(), "results": results}
        )
