"""The chart on a real API server: every variant is accepted, and an upgrade or an end leaves what it should."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helm_python import Config

from charts import helm
from charts.helm import NAMESPACE
from deviceshare.sandbox import Options, Sandbox, running
from tests.unit.chart.objects import VARIANTS, variant

Json = dict[str, Any]

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
    """Helm, after `helm install` with the default values."""
    with Config(kubeconfig_path=bare.kubeconfig, namespace=NAMESPACE) as config:
        config.install(helm.CHART, "deviceshare", {})
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
@pytest.mark.parametrize("name", VARIANTS)
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

    release.upgrade(helm.CHART, "deviceshare", {"webhooks": {"timeoutSeconds": 3}, "log": {"level": "debug"}})

    [webhook] = json.loads(kubectl(bare, "get", *configuration, "-o", "json"))["webhooks"]
    assert (webhook["timeoutSeconds"], webhook["clientConfig"]["caBundle"]) == (3, bundle)
    secret = json.loads(kubectl(bare, "get", "secret", "deviceshare-ca", "-n", NAMESPACE, "-o", "json"))
    assert secret["data"] == {"ca.key": key}
    lease = json.loads(kubectl(bare, "get", "lease", "deviceshare", "-n", NAMESPACE, "-o", "json"))
    assert lease["spec"] == {"holderIdentity": "one"}
