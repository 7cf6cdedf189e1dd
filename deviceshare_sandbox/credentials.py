"""Credentials of one sandbox: a certificate authority, what it signs, and a token and a kubeconfig for each identity.

Nothing listens where others could reach it, but clients still verify what they talk to, as they would in a cluster: a
webhook whose certificate is wrong must fail here too. And RBAC is exercised as in a cluster: nothing but the admin
belongs to `system:masters`, so a right that the chart doesn't give fails here first.
"""

import base64
import secrets
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from deviceshare.certificates import issuance
from deviceshare.domain.contract import AGENT, AGENT_IDENTITY, IDENTITY, NAMESPACE
from deviceshare_sandbox.binaries import Binaries
from deviceshare_sandbox.reports import SandboxError
from deviceshare_sandbox.state import Layout

_LIFETIME = timedelta(days=365)
_CLOCK_SKEW = timedelta(hours=1)
_BOUND_TO_NODES = 31
_TOKEN_SECONDS = 30


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


_IDENTITIES = {
    "admin": ("admin", ["system:masters"]),
    "kube-controller-manager": ("system:kube-controller-manager", []),
    "kube-scheduler": ("system:kube-scheduler", []),
    # deviceshare and its kube-scheduler are two containers of one pod, hence one identity.
    "deviceshare": (IDENTITY, ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]),
    # Of the agents of simulated nodes, or of one that is started by hand.
    AGENT: (AGENT_IDENTITY, ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]),
    # One for all simulated nodes. A real kubelet is one node's user and may not write annotations, where ours keeps its
    # record; so it is an admin under another name.
    "kubelet": ("sandbox-kubelet", ["system:masters"]),
    # The real node and its proxy, which are no more than that.
    "node-1": ("system:node:node-1", ["system:nodes"]),
    "kube-proxy": ("system:kube-proxy", []),
    # A person who may do what a namespace's users do, and no more.
    "alice": ("alice", []),
}


def write_kubeconfigs(layout: Layout, server: str, authority: Path) -> Path:
    """Writes every identity's kubeconfig and returns the token file for kube-apiserver.

    The file's format: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#static-token-file
    """
    lines = []
    for name, (user, groups) in _IDENTITIES.items():
        token = secrets.token_urlsafe(24)
        lines.append(f'{token},"{user}","{name}","{",".join(groups)}"')
        target = layout.kubeconfig if name == "admin" else layout.kubeconfig_of(name)
        target.touch(mode=0o600)
        target.write_text(_kubeconfig(server, authority.read_bytes(), name, token))
    tokens = layout.pki / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text("\n".join(lines) + "\n")
    return tokens


def agent_kubeconfig(layout: Layout, binaries: Binaries, node: str) -> Path:
    """Credentials of the agent on a node, with a token that names it, as the tokens of agents' pods do.

    Before Kubernetes 1.31 no token can be had that is bound to a node, and all agents have the same.
    https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens
    """
    shared = layout.kubeconfig_of(AGENT)
    if binaries.minor < _BOUND_TO_NODES:
        return shared
    command = [
        binaries.kubectl,
        f"--kubeconfig={layout.kubeconfig}",
        "create",
        "token",
        AGENT,
        f"--namespace={NAMESPACE}",
    ]
    command += ["--bound-object-kind=Node", f"--bound-object-name={node}", f"--duration={_LIFETIME.days * 24}h"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOKEN_SECONDS, check=False)
    if done.returncode != 0:
        raise SandboxError(f"No token for the agent of {node}: {done.stderr.strip()}")
    document = yaml.safe_load(shared.read_text())
    document["users"][0]["user"]["token"] = done.stdout.strip()
    target = layout.kubeconfig_of(f"{AGENT}-{node}")
    target.touch(mode=0o600)
    target.write_text(yaml.safe_dump(document, sort_keys=False))
    return target


def _kubeconfig(server: str, authority: bytes, user: str, token: str) -> str:
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "sandbox", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "sandbox", "context": {"cluster": "sandbox", "user": user}}],
        "current-context": "sandbox",
    }
    return yaml.safe_dump(document, sort_keys=False)
