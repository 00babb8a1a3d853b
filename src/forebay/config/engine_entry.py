"""`engine` of a pool: the family of its engines, and which of their metrics to read where they are not the usual ones.

A name alone is the family. Pure; the names of series are only checked for their form here.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, field_validator, model_validator

from forebay.config.strict import Strict

__all__ = ["EngineEntry", "EngineName", "MetricNames", "or_name"]

EngineName = Literal["auto", "vllm", "sglang", "tgi", "trtllm", "llamacpp", "openai"]
NAMES: Final[tuple[str, ...]] = get_args(EngineName)
_LABEL: Final = r"[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*\"(?:[^\"\\]|\\.)*+\"\s*"
SERIES: Final = re.compile(rf"\s*[a-zA-Z_:][a-zA-Z0-9_:]*\s*(?:\{{\s*(?:{_LABEL}(?:,\s*|(?=\}})))*+\}})?\s*")

SeriesName = Annotated[str, Field(min_length=1, max_length=500)] | None


class MetricNames(Strict):
    """Names of series of an engine's metrics page; each may have labels in braces: `requests{state="active"}`."""

    running: SeriesName = None
    """Requests that run; series of the same name are summed."""
    waiting: SeriesName = None
    """Requests that wait inside the engine."""
    kv: SeriesName = None
    """Share of the KV cache in use, 0 to 1; the largest counts."""
    kv_capacity: SeriesName = None
    """Tokens that the KV cache holds."""
    preemptions: SeriesName = None
    """Counter of requests that were thrown out of the KV cache."""
    prompt_tokens: SeriesName = None
    """Counter of prompt tokens worked off."""
    output_tokens: SeriesName = None
    """Counter of output tokens made."""
    cached_tokens: SeriesName = None
    """Counter of prompt tokens that were in a prefix cache."""

    @field_validator("*")
    @classmethod
    def _is_a_series(cls, value: str | None) -> str | None:
        if value is not None and SERIES.fullmatch(value) is None:
            raise ValueError(
                f'found {value[:60]!r}; a series is written as `name` or `name{{label="value"}}`'
            )
        return value


class EngineEntry(Strict):
    """The engines of a pool."""

    family: EngineName = "auto"
    """What they are; `auto` looks at what each answers."""
    metrics: MetricNames | None = None
    """Series to read in place of the family's own; what is not named here is read as usual."""
    metrics_path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=500)] = "/metrics"
    """Where the series of `metrics` are, on the engine's own port."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        if value not in NAMES:
            near = difflib.get_close_matches(value, NAMES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"found the text {value[:60]!r}, allowed: {', '.join(NAMES)}{hint}")
        return {"family": value}


def or_name(schema: dict[str, Any]) -> None:
    """Tell of a field's JSON Schema that a family's name will do."""
    schema["anyOf"] = [{"type": "string", "enum": list(NAMES)}, {"$ref": schema.pop("$ref")}]
    schema["default"] = "auto"
