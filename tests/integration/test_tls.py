"""TLS on both sides of the gateway, with real handshakes."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml

from tests.integration.fakes import DONE, LAST_CHUNK, STREAM_HEAD, FakeEngine, Served, chat, chunk, event
from tests.integration.processes import (
    ServeProcess,
    client,
    engine,
    eventually,
    first_pool,
    until_at_rest,
    until_up,
)
from tests.integration.test_how_to import configuration_of

CHAT = "/v1/chat/completions"
AUTHORITY = trustme.CA()


def trusting() -> ssl.SSLContext:
    """What a client has that knows the authority."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


def shown_by_engines(name: str = "127.0.0.1") -> ssl.SSLContext:
    """What an engine with a certificate listens with."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(name).configure_cert(context)
    return context


def issue(path: Path) -> int:
    """A new certificate, put in place of the old one at once; returns its serial number."""
    issued = AUTHORITY.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)
    return serial_of(ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode()))


def serial_of(der: bytes) -> int:
    """Serial number of a certificate."""
    from cryptography.x509 import load_der_x509_certificate

    return load_der_x509_certificate(der).serial_number


async def serial_shown(port: int) -> int:
    """Serial number of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting())
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return serial_of(shown)
    finally:
        writer.close()


def configure(folder: Path, fake: FakeEngine, **keys: Any) -> Path:
    """A configuration of one pool with this engine, and the authority's certificate beside it."""
    AUTHORITY.cert_pem.write_to_path(folder / "ca.pem")
    pool: dict[str, Any] = {"name": "p", "endpoints": [fake.endpoint]}
    if fake.endpoint.startswith("https"):
        pool["ca_file"] = "ca.pem"
    path = folder / "forebay.yaml"
    path.write_text(yaml.safe_dump({"pools": [pool], **keys}))
    return path


async def test_the_page_about_it_works_as_written(tmp_path: Path) -> None:
    """Its configuration, with certificates of the names in it."""
    issued = AUTHORITY.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "gateway.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "gateway.pem")
    AUTHORITY.cert_pem.write_to_path(tmp_path / "company-ca.pem")
    async with (
        engine(tls=shown_by_engines()) as one,
        engine(tls=shown_by_engines()) as other,
        client(trusting()) as http,
    ):
        path = tmp_path / "forebay.yaml"
        path.write_text(configuration_of("encrypt.md", one.endpoint, other.endpoint))
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            answers = await asyncio.gather(
                *(http.post(f"{gateway.url}{CHAT}", json=chat()) for _ in range(8))
            )
            assert {200} == {answer.status_code for answer in answers}


async def stream(served: Served) -> None:
    """A hundred events, then the end."""
    await served.send(STREAM_HEAD)
    for number in range(100):
        await served.send(chunk(event(f"{number} ")))
    await served.send(chunk(DONE) + LAST_CHUNK)


async def test_both_sides_encrypted(tmp_path: Path) -> None:
    """Whole answers, streams, refusals with unread bodies and pipelines of requests come through TLS unharmed."""
    issue(tmp_path / "gateway.pem")
    async with engine(stream, tls=shown_by_engines()) as fake, client(trusting()) as http:
        path = configure(tmp_path, fake, ssl_certfile="gateway.pem", limits={"max_body": "64 KiB"})
        async with ServeProcess("-c", str(path)) as gateway:
            assert gateway.url.startswith("https://")
            await until_up(http, gateway)
            for _ in range(3):
                answer = await http.post(f"{gateway.url}{CHAT}", json=chat(stream=True))
                assert (200, 101) == (answer.status_code, answer.text.count("data: "))
            large = await http.post(f"{gateway.url}{CHAT}", content=b"x" * 1_000_000)
            assert 413 == large.status_code
            models = await asyncio.gather(*(http.get(f"{gateway.url}/v1/models") for _ in range(20)))
            assert {200} == {answer.status_code for answer in models}
            await until_at_rest(http, gateway)


async def test_a_client_that_leaves_a_stream_frees_the_engine(tmp_path: Path) -> None:
    """As without TLS: the engine's connection is closed within a second."""

    async def endless(served: Served) -> None:
        await served.send(STREAM_HEAD + chunk(event()))
        await served.closed.wait()

    issue(tmp_path / "gateway.pem")
    async with engine(endless, tls=shown_by_engines()) as fake, client(trusting()) as http:
        path = configure(tmp_path, fake, ssl_certfile="gateway.pem")
        async with ServeProcess("-c", str(path)) as gateway:
            await until_up(http, gateway)
            async with http.stream("POST", f"{gateway.url}{CHAT}", json=chat(stream=True)) as answer:
                assert b"data" in await anext(answer.aiter_raw())
                assert 1 == fake.running
            await fake.until(lambda: fake.running == 0, timeout_s=5)


async def test_a_certificate_is_replaced_without_a_restart(tmp_path: Path) -> None:
    """New connections get the new one within seconds; a file that is not usable changes nothing, and is told."""
    certificate = tmp_path / "gateway.pem"
    first = issue(certificate)
    async with engine() as fake, client(trusting()) as http:
        path = configure(tmp_path, fake, ssl_certfile="gateway.pem")
        async with ServeProcess("-c", str(path)) as gateway:
            port = int(gateway.url.rpartition(":")[2])
            assert first == await serial_shown(port)
            await until_up(http, gateway)
            async with httpx.AsyncClient(verify=trusting(), trust_env=False) as kept:
                assert 200 == (await kept.get(f"{gateway.url}/v1/models")).status_code
                second = issue(certificate)

                async def replaced() -> bool:
                    return await serial_shown(port) == second

                await eventually(replaced)
                assert 200 == (await kept.get(f"{gateway.url}/v1/models")).status_code
            certificate.write_text("no certificate")
            told = (await http.post(f"{gateway.admin_url}/api/reload")).json()
            assert not told["applied"]
            assert "ssl_certfile" in told["problems"][0]
            assert second == await serial_shown(port)


@pytest.mark.parametrize("fault", ["another name", "unknown authority", "no TLS there"])
async def test_an_engine_that_cannot_be_trusted_gets_nothing(tmp_path: Path, fault: str) -> None:
    """It is down, and the log says why; no request and no key of ours reaches it."""
    context = shown_by_engines("elsewhere.test" if fault == "another name" else "127.0.0.1")
    async with engine(tls=None if fault == "no TLS there" else context) as fake, client() as http:
        path = configure(tmp_path, fake)
        pool: dict[str, Any] = {
            "name": "p",
            "endpoints": [f"https://127.0.0.1:{fake.port}"],
            "upstream_key": "sk-engine",
        }
        if fault == "another name":
            pool["ca_file"] = "ca.pem"
        path.write_text(yaml.safe_dump({"pools": [pool]}))
        async with ServeProcess("-c", str(path)) as gateway:

            async def down() -> bool:
                return bool((await first_pool(http, gateway))["endpoints"][0]["state"] == "down")

            await eventually(down)
            answer = await http.post(f"{gateway.url}{CHAT}", json=chat())
            assert (503, "no_endpoints") == (answer.status_code, answer.json()["error"]["code"])
            assert not fake.requests
            gateway.signal()
            await gateway.exit_code()
            log = await gateway.log()
            words = (
                "no connection with TLS within" if fault == "no TLS there" else "certificate verify failed"
            )
            assert words.lower() in log.lower()
            assert "sk-engine" not in log


async def test_what_is_no_handshake_is_hung_up_on(tmp_path: Path) -> None:
    """Plain HTTP, garbage and silence on the TLS port end their connections and nobody else's."""
    issue(tmp_path / "gateway.pem")
    async with engine() as fake, client(trusting()) as http:
        path = configure(tmp_path, fake, ssl_certfile="gateway.pem")
        async with ServeProcess("-c", str(path)) as gateway:
            port = int(gateway.url.rpartition(":")[2])
            await until_up(http, gateway)
            for sent in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 4000, b""):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                async with asyncio.timeout(15):
                    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                        await reader.readexactly(1000)
                writer.close()
            assert 200 == (await http.get(f"{gateway.url}/v1/models")).status_code


async def test_handshakes_that_never_end_keep_nobody_out(tmp_path: Path) -> None:
    """Silent and half-said handshakes, more than there is room for: clients are served, and engines can be reached."""
    issue(tmp_path / "gateway.pem")
    async with engine() as fake, client(trusting()) as http:
        path = configure(tmp_path, fake, ssl_certfile="gateway.pem")
        async with ServeProcess("-c", str(path), files=80) as gateway:
            port = int(gateway.url.rpartition(":")[2])
            await until_up(http, gateway)
            held = []
            for number in range(120):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"\x16\x03\x01\x02\x00\x01" if number % 2 else b"")
                held.append(writer)
            # Who comes in the midst of a flood may be the oldest before its handshake is done.
            await asyncio.sleep(0.5)
            for _ in range(5):
                async with httpx.AsyncClient(verify=trusting(), trust_env=False) as other:
                    assert 200 == (await other.post(f"{gateway.url}{CHAT}", json=chat())).status_code
            assert "up" == (await first_pool(http, gateway))["endpoints"][0]["state"]
            for writer in held:
                writer.transport.abort()
            gateway.signal()
            assert 0 == await gateway.exit_code()
            log = await gateway.log()
            assert "half a handshake" in log
            assert "Traceback" not in log
