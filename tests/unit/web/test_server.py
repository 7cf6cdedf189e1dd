"""A server: its bounds, its numbers, its certificate, its end."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deviceshare.certificates.serving import Certificate, UnusableCertificate
from deviceshare.metrics import Metrics
from deviceshare.web.messages import Handler, HttpRequest, Response, Route, plain
from deviceshare.web.server import CannotListen, Server


async def echo(request: HttpRequest) -> Response:
    return Response(request.body)


@asynccontextmanager
async def serving(
    handler: Handler = echo, *, max_body: int = 1000, timeout: float = 10, certificate: Certificate | None = None
) -> AsyncIterator[tuple[Server, Metrics]]:
    metrics = Metrics()
    server = Server(
        "webhook",
        "127.0.0.1",
        0,
        [Route("POST", "/filter", handler)],
        metrics,
        max_body=max_body,
        timeout=timeout,
        tls=certificate.context if certificate else None,
    )
    await server.start()
    try:
        yield server, metrics
    finally:
        await server.stop()


async def post(server: Server, path: str = "/filter", body: bytes = b"") -> tuple[int, bytes]:
    async with ClientSession() as session, session.post(f"http://127.0.0.1:{server.port}{path}", data=body) as response:
        return response.status, await response.read()


def counted(metrics: Metrics, verb: str, result: str) -> float | None:
    return metrics.registry.get_sample_value("deviceshare_requests_total", {"verb": verb, "result": result})


async def test_a_request_is_answered_and_counted_by_verb() -> None:
    """The verb is the path's name."""
    async with serving() as (server, metrics):
        assert await post(server, body=b"hello") == (200, b"hello")
        assert counted(metrics, "filter", "ok") == 1


async def test_a_handler_names_the_result_that_is_counted() -> None:
    """An extender answers 200 with an error inside."""

    async def refuse(request: HttpRequest) -> Response:
        return Response(result="refused")

    async with serving(refuse) as (server, metrics):
        await post(server)
        assert counted(metrics, "filter", "refused") == 1


async def test_unknown_paths_are_counted_together() -> None:
    """Strangers must not be able to fill the registry with labels."""
    async with serving() as (server, metrics):
        assert (await post(server, "/no-such"))[0] == 404
        assert (await post(server, "/neither"))[0] == 404
        assert counted(metrics, "unknown", "error") == 2


async def test_a_body_over_the_bound_is_answered_413() -> None:
    """Memory belongs to the cluster, not to whoever posts."""
    async with serving(max_body=10) as (server, _):
        assert (await post(server, body=b"x" * 10))[0] == 200
        assert (await post(server, body=b"x" * 11))[0] == 413


async def test_a_handler_without_an_answer_in_time_is_answered_503() -> None:
    """The caller would give up in silence; like this both sides know."""

    async def hang(request: HttpRequest) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(hang, timeout=0.05) as (server, metrics):
        assert await post(server) == (503, b"deviceshare had no answer within 0.05 s\n")
        assert counted(metrics, "filter", "error") == 1


async def test_a_body_that_never_comes_is_bounded_too() -> None:
    """A sender that stops in the middle holds no handler for ever."""
    async with serving(timeout=0.05) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
        assert b" 503 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        await writer.wait_closed()


async def test_an_address_in_use_is_said_with_the_flag_that_mends_it() -> None:
    """The usual mistake of a second process."""
    async with serving() as (server, _):
        other = Server("webhook", "127.0.0.1", server.port, [], Metrics(), max_body=1, timeout=1)
        with pytest.raises(CannotListen, match=rf"127\.0\.0\.1:{server.port}.*--webhook-bind"):
            await other.start()


async def test_stopping_lets_a_request_end() -> None:
    """The pod under its hands would otherwise wait for a retry."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(request: HttpRequest) -> Response:
        entered.set()
        await leave.wait()
        return plain("done")

    async with asyncio.timeout(10), serving(slow) as (server, _):
        answer = asyncio.create_task(post(server))
        await entered.wait()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        leave.set()
        assert await answer == (200, b"done")
        await stopping


# TLS.


def write_certificate(directory: Path, name: str, key_of: ec.EllipticCurvePrivateKey | None = None) -> None:
    """A self-signed certificate for 127.0.0.1; its key file holds `key_of`, where given, which is another's."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    (directory / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (directory / "tls.key").write_bytes(
        (key_of or key).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


async def served_name(port: int) -> str:
    """The common name of the certificate that a new connection is shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    [name] = x509.load_der_x509_certificate(shown).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(name.value)


def a_certificate(directory: Path) -> Certificate:
    return Certificate(directory / "tls.crt", directory / "tls.key")


@asynccontextmanager
async def watching(certificate: Certificate) -> AsyncIterator[None]:
    """Looks for changed files all the time."""
    task = asyncio.create_task(certificate.watch(interval=0.005))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_renewed_certificate_is_shown_to_the_next_connection(tmp_path: Path) -> None:
    """Without a restart, and without an end to connections that are open."""
    write_certificate(tmp_path, "first")
    certificate = a_certificate(tmp_path)
    async with asyncio.timeout(10), serving(certificate=certificate) as (server, _), watching(certificate):
        assert await served_name(server.port) == "first"
        write_certificate(tmp_path, "second")
        while await served_name(server.port) != "second":
            pass


async def test_files_that_do_not_belong_together_leave_the_old_certificate_in_use(tmp_path: Path) -> None:
    """A renewal writes two files, one after the other."""
    write_certificate(tmp_path, "first")
    certificate = a_certificate(tmp_path)
    async with asyncio.timeout(10), serving(certificate=certificate) as (server, _), watching(certificate):
        write_certificate(tmp_path, "half", key_of=ec.generate_private_key(ec.SECP256R1()))
        await asyncio.sleep(0.05)
        assert await served_name(server.port) == "first"
        (tmp_path / "tls.key").unlink()
        await asyncio.sleep(0.05)
        assert await served_name(server.port) == "first"
        write_certificate(tmp_path, "second")
        while await served_name(server.port) != "second":
            pass


async def test_a_certificate_that_can_not_be_read_at_the_start_is_an_error(tmp_path: Path) -> None:
    """Serving webhooks without TLS is no way out."""
    with pytest.raises(UnusableCertificate, match=r"tls\.crt"):
        a_certificate(tmp_path)


async def test_a_draining_server_ends_each_connection_with_its_answer() -> None:
    """So that no request is under way on one when the server closes it."""
    async with serving() as (server, _), ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/filter"
        async with session.post(url) as response:
            assert response.headers.get("Connection") != "close"
        server.draining = True
        async with session.post(url) as response:
            assert (response.status, response.headers["Connection"]) == (200, "close")
