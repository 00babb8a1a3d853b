"""The JSON Schema allows what `forebay check` allows: its own defaults, and the examples of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay.config.schema import Config, json_schema

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = json_schema()
TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
POOL = {"endpoints": ["http://10.0.0.1:8000"]}


def faults(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """What a validator of JSON Schema finds, for the words that ours has."""
    if "$ref" in schema:
        yield from faults(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], path)
    if "anyOf" in schema:
        found = [list(faults(value, option, path)) for option in schema["anyOf"]]
        if all(found):
            yield found[-1][0]
    kind = schema.get("type")
    is_flag = isinstance(value, bool) and kind in ("integer", "number")
    if kind is not None and (is_flag or not isinstance(value, TYPES[kind])):
        yield f"{path}: {value!r} is no {kind}"
    elif kind == "array":
        for index, entry in enumerate(value):
            yield from faults(entry, schema.get("items", {}), f"{path}[{index}]")
    elif kind == "object":
        yield from faults_inside(value, schema, path)
    elif not fits(value, schema):
        yield f"{path}: {value!r} does not fit {schema}"


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Of a single value."""
    if isinstance(value, str):
        if re.search(schema.get("pattern", ""), value) is None:
            return False
    elif isinstance(value, int | float):
        below = value < schema.get("minimum", value) or value <= schema.get("exclusiveMinimum", value - 1)
        if (
            below
            or value > schema.get("maximum", value)
            or value >= schema.get("exclusiveMaximum", value + 1)
        ):
            return False
    return value == schema.get("const", value) and value in schema.get("enum", [value])


def faults_inside(value: dict[str, Any], schema: dict[str, Any], path: str) -> Iterator[str]:
    """Of a mapping."""
    keys, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key, entry in value.items():
        if key in keys or isinstance(others, dict):
            yield from faults(entry, keys.get(key, others), f"{path}.{key}")
        elif others is False:
            yield f"{path}: there is no {key}"
    yield from (f"{path}: {key} is missing" for key in schema.get("required", ()) if key not in value)


def with_defaults(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of the schema that has a default."""
    if isinstance(node, dict):
        if "default" in node:
            yield path, node
        for key, value in node.items():
            yield from with_defaults(value, f"{path}/{key}")


def examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every YAML block of the documentation."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(
            r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        for number, block in enumerate(blocks):
            yield f"{page.name}-{number}", yaml.safe_load(block)


def test_every_default_is_allowed_where_it_stands() -> None:
    """An editor that fills them in writes a file that can be used."""
    found = list(with_defaults(SCHEMA))
    assert len(found) > 70
    assert [] == [fault for path, part in found for fault in faults(part["default"], part, path)]
    keys = SCHEMA["$defs"]["Pool"]["properties"]
    assert ["200ms", "0s", "learn"] == [
        keys[key]["default"] for key in ("poll_interval", "hold_without_endpoints", "profile")
    ]
    limits = SCHEMA["$defs"]["Limits"]["properties"]
    assert ["32MiB", "auto", "600s"] == [
        limits[key]["default"] for key in ("max_body", "max_waiting_bytes", "answer_timeout")
    ]
    assert ["127.0.0.1:8080", "30s"] == [SCHEMA["properties"][key]["default"] for key in ("listen", "grace")]


def test_the_defaults_written_out_mean_the_same() -> None:
    """Read again they give what they stand for."""
    top = {
        key: part["default"]
        for key, part in SCHEMA["properties"].items()
        if part.get("default") is not None and key != "limits"
    }
    for name, key in (("Limits", "limits"), ("Pool", "pool")):
        parts = SCHEMA["$defs"][name]["properties"].items()
        top[key] = {inner: part["default"] for inner, part in parts if part.get("default") is not None}
    top["pools"] = [{**POOL, **top.pop("pool")}]
    assert Config.model_validate({"pools": [POOL]}) == Config.model_validate(top)


@pytest.mark.parametrize(("name", "example"), list(examples()), ids=lambda value: str(value)[:40])
def test_the_examples_of_the_documentation_fit(name: str, example: dict[str, Any]) -> None:
    """Those that show a part get a pool."""
    assert [] == list(faults({"pools": [POOL], **example}, SCHEMA, name))


def test_nothing_at_all_needs_no_unit() -> None:
    """`0` is a duration for `forebay check`, and so it is here; other bare numbers are not."""
    for value, expected in ((0, 0), ("0", 0), ("1h 30m", 0), (5, 1), ("5", 1)):
        config = {"pools": [{**POOL, "hold_without_endpoints": value}]}
        assert expected == len(list(faults(config, SCHEMA))), value
