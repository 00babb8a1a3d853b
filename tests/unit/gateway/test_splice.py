from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.model import BodyChange
from forebay.gateway import splice
from forebay.gateway.apis import ADMITTED
from forebay.gateway.splice import changed_body, with_fields

CHAT = ADMITTED["/v1/chat/completions"]
MODEL = {"model": b'"small"'}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"big","n":1}', b'{"model":"small","n":1}'),
        (b'{ "n" : 1 , "model" :\t"big" }', b'{ "n" : 1 , "model" :\t"small" }'),
        (b'{"model":null}', b'{"model":"small"}'),
        (b'{"mod\\u0065l":"big"}', b'{"mod\\u0065l":"small"}'),
        (b'{"tools":[{"model":"big"}],"model":"big"}', b'{"tools":[{"model":"big"}],"model":"small"}'),
        (
            b'{"prompt":"\\"model\\":\\"big\\"","model":"big"}',
            b'{"prompt":"\\"model\\":\\"big\\"","model":"small"}',
        ),
        (b'{"k\\"model":"big","model":"big"}', b'{"k\\"model":"big","model":"small"}'),
        (b'{"n":1}', b'{"model":"small","n":1}'),
        (b" {} ", b' {"model":"small"} '),
        (b'{"model":"same","model":"same"}', b'{"model":"same","model":"same","model":"small"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"a","model":"b","model":"small"}'),
        (b'{"n":12,"n":1,"model":"b"}', b'{"n":12,"n":1,"model":"b","model":"small"}'),
        (b'{"n":1,"model":"b","n":12}', b'{"n":1,"model":"b","n":12,"model":"small"}'),
        ('{"ключ":"да","model":"b"}'.encode(), '{"ключ":"да","model":"small"}'.encode()),
        (b'{"model":"big","x":1.50e+1}\n', b'{"model":"small","x":1.50e+1}\n'),
    ],
)
def test_only_the_one_field_of_the_top_level_is_changed(body: bytes, expected: bytes) -> None:
    """The value changes, and every other byte stays: nested fields, text that looks alike, spaces, duplicates."""
    assert expected == with_fields(body, MODEL)


def test_what_the_core_wants_changed_is_changed() -> None:
    """As JSON, whatever the name holds."""
    assert b'{"priority":2,"n":1}' == changed_body(b'{"n":1}', BodyChange(priority=2), CHAT)
    assert b'{"priority":0}' == changed_body(b'{"priority":9}', BodyChange(priority=0), CHAT)
    assert b'{"model":"a\\"b","n":1}' == changed_body(b'{"model":"big","n":1}', BodyChange(model='a"b'), CHAT)


def test_several_fields_are_changed_or_added_at_once() -> None:
    """What is there is replaced, what is missing comes first."""
    changed = with_fields(b'{"stream":true,"model":"big"}', {"model": b'"small"', "priority": b"2"})
    assert b'{"priority":2,"stream":true,"model":"small"}' == changed


def test_a_body_of_very_many_parts_gets_the_field_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at each of a million keys would hold up everybody; the last of equal keys counts."""
    parts = splice.MOST_PARTS + 1
    body = b'{"model":"big",' + b",".join(b'"%d":0' % i for i in range(parts)) + b"}"
    changed = with_fields(body, MODEL)
    assert body[:-1] + b',"model":"small"}' == changed
    assert "small" == json.loads(changed)["model"]


KEYS = st.sampled_from(["model", "mo", "priority", "ключ", 'q"', "b\\", "n"]) | st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(KEYS, VALUES), max_size=6), st.booleans(), st.sampled_from([None, 1]))
def test_any_object_comes_out_with_that_field_and_all_others(
    pairs: list[tuple[str, object]], plain: bool, indent: int | None
) -> None:
    """Whatever the keys, their order, their escapes and the spaces; duplicates included."""
    inner = ",".join(
        json.dumps(key, ensure_ascii=not plain)
        + ": "
        + json.dumps(value, ensure_ascii=not plain, indent=indent)
        for key, value in pairs
    )
    body = ("{" + inner + "}").encode()
    changed = json.loads(with_fields(body, MODEL))
    assert {**dict(pairs), "model": "small"} == changed


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/messages", b'{"model":"a"}', b'{"max_tokens":5,"model":"b"}'),
        ("/v1/responses", b'{"model":"a"}', b'{"priority":2,"max_output_tokens":5,"model":"b"}'),
        ("/v1/embeddings", b'{"model":"a"}', b'{"priority":2,"model":"b"}'),
        ("/completion", b'{"n_predict":-1}', b'{"model":"b","n_predict":5}'),
        ("/generate", b'{"inputs":"x"}', b'{"priority":2,"parameters":{"max_new_tokens":5},"inputs":"x"}'),
        (
            "/generate",
            b'{"text":"x","sampling_params":{"n":2}}',
            b'{"priority":2,"text":"x","sampling_params":{"max_new_tokens":5,"n":2}}',
        ),
        (
            "/generate",
            b'{"text":"x","sampling_params":[{}]}',
            b'{"priority":2,"text":"x","sampling_params":[{}]}',
        ),
        ("/generate_stream", b'{"parameters":null}', b'{"parameters":{"max_new_tokens":5}}'),
        ("/v1/audio/transcriptions", b"--X", b"--X"),
    ],
)
def test_each_api_has_its_own_fields(path: str, body: bytes, expected: bytes) -> None:
    """A limit goes where the API has it, also inside an object; what it has no field for stays unsaid."""
    assert expected == changed_body(body, BodyChange("b", 2, 5), ADMITTED[path])
