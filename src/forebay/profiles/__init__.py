"""Measured engine profiles: the ones that come with the package, and those in a user's file.

Owns `engine_profiles.json` (numbers with their source and licence) and the reading of such files. A profile is
plain numbers; what they mean is in `forebay.enginemodel`. This is the only place that does I/O for the engine
model. It never guesses: an unknown name, a missing key or a wrong type is a `ProfileError` that says what to write.
"""

from __future__ import annotations

import difflib
import functools
import json
from importlib import resources
from pathlib import Path
from typing import Any, Final

from forebay.enginemodel import EngineProfile, MisuseError, StepLaw

DEFAULT_PROFILE: Final = "llama3-8b-h100x1-bf16"
"""What `forebay engine` emulates if nothing is said."""

_FILE: Final = "engine_profiles.json"
_FILE_BYTES_MAX: Final = 1 << 20
_LAW_NUMBERS: Final = ("t0", "n0", "s_lo", "s_hi", "c_kv", "f_attn", "g_seq", "h0", "h1")
_TEXTS: Final = ("model", "gpu", "weights", "kv_dtype")
_COUNTS: Final = (
    "gpus",
    "kv_tokens",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "context_tokens",
)

__all__ = ["DEFAULT_PROFILE", "ProfileError", "list_profiles", "load_profile"]


class ProfileError(ValueError):
    """A profile does not exist or cannot be read; the message says what to write instead."""


def list_profiles() -> list[str]:
    """Names of the profiles that come with the package, in the order of the file."""
    return list(_packaged())


def load_profile(name_or_path: str) -> EngineProfile:
    """The packaged profile of that name, or the one in that file.

    A file holds one profile as a JSON object, or `{"profiles": {NAME: {…}}}` with a single name; `FILE:NAME` picks
    one of several. Raises `ProfileError`.
    """
    packaged = _packaged()
    if name_or_path in packaged:
        return packaged[name_or_path]
    path, name = Path(name_or_path), None
    if not path.exists() and ":" in name_or_path:
        before, _, name = name_or_path.rpartition(":")
        path = Path(before)
    if path.is_file():
        return _from_file(path, name)
    if path.suffix == ".json" or "/" in name_or_path:
        raise ProfileError(f"there is no profile file {name_or_path}")
    near = difflib.get_close_matches(name_or_path, packaged, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    names = "".join(f"\n  {known}" for known in packaged)
    raise ProfileError(
        f"there is no engine profile {name_or_path!r}{hint}\nKnown, besides a file of your own:{names}"
    )


@functools.cache
def _packaged() -> dict[str, EngineProfile]:
    text = resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    document = json.loads(text)
    source = f"{document['about']['source']}. Licence: {document['about']['licence']}"
    return {name: _parse(name, body, source) for name, body in document["profiles"].items()}


def _from_file(path: Path, name: str | None) -> EngineProfile:
    if path.stat().st_size > _FILE_BYTES_MAX:
        raise ProfileError(f"{path} is larger than {_FILE_BYTES_MAX} bytes: that is no engine profile")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ProfileError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise ProfileError(f"{path}: a profile is a JSON object")
    if "profiles" not in document:
        own_name = document.get("name")
        return _parse(own_name if isinstance(own_name, str) else path.stem, document, str(path))
    profiles = document["profiles"]
    if not isinstance(profiles, dict) or not profiles:
        raise ProfileError(f"{path}: 'profiles' is an object of profiles by name")
    if name is None and len(profiles) > 1:
        raise ProfileError(
            f"{path} holds several profiles: say {path}:NAME with one of {', '.join(profiles)}"
        )
    chosen = next(iter(profiles)) if name is None else name
    if chosen not in profiles:
        raise ProfileError(f"{path} has no profile {chosen!r}; it has {', '.join(profiles)}")
    return _parse(chosen, profiles[chosen], str(path))


def _parse(name: str, body: Any, source: str) -> EngineProfile:
    if not isinstance(body, dict):
        raise ProfileError(f"profile {name}: expected an object, found {_kind(body)}")
    law = body.get("step_ms")
    if not isinstance(law, dict):
        raise ProfileError(
            f"profile {name}: step_ms: expected an object with {', '.join(_LAW_NUMBERS)}, found {_kind(law)}"
        )
    numbers = {key: _number(f"profile {name}: step_ms.{key}", law.get(key)) for key in _LAW_NUMBERS}
    counts = {key: _count(f"profile {name}: {key}", body.get(key)) for key in _COUNTS}
    texts = {key: _text(f"profile {name}: {key}", body.get(key)) for key in _TEXTS}
    fit, mixed = body.get("fit_error_pct"), body.get("mixed_fit_error_pct")
    try:
        return EngineProfile(
            name=name,
            model=texts["model"],
            gpu=texts["gpu"],
            gpus=counts["gpus"],
            weights=texts["weights"],
            kv_dtype=texts["kv_dtype"],
            law=StepLaw(
                t0=numbers["t0"],
                n0=_count(f"profile {name}: step_ms.n0", law["n0"]),
                s_lo=numbers["s_lo"],
                s_hi=numbers["s_hi"],
                c_kv=numbers["c_kv"],
                f_attn=numbers["f_attn"],
                g_seq=numbers["g_seq"],
                h0=numbers["h0"],
                h1=numbers["h1"],
            ),
            kv_tokens=counts["kv_tokens"],
            block_size=counts["block_size"],
            max_num_seqs=counts["max_num_seqs"],
            max_num_batched_tokens=counts["max_num_batched_tokens"],
            context_tokens=counts["context_tokens"],
            source=_text(f"profile {name}: source", body.get("source", source)),
            fit_error_pct=None if fit is None else _number(f"profile {name}: fit_error_pct", fit),
            mixed_fit_error_pct=None
            if mixed is None
            else _number(f"profile {name}: mixed_fit_error_pct", mixed),
        )
    except MisuseError as error:
        raise ProfileError(str(error) if name in str(error) else f"profile {name}: {error}") from error


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ProfileError(f"{where}: expected a number, found {_kind(value)}")
    return float(value)


def _count(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProfileError(f"{where}: expected a whole number, found {_kind(value)}")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ProfileError(f"{where}: expected text, found {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return {dict: "an object", list: "a list", str: "text", bool: "true or false"}.get(
        type(value), repr(value)
    )
