"""Errors as vLLM words them: `{"error": {"message", "type", "param", "code"}}`, the code being the HTTP status.

Owns the shape and the recurring messages. Unknown routes and methods have the shape of the web framework under
vLLM instead: `{"detail": …}`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

NOT_FOUND: Final = b'{"detail":"Not Found"}'
METHOD_NOT_ALLOWED: Final = b'{"detail":"Method Not Allowed"}'

_AT_PATH: Final = re.compile(r"^(?P<message>.*) - at `(?:key in )?\$(?P<path>.*)`$", re.DOTALL)


class RequestRefused(Exception):
    """The engine answers with an error instead of a generation."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        """The error as JSON."""
        return error_body(self.status, self.message, self.kind, self.param)


def error_body(status: int, message: str, kind: str, param: str | None) -> bytes:
    """An error object as vLLM sends it."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": status}})


def invalid_body(location: str, problem: str, message: str) -> RequestRefused:
    """The body, or a field of it, is not what it must be."""
    text = f"1 validation error:\n  {{'type': '{problem}', 'loc': '{location}', 'msg': '{message}'}}"
    return RequestRefused(400, text, "Bad Request", location)


def from_decoding(error: Exception) -> RequestRefused:
    """The refusal for a body that could not be decoded."""
    if isinstance(error, msgspec.ValidationError):
        found = _AT_PATH.match(str(error))
        if found is None:
            return invalid_body("body", "model_attributes_type", str(error))
        return invalid_body(f"body{found['path']}", "type_error", found["message"])
    if isinstance(error, RecursionError):
        return invalid_body("body", "json_invalid", "JSON decode error: nested too deeply")
    return invalid_body("body", "json_invalid", f"JSON decode error: {error}")


def wrong_value(param: str, value: object, rule: str) -> RequestRefused:
    """A parameter has a value that it cannot have."""
    return RequestRefused(400, f"{rule}, got {value}. (parameter={param}, value={value})", param=param)


def unknown_model(asked: str, served: str) -> RequestRefused:
    """The model is not the one served here."""
    message = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return RequestRefused(404, message, "NotFoundError", "model")


def prompt_too_long(context_tokens: int) -> RequestRefused:
    """The prompt alone exceeds the context. vLLM stops counting there, so its figure is a lower bound."""
    least = context_tokens + 1
    return RequestRefused(
        400,
        f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains at least "
        f"{least} input tokens, which exceeds this limit even without any output tokens. Please reduce the length "
        f"of the input prompt. (parameter=input_tokens, value={least})",
        param="input_tokens",
    )


def answer_too_long(param: str, asked: int, prompt_tokens: int, context_tokens: int) -> RequestRefused:
    """Prompt and answer together exceed the context."""
    if asked > context_tokens:
        message = (
            f"{param}={asked} cannot be greater than max_model_len={context_tokens}. "
            f"Please request fewer output tokens."
        )
    else:
        message = (
            f"This model's maximum context length is {context_tokens} tokens. However, you requested {asked} output "
            f"tokens and your prompt contains {prompt_tokens} input tokens, for a total of {asked + prompt_tokens} "
            f"tokens. Please reduce the length of the input prompt or the number of requested output tokens."
        )
    return RequestRefused(400, f"{message} (parameter={param}, value={asked})", param=param)
