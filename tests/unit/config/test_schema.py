"""The shape of the configuration."""

from __future__ import annotations

from typing import Any

from forebay.config.schema import LATER_KEYS, ClassEntry, Config, Limits, Pool, json_schema


def test_every_key_is_described() -> None:
    """Each key of each part says what it is for."""
    for model in (Config, Pool, ClassEntry, Limits):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_keys_that_come_later_are_not_there_yet() -> None:
    """A key is either usable or announced, never both."""
    for where, model in (("", Config), ("pools[]", Pool), ("classes.*", ClassEntry)):
        assert [] == sorted(LATER_KEYS.get(where, frozenset()) & set(model.model_fields))


def test_json_schema_is_strict_and_complete() -> None:
    """The exported schema forbids unknown keys and knows every part."""
    schema = json_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["required"] == ["pools"]
    definitions: dict[str, Any] = schema["$defs"]
    for part in (schema, definitions["Pool"], definitions["ClassEntry"], definitions["Limits"]):
        assert part["additionalProperties"] is False
    assert "pattern" in str(schema["properties"]["grace"])
