"""Certificates that a configuration names: what is read, and what is said of files that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from forebay.config import ConfigError, Loaded, load
from forebay.config.tls import tls_contexts, tls_files

HTTPS = [{"name": "p", "endpoints": ["https://a:1", "http://b:1"]}]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Who signs here."""
    return trustme.CA()


def loaded_with(folder: Path, **keys: Any) -> Loaded:
    """A configuration file in this folder."""
    keys.setdefault("pools", [{"endpoints": ["http://a:1"]}])
    path = folder / "forebay.yaml"
    path.write_text("{}")
    return load(path, environ={}, options={key: (f"--{key}", value) for key, value in keys.items()})


def write(folder: Path, authority: trustme.CA) -> None:
    """A certificate with its key, each alone and both in one file."""
    issued = authority.issue_cert("gateway.test")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "both.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")


@pytest.mark.parametrize(
    "keys", [{"ssl_certfile": "both.pem"}, {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}]
)
def test_a_certificate_is_found_beside_the_configuration(
    tmp_path: Path, authority: trustme.CA, keys: dict[str, str]
) -> None:
    """With its key in the same file or in another; names are relative to the configuration."""
    write(tmp_path, authority)
    loaded = loaded_with(tmp_path, **keys)
    found = tls_contexts(loaded)
    assert found.server is not None
    assert (None,) == found.engines
    assert [tmp_path / name for name in keys.values()] == tls_files(loaded.config, loaded.base_directory)


def test_without_a_certificate_there_is_no_tls(tmp_path: Path) -> None:
    """Plain HTTP, as nothing else was asked for."""
    found = tls_contexts(loaded_with(tmp_path))
    assert found.server is None
    assert (None,) == found.engines


def test_engines_are_verified(tmp_path: Path, authority: trustme.CA) -> None:
    """Against the system's authorities or those of `ca_file`; the same context while that file is the same."""
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    system = tls_contexts(loaded_with(tmp_path, pools=HTTPS)).engines[0]
    own = loaded_with(tmp_path, pools=[{**HTTPS[0], "ca_file": "ca.pem"}])
    context = tls_contexts(own).engines[0]
    assert system is not None and context is not None
    assert context is not system
    assert context.check_hostname
    assert [authority.cert_pem.bytes()] and 1 == context.cert_store_stats()["x509_ca"]
    assert tls_contexts(own).engines[0] is context
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    assert tls_contexts(own).engines[0] is not context


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({"ssl_certfile": "none.pem"}, "ssl_certfile", "cannot be read: No such file"),
        ({"ssl_certfile": "text.pem"}, "ssl_certfile", "expected PEM files"),
        (
            {"ssl_certfile": "cert.pem", "ssl_keyfile": "other.pem"},
            "ssl_certfile",
            "not that of the certificate",
        ),
        ({"ssl_certfile": "cert.pem"}, "ssl_certfile", "expected PEM files"),
        (
            {"ssl_certfile": "cert.pem", "ssl_keyfile": "-----BEGIN a secret"},
            "ssl_certfile",
            "certificate and key cannot be read",
        ),
        (
            {"ssl_certfile": "cert.pem", "ssl_keyfile": "locked.pem"},
            "ssl_certfile",
            "the key has a password",
        ),
        ({"pools": [{**HTTPS[0], "ca_file": "none.pem"}]}, "ca_file", "cannot be read: No such file"),
        ({"pools": [{**HTTPS[0], "ca_file": "text.pem"}]}, "ca_file", "no certificate in the file"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, authority: trustme.CA, keys: dict[str, Any], place: str, words: str
) -> None:
    """With the key that names them and the reason; no file's contents are shown."""
    write(tmp_path, authority)
    issued = authority.issue_cert("other.test")
    issued.private_key_pem.write_to_path(tmp_path / "other.pem")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (tmp_path / "locked.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    (tmp_path / "text.pem").write_text("a secret that is no certificate")
    with pytest.raises(ConfigError) as caught:
        tls_contexts(loaded_with(tmp_path, **keys))
    (problem,) = caught.value.problems
    assert words in str(problem)
    assert problem.key.endswith(place)
    assert "secret" not in str(problem)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"ssl_keyfile": "key.pem"}, "a key without its certificate"),
        ({"pools": [{"endpoints": ["http://a:1"], "ca_file": "ca.pem"}]}, "would never be used"),
    ],
)
def test_half_of_it_is_a_contradiction(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    """What could have no effect is refused."""
    with pytest.raises(ConfigError, match=words):
        loaded_with(tmp_path, **keys)
