"""A certificate authority for one sandbox, and what it signs.

Nothing listens where others could reach it, but clients still verify what they talk to, as they would in a cluster: a
webhook whose certificate is wrong must fail here too.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deviceshare.certificates import issuance

_LIFETIME = timedelta(days=365)
_CLOCK_SKEW = timedelta(hours=1)


class SandboxAuthority:
    """A new CA whose files lie in `directory`; certificates are written beside them as NAME.crt and NAME.key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = issuance.new_authority(
            "deviceshare-sandbox-ca", now=datetime.now(UTC), lifetime=_LIFETIME, skew=_CLOCK_SKEW
        )
        self.certificate = directory / "ca.crt"
        self.certificate.write_text(self._authority.certificate)

    def issue(
        self, name: str, dns_names: tuple[str, ...] = ("localhost",), addresses: tuple[str, ...] = ("127.0.0.1",)
    ) -> None:
        """Writes a serving certificate for these names and addresses."""
        self._write(name, name, dns_names=dns_names, addresses=addresses)

    def issue_client(self, name: str, user: str, group: str) -> None:
        """Writes a client certificate, by which Kubernetes takes its holder for this user of this group.

        https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates
        """
        self._write(name, user, organization=group, for_client=True)

    def _write(self, file: str, name: str, **wanted: Any) -> None:
        times: dict[str, Any] = {"now": datetime.now(UTC), "lifetime": _LIFETIME, "skew": _CLOCK_SKEW}
        issued = issuance.issue(self._authority, name, **times, **wanted)
        (self._directory / f"{file}.crt").write_text(issued.certificate)
        write_key(self._directory / f"{file}.key", issued.key)


def write_key(path: Path, key: str = "") -> None:
    """Writes a private key in PEM, a new one unless given, readable by its owner only."""
    path.touch(mode=0o600)
    path.write_text(key or issuance.new_key_pem())
