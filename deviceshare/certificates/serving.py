"""A server's TLS context, whose certificate and client CAs are replaced while the server runs.

Certificates are renewed under a running process: by cert-manager, by a person, by the Keeper. The server
holds one SSLContext for its whole life, which passes each new handshake to the one loaded last
(https://docs.python.org/3/library/ssl.html#ssl.SSLContext.sni_callback). So neither a restart nor a second listener is
needed, handshakes under way end as they began, and clients of a CA that was removed are refused from then on.
"""

import asyncio
import os
import ssl
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class UnusableCertificate(Exception):
    """The files are not a certificate and its key; the text names them."""


class Certificate:
    """A certificate chain and its key, in PEM files or, until then refusing every handshake, passed to `use`.

    Where a file of client CAs is named, only their clients are accepted. Raises UnusableCertificate.
    """

    def __init__(self, *own: Path, clients: Path | None = None) -> None:
        """`own`: the files of chain and key, or none."""
        self.context = _context()
        self.context.sni_callback = self._lead
        if clients is not None:
            # This context decides that a client must show a certificate, the loaded one which CAs to trust. A session
            # resumed by a ticket would skip both, hence no tickets.
            self.context.verify_mode = ssl.CERT_REQUIRED
            self.context.minimum_version = ssl.TLSVersion.TLSv1_3
            self.context.num_tickets = 0
        self._clients, self._own, self._pem = clients, own, ""
        self._files = (*own, clients) if clients else own
        self._loaded: ssl.SSLContext | None = None
        try:
            self._state = self._read_state()
            self._load()
        except OSError as error:
            named, holds = ", ".join(map(str, self._files)), "a certificate and its key" if own else "certificates"
            raise UnusableCertificate(f"{named}: not {holds} in PEM: {error}") from error

    async def watch(self, interval: float = 10.0) -> None:
        """Loads changed files, every `interval` seconds, until cancelled. Unusable files are logged and skipped."""
        while True:
            await asyncio.sleep(interval)
            try:
                if (state := self._read_state()) != self._state:
                    self._load()
                    self._state = state
                    log.info("Loaded new certificates", file=str(self._files[0]))
            except OSError as error:
                log.warning("Failed to load new certificates", file=str(self._files[0]), error=str(error))

    def use(self, certificate: str, key: str) -> None:
        """Presents this certificate, in PEM, in the next handshakes."""
        self._present(certificate + key)
        self._pem = certificate + key

    def _read_state(self) -> list[tuple[int, int, int]]:
        # The inode distinguishes a replaced file from an old one even where clocks are coarse.
        return [(stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in map(Path.stat, self._files)]

    def _load(self) -> None:
        """Loads the files; raises OSError (ssl.SSLError is one) and changes nothing when it can't."""
        if self._pem:
            self._present(self._pem)
        else:
            loaded = self._of_files(*self._own)  # also where there are none: can the client CAs be used?
            self._loaded = loaded if self._own else None

    def _present(self, pem: str) -> None:
        # OpenSSL loads from files only. This one lies in memory, has no name, and is gone when it is closed.
        with os.fdopen(os.memfd_create("certificate", os.MFD_CLOEXEC), "w") as file:
            file.write(pem)
            file.flush()
            path = Path(f"/proc/self/fd/{file.fileno()}")
            self._loaded = self._of_files(path, path)

    def _of_files(self, *own: Path) -> ssl.SSLContext:
        """A context for handshakes, with the chain and key in these files and the client CAs."""
        loaded = _context()
        if own:
            certificate, key = own
            loaded.load_cert_chain(certificate, key)
        if self._clients is not None:
            loaded.load_verify_locations(self._clients)
        return loaded

    def _lead(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        if self._loaded is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # no certificate yet: not ready
        connection.context = self._loaded
        return None


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
