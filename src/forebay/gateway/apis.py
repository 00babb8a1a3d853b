"""The table of APIs that are served: each path, who reads its bodies, and how its answers are to be understood.

For: `routes`, which looks paths up, and all that a request passes after that. A path that is not in here is 404 unless
an operator lists it (`passthrough`): what administers an engine is never reached through the gateway by accident.
Data, not code: what differs between APIs is said here and decided nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forebay.gateway.asks import Ask
from forebay.gateway.demand import read_chat, read_completion
from forebay.gateway.error_shapes import ErrorShape
from forebay.gateway.media_bodies import read_audio_form, read_image, read_image_form, read_speech
from forebay.gateway.message_bodies import read_messages, read_responses
from forebay.gateway.native_bodies import (
    read_generate,
    read_generate_stream,
    read_llamacpp,
    read_tokens_in,
)
from forebay.gateway.pooling_bodies import read_embeddings, read_scores
from forebay.gateway.prompt_texts import (
    Texts,
    texts_of_chat,
    texts_of_completion,
    texts_of_embeddings,
    texts_of_messages,
    texts_of_responses,
    texts_of_scores,
)

__all__ = ["ADMITTED", "PASSED_POSTS", "TRITON", "AdmittedRoute"]

_ANTHROPIC: Final = ErrorShape.ANTHROPIC
_RESPONSES: Final = ErrorShape.RESPONSES
_LLAMACPP_END: Final = b'_type"'


@dataclass(frozen=True, slots=True)
class AdmittedRoute:
    """An inference path: its requests pass admission."""

    path: str
    read: Callable[[bytes], Ask]
    texts: Callable[[bytes], Texts | None] | None = None
    """The texts of a body, for a tokenizer to count; None: there are none that it could."""
    limit_field: str = "max_tokens"
    """The field that an output limit is written into; a dot leads into an object. Empty: there is none."""
    other_limit: tuple[bytes, str] = (b"", "")
    """The same for bodies that have this key in them, where two engines share a path."""
    takes_model: bool = True
    """Its bodies name a model, so that another one can be put there."""
    takes_priority: bool = True
    """Engines that know priorities take one with it."""
    unstated: bool = False
    """Engines have an output limit of their own where none is stated (`demand.unstated_limit`)."""
    errors: ErrorShape = ErrorShape.OPENAI
    native: bool = False
    """An engine's own route, or one of many shapes: its usage is found in other places, and the end of the body is the
    end of a stream, whatever the last event says."""
    end_key: bytes = b'_reason"'
    """What tells the last event of an answer: the end of the key that says why it ended (`http.sse`)."""
    preludes: tuple[bytes, ...] = ()
    """What marks events that an engine sends at once, before it has begun: no sign of an answer."""
    all_ends: bool = False
    """One stream may hold several answers, each with its own counts at its end."""

    def limit_field_of(self, body: bytes) -> str:
        """The field of this body that an output limit belongs into."""
        key, field = self.other_limit
        return field if key and key in body else self.limit_field


def _prompt_only(path: str) -> AdmittedRoute:
    return AdmittedRoute(path, read_embeddings, texts_of_embeddings, limit_field="")


def _score(path: str) -> AdmittedRoute:
    return AdmittedRoute(path, read_scores, texts_of_scores, limit_field="")


def _llamacpp(path: str) -> AdmittedRoute:
    return AdmittedRoute(
        path,
        read_llamacpp,
        limit_field="n_predict",
        takes_priority=False,
        native=True,
        end_key=_LLAMACPP_END,
        all_ends=True,
    )


def _media(path: str, read: Callable[[bytes], Ask], *, form: bool) -> AdmittedRoute:
    return AdmittedRoute(path, read, limit_field="", takes_model=not form, takes_priority=False, native=True)


ADMITTED: Final = {
    route.path: route
    for route in (
        AdmittedRoute("/v1/chat/completions", read_chat, texts_of_chat),
        AdmittedRoute("/v1/completions", read_completion, texts_of_completion, unstated=True),
        AdmittedRoute(
            "/v1/responses",
            read_responses,
            texts_of_responses,
            limit_field="max_output_tokens",
            errors=_RESPONSES,
            preludes=(b'"response.created"', b'"response.queued"', b'"response.in_progress"'),
        ),
        AdmittedRoute(
            "/v1/messages", read_messages, texts_of_messages, takes_priority=False, errors=_ANTHROPIC
        ),
        _prompt_only("/v1/embeddings"),
        _prompt_only("/embeddings"),
        _prompt_only("/embedding"),
        _prompt_only("/pooling"),
        _prompt_only("/classify"),
        _prompt_only("/v1/classify"),
        _score("/score"),
        _score("/v1/score"),
        _score("/rerank"),
        _score("/v1/rerank"),
        _score("/v2/rerank"),
        _score("/reranking"),
        _score("/v1/reranking"),
        AdmittedRoute(  # vLLM
            "/inference/v1/generate",
            read_tokens_in,
            limit_field="sampling_params.max_tokens",
            native=True,
        ),
        AdmittedRoute(  # SGLang and TGI
            "/generate",
            read_generate,
            limit_field="sampling_params.max_new_tokens",
            other_limit=(b'"inputs"', "parameters.max_new_tokens"),
            takes_model=False,
            native=True,
            all_ends=True,
        ),
        AdmittedRoute(  # TGI
            "/generate_stream",
            read_generate_stream,
            limit_field="parameters.max_new_tokens",
            takes_model=False,
            takes_priority=False,
            native=True,
        ),
        _llamacpp("/completion"),
        _llamacpp("/infill"),
        _media("/v1/audio/transcriptions", read_audio_form, form=True),
        _media("/v1/audio/translations", read_audio_form, form=True),
        _media("/v1/audio/speech", read_speech, form=False),
        _media("/v1/images/generations", read_image, form=False),
        _media("/v1/images/edits", read_image_form, form=True),
        _media("/v1/images/variations", read_image_form, form=True),
    )
}

TRITON: Final = AdmittedRoute(
    "/v2/models/NAME/generate",
    read_generate,
    takes_model=False,
    takes_priority=False,
    native=True,
)
"""All of Triton's generate extension; the path names the model, and has its reader made for it."""

PASSED_POSTS: Final = ("/tokenize", "/detokenize", "/v1/messages/count_tokens")
"""What costs an engine next to nothing: passed to one without admission, so that it neither waits behind inference nor
uses up what a tenant may ask for."""
