"""A pod's service account: how whatever runs in the cluster reaches its API server.

https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api
"""

import os
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from deviceshare.kube.access import Access, NotConfigured

log = structlog.get_logger(__name__)

DIRECTORY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FRESH_SECONDS: Final = 60.0
"""For so long a token is used before its file is read again: the kubelet renews it long before it expires."""


def read(directory: Path = DIRECTORY, environment: Mapping[str, str] = os.environ) -> Access:
    """Raises NotConfigured outside of a pod, and in a pod without its service account."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    try:
        if not (host and port):
            raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
        tls = ssl.create_default_context(cafile=directory / "ca.crt")
        token = _Token(directory / "token")
    except (OSError, ValueError) as error:
        raise NotConfigured(
            f"no service account of a pod: {error}; name a kubeconfig file with --kubeconfig"
        ) from error
    return Access(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", tls, token.authorization)


class _Token:
    """The token as its file has it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = time.monotonic()
        self._text = self._read()

    async def authorization(self) -> str:
        if time.monotonic() - self._read_at > FRESH_SECONDS:
            self._read_at = time.monotonic()
            try:
                self._text = self._read()
            except (OSError, ValueError) as error:
                # The token of before may well be valid still; if it isn't, the API server says so.
                log.warning("Service account token could not be read", error=str(error))
        return f"Bearer {self._text}"

    def _read(self) -> str:
        """Raises OSError, or ValueError where the file is empty."""
        text = self._file.read_text().strip()
        if not text:
            raise ValueError(f"{self._file} is empty")
        return text
