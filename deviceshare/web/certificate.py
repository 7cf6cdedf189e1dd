"""The server's TLS certificate, taken anew from its files whenever they change.

Certificates are renewed under a running process (cert-manager, a Secret volume, a person). An SSLContext in use gives a
newly loaded certificate to the next handshakes, so neither a restart nor a second listener is needed.
"""

import asyncio
import ssl
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class Certificate:
    """A certificate chain and its key, in PEM files.

    Raises:
        OSError: a file can't be read (ssl.SSLError is one, too: the files don't hold a certificate and its key).
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._loaded = self._state()
        self.context = self._new_context()

    async def watch(self, interval: float = 10.0) -> None:
        """Takes in changed files for ever, looking every `interval` seconds. Unusable files are logged and left."""
        while True:
            await asyncio.sleep(interval)
            try:
                if (state := self._state()) != self._loaded:
                    self._reload()
                    self._loaded = state
            except OSError as error:
                log.warning("Kept the old certificate", file=str(self._files[0]), error=str(error))

    def _reload(self) -> None:
        # A certificate without its key (files half written) would spoil the context in use: try elsewhere first.
        self._new_context()
        self.context.load_cert_chain(*self._files)
        log.info("Loaded a new certificate", file=str(self._files[0]))

    def _new_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(*self._files)
        return context

    def _state(self) -> tuple[tuple[int, int, int], ...]:
        # The inode tells a replaced file from an old one even where clocks are coarse.
        stats = [file.stat() for file in self._files]
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)
