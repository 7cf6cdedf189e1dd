"""`deviceshare doctor` on the chart's release: replicas, webhooks behind a Service, a canary at a real kubelet."""

import json

import pytest
from click.testing import CliRunner

from charts.helm import NAMESPACE
from deviceshare.cli.main import main
from tests.node.cluster import Cluster, Json
from tests.node.release import Release

UNTESTED = "not tested"


@pytest.fixture(autouse=True)
def _installed(clear: None) -> None:
    """Every test here needs the release, and leaves it as it was."""


def test_a_release_is_well(cluster: Cluster, release: Release) -> None:
    """Each of its rights was asked about under its own name, and what the canary was is gone."""
    before = cluster.inventory()

    checks = examine(cluster)

    assert {name: each["mark"] for name, each in checks.items() if each["mark"] != "ok"} == {"runtime": UNTESTED}, (
        checks
    )
    assert f"system:serviceaccount:{NAMESPACE}:deviceshare" in checks["its rights"]["said"]
    assert checks["replicas"]["said"].startswith(f"{len(release.pods())} ready")
    assert checks["canary"]["said"] == "a pod of a new group got nvidia.com/gpu on node-1"
    cluster.eventually(lambda: cluster.inventory() <= before)


def test_a_namespace_that_the_webhooks_leave_out_is_found(cluster: Cluster) -> None:
    """By what comes back, as the doctor reads no selector."""
    injection = examine(cluster, "--no-canary", "--namespace=kube-system")["injection"]

    [finding] = injection["findings"]
    assert injection["mark"] == "problem"
    assert "in kube-system is not injected" in finding["what"] and "excludedNamespaces" in finding["cure"]


def test_a_release_without_replicas_is_found(cluster: Cluster, release: Release) -> None:
    """And why no pod is admitted, in the words of the API server."""
    count = len(release.pods())
    scale = ("scale", "deployment", "deviceshare", "-n", NAMESPACE)
    cluster.kubectl(*scale, "--replicas=0")
    cluster.eventually(lambda: release.pods() == [])

    checks = examine(cluster, "--no-canary")

    cluster.kubectl(*scale, f"--replicas={count}")
    cluster.kubectl("rollout", "status", "deployment", "deviceshare", "-n", NAMESPACE, "--timeout=120s")
    assert checks["replicas"]["mark"] == "problem"
    assert any("0 of 0 replicas" in each["what"] for each in checks["replicas"]["findings"])
    assert any("kubectl -n deviceshare-system scale" in each["cure"] for each in checks["replicas"]["findings"])
    if "policies" in checks:  # The API server admits pods by itself.
        assert checks["injection"]["mark"] == "ok"
        return
    [finding] = checks["injection"]["findings"]
    assert checks["injection"]["mark"] == "problem"
    assert "kubectl -n deviceshare-system get pods" in finding["cure"], finding


def examine(cluster: Cluster, *flags: str) -> dict[str, Json]:
    """What the doctor tells programs, by check."""
    command = ["doctor", f"--kubeconfig={cluster.sandbox.kubeconfig}", "-o", "json", *flags]
    done = CliRunner().invoke(main, command)
    return {each["name"]: each for each in json.loads(done.stdout)["checks"]}
