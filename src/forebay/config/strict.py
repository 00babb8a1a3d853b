"""What all models of the configuration have in common. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from forebay.config.secret_keys import quoted
from forebay.config.units import parse_duration_s, parse_size_bytes

__all__ = ["DURATION_JSON_SCHEMA", "DURATION_PATTERN", "Duration", "Size", "Strict", "plain_name"]

DURATION_PATTERN = r"^(0|([0-9]+(\.[0-9]*)?\s*(us|ms|s|m|min|h|d)\s*)+)$"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,99}")


DURATION_JSON_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [{"type": "string", "pattern": DURATION_PATTERN}, {"const": 0}]
}
Duration = Annotated[float, BeforeValidator(parse_duration_s), WithJsonSchema(DURATION_JSON_SCHEMA)]

Size = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "examples": ["32MiB"]}]}),
]


class Strict(BaseModel):
    """Unknown keys are errors, nothing is converted silently, and the words under a field describe it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True, use_attribute_docstrings=True
    )


def plain_name(value: str) -> str:
    """A name that is harmless in labels, logs and headers. Raises: ValueError."""
    if _NAME.fullmatch(value) is None:
        raise ValueError(
            f"found {quoted(value)}; a name has 1 to 100 letters, digits and . _ / : - and a letter or digit first"
        )
    return value
