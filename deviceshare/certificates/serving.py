"""A server's TLS context, whose certificate and client CAs are replaced while the server runs.

Certificates are renewed under a running process: by cert-manager, by a person, by the Keeper. The server
holds one SSLContext for its whole life, which passes each new handshake to the one loaded last
(https://docs.python.org/3/library/ssl.html#ssl.SSLContext.sni_callback). So neither a restart nor a second listener is
needed, handshakes under way end as they began, and clients of a CA that was removed are refused from then on.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


_Files = tuple[Path | None, ...]
_State = tuple[tuple[int, int, int], ...]


class UnusableCertificate(Exception):
    """The files are not a certificate and its key; the text names them."""


class _Handshakes:
    """The server's context, and the loaded one that it passes each handshake to."""

    def __init__(self, *, clients: bool = False) -> None:
        self.context = _context()
        self.context.sni_callback = self._lead
        if clients:
            # This context decides that a client must show a certificate, the loaded one which CAs to trust. A session
            # resumed by a ticket would skip both, hence no tickets.
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.minimum_version = ssl.TLSVersion.TLSv1_3
            self.context.num_tickets = 0
        self._loaded: ssl.SSLContext | None = None

    def use(self, certificate: Path, key: Path, clients: Path | None = None) -> None:
        """For the next handshakes; raises OSError (ssl.SSLError is one) and changes nothing when it can't."""
        loaded = _context()
        loaded.load_cert_chain(certificate, key)
        if clients is not None:
            loaded.load_verify_locations(clients)
        self._loaded = loaded

    def _lead(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        if self._loaded is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # no certificate yet: not ready
        connection.context = self._loaded
        return None


class Certificate:
    """A certificate chain and its key in PEM files; where client CAs are named, only their clients are accepted.

    Raises:
        UnusableCertificate: the files can't be used.
    """

    def __init__(self, certificate: Path, key: Path, clients: Path | None = None) -> None:
        self._files = (certificate, key, clients)
        self._handshakes = _Handshakes(clients=clients is not None)
        self.context = self._handshakes.context
        try:
            self._loaded = _state(*self._files)
            self._handshakes.use(*self._files)
        except OSError as error:
            named = ", ".join(str(file) for file in self._files if file)
            raise UnusableCertificate(f"{named}: not a certificate and its key in PEM: {error}") from error

    async def watch(self, interval: float = 10.0) -> None:
        """Loads changed files, every `interval` seconds, until cancelled. Unusable files are logged and skipped."""
        await _watch(self._files, self._loaded, lambda: self._handshakes.use(*self._files), interval)


class MemoryCertificate:
    """A certificate passed in by its issuer. Until then every handshake is refused.

    With `clients`, a file of CAs, only their clients are accepted; without it, every one. Raises UnusableCertificate.
    """

    def __init__(self, clients: Path | None = None) -> None:
        self._handshakes = _Handshakes(clients=clients is not None)
        self.context = self._handshakes.context
        self._clients = clients
        self._shown = ("", "")
        try:
            self._loaded = _state(clients)
            if clients is not None:
                _context().load_verify_locations(clients)
        except OSError as error:
            raise UnusableCertificate(f"{clients}: not certificates in PEM: {error}") from error

    def use(self, certificate: str, key: str) -> None:
        """Presents this certificate, in PEM, in the next handshakes."""
        # OpenSSL loads from files only. This one lies in memory, has no name, and is gone when it is closed.
        with os.fdopen(os.memfd_create("certificate", os.MFD_CLOEXEC), "w") as file:
            file.write(certificate + key)
            file.flush()
            path = Path(f"/proc/self/fd/{file.fileno()}")
            self._handshakes.use(path, path, self._clients)
        self._shown = (certificate, key)

    async def watch(self, interval: float = 10.0) -> None:
        """Loads changed client CAs until cancelled. Unusable files are logged and skipped."""
        await _watch((self._clients,), self._loaded, self._use_again, interval)

    def _use_again(self) -> None:
        if all(self._shown):
            self.use(*self._shown)


async def _watch(files: _Files, loaded: _State, load: Callable[[], object], interval: float) -> None:
    """Calls `load` when a file has changed since its state was `loaded`."""
    while True:
        await asyncio.sleep(interval)
        try:
            if (state := _state(*files)) != loaded:
                load()
                loaded = state
                log.info("Loaded new certificates", file=str(files[0]))
        except OSError as error:
            log.warning("Failed to load new certificates", file=str(files[0]), error=str(error))


def _state(*files: Path | None) -> _State:
    # The inode distinguishes a replaced file from an old one even where clocks are coarse.
    stats = [file.stat() for file in files if file]
    return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
