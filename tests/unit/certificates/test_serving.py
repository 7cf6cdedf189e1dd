"""Handshakes: which certificate is shown, and who is let in."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deviceshare.certificates import issuance
from deviceshare.certificates.rotation import KeyPair
from deviceshare.certificates.serving import Certificate, UnusableCertificate

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture
def ours() -> KeyPair:
    return new_authority()


@pytest.fixture
def theirs() -> KeyPair:
    return new_authority()


def new_authority() -> KeyPair:
    return issuance.new_authority("test", now=datetime.now(UTC), lifetime=timedelta(days=1), skew=timedelta(hours=1))


def issue(authority: KeyPair, *, for_client: bool = False) -> KeyPair:
    return issuance.issue(
        authority,
        "leaf",
        dns_names=["localhost"],
        addresses=["127.0.0.1"],
        now=datetime.now(UTC),
        lifetime=timedelta(hours=1),
        skew=timedelta(hours=1),
        for_client=for_client,
    )


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A server that answers every line with "hello"; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readline():
            writer.write(b"hello\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with asyncio.timeout(20), server:
        yield server.sockets[0].getsockname()[1]


async def ask(port: int, context: ssl.SSLContext, name: str = "127.0.0.1") -> bytes:
    """What a client is answered; nothing where it or the server refused."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        writer.write(b"\n")
        said = await reader.readline()  # in TLS 1.3 a client learns only now that it was refused
        writer.close()
        await writer.wait_closed()
        return said
    except OSError:
        return b""


def believing(authority: KeyPair, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate)
    context.maximum_version = version
    return context


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"], ids=["by name", "by address"])
async def test_a_certificate_from_memory_is_shown_until_the_next(
    ours: KeyPair, theirs: KeyPair, version: ssl.TLSVersion, name: str
) -> None:
    """To clients that name the server, and to those that know an address only and name none."""
    certificate = Certificate()
    async with serving(certificate.context) as port:
        certificate.use(*issue(ours)[:2])
        assert await ask(port, believing(ours, version), name) == b"hello\n"
        certificate.use(*issue(theirs)[:2])
        assert await ask(port, believing(theirs, version), name) == b"hello\n"
        assert await ask(port, believing(ours, version), name) == b""


async def test_without_a_certificate_yet_handshakes_are_refused(ours: KeyPair) -> None:
    """And the server lives on."""
    certificate = Certificate()
    async with serving(certificate.context) as port:
        assert await ask(port, believing(ours)) == b""
        certificate.use(*issue(ours)[:2])
        assert await ask(port, believing(ours)) == b"hello\n"


async def test_a_connection_that_is_open_outlives_a_renewal(ours: KeyPair, theirs: KeyPair) -> None:
    """It was believed when it began."""
    certificate = Certificate()
    certificate.use(*issue(ours)[:2])
    async with serving(certificate.context) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=believing(ours))
        certificate.use(*issue(theirs)[:2])
        writer.write(b"\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()


def test_a_spoiled_renewal_changes_nothing(ours: KeyPair, theirs: KeyPair) -> None:
    """It is an error of who made it."""
    certificate = Certificate()
    certificate.use(*issue(ours)[:2])
    with pytest.raises(ssl.SSLError):
        certificate.use(issue(ours).certificate, issue(theirs).key)


def demanding(ours: KeyPair, theirs: KeyPair, directory: Path) -> tuple[Path, Certificate]:
    """One of ours from memory that demands clients of theirs, and the file that says so."""
    file = directory / "clients.crt"
    file.write_text(theirs.certificate)
    certificate = Certificate(clients=file)
    certificate.use(*issue(ours)[:2])
    return file, certificate


async def test_new_client_authorities_count_after_a_spoiled_renewal_too(
    ours: KeyPair, theirs: KeyPair, tmp_path: Path
) -> None:
    """They are loaded with the certificate that is presented, not with the one that couldn't be."""
    file, certificate = demanding(ours, theirs, tmp_path)
    with pytest.raises(ssl.SSLError):
        certificate.use(issue(ours).certificate, issue(theirs).key)
    watching = asyncio.create_task(certificate.watch(interval=0.005))
    async with serving(certificate.context) as port, asyncio.timeout(10):
        file.write_text(ours.certificate)
        while await ask(port, calling(ours, ours, tmp_path)) != b"hello\n":
            pass
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


# Servers that let in known clients only.


class Extender:
    """The files of such a server."""

    def __init__(self, directory: Path, server: KeyPair, clients: KeyPair) -> None:
        self._files = (directory / "tls.crt", directory / "tls.key", directory / "clients.crt")
        self._client = directory / "client.pem"
        self._server = server
        issued = issue(server)
        self._files[0].write_text(issued.certificate)
        self._files[1].write_text(issued.key)
        self.let_in(clients)
        self.certificate = Certificate(*self._files[:2], clients=self._files[2])

    def let_in(self, clients: KeyPair) -> None:
        self._files[2].write_text(clients.certificate)

    async def answers(self, port: int, client: KeyPair | None) -> bool:
        """A client whose certificate is signed by `client`, or one that has none."""
        context = believing(self._server)
        if client is not None:
            issued = issue(client, for_client=True)
            self._client.write_text(issued.certificate + issued.key)
            context.load_cert_chain(self._client)
        return await ask(port, context) == b"hello\n"


async def test_only_clients_of_the_named_authority_are_let_in(ours: KeyPair, theirs: KeyPair, tmp_path: Path) -> None:
    """Who can call an extender can bind pods."""
    extender = Extender(tmp_path, server=ours, clients=ours)
    async with serving(extender.certificate.context) as port:
        assert await extender.answers(port, ours)
        assert not await extender.answers(port, theirs)
        assert not await extender.answers(port, None)


async def test_an_authority_of_clients_can_be_withdrawn(ours: KeyPair, theirs: KeyPair, tmp_path: Path) -> None:
    """Without a restart: its file is replaced."""
    extender = Extender(tmp_path, server=ours, clients=ours)
    watching = asyncio.create_task(extender.certificate.watch(interval=0.005))
    async with serving(extender.certificate.context) as port:
        assert await extender.answers(port, ours)
        extender.let_in(theirs)
        while not await extender.answers(port, theirs):
            pass
        assert not await extender.answers(port, ours)
    watching.cancel()
    await asyncio.wait({watching})


async def test_a_certificate_from_memory_may_demand_clients_of_a_named_authority(
    ours: KeyPair, theirs: KeyPair, tmp_path: Path
) -> None:
    """The API servers', where they were told to show one; and others from the moment that the file names others."""
    file, certificate = demanding(ours, theirs, tmp_path)
    known, unknown = calling(ours, theirs, tmp_path), calling(ours, ours, tmp_path)
    async with serving(certificate.context) as port:
        assert await ask(port, believing(ours)) == b""
        assert await ask(port, unknown) == b""
        assert await ask(port, known) == b"hello\n"

        watching = asyncio.create_task(certificate.watch(interval=0.005))
        file.write_text("nobody's")
        await asyncio.sleep(0.05)
        assert await ask(port, known) == b"hello\n"
        file.write_text(ours.certificate)
        while await ask(port, unknown) != b"hello\n":
            pass
        assert await ask(port, known) == b""
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def calling(server: KeyPair, client: KeyPair, directory: Path) -> ssl.SSLContext:
    """What a client of `client` uses that believes servers of `server`."""
    issued, context = issue(client, for_client=True), believing(server)
    pair = directory / "pair.pem"
    pair.write_text(issued.certificate + issued.key)
    context.load_cert_chain(pair)
    return context


def test_cas_of_clients_that_can_not_be_read_at_the_start_are_an_error(tmp_path: Path) -> None:
    """Letting everybody in is no way out."""
    with pytest.raises(UnusableCertificate, match=r"clients\.crt"):
        Certificate(clients=tmp_path / "clients.crt")
