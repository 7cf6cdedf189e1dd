"""Installation of deviceshare's manifests in the sandbox's cluster, by `kubectl apply`.

The manifests are the ones that a cluster gets, whose identities the sandbox's deviceshare and agents have. Only the
webhooks' address differs: no Service leads to a process on loopback.
"""

import asyncio
import base64
import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from deviceshare import assets
from deviceshare.domain.admission.injection_settings import GATES
from deviceshare.domain.admission.modes import WEBHOOKS
from deviceshare.domain.contract import AGENT_IDENTITY, GROUP
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare_sandbox.errors import SandboxError
from deviceshare_sandbox.kubernetes.binaries import Binaries
from deviceshare_sandbox.state import Layout, SandboxPlan

_TIMEOUT = 60.0
_ALICE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sandbox-alice}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
"""
_GATES = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sandbox-deviceshare-gates}
rules:
  - {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sandbox-deviceshare-gates}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: sandbox-deviceshare-gates}
subjects: [{kind: ServiceAccount, name: deviceshare, namespace: deviceshare-system}]
"""
"""What the chart grants besides where `placement` is `gates`."""


async def install(layout: Layout, plan: SandboxPlan, *, webhook_url: str) -> None:
    """Applies CRDs, rights, and webhooks or policies, and returns when the CRDs can be used; raises SandboxError.

    A bare cluster gets none of them, one without deviceshare no webhooks or policies. These are written to
    `Layout.admission` unless it is bare, for a deviceshare that is started by hand.
    """
    binaries, manifests = plan.binaries, assets.manifests()
    admission, alice = layout.admission(plan.admission), layout.config / "alice.yaml"
    alice.write_text(_ALICE + (f"---{_GATES}" if plan.options.placement == GATES else ""))
    if plan.options.bare:
        await _kubectl(layout, binaries, "apply", f"--filename={alice}")
        return
    text = (manifests / f"{plan.admission}.yaml").read_text()
    if plan.admission == WEBHOOKS:
        authority = (layout.pki / "ca.crt").read_bytes()
        documents = yaml.safe_load_all(text)
        local = [local_webhooks(document, webhook_url, authority, binaries.minor) for document in documents]
        text = yaml.safe_dump_all(local, sort_keys=False)
    elif plan.options.placement == GATES:
        text = yaml.safe_dump_all(map(gated_policy, yaml.safe_load_all(text)), sort_keys=False)
    admission.write_text(text)
    files = [manifests / "crds", manifests / "rbac.yaml", alice, *([admission] if plan.options.deviceshare else [])]
    await _kubectl(layout, binaries, "apply", *(f"--filename={file}" for file in files))
    crds = [f"--filename={manifests / 'crds'}"]
    await _kubectl(layout, binaries, "wait", "--for=condition=Established", f"--timeout={_TIMEOUT:.0f}s", *crds)


def gated_policy(document: Mapping[str, Any]) -> dict[str, Any]:
    """A policy, or binding, of a cluster where the leader places pods: the chart renders the setting as a variable."""
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for variable in changed["spec"].get("variables", ()):
        if variable["name"] == "gated":
            variable["expression"] = "true"
    return changed


def local_webhooks(document: Mapping[str, Any], url: str, authority: bytes, minor: int) -> dict[str, Any]:
    """A webhook configuration that calls `url` instead of a Service, narrowed where Kubernetes 1.`minor` can.

    `url` has no path; each webhook keeps its own.
    """
    changed = narrow(document, minor)
    for webhook in changed["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": url + path, "caBundle": base64.b64encode(authority).decode()}
    return changed


def narrow(document: Mapping[str, Any], minor: int) -> dict[str, Any]:
    """Makes those webhooks strict that can select our requests.

    Until 1.28 a webhook can't select by annotation or limit, nor by who asks, so it sees everybody's requests and must
    be ignored when it is unreachable. From 1.28 on `matchConditions` select ours, which fail until it is back.
    https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-matchconditions
    """
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for webhook in changed["webhooks"]:
        if minor >= 28 and (condition := _OURS.get(webhook["name"])):
            webhook.pop("objectSelector", None)
            webhook["failurePolicy"] = "Fail"
            webhook["matchConditions"] = [condition]
    return changed


def _has(pod: str, names: str) -> str:
    return f"has({pod}.metadata.{names}) && '{GROUP}' in {pod}.metadata.{names}"


def _names_a_group() -> Iterator[str]:
    for each in ("annotations", "labels"):
        yield f"({_has('object', each)})"


def _is_ours_or_would_be() -> Iterator[str]:
    """It has the label, or had it, or somebody adds the annotation to it."""
    updated = "request.operation == 'UPDATE'"
    yield f"({_has('object', 'labels')})"
    yield f"({updated} && {_has('oldObject', 'labels')})"
    yield f"({updated} && {_has('object', 'annotations')} && !({_has('oldObject', 'annotations')}))"


def _asks_for_a_share() -> Iterator[str]:
    asked = f"[{','.join(map(repr, DIALECTS))}].exists(r, r in c.resources.limits)"
    for each in ("containers", "initContainers"):
        asks = f"exists(c, has(c.resources) && has(c.resources.limits) && {asked})"
        yield f"(has(object.spec.{each}) && object.spec.{each}.{asks})"


_OURS: Final = {
    "mutate-pods.deviceshare.io": {
        "name": "wants-devices",
        "expression": " || ".join((*_names_a_group(), *_asks_for_a_share())),
    },
    "validate-pods.deviceshare.io": {
        "name": "is-ours-or-would-be",
        "expression": " || ".join(_is_ours_or_would_be()),
    },
    "validate-node-devices.deviceshare.io": {
        "name": "may-not-write-all",
        "expression": f"request.userInfo.username == '{AGENT_IDENTITY}'"
        " || !authorizer.group('deviceshare.io').resource('nodedevices').check('patch').allowed()",
    },
}


async def _kubectl(layout: Layout, binaries: Binaries, *arguments: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(
        binaries.kubectl,
        f"--kubeconfig={layout.kubeconfig}",
        # Not the user's cache: what it remembers of this server, it would remember without the CRDs.
        f"--cache-dir={layout.data / 'kubectl'}",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(_TIMEOUT):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise SandboxError(f"kubectl {arguments[0]} of the manifests took longer than {_TIMEOUT:.0f} s") from None
    if process.returncode != 0:
        raise SandboxError(f"kubectl {arguments[0]} of the manifests failed:\n{output.decode(errors='replace')}")
