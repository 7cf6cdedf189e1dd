"""Installation of deviceshare in the sandbox's cluster: what the chart renders, but for what would run in pods.

deviceshare and the agents run on this machine, with the chart's rights. Only the webhooks' address differs: no Service
leads to a process on loopback.
"""

import asyncio
import base64
from pathlib import Path
from typing import Any, Final

import yaml

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare.domain.contract import NAMESPACE
from deviceshare_sandbox.binaries import Binaries
from deviceshare_sandbox.reports import SandboxError
from deviceshare_sandbox.state import Layout, Options, SandboxPlan

Json = dict[str, Any]

_TIMEOUT = 60.0
_ADMISSION: Final = ("WebhookConfiguration", "AdmissionPolicy", "AdmissionPolicyBinding")
"""How the kinds of webhooks and policies end."""
_RIGHTS: Final = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DeviceClass")
"""And what deviceshare refers to besides."""
# From 1.21 on the API server sets the label. The webhooks leave this namespace out by it.
_NAMESPACE: Final = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": NAMESPACE, "labels": {"kubernetes.io/metadata.name": NAMESPACE}},
}
_ALICE: Final = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "sandbox-alice"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
}


async def install(layout: Layout, plan: SandboxPlan, *, webhook_url: str) -> None:
    """Applies CRDs, rights, and webhooks or policies, and returns when the CRDs can be used; raises SandboxError.

    A bare cluster gets none of them, one without deviceshare no webhooks or policies. These are written to
    `Layout.admission` unless it is bare, for a deviceshare that is started by hand.
    """
    rights, admission = layout.config / "rights.yaml", layout.admission(plan.admission)
    if plan.options.bare:
        _write(rights, [_ALICE])
        await _kubectl(layout, plan.binaries, "apply", f"--filename={rights}")
        return
    rendered = render(plan.admission, plan.options, plan.binaries.version)
    definitions = [each for each in rendered if each["kind"] == "CustomResourceDefinition"]
    _write(rights, [_NAMESPACE, *definitions, *(each for each in rendered if each["kind"] in _RIGHTS), _ALICE])
    reviews = [each for each in rendered if each["kind"].endswith(_ADMISSION)]
    if plan.admission == WEBHOOKS:
        lead_here(reviews, webhook_url, (layout.pki / "ca.crt").read_bytes())
    _write(admission, reviews)
    files = [rights, *([admission] if plan.options.deviceshare else [])]
    await _kubectl(layout, plan.binaries, "apply", *(f"--filename={file}" for file in files))
    names = (f"crd/{each['metadata']['name']}" for each in definitions)
    await _kubectl(layout, plan.binaries, "wait", "--for=condition=Established", f"--timeout={_TIMEOUT:.0f}s", *names)


def render(admission: str, options: Options, version: str) -> list[Json]:
    """The chart for this Kubernetes version. Its agents may evict pods, and tell them no address: they have none."""
    agent = {"enabled": True, "enforce": "evict", "pods": {"enabled": False}}
    values: Json = {"admission": admission, "placement": options.placement, "agent": agent}
    values |= {"shares": {"dialects": list(options.dialects)}, "autoscaling": {"scalingPods": options.scaling_pods}}
    values |= {"dra": {"holds": options.dra_holds, "handover": options.dra_holds and admission == WEBHOOKS}}
    # Not sooner: it loads a library whose threads don't survive the fork by which a supervisor leaves its parent.
    from charts import helm  # noqa: PLC0415

    return helm.render(values, version.removeprefix("v"))


def lead_here(configurations: list[Json], url: str, authority: bytes) -> None:
    """Has each webhook call `url`, which has no path, instead of a Service; it keeps its own path."""
    for webhook in (webhook for each in configurations for webhook in each["webhooks"]):
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": url + path, "caBundle": base64.b64encode(authority).decode()}


def _write(file: Path, documents: list[Json]) -> None:
    file.write_text(yaml.dump_all(documents, Dumper=yaml.CSafeDumper, sort_keys=False))


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
