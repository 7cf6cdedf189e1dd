"""The chart on a real API server: every variant is accepted, and an upgrade or an end leaves what it should."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Config

from charts import generate, helm
from charts.helm import NAMESPACE
from deviceshare.domain import contract
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import ApiError
from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.pool import pod
from tests.kubernetes_versions import since
from tests.unit.chart.objects import VARIANTS, able, containers, variant

Json = dict[str, Any]

MANIFESTS = helm.CHART.parents[1] / "manifests"
BY_WEBHOOKS: Json = {"admission": "webhooks"}

OTHERS = {
    "cert-manager.io": ("issuers", "certificates"),
    "monitoring.coreos.com": ("servicemonitors", "prometheusrules"),
    "security.openshift.io": ("securitycontextconstraints",),
}
"""Kinds of other projects that variants use."""
KINDS = {
    "issuers": "Issuer",
    "certificates": "Certificate",
    "servicemonitors": "ServiceMonitor",
    "prometheusrules": "PrometheusRule",
    "securitycontextconstraints": "SecurityContextConstraints",
}
CRDS = {
    f"customresourcedefinition.apiextensions.k8s.io/{name}.deviceshare.io"
    for name in ("devicequotas", "nodedevices", "shareddevicegroups")
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
    kubectl(bare, "delete", "crd", *(name.partition("/")[2] for name in sorted(CRDS)))


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
    """Cert-manager's kinds, Prometheus' and OpenShift's, as far as an API server needs to take them for real."""
    items = [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Cluster" if group == "security.openshift.io" else "Namespaced",
                "names": {"kind": KINDS[plural], "plural": plural},
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
        for group, plurals in OTHERS.items()
        for plural in plurals
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
    """Not even the CA, which deviceshare would have made by itself. Who leads makes leases; nobody runs here."""
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
    """The CA, and the bundle that makes the API server believe it."""
    bundle, key = "Zm9v", "YmFy"
    change = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    configuration = ("mutatingwebhookconfiguration", "deviceshare")
    for what, patch, type_ in (
        (configuration, change, "json"),
        (("secret", "deviceshare-ca"), {"data": {"ca.key": key}}, "merge"),
    ):
        flags = ["-n", NAMESPACE, "--field-manager=deviceshare", f"--type={type_}", "-p", json.dumps(patch)]
        kubectl(bare, "patch", *what, *flags)

    changes = {"webhooks": {"timeoutSeconds": 3}, "log": {"level": "debug"}}
    release.upgrade(helm.CHART, "deviceshare", BY_WEBHOOKS | changes)

    [webhook, _] = json.loads(kubectl(bare, "get", *configuration, "-o", "json"))["webhooks"]
    assert (webhook["timeoutSeconds"], webhook["clientConfig"]["caBundle"]) == (3, bundle)
    secret = json.loads(kubectl(bare, "get", "secret", "deviceshare-ca", "-n", NAMESPACE, "-o", "json"))
    assert secret["data"] == {"ca.key": key}


def test_helm_installs_what_it_renders_without_the_cluster(bare: Sandbox, version: str) -> None:
    """What Argo CD and Flux compare is what `helm install` sends, where what depends on the cluster's APIs is fixed."""
    values = {**variant("strict"), **BY_WEBHOOKS, "openshift": False}
    with Config(kubeconfig_path=bare.kubeconfig, namespace=NAMESPACE) as config:
        sent = config.install(helm.CHART, "deviceshare", values, dry_run="server")["manifest"]
    installed = {_key(each): each for each in yaml.safe_load_all(sent) if each}

    assert installed == {_key(each): each for each in helm.render(values, version)}


def _key(each: Json) -> tuple[str, str]:
    return each["kind"], each["metadata"]["name"]


def test_kustomize_renders_a_releases_manifest(bare: Sandbox, tmp_path: Path) -> None:
    """Beside a kustomization, with kubectl of every version."""
    (tmp_path / "install.yaml").write_text(generate.install())
    (tmp_path / "kustomization.yaml").write_text("resources: [install.yaml]\n")
    rendered = list(yaml.safe_load_all(kubectl(bare, "kustomize", str(tmp_path))))

    whole = list(yaml.safe_load_all((tmp_path / "install.yaml").read_text()))
    assert {_key(each): each for each in rendered} == {_key(each): each for each in whole}


@since(36)  # kubectl's kustomize knows `patches` of this form from 1.21 on
def test_the_documented_kustomization_is_one(bare: Sandbox, tmp_path: Path) -> None:
    """What docs/installation.md shows."""
    (tmp_path / "install.yaml").write_text(generate.install())
    text = (MANIFESTS.parent / "docs/installation.md").read_text()
    [shown] = re.findall(r"```yaml\n(# kustomization.yaml\n.*?)```", text, re.DOTALL)
    (tmp_path / "kustomization.yaml").write_text(shown)
    rendered = list(yaml.safe_load_all(kubectl(bare, "kustomize", str(tmp_path))))

    images = {name: each["image"] for name, each in containers(rendered).items()}
    assert images == {
        "deviceshare": "registry.example.com/deviceshare:0.1.0",
        "kube-scheduler": "registry.example.com/kube-scheduler:v1.34.2",
    }
    [deployment] = [each for each in rendered if each["kind"] == "Deployment"]
    assert deployment["spec"]["replicas"] == 3
    assert "--log-level=debug" in containers(rendered)["deviceshare"]["args"]


class Attacker:
    """Somebody who tries all the time to write what only deviceshare may, in a pod of a group."""

    def __init__(self) -> None:
        self.refused = 0
        self.admitted: list[float] = []
        self._said = ""
        """What the API server said last."""

    async def refused_by(self, whom: str) -> None:
        """Until this refuses what is tried."""
        self._said = ""
        async with asyncio.timeout(60):
            while whom not in self._said:  # noqa: ASYNC110 the attacker writes it
                await asyncio.sleep(0.05)

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
            except ApiError as error:
                self.refused += 1
                self._said = str(error)
            await asyncio.sleep(0.01)


POLICIES = 6
"""Of agents' tokens, bypasses, groups, injection, NodeDevices and pods."""


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

    attacker = Attacker()
    async with attacker.at_work(bare):
        await attacker.refused_by("webhook")
        attacker.admitted.clear()  # The API server learns of the webhooks a moment after they were created.
        await upgrade(release.upgrade, helm.CHART, "deviceshare", by_choice)
        assert (_configured(bare), _bound(bare), _told(bare)) == (2, POLICIES, "webhooks")
        await attacker.refused_by("ValidatingAdmissionPolicy")  # which is asked before the webhook
        await upgrade(release.upgrade, helm.CHART, "deviceshare", by_choice)
        assert (_configured(bare), _bound(bare), _told(bare)) == (0, POLICIES, "policies")
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
