from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from forebay.config import ConfigError, load
from forebay.runtime.tokenizer_files import counters_of


def write_tokenizer(path: Path) -> Path:
    """A tokenizer with a token for each word, of which it knows two."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path


def configured(tmp_path: Path, tokenizer: str) -> Path:
    """A configuration with that tokenizer."""
    file = tmp_path / "forebay.yaml"
    file.write_text(json.dumps({"pools": [{"endpoints": ["http://a:1"], "tokenizer": tokenizer}]}))
    return file


@pytest.mark.parametrize("name", ["tokenizer.json", "."])
def test_a_tokenizer_is_found_beside_the_configuration(tmp_path: Path, name: str) -> None:
    """By its file or its folder; the same file is the same counter, with all that it has learned."""
    path = write_tokenizer(tmp_path / "tokenizer.json")
    file = configured(tmp_path, name)
    (counter,) = counters_of(load(file)).values()
    assert 5 == counter._count(["one two three", "two one"])
    assert [counter] == list(counters_of(load(file)).values())
    os.utime(path, ns=(1, 1))
    assert [counter] != list(counters_of(load(file)).values())


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), ("{}", "no tokenizer.json")])
def test_what_is_no_tokenizer_is_told_with_its_place(tmp_path: Path, content: str | None, words: str) -> None:
    """The problem names the key."""
    if content is not None:
        (tmp_path / "t.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"pools\[0\]\.tokenizer.*{words}"):
        counters_of(load(configured(tmp_path, "t.json")))


def test_a_missing_library_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra."""
    write_tokenizer(tmp_path / "other.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"forebay\[tokenizer\]"):
        counters_of(load(configured(tmp_path, "other.json")))
