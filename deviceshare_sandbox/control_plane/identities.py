"""Identities of a sandbox: a token and a kubeconfig for each, so that RBAC is exercised as in a cluster.

Nothing but the admin belongs to `system:masters`; a right that the chart doesn't give fails here first.
"""

import base64
import secrets
from pathlib import Path

import yaml

from deviceshare.domain.contract import AGENT_IDENTITY, IDENTITY, NAMESPACE
from deviceshare_sandbox.state import Layout

_IDENTITIES = {
    "admin": ("admin", ["system:masters"]),
    "kube-controller-manager": ("system:kube-controller-manager", []),
    "kube-scheduler": ("system:kube-scheduler", []),
    # deviceshare and its kube-scheduler are two containers of one pod, hence one identity.
    "deviceshare": (IDENTITY, ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]),
    # A node's agent, started by hand: no simulated node has one.
    "deviceshare-agent": (AGENT_IDENTITY, ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]),
    # One for all simulated nodes. A real kubelet is one node's user and may not write annotations, where ours keeps its
    # record; so it is an admin under another name.
    "kubelet": ("sandbox-kubelet", ["system:masters"]),
    # The real node and its proxy, which are no more than that.
    "node-1": ("system:node:node-1", ["system:nodes"]),
    "kube-proxy": ("system:kube-proxy", []),
    # A person who may do what a namespace's users do, and no more.
    "alice": ("alice", []),
}


def write(layout: Layout, server: str, authority: Path) -> Path:
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
