"""The defaults of the JSON Schema as people write them: with units, and in the form that the schema itself allows.

For: `schema`. The models hold numbers; an editor that fills in a default must not write what `forebay check` refuses.
Pure.
"""

from __future__ import annotations

from typing import Any, Final

from forebay.config.strict import DURATION_PATTERN

__all__ = ["write_defaults"]

_MIB: Final = 1 << 20


def write_defaults(node: Any) -> None:
    """Put every default below into the form that a file has."""
    if isinstance(node, dict):
        if "default" in node:
            node["default"] = _written(node["default"], _options(node))
        for value in node.values():
            write_defaults(value)
    elif isinstance(node, list):
        for value in node:
            write_defaults(value)


def _options(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What may be written there, alternatives within alternatives included."""
    inner = [option for part in schema.get("anyOf", ()) for option in _options(part)]
    return inner or [schema]


def _written(default: Any, options: list[dict[str, Any]]) -> Any:
    if isinstance(default, dict):
        if "port" in default:
            return f"{default['host']}:{default['port']}"
        return "learn" if "tokens_per_gpu_second" in default else {}  # what is inside has defaults of its own
    if default is None:
        return "auto" if any(option.get("const") == "auto" for option in options) else None
    if any(option.get("pattern") == DURATION_PATTERN for option in options):
        return f"{default:g}s" if default >= 1 or default == 0 else f"{default * 1000:g}ms"
    kinds = {option.get("type") for option in options}
    if {"integer", "string"} <= kinds and default % _MIB == 0:
        return f"{default // _MIB}MiB"
    return default
