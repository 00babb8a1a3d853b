"""From a file, the environment and command-line values to one checked `Config`, or to every problem at once.

Order, last wins: defaults, file, environment, command line. A file is read once and is bounded. Nothing is half
applied: the caller gets a whole configuration or a `ConfigError`.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from forebay.config.checks import find_contradictions, find_doubts
from forebay.config.environment import Override, apply_override, fill_in_pools, overrides_from
from forebay.config.errors import ConfigError, ConfigProblem
from forebay.config.messages import problems_from
from forebay.config.schema import Config
from forebay.config.yaml_text import MAX_DOCUMENT_BYTES, Document, KeyPath, parse_yaml

__all__ = ["Loaded", "load"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and what to know about where it came from."""

    config: Config
    document: Document
    """For problems that show only later, such as a profile that cannot be read."""
    base_directory: Path
    """Relative file names in the configuration are relative to this."""
    warnings: tuple[str, ...] = ()
    path: Path | None = None
    """The file it was read from; None if it was none, or cannot be read again."""
    pools_replaced: bool = False
    """True if an option gave pools although the file or the environment had some."""


def load(
    path: Path | None,
    *,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, tuple[str, Any]] | None = None,
    part_options: Mapping[KeyPath, str] | None = None,
) -> Loaded:
    """The configuration from `path` (None: no file, `-`: standard input), `environ` and `options`.

    Args:
        environ: variables to look at; None means the process's own.
        options: top-level key to (name of the command-line option, value as if from YAML).
        part_options: path to name of the option, for parts of those values that came from an option of their own.

    Raises:
        ConfigError: with every problem found, and the warnings beside.
    """
    document = _read(path) if path is not None else Document("configuration", None)
    environ = os.environ if environ is None else environ
    overrides, warnings = overrides_from(environ)
    try:
        data = _as_mapping(document)
        _apply(overrides, data, document)
        pools_replaced = "pools" in data and "pools" in (options or {})
        for key, (option, value) in (options or {}).items():
            data[key] = value
            document.overridden[(key,)] = option
        document.overridden.update(part_options or {})
        document.overridden.update(fill_in_pools(environ, data))
        document.data = data
        config = _validated(document)
    except ConfigError as error:
        error.warnings = tuple(warnings)
        raise
    warnings += [str(document.problem(where, message)) for where, message in find_doubts(config)]
    return Loaded(
        config=config,
        document=document,
        base_directory=path.parent if path is not None else Path(),
        warnings=tuple(warnings),
        path=None if path is None or str(path) == "-" else path,
        pools_replaced=pools_replaced,
    )


def _read(path: Path) -> Document:
    is_stdin = str(path) == "-"
    source = "standard input" if is_stdin else str(path)
    try:
        with nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as file:
            raw = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError([ConfigProblem(source, "", f"cannot be read: {reason}")]) from None
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise ConfigError(
            [ConfigProblem(source, "", f"larger than {MAX_DOCUMENT_BYTES // 1024} KiB: not a configuration?")]
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            [ConfigProblem(source, "", f"not UTF-8 text (byte {error.start}); save it as UTF-8")]
        ) from None
    return parse_yaml(text, source)


def _as_mapping(document: Document) -> dict[str, Any]:
    if document.data is None:
        return {}
    if not isinstance(document.data, dict):
        message = "a configuration is a mapping of keys to values, as in `listen: 0.0.0.0:8080`"
        raise ConfigError([document.problem((), message)])
    return document.data


def _apply(overrides: list[Override], data: dict[str, Any], document: Document) -> None:
    problems = []
    for override in overrides:
        try:
            for path in apply_override(override, data):
                document.overridden[path] = override.variable
        except ValueError as error:
            problems.append(ConfigProblem(override.variable, "", str(error)))
    if problems:
        raise ConfigError(problems)


def _validated(document: Document) -> Config:
    try:
        config = Config.model_validate(document.data)
    except ValidationError as error:
        problems = problems_from(error, document) + _contradictions_beside(error, document)
        raise ConfigError(
            sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
        ) from None
    contradictions = [document.problem(path, message) for path, message in find_contradictions(config)]
    if contradictions:
        raise ConfigError(contradictions)
    return config


def _contradictions_beside(error: ValidationError, document: Document) -> list[ConfigProblem]:
    """Contradictions that show once the keys in which something was found are left out; [] if that cannot be told."""
    wrong: list[KeyPath] = [tuple(finding["loc"]) for finding in error.errors(include_url=False)]
    rest = copy.deepcopy(document.data)
    for path in wrong:
        _leave_out(rest, path)
    try:
        config = Config.model_validate(rest)
    except ValidationError:
        return []
    return [
        document.problem(path, message)
        for path, message in find_contradictions(config)
        if not any(path[: len(other)] == other[: len(path)] for other in wrong)
    ]


def _leave_out(data: Any, path: KeyPath) -> None:
    """Remove the last key on the way to `path`. Of a list nothing is removed: its places would not be the same."""
    holder, key = None, None
    for part in path:
        if isinstance(data, dict) and part in data:
            holder, key = data, part
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            break
    if holder is not None:
        holder.pop(key, None)
