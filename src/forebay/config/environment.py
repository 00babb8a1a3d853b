"""Overrides from the environment: `FOREBAY_LISTEN=0.0.0.0:8080`, `FOREBAY_LIMITS__MAX_BODY=64MiB`.

Every key has a form: `FOREBAY_` and the key in capitals; a double underscore goes one level down
(`FOREBAY_CLASSES__BATCH__TTFT`, `FOREBAY_POOLS__0__GPUS`). The value is YAML, so lists and mappings can be given
as text; indices also build a list that is not there, or add to one, from 0 without a gap. A variable that names no
key is reported as a warning and not an error: Kubernetes puts `FOREBAY_SERVICE_HOST` and the like into every pod
near a Service called forebay. Pure: the mapping is passed in.

Two names without the prefix are older than it and are set for every pool that does not say itself:
`MAX_POOL_GPU_SECONDS` (seconds) and `POLL_INTERVAL_MS` (milliseconds). A third, `POOL_DISCOVERY`, asks for what this
version does not have, and is refused: ignored, it would leave somebody with fewer engines than they believe.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from forebay.config.errors import ConfigError, ConfigProblem
from forebay.config.schema import Config
from forebay.config.yaml_text import Document, KeyPath, parse_yaml

__all__ = ["PREFIX", "Override", "apply_override", "fill_in_pools", "overrides_from"]

PREFIX: Final = "FOREBAY_"
RESERVED: Final = frozenset(
    {
        *("FOREBAY_CONFIG", "FOREBAY_LOG_FORMAT", "FOREBAY_LOG_LEVEL"),
        *("FOREBAY_ENGINES", "FOREBAY_TORCH_INDEX"),
    }
)
"""Variables that other parts of the program, or the project's scripts, read."""
_MEANT: Final = {
    "upstream": "POOLS__0__ENDPOINTS__0",
    "upstreams": "POOLS__0__ENDPOINTS",
    "endpoints": "POOLS__0__ENDPOINTS",
    "profile": "POOLS__0__PROFILE",
}
"""Options and pools' keys that are looked for at the top."""
_OF_ALL_POOLS: Final = (
    ("MAX_POOL_GPU_SECONDS", "max_gpu_seconds", None),
    ("POLL_INTERVAL_MS", "poll_interval", "ms"),
)
_DISCOVERY: Final = "POOL_DISCOVERY"
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
    """The overrides in `environ`, wholes before their parts, and warnings about variables that set nothing.

    Raises:
        ConfigError: a value is not readable as YAML.
    """
    overrides: list[Override] = []
    warnings: list[str] = []
    problems = []
    if environ.get(_DISCOVERY):
        message = (
            "this version of Forebay does not discover endpoints yet; list them under pools, and unset this"
        )
        problems.append(ConfigProblem(_DISCOVERY, "", message))
    known = list(Config.model_fields)
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        keys = variable[len(PREFIX) :].lower().split("__")
        if keys[0] not in known:
            if _SERVICE_LINK.fullmatch(variable) is None:
                guess = difflib.get_close_matches(keys[0], known, n=1, cutoff=0.6)
                name = _MEANT.get(keys[0]) or (guess[0].upper() if guess else "")
                meant = f"; did you mean {PREFIX}{name}?" if name else ""
                warnings.append(f"{variable} is set but names no setting{meant}")
            continue
        try:
            if keys[0] in _PLAIN_TEXT or keys[-1] == "upstream_key":
                document = Document(variable, environ[variable])
            else:
                document = parse_yaml(environ[variable], variable, under=tuple(keys))
        except ConfigError as error:
            problems += error.problems
            continue
        overrides.append(Override(variable, keys, document))
    if problems:
        raise ConfigError(problems)
    return sorted(overrides, key=_order), warnings


def fill_in_pools(environ: Mapping[str, str], data: dict[str, Any]) -> dict[KeyPath, str]:
    """Set what the two names without a prefix say in the pools that do not; returns the paths with their variables.

    A value that is no number is put there as it is: the schema says what is wrong with it.
    """
    filled: dict[KeyPath, str] = {}
    pools = data.get("pools")
    for variable, key, unit in _OF_ALL_POOLS:
        text = environ.get(variable, "").strip()
        if not text or not isinstance(pools, list):  # manifests set what they leave out to nothing
            continue
        value = _number(text)
        if unit is not None and isinstance(value, float):
            value = f"{text}{unit}"
        for index, pool in enumerate(pools):
            if isinstance(pool, dict) and pool.get(key) is None:
                pool[key] = value
                filled["pools", index, key] = variable
    return filled


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _order(override: Override) -> list[tuple[bool, int, str]]:
    """As a tree is walked: a whole before its parts, entry 2 of a list before entry 10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in override.keys]


def apply_override(override: Override, data: dict[str, Any]) -> list[KeyPath]:
    """Writes the override into `data` and returns the path it went to, after those it had to make on the way.

    Raises:
        ValueError: there is no such place; the message says what is there.
    """
    made: list[KeyPath] = []
    if override.keys[0] == "classes" and len(override.keys) > 1 and data.get("classes") is None:
        # To change one number of a default class must not drop the other classes.
        data["classes"] = {name: {} for name in _DEFAULT_CLASSES}
        made.append(("classes",))
    place: Any = data
    path: KeyPath = ()
    for part, below in zip(override.keys, override.keys[1:], strict=False):
        key = _key_in(place, part)
        path = (*path, key)
        if place[key] is None:
            place[key] = [] if below.isdecimal() else {}
            made.append(path)
        place = place[key]
    key = _key_in(place, override.keys[-1])
    place[key] = override.document.data
    return [*made, (*path, key)]


def _key_in(place: Any, part: str) -> str | int:
    """The key or index that a part of a name means. It is there afterwards, with None if it is new."""
    if isinstance(place, list):
        if not part.isdecimal() or int(part) > len(place):
            there = f"entries are 0 to {len(place) - 1}, and " if place else ""
            raise ValueError(f"there is no entry {part!r}; {there}the next would be {len(place)}")
        if int(part) == len(place):
            place.append(None)
        return int(part)
    if not isinstance(place, dict):
        raise ValueError("nothing lies below it: it is a single value")  # which may be a secret
    # Variable names are in capitals; keys that operators chose (class names) may have any case and dashes.
    for key in place:
        if isinstance(key, str) and key.lower().replace("-", "_") == part:
            return key
    place[part] = None
    return part
