from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway.asks import BadRequest
from forebay.gateway.media_bodies import read_audio_form, read_image, read_image_form, read_speech


def form(*parts: tuple[str, bytes], boundary: bytes = b"--X") -> bytes:
    """A form as clients send it."""
    pieces = [
        b'%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (boundary, name.encode(), value)
        for name, value in parts
    ]
    return b"".join(pieces) + boundary + b"--\r\n"


FILE = b"\x00\xffRIFF\r\n--Y\r\n" * 1000


def test_a_form_names_its_model() -> None:
    """Model and stream are found, wherever the file stands; what it takes is what is configured."""
    for parts in (
        [("file", FILE), ("model", b"whisper"), ("stream", b"true")],
        [("model", b"whisper"), ("stream", b"true"), ("file", FILE)],
    ):
        ask = read_audio_form(form(*parts))
        assert ("whisper", True, "audio", 1, 0, False) == (
            ask.model,
            ask.stream,
            ask.flat,
            ask.samples,
            ask.prompt_tokens,
            ask.generates,
        )


def test_pictures_are_counted() -> None:
    """Each picture costs as much."""
    assert read_image(b'{"model": "m", "prompt": "a cat", "n": 3}').samples == 3
    ask = read_image_form(form(("image", FILE), ("n", b"2"), ("model", b"m")))
    assert ("m", "image", 2) == (ask.model, ask.flat, ask.samples)
    assert read_speech(b'{"model": "m", "input": "hi"}').flat == "audio"
    with pytest.raises(BadRequest):
        read_image_form(form(("n", b"many")))


@pytest.mark.parametrize("body", [b"", b"{}", b"--", b"--\r\n", b"--X\r\n" + b"a" * 9000, form()[:-4]])
def test_what_is_no_form_names_no_model(body: bytes) -> None:
    """It is refused, or there is nothing in it."""
    with contextlib.suppress(BadRequest):
        assert read_audio_form(body).model is None


def test_a_cut_form_is_told() -> None:
    """A part without an end."""
    with pytest.raises(BadRequest, match="cut off"):
        read_audio_form(form(("model", b"m"), ("file", FILE))[:200])


@given(st.binary(max_size=300), st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes, boundary: bytes) -> None:
    """Whatever comes: a count or a refusal."""
    for data in (body, b"--" + body, form(("model", body), boundary=b"--" + boundary)):
        with contextlib.suppress(BadRequest):
            assert read_image_form(data).samples >= 1
