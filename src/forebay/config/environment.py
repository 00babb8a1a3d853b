"""Overrides from the environment: `FOREBAY_LISTEN=0.0.0.0:8080`, `FOREBAY_LIMITS__MAX_BODY=64MiB`.

Every key has a form: `FOREBAY_` and the key in capitals; a double underscore goes one level down
(`FOREBAY_CLASSES__BATCH__TTFT`, `FOREBAY_POOLS__0__GPUS`). The value is YAML, so lists and mappings can be given
as text. A variable that names no key is reported as a warning and not an error: Kubernetes puts
`FOREBAY_SERVICE_HOST` and the like into every pod near a Service called forebay. Pure: the mapping is passed in.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay.config.errors import ConfigError
from forebay.config.schema import Config
from forebay.config.yaml_text import Document, parse_yaml

__all__ = ["PREFIX", "Override", "apply_override", "overrides_from"]

PREFIX: Final = "FOREBAY_"
RESERVED: Final = frozenset({"FOREBAY_CONFIG", "FOREBAY_LOG_FORMAT", "FOREBAY_LOG_LEVEL"})
"""Variables that other parts of the program read."""
_PLAIN_TEXT: Final = frozenset({"listen", "admin", "admin_token", "default_class"})
"""Taken as written: a credential of digits only must not become a number."""
_DEFAULT_CLASSES: Final = ("realtime", "standard", "batch")
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?)")


@dataclass(frozen=True, slots=True)
class Override:
    """One variable and the key that it sets."""

    variable: str
    keys: list[str]
    """Lower-case parts of the name, one per level."""
    document: Document


def overrides_from(environ: Mapping[str, str]) -> tuple[list[Override], list[str]]:
    """The overrides in `environ`, shallow ones first, and warnings about variables that set nothing.

    Raises:
        ConfigError: a value is not readable as YAML.
    """
    overrides: list[Override] = []
    warnings: list[str] = []
    problems = []
    known = list(Config.model_fields)
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        keys = variable[len(PREFIX) :].lower().split("__")
        if keys[0] not in known:
            if _SERVICE_LINK.fullmatch(variable) is None:
                guess = difflib.get_close_matches(keys[0], known, n=1, cutoff=0.6)
                meant = f"; did you mean {PREFIX}{guess[0].upper()}?" if guess else ""
                warnings.append(f"{variable} is set but names no setting{meant}")
            continue
        try:
            if keys[0] in _PLAIN_TEXT:
                document = Document(variable, environ[variable])
            else:
                document = parse_yaml(environ[variable], variable)
        except ConfigError as error:
            problems += error.problems
            continue
        overrides.append(Override(variable, keys, document))
    if problems:
        raise ConfigError(problems)
    return sorted(overrides, key=lambda override: len(override.keys)), warnings


def apply_override(override: Override, data: dict[str, Any]) -> tuple[str | int, ...]:
    """Writes the override into `data` and returns the path it went to.

    Raises:
        ValueError: there is no such place; the message says what is there.
    """
    if override.keys[0] == "classes" and len(override.keys) > 1 and data.get("classes") is None:
        # To change one number of a default class must not drop the other classes.
        data["classes"] = {name: {} for name in _DEFAULT_CLASSES}
    place: Any = data
    path: list[str | int] = []
    for position, part in enumerate(override.keys):
        key = _key_in(place, part)
        path.append(key)
        if position == len(override.keys) - 1:
            place[key] = override.document.data
            break
        child = place.get(key) if isinstance(place, dict) else place[key]
        if child is None:
            child = place[key] = {}
        place = child
    return tuple(path)


def _key_in(place: Any, part: str) -> str | int:
    if isinstance(place, list):
        if not part.isdecimal() or int(part) >= len(place):
            raise ValueError(f"there is no entry {part!r}; entries are 0 to {len(place) - 1}")
        return int(part)
    if not isinstance(place, dict):
        raise ValueError(f"nothing lies below the value {str(place)[:40]!r}")
    # Variable names are in capitals; keys that operators chose (class names) may have any case and dashes.
    for key in place:
        if isinstance(key, str) and key.lower().replace("-", "_") == part:
            return key
    return part
