"""The chart on a real API server: every variant is accepted, and an upgrade or an end leaves what it should."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from helm_python import Config

from charts import helm
from charts.helm import NAMESPACE
from deviceshare.domain import contract
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import ApiError
from deviceshare.sandbox import Options, Sandbox, running
from tests.controlplane.pool import pod
from tests.kubernetes_versions import since
from tests.unit.chart.objects import VARIANTS, able, variant

Json = dict[str, Any]

BY_WEBHOOKS: Json = {"admission": "webhooks"}

OTHERS = {"cert-manager.io": ("Issuer", "Certificate"), "monitoring.coreos.com": ("ServiceMonitor",)}
"""Kinds of other projects that variants use."""
CRDS = {
    f"customresourcedefinition.apiextensions.k8s.io/{name}.deviceshare.io"
    for name in ("nodedevices", "shareddevicegroups")
}
OF_THEIR_OWN = {"events", "events.events.k8s.io", "componentstatuses", "apiservices.apiregistration.k8s.io"}
"""What API servers and controllers make by themselves."""


@pytest.fixture(scope="module")
def bare() -> Iterator[Sandbox]:
    """A cluster that has never heard of deviceshare."""
    with running(Options(nodes=1, devices=4, bare=True, deviceshare=False)) as sandbox:
        kubectl(sandbox, "create", "namespace", NAMESPACE)
        yield sandbox


@pytest.fixture(scope="module")
def version(bare: Sandbox) -> str:
    """Of its Kubernetes."""
    return bare.plan.binaries.version.removeprefix("v")


@pytest.fixture
def release(bare: Sandbox) -> Iterator[Config]:
    """Helm, after `helm install` with webhooks and otherwise the default values."""
    with Config(kubeconfig_path=bare.kubeconfig, namespace=NAMESPACE) as config:
        config.install(helm.CHART, "deviceshare", BY_WEBHOOKS)
        yield config
        config.uninstall("deviceshare", ignore_not_found=True)
    kubectl(bare, "delete", "crd", "shareddevicegroups.deviceshare.io", "nodedevices.deviceshare.io")


def kubectl(sandbox: Sandbox, *arguments: str, stdin: Any = None) -> str:
    """What kubectl said as the cluster's admin; fails the test unless it succeeds."""
    done = sandbox.kubectl(*arguments, stdin=json.dumps(stdin) if stdin else None)
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def everything(sandbox: Sandbox) -> set[str]:
    """The objects of the release's namespace and those of none."""
    kinds = set(kubectl(sandbox, "api-resources", "--verbs=list", "-o", "name").split()) - OF_THEIR_OWN
    return set(kubectl(sandbox, "get", ",".join(sorted(kinds)), "-n", NAMESPACE, "-o", "name").split())


@pytest.fixture(scope="module")
def others_crds(bare: Sandbox) -> Iterator[None]:
    """Cert-manager's kinds and Prometheus', as far as an API server needs to take them for real."""
    items = [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": kind, "plural": f"{kind.lower()}s"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                    }
                ],
            },
        }
        for group, kinds in OTHERS.items()
        for kind in kinds
    ]
    manifest = {"apiVersion": "v1", "kind": "List", "items": items}
    kubectl(bare, "apply", "-f", "-", stdin=manifest)
    kubectl(bare, "wait", "--for=condition=Established", "crd", "--all")
    yield
    kubectl(bare, "delete", "-f", "-", stdin=manifest)


@pytest.mark.usefixtures("others_crds")
@pytest.mark.parametrize(
    "name", [name if able(name, ["1.20.2"]) else pytest.param(name, marks=since(36)) for name in VARIANTS]
)
def test_the_api_server_accepts_every_variant(bare: Sandbox, version: str, name: str) -> None:
    """Also as a server-side apply, which is how Helm 4 installs, and which knows every field."""
    manifest = {"apiVersion": "v1", "kind": "List", "items": helm.render(variant(name), version)}

    applied = kubectl(bare, "apply", "--server-side", "--dry-run=server", "-f", "-", stdin=manifest)

    assert len(applied.splitlines()) == len(manifest["items"])


def test_an_uninstalled_release_leaves_nothing_but_its_crds(bare: Sandbox) -> None:
    """Not even what deviceshare would have made by itself, had the release not: its leases and its CA."""
    before = everything(bare)
    with Config(kubeconfig_path=bare.kubeconfig, namespace=NAMESPACE) as config:
        config.install(helm.CHART, "deviceshare", {})
        assert len(everything(bare)) > len(before) + 20
        config.uninstall("deviceshare")
    deadline = time.monotonic() + 60
    while (left := everything(bare) - before) != CRDS:  # pods end when they will
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
    kubectl(bare, "delete", *CRDS)


def test_an_upgrade_keeps_what_deviceshare_wrote(bare: Sandbox, release: Config) -> None:
    """The CA, the bundle that makes the API server believe it, and who leads."""
    bundle, key = "Zm9v", "YmFy"
    change = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    configuration = ("mutatingwebhookconfiguration", "deviceshare")
    for what, patch, type_ in (
        (configuration, change, "json"),
        (("secret", "deviceshare-ca"), {"data": {"ca.key": key}}, "merge"),
        (("lease", "deviceshare"), {"spec": {"holderIdentity": "one"}}, "merge"),
    ):
        flags = ["-n", NAMESPACE, "--field-manager=deviceshare", f"--type={type_}", "-p", json.dumps(patch)]
        kubectl(bare, "patch", *what, *flags)

    changes = {"webhooks": {"timeoutSeconds": 3}, "log": {"level": "debug"}}
    release.upgrade(helm.CHART, "deviceshare", BY_WEBHOOKS | changes)

    [webhook] = json.loads(kubectl(bare, "get", *configuration, "-o", "json"))["webhooks"]
    assert (webhook["timeoutSeconds"], webhook["clientConfig"]["caBundle"]) == (3, bundle)
    secret = json.loads(kubectl(bare, "get", "secret", "deviceshare-ca", "-n", NAMESPACE, "-o", "json"))
    assert secret["data"] == {"ca.key": key}
    lease = json.loads(kubectl(bare, "get", "lease", "deviceshare", "-n", NAMESPACE, "-o", "json"))
    assert lease["spec"] == {"holderIdentity": "one"}


class Attacker:
    """Somebody who tries all the time to write what only deviceshare may, in a pod of a group."""

    def __init__(self) -> None:
        self.refused = 0
        self.admitted: list[float] = []

    @asynccontextmanager
    async def at_work(self, sandbox: Sandbox) -> AsyncIterator[None]:
        async with connect(str(sandbox.kubeconfig)) as connection:
            task = asyncio.create_task(self._write(Api(connection)), name="attacker")
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])

    async def _write(self, api: Api) -> None:
        while True:
            change = {"metadata": {"annotations": {contract.GROUP_UID: str(time.monotonic())}}}
            try:
                await api.patch(PODS, "victim", change, namespace="default")
                self.admitted.append(time.monotonic())
            except ApiError:
                self.refused += 1
            await asyncio.sleep(0.01)


@since(36)
async def test_admission_changes_without_a_moment_in_which_nobody_reviews(bare: Sandbox, release: Config) -> None:
    """From webhooks to policies in two upgrades, the first of which keeps the webhooks; and back in one."""
    labelled = pod("victim", "team")
    labelled["metadata"]["labels"] = {contract.GROUP: "team"}
    for kind in (
        "mutatingwebhookconfiguration",
        "validatingwebhookconfiguration",
    ):  # no replica runs, and this pod comes first
        kubectl(bare, "delete", kind, "deviceshare")
    kubectl(bare, "create", "-f", "-", stdin=labelled)
    upgrade = asyncio.to_thread
    by_choice: Json = {"admission": "auto"}  # without any value, Helm would take those of the last time
    await upgrade(release.upgrade, helm.CHART, "deviceshare", BY_WEBHOOKS)
    await asyncio.sleep(2)

    attacker = Attacker()
    async with attacker.at_work(bare):
        await upgrade(release.upgrade, helm.CHART, "deviceshare", by_choice)
        assert (_configured(bare), _bound(bare), _told(bare)) == (2, 4, "webhooks")
        await upgrade(release.upgrade, helm.CHART, "deviceshare", by_choice)
        assert (_configured(bare), _bound(bare), _told(bare)) == (0, 4, "policies")
        left = " ".join(sorted(everything(bare)))
        assert "service/deviceshare" not in left and "secret/deviceshare" not in left and "webhook" not in left
        await asyncio.sleep(2)
        await upgrade(release.upgrade, helm.CHART, "deviceshare", BY_WEBHOOKS)
        assert (_configured(bare), _bound(bare), _told(bare)) == (2, 0, "webhooks")
        await asyncio.sleep(2)
    kubectl(bare, "delete", "pod", "victim", "--force", "--grace-period=0")
    assert attacker.refused > 100
    assert attacker.admitted == []


def _configured(sandbox: Sandbox) -> int:
    """How many webhook configurations there are of deviceshare."""
    kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
    return kubectl(sandbox, "get", kinds, "-o", "name").count("/deviceshare")


def _bound(sandbox: Sandbox) -> int:
    """How many bindings of its policies."""
    kinds = "mutatingadmissionpolicybindings,validatingadmissionpolicybindings"
    return kubectl(sandbox, "get", kinds, "-o", "name").count("/deviceshare")


def _told(sandbox: Sandbox) -> str:
    """What the Deployment tells deviceshare about admission."""
    path = "jsonpath={.spec.template.spec.containers[0].args}"
    flags = json.loads(kubectl(sandbox, "get", "deployment", "deviceshare", "-n", NAMESPACE, "-o", path))
    [found] = [flag.split("=")[1] for flag in flags if flag.startswith("--admission=")]
    return str(found)
