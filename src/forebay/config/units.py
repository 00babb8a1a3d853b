"""Durations, sizes, addresses and URLs as people write them, turned into numbers with units in their names.

Pure functions that raise `ValueError` with a message that names the fix; the schema turns these into located
problems. Nothing here reads the environment or a file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from forebay.config.secret_keys import harmless, in_words, quoted

__all__ = [
    "Address",
    "EndpointUrl",
    "parse_address",
    "parse_duration_s",
    "parse_endpoint_url",
    "parse_size_bytes",
]

_DURATION_UNITS_S: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_SIZE_UNITS_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?P<unit>[A-Za-z]*)")
_COMPOUND_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?\s*[a-z]+\s*)+")
_BARE_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_EVERYWHERE: Final = ("0.0.0.0", "::")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener binds."""

    host: str
    port: int
    """0 lets the operating system choose a free port."""

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        return _is_loopback(self.host)

    def is_reached_at(self, host: str, port: int) -> bool:
        """True if whoever connects to `host` and `port` surely comes to this listener; names are not resolved."""
        if not self.port or port != self.port:
            return False
        there = _connected_host(host)
        return _is_loopback(there) if self.host in _EVERYWHERE else _connected_host(self.host) == there

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EndpointUrl:
    """An engine's origin. Its text form is the endpoint's identity and metric label."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        return f"http{'s' if self.tls else ''}://{Address(self.host, self.port)}"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _connected_host(host: str) -> str:
    """Where a connection to `host` goes: to this machine, if it is one of the names for that."""
    plain = host.lower().rstrip(".")
    return "127.0.0.1" if plain == "localhost" or plain in _EVERYWHERE else plain


def parse_duration_s(value: object) -> float:
    """`1.5s`, `500ms`, `2 min`, `1h30m` to seconds. A bare number other than 0 is refused: its unit is a guess."""
    if isinstance(value, bool):
        raise ValueError(f"found {value}, expected a duration such as 500ms, 1.5s or 2m")
    if isinstance(value, int | float):
        if value == 0:
            return 0.0
        raise ValueError(f"{value} has no unit; write {value}s or {value}ms")
    if not isinstance(value, str):
        raise ValueError("expected a duration such as 500ms, 1.5s or 2m")
    text = value.strip().lower().replace("µs", "us")
    if text in ("0", "0.0"):
        return 0.0
    if _BARE_NUMBER.fullmatch(text) is not None:
        raise ValueError(f"{text} has no unit; write {text}s or {text}ms")
    if _COMPOUND_DURATION.fullmatch(text) is None:
        raise ValueError(f"cannot read {quoted(value)} as a duration; write it like 500ms, 1.5s or 2m")
    total_s = 0.0
    for part in _QUANTITY.finditer(text):
        unit_s = _DURATION_UNITS_S.get(part["unit"])
        if unit_s is None:
            raise ValueError(f"unknown unit in {quoted(value)}; units are us, ms, s, m, h, d")
        total_s += float(part["number"]) * unit_s
    if not math.isfinite(total_s):
        raise ValueError(f"{quoted(value)} is too long")
    return total_s


def parse_size_bytes(value: object) -> int:
    """`32MiB`, `2 MB`, `512k` or a whole number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"found {value}, a size cannot be negative")
        return value
    if not isinstance(value, str):
        raise ValueError(f"found {in_words(value)}, expected a size such as 32MiB or 512kB")
    match = _QUANTITY.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"cannot read {quoted(value)} as a size; write it like 32MiB or 512kB")
    unit_bytes = _SIZE_UNITS_BYTES.get(match["unit"].lower())
    if unit_bytes is None:
        raise ValueError(f"unknown unit in {quoted(value)}; units are B, kB, MB, GB, KiB, MiB, GiB")
    size = float(match["number"]) * unit_bytes
    if not math.isfinite(size):
        raise ValueError(f"{quoted(value)} is too large")
    return round(size)


def parse_address(value: object) -> Address:
    """`HOST:PORT`, `[IPV6]:PORT`, `:PORT` (all interfaces) or `PORT` (this machine only)."""
    if isinstance(value, Address):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Address("127.0.0.1", _port(str(value), str(value)))
    if not isinstance(value, str):
        raise ValueError(f"found {in_words(value)}, expected HOST:PORT such as 127.0.0.1:8080")
    text = value.strip()
    if "://" in text:
        raise ValueError(f"found {quoted(value)}; write HOST:PORT without a scheme")
    if text.isdecimal():
        return Address("127.0.0.1", _port(text, value))
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"no port in {quoted(value)}; write it like {harmless(text, '127.0.0.1')}:8080")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if _IPV6.fullmatch(host) is None or ":" not in host:
            raise ValueError(f"{quoted(value)} holds no IPv6 address in its brackets")
    elif ":" in host:
        raise ValueError(
            f"put the IPv6 address of {quoted(value)} in brackets: {harmless(f'[{host}]:{port}', '[::1]:8080')}"
        )
    elif host in ("", "*"):
        host = "0.0.0.0"
    elif _HOST.fullmatch(host) is None:
        raise ValueError(f"{quoted(value)} holds no host name before the port")
    return Address(host, _port(port, value))


def parse_endpoint_url(value: object) -> EndpointUrl:
    """`http://HOST:PORT` of an engine, or `https://`; a trailing `/` or `/v1` is accepted: base URLs are written so."""
    if isinstance(value, EndpointUrl):
        return value
    if not isinstance(value, str):
        raise ValueError(f"found {in_words(value)}, expected a URL such as http://10.0.0.1:8000")
    text = value.strip()
    if "@" in text:
        raise ValueError("an endpoint URL carries no user or password; clients' credentials are passed on")
    if "://" not in text:
        raise ValueError(
            f"found {quoted(value)}; an endpoint is a URL, write http://{harmless(text, 'HOST:PORT')}"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(
            f"cannot read {quoted(value)} as a URL; write it like http://10.0.0.1:8000"
        ) from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"found scheme {parts.scheme!r}; engines are reached by http:// or https://")
    if parts.query or parts.fragment or parts.path not in ("", "/", "/v1", "/v1/"):
        raise ValueError(
            f"found {quoted(value)}; only scheme, host and port belong here (an engine's /v1 is known)"
        )
    host = parts.hostname or ""
    if _HOST.fullmatch(host) is None and (":" not in host or _IPV6.fullmatch(host) is None):
        raise ValueError(f"{quoted(value)} names no host; write it like http://10.0.0.1:8000")
    if port == 0:
        raise ValueError(f"port 0 in {quoted(value)} cannot be connected to")
    tls = parts.scheme == "https"
    return EndpointUrl(host, (443 if tls else 80) if port is None else port, tls)


def _port(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5 or int(text) > 65535:
        raise ValueError(f"no usable port in {quoted(whole)}; ports are 1 to 65535, or 0 for any free one")
    return int(text)
