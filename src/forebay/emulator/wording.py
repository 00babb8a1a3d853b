"""The bytes of answers: filler words, and the JSON around them as vLLM lays it out.

A streamed token costs one concatenation of fragments that were encoded when the answer began; JSON is encoded per
answer, never per token. `AnswerWording` owns the fragments of one answer and knows nothing of sockets or steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import msgspec

FINGERPRINT: Final = "forebay-emulator"
DONE: Final = b"data: [DONE]\n\n"

_TEXT: Final = (
    "the of and to in is it on as at we be by or an so do if up no all can her was one our out day get has him "
    "how man new now old see two way who let put say she too use run far sea sun ago air box cut big end few own"
)
FILLER: Final = tuple(f" {word}".encode("ascii") for word in _TEXT.split())
"""One word per token; with its blank about four bytes, as tokens of English text have."""


def filler(start: int, tokens: int) -> bytes:
    """The words of tokens number `start` to `start + tokens` of an answer."""
    count = len(FILLER)
    if tokens == 1:
        return FILLER[start % count]
    return b"".join(FILLER[(start + offset) % count] for offset in range(tokens))


class Wording(ABC):
    """The JSON of one answer, streamed or whole, in the form of one API."""

    closing: bytes = DONE
    """What ends a stream."""
    tells_whole_text: bool = False
    """The last chunk repeats all text of the answer."""

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """What precedes the text in every chunk of choice `index`."""

    @abstractmethod
    def role_chunk(self, index: int) -> bytes:
        """What comes before the first text of a choice."""

    @abstractmethod
    def text_chunk(self, opening: bytes, text: bytes, given: int) -> bytes:
        """A chunk with text, after which the choice has given `given` tokens."""

    @abstractmethod
    def last_chunk(self, opening: bytes, text: bytes, given: int, reason: bytes, whole: bytes) -> bytes:
        """The chunk with a choice's last text; it carries the reason for the end."""

    @abstractmethod
    def usage_chunk(self, output_tokens: int) -> bytes:
        """The chunk without choices that ends a stream whose usage was asked for."""

    @abstractmethod
    def whole(self, texts: list[tuple[bytes, str]], output_tokens: int) -> bytes:
        """The whole answer: (text, reason for the end) per choice."""


class AnswerWording(Wording):
    """A chat or a completion."""

    __slots__ = (
        "_chat",
        "_close",
        "_continuous_usage",
        "_created",
        "_finish",
        "_head",
        "_id",
        "_model",
        "_prompt_tokens",
    )

    def __init__(
        self,
        *,
        chat: bool,
        answer_id: str,
        created: int,
        model: str,
        prompt_tokens: int,
        continuous_usage: bool,
    ) -> None:
        self._chat = chat
        self._id = answer_id
        self._created = created
        self._model = model
        self._prompt_tokens = prompt_tokens
        self._continuous_usage = continuous_usage
        kind = "chat.completion.chunk" if chat else "text_completion"
        front = msgspec.json.encode({"id": answer_id, "object": kind, "created": created, "model": model})
        self._head = b"data: " + front[:-1] + b',"choices":['
        text_end, ids = (b'"}', b"") if chat else (b'"', b'"prompt_token_ids":null,')
        stop = b"" if chat else b'"stop_reason":null,'
        tail = ids + b'"token_ids":null}]'
        self._close = text_end + b',"logprobs":null,"finish_reason":null,' + stop + tail
        self._finish = text_end + b',"logprobs":null,"finish_reason":"%b","stop_reason":null,' + tail

    def opening(self, index: int) -> bytes:
        """What precedes the text in every chunk of choice `index`."""
        return (
            self._head
            + (b'{"index":%d,"delta":{"content":"' if self._chat else b'{"index":%d,"text":"') % index
        )

    def role_chunk(self, index: int) -> bytes:
        """The first chunk of a chat's choice: the role and no text."""
        return (
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]%b,%b'
            % (
                self._head,
                index,
                self._usage(0),
                b'"prompt_token_ids":null,"prompt_text":null}\n\n',
            )
        )

    def text_chunk(self, opening: bytes, text: bytes, given: int) -> bytes:
        """A chunk with text, after which the choice has given `given` tokens."""
        if self._continuous_usage:
            return b"%b%b%b%b}\n\n" % (opening, text, self._close, self._usage(given))
        return b"%b%b%b}\n\n" % (opening, text, self._close)

    def last_chunk(self, opening: bytes, text: bytes, given: int, reason: bytes, whole: bytes = b"") -> bytes:
        """The chunk with a choice's last text; it carries the reason for the end."""
        return b"%b%b%b%b}\n\n" % (opening, text, self._finish % reason, self._usage(given))

    def usage_chunk(self, output_tokens: int) -> bytes:
        """The chunk without choices that ends a stream whose usage was asked for."""
        return b'%b],"usage":%b,"system_fingerprint":"%b"}\n\n' % (
            self._head,
            msgspec.json.encode(self._usage_object(output_tokens)),
            FINGERPRINT.encode("ascii"),
        )

    def whole(self, texts: list[tuple[bytes, str]], output_tokens: int) -> bytes:
        """The whole answer: (text, reason for the end) per choice."""
        choices: list[dict[str, object]] = []
        for index, (text, reason) in enumerate(texts):
            tail: dict[str, object] = {
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": None,
            }
            if self._chat:
                message = {"role": "assistant", "content": text.decode("ascii"), "refusal": None}
                choices.append({"index": index, "message": message, **tail})
            else:
                choices.append({"index": index, "text": text.decode("ascii"), **tail})
        usage = {
            **self._usage_object(output_tokens),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
        return msgspec.json.encode(
            {
                "id": self._id,
                "object": "chat.completion" if self._chat else "text_completion",
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "service_tier": None,
                "system_fingerprint": FINGERPRINT,
                "usage": usage,
            }
        )

    def _usage(self, given: int) -> bytes:
        """The usage member of a chunk, if each is to have one."""
        if not self._continuous_usage:
            return b""
        prompt_tokens = self._prompt_tokens
        return (
            b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
            % (
                prompt_tokens,
                prompt_tokens + given,
                given,
            )
        )

    def _usage_object(self, output_tokens: int) -> dict[str, object]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + output_tokens,
            "completion_tokens": output_tokens,
        }
