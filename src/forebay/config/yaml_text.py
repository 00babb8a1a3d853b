"""YAML text to plain data, with the place of every key, and nothing that can surprise an operator.

Differences from PyYAML's safe loader, each on purpose: a key given twice is an error (the first would be lost in
silence); only YAML 1.2's core scalars are special, so `off`, `yes` and `1:30` stay text; a document is bounded in
bytes, in depth and in expanded size (aliases of aliases). It owns no file handles and never makes Python objects.
What is under a secret key is in no message, and may not stand anywhere else by an alias, where messages would show it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from forebay.config.errors import ConfigError, ConfigProblem
from forebay.config.secret_keys import KeyPath, is_secret, may_be_secret, quoted, shown_path

__all__ = ["MAX_DOCUMENT_BYTES", "Document", "KeyPath", "key_text", "parse_yaml"]

MAX_DOCUMENT_BYTES: Final = 256 * 1024
"""A configuration with a thousand endpoints is under 50 kB; PyYAML reads this much in a few seconds."""
_MAX_NODES: Final = 100_000
_MAX_DEPTH: Final = 32
_NAMED: Final = re.compile(r"""'(?!<)[^']{3,}'|"[^"]{3,}\"""")
"""What PyYAML quotes of a text: names of aliases and anchors, and tags. A secret that needs quotation marks and has
none is read as one of these."""


@dataclass(slots=True)
class Document:
    """What a text said, and where."""

    source: str
    data: Any = field(repr=False)
    places: dict[KeyPath, tuple[int, int]] = field(default_factory=dict)
    """Line and column, counted from 1, of each key (of a mapping) and each item (of a list)."""
    overridden: dict[KeyPath, str] = field(default_factory=dict)
    """Variable or option that gave the value at a path, where the text did not."""

    def place(self, path: KeyPath) -> tuple[int | None, int | None]:
        """Where `path` is, or the nearest enclosing thing that has a place."""
        for length in range(len(path), -1, -1):
            found = self.places.get(path[:length])
            if found is not None:
                return found
        return None, None

    def problem(self, path: KeyPath, message: str) -> ConfigProblem:
        """A located problem with the value at `path`."""
        for length in range(len(path), -1, -1):
            source = self.overridden.get(path[:length])
            if source is not None:
                return ConfigProblem(source, key_text(shown_path(path)), message)
        line, column = self.place(path)
        return ConfigProblem(self.source, key_text(shown_path(path)), message, line, column)


def key_text(path: KeyPath) -> str:
    """`("pools", 0, "gpus")` as people write it: `pools[0].gpus`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def parse_yaml(text: str, source: str, *, under: KeyPath = ()) -> Document:
    """The one document in `text`.

    Args:
        under: where in a configuration it stands, which says what of it is secret.

    Raises:
        ConfigError: with the place and the fix; nothing else, whatever the text.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise ConfigError(
            [ConfigProblem(source, "", f"more than {MAX_DOCUMENT_BYTES // 1024} KiB of configuration")]
        )
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        document = Document(source, None)
        if root is not None:
            construction = _Construction(loader, document, under=under)
            construction.keep_secrets_apart(root)
            document.data = construction.value(root, ())
        return document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = _NAMED.sub("…", " ".join(part for part in (error.context, error.problem) if part))
        if "alias" in message or "anchor" in message or "tag" in message:
            message += "; a text that begins with *, & or ! needs quotation marks"
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise ConfigError([ConfigProblem(source, "", f"not valid YAML: {message}", line, column)]) from None
    except yaml.YAMLError as error:
        first_line = str(error).splitlines()[0]
        raise ConfigError([ConfigProblem(source, "", f"not valid YAML: {first_line}")]) from None
    except RecursionError:
        raise ConfigError([ConfigProblem(source, "", "nested too deeply to be a configuration")]) from None


class _Loader(yaml.SafeLoader):
    """Safe loader with YAML 1.2's core schema for plain scalars."""


_Loader.yaml_implicit_resolvers = {}

for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
    ("tag:yaml.org,2002:merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)


class _Construction:
    """Walks the node graph once per use of each node, so that every key gets its own path."""

    def __init__(self, loader: _Loader, document: Document, *, under: KeyPath) -> None:
        self._loader = loader
        self._document = document
        self._under = under
        self._nodes = 0

    def keep_secrets_apart(self, root: yaml.Node) -> None:
        """Nothing stands under a secret key and, by an alias, elsewhere too. Raises: ConfigError."""
        uses: dict[yaml.Node, KeyPath] = {}
        seen: set[tuple[yaml.Node, bool]] = set()
        ways: list[tuple[yaml.Node, KeyPath]] = [(root, ())]
        while ways:
            node, path = ways.pop()
            hidden = is_secret((*self._under, *path))
            if (node, hidden) in seen:
                continue
            seen.add((node, hidden))
            if (node, not hidden) in seen:
                secret, other = (path, uses[node]) if hidden else (uses[node], path)
                also = f"{key_text(shown_path(secret))} is also that of {key_text(shown_path(other))}, by an alias"
                raise self._error(node, secret, f"the value of {also}: a secret must stand for itself alone")
            uses[node] = path
            if isinstance(node, yaml.SequenceNode):
                ways += [(item, (*path, index)) for index, item in enumerate(node.value)]
            elif isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    is_key = isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge"
                    ways += [(key, path), (value, (*path, key.value) if is_key else path)]

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise self._error(node, path, "the document is too large once its aliases are expanded")
        if len(path) > _MAX_DEPTH:
            raise self._error(node, path[:2], "nested too deeply to be a configuration")
        self._document.places.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        raise self._error(node, path, "cannot be used here")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged.append(value_node)
                continue
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise self._error(key_node, path, "a key must be plain text")
            if key in result:
                first_line, _ = self._document.place((*path, key))
                raise self._error(
                    key_node, (*path, key), f"given twice (first in line {first_line}); keep one"
                )
            self._document.places.setdefault(
                (*path, key), (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            )
            result[key] = self.value(value_node, (*path, key))
        for value_node in merged:
            for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                inherited = self.value(source, path)
                if not isinstance(inherited, dict):
                    raise self._error(value_node, path, "`<<` takes a mapping")
                result = {**inherited, **result}
        return result

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        match node.tag:
            case "tag:yaml.org,2002:null":
                return None
            case "tag:yaml.org,2002:bool":
                return node.value.lower() == "true"
            case "tag:yaml.org,2002:str":
                return node.value
            case "tag:yaml.org,2002:int" if len(node.value) <= 20 and _is_number(node.value):
                return int(node.value)
            case "tag:yaml.org,2002:int" | "tag:yaml.org,2002:float" if _is_number(node.value):
                return float(node.value)
            case _:
                if may_be_secret((*self._under, *path)):
                    raise self._error(node, path, "cannot be used here; put it in quotation marks")
                raise self._error(node, path, f"cannot use the value {quoted(node.value)} of type {node.tag}")

    def _error(self, node: yaml.Node, path: KeyPath, message: str) -> ConfigError:
        mark = node.start_mark
        shown = shown_path((*self._under, *path))[len(self._under) :]
        problem = ConfigProblem(
            self._document.source, key_text(shown), message, mark.line + 1, mark.column + 1
        )
        return ConfigError([problem])


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
