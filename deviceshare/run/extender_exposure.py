"""The extender's exposure: who can reach it can bind pods, so beyond loopback it demands client certificates."""

from collections.abc import Sequence
from pathlib import Path

from deviceshare.flags import Address


def extender_fault(bind: Address, files: Sequence[Path | None]) -> str:
    """What is wrong with the extender's address and its three TLS files, and what to do, or ""."""
    if any(files) and not all(files):
        return (
            "--extender-tls-cert, --extender-tls-key and --extender-client-ca go together: an extender over TLS"
            " lets in only who shows a client certificate"
        )
    if bind.is_loopback or all(files):
        return ""
    return (
        f"--extender-bind {bind.host}:{bind.port}: who can reach the extender can"
        " bind pods, so beyond loopback it demands client certificates: name --extender-tls-cert,"
        " --extender-tls-key and --extender-client-ca, or bind it to 127.0.0.1, beside its kube-scheduler"
    )
