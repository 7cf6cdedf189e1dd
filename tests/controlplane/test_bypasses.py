"""Ways around the hand-over before a real API server, where deviceshare warns of them and where it refuses them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.test_webhooks import Namespace, a_group, a_pod

Json = dict[str, Any]

PRIVILEGED = [{"name": "main", "image": "busybox", "securityContext": {"privileged": True}}]
LISTED = [
    {
        "name": "main",
        "image": "busybox",
        "volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}],
    }
]
AROUND: list[tuple[Json, str]] = [
    ({"containers": PRIVILEGED}, "spec.containers[0] 'main' is privileged"),
    ({"hostPID": True}, "spec.hostPID shows the pod"),
    ({"volumes": [{"name": "v", "hostPath": {"path": "/dev"}}]}, "spec.volumes[0]: '/dev' of the node"),
    (
        {"containers": LISTED, "volumes": [{"name": "v", "emptyDir": {}}]},
        "the mount '/var/run/nvidia-container-devices/all' is a list of devices",
    ),
]


@pytest.fixture(scope="module")
def strict() -> Iterator[Namespace]:
    """A cluster whose deviceshare was told to refuse, with a group."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DEVICESHARE_BYPASSES", "refuse")
        with running(Options(nodes=1, admission=WEBHOOKS)) as started:
            cluster = Namespace(started, "default")
            cluster.create(a_group("team"))
            yield cluster


@pytest.fixture
def lenient(sandbox: Sandbox) -> Namespace:
    """The cluster of all tests, whose deviceshare warns; its group is never bound."""
    return Namespace(sandbox, "default")


@pytest.mark.parametrize(("spec", "said"), AROUND, ids=[said for _, said in AROUND])
def test_a_way_around_is_warned_of(lenient: Namespace, spec: Json, said: str) -> None:
    """The pod is admitted; its author reads why that may be wrong."""
    pod = a_pod("no-such-group", **spec)
    warnings = [line for line in lenient.create(pod, "--dry-run=server").splitlines() if line.startswith("Warning: ")]
    assert [line for line in warnings if said in line]


@pytest.mark.parametrize(("spec", "said"), AROUND, ids=[said for _, said in AROUND])
def test_a_way_around_is_refused_where_that_is_set(strict: Namespace, spec: Json, said: str) -> None:
    """With the place; other pods may do as they like."""
    refusal = strict.refused("create", "-f", "-", manifest=a_pod("team", **spec))
    assert said in refusal and "--bypasses=refuse" in refusal
    strict.create(a_pod(None, "plain", **spec), "--dry-run=server")


def test_annotations_are_refused_later_too(strict: Namespace) -> None:
    """Container runtimes read them when the pod's sandbox is made, not when the pod is."""
    strict.create(a_pod("team", "honest"))
    refusal = strict.refused("annotate", "pod", "honest", "cdi.k8s.io/x=nvidia.com/gpu=all")
    strict.run("annotate", "pod", "honest", "note=mine")

    assert "metadata.annotations['cdi.k8s.io/x'] has the container runtime add" in refusal
    assert strict.pod("honest")["metadata"]["annotations"]["note"] == "mine"


@pytest.mark.parametrize("name", ["huawei.com/Ascend[/x]", "huawei.com/Ascend\x1b[2J", "huawei.com/Ascend" + "x" * 58])
def test_a_resource_that_can_have_no_such_name_is_refused(lenient: Namespace, name: str) -> None:
    """Before 1.25 a schema can't say it; admission does, a webhook in letters that can be read."""
    refusal = lenient.refused("create", "--validate=false", "-f", "-", manifest=a_group("odd", **{name: 1}))

    assert "no resource can be called 'huawei.com/Ascend" in refusal or "a resource's name is DOMAIN/NAME" in refusal
    if lenient.admission == WEBHOOKS:  # CEL can't escape what its author wrote
        assert json.dumps(refusal).count("\\u001b") == 0
