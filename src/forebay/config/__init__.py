"""Configuration: what may be written, how it is read, and how it becomes the core's settings."""

from __future__ import annotations

from forebay.config.errors import ConfigError, ConfigProblem
from forebay.config.loading import Loaded, load
from forebay.config.mapping import to_settings
from forebay.config.memory import memory_limit_bytes
from forebay.config.schema import Config, json_schema

__all__ = [
    "Config",
    "ConfigError",
    "ConfigProblem",
    "Loaded",
    "json_schema",
    "load",
    "memory_limit_bytes",
    "to_settings",
]
