from __future__ import annotations

import gzip
import zlib

import pytest

from forebay.engines.reading import ANSWER_BYTES, Look
from tests.unit.engines.pages import answer, vllm_models


def test_plain_body_is_passed_on() -> None:
    """A body without a content coding is itself."""
    assert answer(b"x").plain_body() == b"x"
    assert answer(b"x", content_encoding="Identity").plain_body() == b"x"


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_body_is_unpacked(coding: str, compress: object) -> None:
    """A server that compresses although it was not asked to is read all the same."""
    assert callable(compress)
    assert answer(compress(b"text"), content_encoding=coding).plain_body() == b"text"


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"not gzip", "gzip"),
        (gzip.compress(b"cut off")[:-9], "gzip"),
        (b"x", "br"),
        (gzip.compress(bytes(ANSWER_BYTES + 1)), "gzip"),
    ],
    ids=["garbage", "cut", "unknown", "bomb"],
)
def test_unreadable_coding_gives_nothing(body: bytes, coding: str) -> None:
    """What cannot be unpacked within the size limit is no body."""
    assert answer(body, content_encoding=coding).plain_body() is None


def test_look_shows_only_bodies_of_200() -> None:
    """An error page is not mistaken for what was asked for."""
    look = Look({"/a": answer(b"1", 500), "/b": answer(b"2")})
    assert (look.body("/a"), look.body("/b"), look.body("/c")) == (None, b"2", None)
    assert (look.json("/a"), look.json("/b")) == (None, 2)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 200_000, b"\xff", b"<html>"], ids=len)
def test_odd_json_is_nothing(body: bytes) -> None:
    """A body that is no JSON, or too deep, is nothing, not a crash."""
    assert Look({"/a": answer(body)}).json("/a") is None


def test_models_are_named_once_with_their_aliases() -> None:
    """Names and aliases come in the server's order, each once."""
    body = b'{"data":[{"id":"a","aliases":["a","b",3]},{"id":"c"},{"id":"a"}]}'
    assert Look({"/v1/models": answer(body)}).model_names() == ("a", "b", "c")


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b'{"data":{}}',
        b'{"data":[1,null,{"id":5},{"id":""},{"no":"id"}]}',
        b'{"data":[{"id":["a"]}]}',
    ],
)
def test_odd_lists_of_models_are_empty(body: bytes) -> None:
    """Entries without a usable name are passed over."""
    assert Look({"/v1/models": answer(body)}).model_names() == ()


def test_owner_is_read_from_the_list() -> None:
    """Servers sign their lists of models."""
    look = Look({"/v1/models": answer(vllm_models("tiny"))})
    assert look.is_owned_by("vllm")
    assert not look.is_owned_by("llamacpp")


def test_header_is_found_in_any_answer() -> None:
    """The first answer that carries a header gives it."""
    look = Look({"/a": answer(b""), "/b": answer(b"", server="x")})
    assert (look.header(b"server"), look.header(b"date")) == (b"x", None)
