"""Writes docs/reference/configuration.md from the configuration schema; `make docs` runs it.

`--check` compares instead and exits with 1 if the page is out of date. The words are the schema's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic.fields import FieldInfo

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES
from forebay.config.schema import Config, json_schema
from forebay.config.strict import Strict

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "configuration.md"

HEAD: Final = """\
# Configuration

<!-- Made by `make docs` from src/forebay/config/schema.py: change it there. -->

A YAML file, given as `forebay serve -c FILE`. The order is defaults, file, environment, command line; the last one
wins. `forebay check FILE` says what is wrong with a file and where; `forebay schema` prints the same shape as JSON
Schema, for editors.

Every key can also be set from the environment, with or without a file: `FOREBAY_` and the key in capitals, two
underscores for each level (`FOREBAY_LIMITS__MAX_BODY=64MiB`, `FOREBAY_POOLS__0__GPUS=4`). The value is YAML. A list can
be given whole or entry by entry, from 0 without a gap:

```sh
FOREBAY_POOLS='[{name: llama, endpoints: ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]}]'

FOREBAY_POOLS__0__NAME=llama
FOREBAY_POOLS__0__ENDPOINTS__0=http://10.0.0.1:8000
FOREBAY_POOLS__0__ENDPOINTS__1=http://10.0.0.2:8000
```

`MAX_POOL_GPU_SECONDS` (seconds) and `POLL_INTERVAL_MS` (milliseconds) are older names, for all pools that do not set
`max_gpu_seconds` or `poll_interval` themselves. `POOL_DISCOVERY` is refused: this version does not discover endpoints.

Addresses are `HOST:PORT`; `8080` alone listens on loopback only, `:8080` on all interfaces.

Unknown keys are errors. Durations carry a unit (`500ms`, `1.5s`, `2m`), sizes too (`32MiB`, `512kB`).
"""

SECTIONS: Final = (
    ("Top level", "", None),
    ("`pools`", "A list; at least one.", "Pool"),
    ("`pools[].engine`", "The name of a family, or a mapping.", "EngineEntry"),
    ("`pools[].engine.metrics`", "", "MetricNames"),
    ("`classes`", "A mapping from a class's name to this.", "ClassEntry"),
    ("`plans`", "A mapping from a plan's name to this.", "PlanEntry"),
    ("`tenants`", "A list.", "TenantEntry"),
    ("`rules`", "A list; see [rules](rules.md).", "RuleEntry"),
    ("`rules[].then`", "", "RuleAction"),
    ("`rules[].then.refuse`", "", "RefuseAction"),
    ("`limits`", "", "Limits"),
)

Schema = dict[str, Any]


def type_words(schema: Schema) -> str:
    """What a value may be, for a person."""
    if "anyOf" in schema:
        options = [
            option for option in schema["anyOf"] if option.get("type") != "null" and option != {"const": 0}
        ]
        if _is_size(schema):
            auto = any(option.get("const") == "auto" for option in options)
            return "`auto` or size" if auto else "size"
        return " or ".join(dict.fromkeys(type_words(option) for option in options))
    if "$ref" in schema or "allOf" in schema:
        return "mapping"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "ms|s|m" in schema.get("pattern", ""):
        return "duration"
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_words(schema['items'])}s".replace("texts", "text")
    if kind == "object":
        keys = schema.get("properties")
        return "{" + ", ".join(f"`{key}`" for key in keys) + "}" if keys else "mapping"
    return {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}[
        kind or ""
    ]


def _is_size(schema: Schema) -> bool:
    kinds = {option.get("type") for option in schema["anyOf"]}
    return {"integer", "string"} <= kinds


def range_words(schema: Schema) -> str:
    """The limits of a number, where it has any."""
    options = [schema, *schema.get("anyOf", ())]
    words = []
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        values = [option[key] for option in options if key in option]
        if values and not (_has_sizes(schema) and values[0] == 0):
            words.append(f"{sign} {values[0]:g}")
    return ", ".join(words)


def _has_sizes(schema: Schema) -> bool:
    return "anyOf" in schema and _is_size(schema)


def default_words(schema: Schema, required: bool) -> str:
    """The default in the form in which one would write it."""
    if required:
        return "required"
    default = schema.get("default")
    if default is None:
        return "unset"
    if isinstance(default, dict):
        return "see below"
    return f"`{default}`"


def duration_range(field: FieldInfo) -> str:
    """The limits of a duration, which a JSON Schema has no words for."""
    words = []
    for bound in bounds(field.metadata, field.annotation):
        for key, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            value = getattr(bound, key, None)
            if value is not None and not (key == "ge" and value == 0):
                words.append(f"{sign} {written_duration(value)}")
    return ", ".join(words)


def bounds(metadata: Sequence[object], annotation: object) -> Iterator[object]:
    """Those of a type, and of the alternatives that it is made of."""
    for entry in metadata:
        yield from entry.metadata if isinstance(entry, FieldInfo) else [entry]
    for option in get_args(annotation):
        yield from bounds(getattr(option, "__metadata__", ()), getattr(option, "__origin__", option))


def written_duration(value_s: float) -> str:
    """In the largest unit that makes it a whole number."""
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if value_s >= unit_s and value_s % unit_s == 0:
            return f"{value_s // unit_s:g}{unit}"
    return f"{value_s:g}s" if value_s >= 1 or value_s == 0 else f"{value_s * 1000:g}ms"


def table(model: Schema, fields: type[Strict]) -> str:
    """One row per key of a model."""
    by_key = {field.alias or name: field for name, field in fields.model_fields.items()}
    required = model.get("required", ())
    rows = ["| Key | Value | Default | Meaning |", "|---|---|---|---|"]
    for key, schema in model["properties"].items():
        is_duration = "duration" in type_words(schema)
        limits = duration_range(by_key[key]) if is_duration else range_words(schema)
        values = ", ".join(filter(None, (type_words(schema), limits)))
        meaning = " ".join(schema.get("description", "See below.").split()).replace("|", "\\|")
        rows.append(f"| `{key}` | {values} | {default_words(schema, key in required)} | {meaning} |")
    return "\n".join(rows)


def default_classes() -> str:
    """The classes that there are when none are configured."""
    rows = ["| Class | `ttft` | `tpot` | `wait_budget` | `weight` | `value` |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{c.name}` | {c.ttft_s:g} s | {c.tpot_s * 1000:g} ms | {c.wait_budget_s:g} s | {c.weight:g} | {c.value:g} |"
        for c in ZERO_CONFIGURATION_CLASSES
    ]
    return (
        "\nWithout `classes` there are these, and a class of one of these names has these defaults:\n\n"
        + "\n".join(rows)
    )


def render() -> str:
    """The whole page."""
    schema = json_schema()
    models = {model.__name__: model for model in Strict.__subclasses__()}
    parts = [HEAD]
    for title, words, name in SECTIONS:
        model = schema if name is None else schema["$defs"][name]
        about = "" if name is None else f"{words} {model.get('description', '')}".strip() + "\n\n"
        parts.append(f"\n## {title}\n\n{about}{table(model, models[name or Config.__name__])}\n")
        if name == "ClassEntry":
            parts.append(default_classes() + "\n")
    return "".join(parts)


def main() -> int:
    """Write the page, or say whether it is up to date."""
    text = render()
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{PAGE.name} is out of date: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
