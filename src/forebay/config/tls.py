"""TLS as a configuration has it: the certificate shown to clients, and whose certificates engines may show.

Reads files, so it comes after the checks that need none. What can fail fails here, before anything is put in force.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from forebay.config.errors import ConfigError, ConfigProblem
from forebay.config.loading import Loaded
from forebay.config.schema import Config

__all__ = ["TlsContexts", "tls_contexts", "tls_files"]

_APPLICATION: Final = ["http/1.1"]


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """What connections are encrypted with."""

    server: ssl.SSLContext | None = None
    """For clients; None without a certificate: they speak plain HTTP."""
    engines: tuple[ssl.SSLContext | None, ...] = ()
    """For `https://` endpoints, one for each pool; None where a pool has none."""


def tls_files(config: Config, base_directory: Path) -> list[Path]:
    """Files that a configuration names for TLS: when one of them changes it has to be read anew."""
    named = [config.ssl_certfile, config.ssl_keyfile, *(pool.ca_file for pool in config.pools)]
    return [base_directory / name for name in dict.fromkeys(named) if name is not None]


def tls_contexts(loaded: Loaded) -> TlsContexts:
    """Reads certificates and keys. Raises: ConfigError."""
    config, base, document = loaded.config, loaded.base_directory, loaded.document
    problems: list[ConfigProblem] = []
    server: ssl.SSLContext | None = None
    if config.ssl_certfile is not None:
        key = config.ssl_keyfile
        try:
            server = _server_context(base / config.ssl_certfile, None if key is None else base / key)
        except (OSError, ValueError) as error:
            problems.append(document.problem(("ssl_certfile",), _why(error, "certificate and key")))
    engines: list[ssl.SSLContext | None] = []
    for index, pool in enumerate(config.pools):
        context: ssl.SSLContext | None = None
        if any(endpoint.tls for endpoint in pool.endpoints):
            path = None if pool.ca_file is None else base / pool.ca_file
            try:
                context = _engine_context(path, None if path is None else path.stat().st_mtime_ns)
            except (OSError, ValueError) as error:
                problems.append(document.problem(("pools", index, "ca_file"), _why(error, "certificates")))
        engines.append(context)
    if problems:
        raise ConfigError(problems)
    return TlsContexts(server, tuple(engines))


def _server_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """TLS 1.2 or newer. The key may stand in the certificate's file."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(_APPLICATION)
    # A password would be asked for at the terminal.
    context.load_cert_chain(certificate, key, password=_no_password)
    return context


@lru_cache(maxsize=64)
def _engine_context(ca_file: Path | None, _changed_ns: int | None) -> ssl.SSLContext:
    """The same one while the file is the same: a reload leaves connections to engines as they are."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca_file)
    context.set_alpn_protocols(_APPLICATION)
    return context


def _no_password() -> str:
    raise ValueError("the key has a password; give one without (openssl pkey -in KEY -out PLAIN_KEY)")


def _why(error: OSError | ValueError, what: str) -> str:
    if isinstance(error, ssl.SSLError):
        reasons: Sequence[tuple[str, str]] = (
            ("KEY_VALUES_MISMATCH", "the key is not that of the certificate"),
            ("NO_CERTIFICATE", "no certificate in the file; PEM is expected"),
        )
        for mark, words in reasons:
            if mark in str(error).upper():
                return words
        return f"{what} cannot be used: expected PEM files ({error.reason or 'not readable as such'})"
    if isinstance(error, OSError):
        # Without its name: somebody may have pasted the key itself.
        return f"{what} cannot be read: {error.strerror or type(error).__name__}"
    return str(error)
