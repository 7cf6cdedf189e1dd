"""The sandbox's own certificate authority, as a client meets it."""

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from deviceshare_sandbox.credentials import SandboxAuthority
from deviceshare_sandbox.processes import Prober


async def serve(directory: Path, name: str) -> tuple[asyncio.Server, str]:
    """An HTTPS server that says 200 to everything, with the certificate `name`."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    return server, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/healthz"


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[SandboxAuthority, SandboxAuthority]:
    """Two that don't know each other."""
    made = []
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        made.append(SandboxAuthority(tmp_path / name))
        made[-1].issue("loopback")
    return made[0], made[1]


@pytest.mark.parametrize(("signer", "healthy"), [("ours", True), ("theirs", False)])
async def test_a_probe_believes_only_its_own_authority(
    authorities: tuple[SandboxAuthority, SandboxAuthority], tmp_path: Path, signer: str, healthy: bool
) -> None:
    """Whoever else listens on that port isn't the process that was asked for."""
    server, url = await serve(tmp_path / signer, "loopback")
    async with server:
        assert await Prober(authorities[0].certificate).healthy(url) is healthy


async def test_nobody_listening_is_not_healthy(authorities: tuple[SandboxAuthority, SandboxAuthority]) -> None:
    """The most usual state of a process that died."""
    assert not await Prober(authorities[0].certificate).healthy("http://127.0.0.1:1/healthz")


def test_keys_are_readable_by_their_owner_only(
    authorities: tuple[SandboxAuthority, SandboxAuthority], tmp_path: Path
) -> None:
    """Other users of the machine could pass for the API server."""
    assert (tmp_path / "ours/loopback.key").stat().st_mode & 0o077 == 0


def test_a_client_is_a_user_of_a_group_and_no_server(
    authorities: tuple[SandboxAuthority, SandboxAuthority], tmp_path: Path
) -> None:
    """The kubelet takes the API server for `system:masters`; with this certificate nobody passes for a server."""
    authorities[0].issue_client("client", "kube-apiserver", "system:masters")
    certificate = x509.load_pem_x509_certificate((tmp_path / "ours/client.crt").read_bytes())
    authority = x509.load_pem_x509_certificate(authorities[0].certificate.read_bytes())
    certificate.verify_directly_issued_by(authority)
    assert certificate.subject.rfc4514_string() == "CN=kube-apiserver,O=system:masters"
    [purpose] = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert purpose == ExtendedKeyUsageOID.CLIENT_AUTH
