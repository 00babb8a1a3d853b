"""Whether the parts of a configuration fit together."""

from __future__ import annotations

from forebay.admission.settings import ZERO_CONFIGURATION_CLASSES
from forebay.config.checks import DEFAULT_CLASS_NAMES, find_contradictions
from forebay.config.schema import Config


def config(**keys: object) -> Config:
    """A configuration as a validator makes it."""
    return Config.model_validate({"pools": [{"endpoints": ["http://a:1"]}], **keys})


def test_default_class_names_are_the_cores() -> None:
    """The names known here are those of the core's default classes."""
    assert tuple(entry.name for entry in ZERO_CONFIGURATION_CLASSES) == DEFAULT_CLASS_NAMES


def test_sound_configuration_has_no_contradictions() -> None:
    """Nothing is found where nothing is wrong."""
    assert [] == find_contradictions(config(listen="127.0.0.1:0", admin="127.0.0.1:0"))


def test_every_contradiction_is_found_with_its_path() -> None:
    """Several contradictions are found at once, each at the key to change."""
    found = find_contradictions(
        config(
            pools=[
                {"name": "a", "endpoints": ["http://a:1", "http://a:1"]},
                {"name": "a", "endpoints": ["http://a:1"]},
            ],
            classes={"x": {}},
            listen="127.0.0.1:5",
            admin="127.0.0.1:5",
            grace="1s",
            notice="2s",
        )
    )
    assert [
        ("pools", 0, "endpoints", 1),
        ("pools", 1, "name"),
        ("pools", 1, "endpoints", 0),
        ("classes", "x"),
        ("default_class",),
        ("admin",),
        ("notice",),
    ] == [path for path, _ in found]
