"""From a request body to a `Generation`: what is to be generated, or a `RequestRefused` as vLLM would answer.

Reads what decides length, form and refusal; every other field is ignored, as vLLM ignores what it does not know.
One field of our own: `emulator_output_tokens` fixes the true length of the answer (still cut at the request's
limit), so that a load generator can say what the engine's model would have done. Pure; does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec

from forebay.emulator import errors
from forebay.emulator.lengths import Prompt, chat_prompt, drawn_output_tokens, ids_prompt, text_prompt

COMPLETION_DEFAULT_TOKENS: Final = 16
"""vLLM's limit for /v1/completions when the client sets none. A chat gets the rest of the context."""
SEQUENCES_MAX: Final = 256
"""Most prompts × samples in one request."""

_T = TypeVar("_T")
_Count = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]


class StreamOptions(msgspec.Struct):
    """`stream_options` of a body."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct):
    """Fields that both kinds of request have."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: _Count | None = None
    max_tokens: _Count | None = None
    min_tokens: _Count | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    seed: _Count | None = None
    emulator_output_tokens: _Count | None = None


class Part(msgspec.Struct):
    """One part of a message's content; only text counts."""

    text: str | None = None


class Message(msgspec.Struct):
    """One chat message."""

    role: str
    content: str | list[Part] | None = None

    def text(self) -> str:
        """All text in it."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if part.text)
        return self.content or ""


class ChatBody(Body):
    """Body of /v1/chat/completions."""

    messages: list[Message] | None = None
    max_completion_tokens: _Count | None = None


class CompletionBody(Body):
    """Body of /v1/completions."""

    prompt: str | list[str | _Count | list[_Count]] | None = None


class TokenizeBody(msgspec.Struct):
    """Body of /tokenize."""

    prompt: str | None = None
    messages: list[Message] | None = None


class DetokenizeBody(msgspec.Struct):
    """Body of /detokenize."""

    tokens: list[_Count]


# Not strict: like vLLM, take "3" and 3.0 for 3.
_CHAT: Final = msgspec.json.Decoder(ChatBody, strict=False)
_COMPLETION: Final = msgspec.json.Decoder(CompletionBody, strict=False)
_DETOKENIZE: Final = msgspec.json.Decoder(DetokenizeBody, strict=False)
_TOKENIZE: Final = msgspec.json.Decoder(TokenizeBody, strict=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to generate."""

    index: int
    prompt: Prompt
    output_tokens: int
    finish_reason: str
    """How it ends by itself: stop, or length at the limit."""
    limit_tokens: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A valid request."""

    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    samples: tuple[Sample, ...]
    prompt_tokens: int
    """Over all prompts; a prompt with several samples counts once."""
    samples_per_prompt: int


@dataclass(frozen=True, slots=True)
class GenerationRules:
    """What the engine that answers is like."""

    model: str
    context_tokens: int
    seed: int


def read_chat(raw: bytes, rules: GenerationRules) -> Generation:
    """The generation that a /v1/chat/completions body asks for. Raises `RequestRefused`."""
    body = decode(_CHAT, raw)
    if body.messages is None:
        raise errors.invalid_body("body.messages", "missing", "Field required")
    check_model(body, rules)
    if not body.messages:
        raise errors.RequestRefused(
            400, "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    prompt = chat_prompt([(message.role, message.text()) for message in body.messages])
    if body.max_completion_tokens is not None:
        return generation_of(
            body, rules, [prompt], "max_completion_tokens", body.max_completion_tokens, chat=True
        )
    return generation_of(body, rules, [prompt], "max_tokens", body.max_tokens, chat=True)


def read_completion(raw: bytes, rules: GenerationRules) -> Generation:
    """The generation that a /v1/completions body asks for. Raises `RequestRefused`."""
    body = decode(_COMPLETION, raw)
    if body.prompt is None:
        raise errors.invalid_body("body.prompt", "missing", "Field required")
    check_model(body, rules)
    limit = COMPLETION_DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    return generation_of(body, rules, prompts_of(body.prompt), "max_tokens", limit, chat=False)


def read_tokenize(raw: bytes) -> Prompt:
    """The prompt in a /tokenize body. Raises `RequestRefused`."""
    body = decode(_TOKENIZE, raw)
    if body.messages is not None:
        return chat_prompt([(message.role, message.text()) for message in body.messages])
    if body.prompt is None:
        raise errors.invalid_body("body.prompt", "missing", "Field required")
    return text_prompt(body.prompt)


def read_detokenize(raw: bytes) -> int:
    """How many tokens a /detokenize body has. Raises `RequestRefused`."""
    return len(decode(_DETOKENIZE, raw).tokens)


def decode(decoder: msgspec.json.Decoder[_T], raw: bytes) -> _T:
    """The body. Raises `RequestRefused`."""
    if not raw:
        raise errors.invalid_body("body", "missing", "Field required")
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.from_decoding(error) from None


def check_model(body: Body, rules: GenerationRules) -> None:
    """Raises `RequestRefused` if another model is asked for."""
    if body.model is not None and body.model != rules.model:
        raise errors.unknown_model(body.model, rules.model)


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[Prompt]:
    """A prompt of any of its forms. Raises `RequestRefused`."""
    if isinstance(prompt, str):
        return [text_prompt(prompt)]
    ids = [part for part in prompt if isinstance(part, int)]
    texts = [part for part in prompt if isinstance(part, str)]
    id_lists = [part for part in prompt if isinstance(part, list)]
    if not prompt or (id_lists and not all(id_lists)):
        raise errors.RequestRefused(
            400, "The prompt is empty. Please give at least one token.", param="prompt"
        )
    if len(ids) == len(prompt):
        return [ids_prompt(ids)]
    if len(texts) == len(prompt):
        return [text_prompt(text) for text in texts]
    if len(id_lists) == len(prompt):
        return [ids_prompt(part) for part in id_lists]
    raise errors.invalid_body(
        "body.prompt", "list_type", "Input should be all texts, all token ids or all lists of them"
    )


def generation_of(
    body: Body,
    rules: GenerationRules,
    prompts: list[Prompt],
    limit_name: str,
    limit: int | None,
    *,
    chat: bool,
) -> Generation:
    """What these prompts ask for. Raises `RequestRefused`."""
    per_prompt = 1 if body.n is None else body.n
    if per_prompt < 1:
        raise errors.wrong_value("n", per_prompt, "n must be at least 1")
    if per_prompt * len(prompts) > SEQUENCES_MAX:
        raise errors.wrong_value("n", per_prompt, f"prompts times n must be at most {SEQUENCES_MAX}")
    if limit is not None and limit < 1:
        raise errors.wrong_value(limit_name, limit, f"{limit_name} must be at least 1")
    if body.temperature is not None and not body.temperature >= 0:
        raise errors.wrong_value("temperature", body.temperature, "temperature must be non-negative")
    samples: list[Sample] = []
    for prompt in prompts:
        room = rules.context_tokens - prompt.tokens
        if room < 1:
            raise errors.prompt_too_long(rules.context_tokens)
        if limit is not None and limit > room:
            raise errors.answer_too_long(limit_name, limit, prompt.tokens, rules.context_tokens)
        cap = room if limit is None else limit
        for sample in range(per_prompt):
            natural = _natural_tokens(body, rules, prompt, sample, cap)
            reason = "stop" if natural < cap else "length"
            samples.append(Sample(len(samples), prompt, min(natural, cap), reason, cap))
    options = body.stream_options or StreamOptions()
    return Generation(
        chat=chat,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        samples=tuple(samples),
        prompt_tokens=sum(prompt.tokens for prompt in prompts),
        samples_per_prompt=per_prompt,
    )


def _natural_tokens(body: Body, rules: GenerationRules, prompt: Prompt, sample: int, cap: int) -> int:
    """Tokens that the answer would have without a limit."""
    if body.emulator_output_tokens is not None:
        if body.emulator_output_tokens < 1:
            raise errors.wrong_value(
                "emulator_output_tokens",
                body.emulator_output_tokens,
                "emulator_output_tokens must be at least 1",
            )
        return body.emulator_output_tokens
    if body.ignore_eos:
        return cap
    return max(body.min_tokens or 1, drawn_output_tokens(rules.seed, prompt, body.seed, sample))
