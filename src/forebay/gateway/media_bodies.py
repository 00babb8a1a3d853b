"""Reads what matters in requests for pictures and sound: the model and how many. They cost what is configured.

A file comes as a form (`multipart/form-data`), which is not taken apart: its short fields are found by their names,
and nothing is copied.
"""

from __future__ import annotations

from typing import Final

from forebay.gateway.api_fields import decode_image, decode_speech
from forebay.gateway.asks import Ask, BadRequest, bounded, decoded, samples_of

__all__ = ["AUDIO", "IMAGE", "read_audio_form", "read_image", "read_image_form", "read_speech"]

AUDIO: Final = "audio"
IMAGE: Final = "image"
MOST_PARTS: Final = 64
FIELD_BYTES: Final = 4096
"""Longest value of a field that is looked at, and longest head of a part."""
BOUNDARY_BYTES: Final = 72
"""A boundary has at most 70 characters, and two dashes before it."""


def read_image(body: bytes) -> Ask:
    """The body of /v1/images/generations. Raises: BadRequest."""
    fields = decoded(decode_image, body)
    samples = 1 if fields.n is None else samples_of(fields.n, "n")
    return _flat(fields.model, IMAGE, samples, stream=fields.stream is True)


def read_speech(body: bytes) -> Ask:
    """The body of /v1/audio/speech. Raises: BadRequest."""
    fields = decoded(decode_speech, body)
    return _flat(fields.model, AUDIO, 1, stream=fields.stream_format == "sse")


def read_audio_form(body: bytes) -> Ask:
    """The form of /v1/audio/transcriptions and translations. Raises: BadRequest."""
    fields = _form_fields(body)
    return _flat(fields.get("model"), AUDIO, 1, stream=fields.get("stream") in ("true", "True", "1"))


def read_image_form(body: bytes) -> Ask:
    """The form of /v1/images/edits and variations. Raises: BadRequest."""
    fields = _form_fields(body)
    count = fields.get("n", "1")
    if not (count.isascii() and count.isdigit() and len(count) <= 9):
        raise BadRequest("'n' must be a whole number.", "n")
    stream = fields.get("stream") in ("true", "True", "1")
    return _flat(fields.get("model"), IMAGE, samples_of(int(count), "n"), stream=stream)


def _flat(model: str | None, kind: str, samples: int, *, stream: bool) -> Ask:
    # Nothing is counted of a prompt: so that nothing is learned from what the engine says of it.
    return Ask(bounded(model), stream, 0, prompt_tokens=0, samples=samples, generates=False, flat=kind)


def _form_fields(body: bytes) -> dict[str, str]:
    """The short fields of a form that are ever looked at."""
    boundary = body[: body.find(b"\r\n", 0, BOUNDARY_BYTES + 2)] if body.startswith(b"--") else b""
    if len(boundary) < 3:
        raise BadRequest("The request body must be a form (multipart/form-data).")
    fields: dict[str, str] = {}
    at = len(boundary) + 2
    for _ in range(MOST_PARTS):
        head_end = body.find(b"\r\n\r\n", at, at + FIELD_BYTES)
        if head_end < 0:
            break
        end = body.find(b"\r\n" + boundary, head_end + 2)
        if end < 0:
            raise BadRequest("The form in the request body is cut off.")
        name = _field_name(body[at:head_end])
        if name in ("model", "n", "stream") and end - head_end - 4 <= FIELD_BYTES:
            fields[name] = body[head_end + 4 : end].decode("utf-8", "replace")
        at = end + len(boundary) + 4
    return fields


def _field_name(head: bytes) -> str:
    """The name in a part's `content-disposition`."""
    start = head.find(b' name="')
    if start < 0:
        return ""
    start += 7
    return head[start : head.find(b'"', start)].decode("latin-1")
