"""Webhooks, or policies, at a real API server, as people and deviceshare itself meet them."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from deviceshare import assets
from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare.domain.objects.pods import Pod
from deviceshare_sandbox import Sandbox
from tests.controlplane.admission import refused_with

Json = dict[str, Any]
Kubectl = Callable[..., str]
Eventually = Callable[..., Any]
Environment = Callable[[str, str], dict[str, dict[str, str]]]


@pytest.fixture
def group(sandbox: Sandbox, kubectl: Kubectl, namespace: str, eventually: Eventually) -> Iterator[str]:
    """A group of one device. Afterwards the test's pods are deleted, and then the group."""
    name = f"group-{uuid.uuid4().hex[:8]}"
    kubectl("create", "-f", "-", stdin=json.dumps(a_group(name)))
    yield name
    kubectl("delete", "pods", "--all", "--namespace", namespace)
    # By policies only when its status says that its pods have gone: a moment later.
    eventually(lambda: sandbox.kubectl("delete", "sdg", name, "--ignore-not-found").returncode == 0)


def a_group(name: str, **resources: int) -> Json:
    return {
        "apiVersion": "deviceshare.io/v1alpha1",
        "kind": "SharedDeviceGroup",
        "metadata": {"name": name},
        # Nobody else uses this node; the other nodes of the cluster are those of other tests.
        "spec": {"resources": resources or {"nvidia.com/gpu": 1}, "nodeSelector": {"kubernetes.io/hostname": "node-1"}},
    }


def a_pod(group: str | None, name: str = "pod", *, containers: list[Json] | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"deviceshare.io/group": group} if group else {}},
        "spec": {"containers": containers or [{"name": "main", "image": "busybox"}], **spec},
    }


class Namespace:
    """kubectl in a namespace of the test's own, as people use it."""

    def __init__(self, sandbox: Sandbox, namespace: str) -> None:
        self._sandbox = sandbox
        self.namespace = namespace
        self.admission = sandbox.plan.admission

    def run(self, *arguments: str, manifest: Json | None = None, identity: str = "") -> tuple[int, str]:
        """The exit status, and what was printed: warnings and refusals, too."""
        stdin = None if manifest is None else json.dumps(manifest)
        done = self._sandbox.kubectl("--namespace", self.namespace, *arguments, stdin=stdin, identity=identity)
        return done.returncode, done.stdout + done.stderr

    def create(self, manifest: Json, *arguments: str) -> str:
        """What kubectl said to a creation that went well."""
        status, said = self.run("create", "-f", "-", *arguments, manifest=manifest)
        assert status == 0, said
        return said

    def refused(self, *arguments: str, manifest: Json | None = None, identity: str = "") -> str:
        """What kubectl said to something that was denied."""
        status, said = self.run(*arguments, manifest=manifest, identity=identity)
        assert status != 0, said
        return said

    def pod(self, name: str = "pod") -> Json:
        """The pod as it is stored."""
        status, said = self.run("get", "pod", name, "-o", "json")
        assert status == 0, said
        pod: Json = json.loads(said)
        return pod


@pytest.fixture
def cluster(sandbox: Sandbox, namespace: str, group: str) -> Namespace:  # the group's end deletes every test's pods
    return Namespace(sandbox, namespace)


def read(pod: Json) -> Pod:
    return msgspec.convert(pod, Pod)


# Pods are made ready.


def test_every_container_of_a_pod_is_made_ready(cluster: Namespace, group: str) -> None:
    """As the extender demands it, with the label and the scheduler; nothing says where it may run."""
    cluster.create(a_pod(group, initContainers=[{"name": "init", "image": "busybox"}]))

    pod = cluster.pod()

    assert read(pod).injected
    assert pod["metadata"]["labels"]["deviceshare.io/group"] == group
    assert pod["spec"]["schedulerName"] == "deviceshare-scheduler"
    assert "affinity" not in pod["spec"]


def test_a_copied_pod_is_a_pod_like_any_other(cluster: Namespace, group: str, environment: Environment) -> None:
    """`kubectl get pod -o yaml`, a new name, `kubectl create`: the copy gets devices of its own right."""
    cluster.create(a_pod(group, "first"))
    environment(cluster.namespace, "first")
    copy = cluster.pod("first")
    copy["metadata"] = {"name": "copy", "annotations": copy["metadata"]["annotations"]}
    del copy["spec"]["nodeName"]

    said = cluster.create(copy)

    warned = "Warning: metadata.annotations[deviceshare.io/nvidia-visible-devices] is removed" in said
    assert warned == (cluster.admission == WEBHOOKS)  # a policy that changes objects can't warn
    assert environment(cluster.namespace, "copy")["main"]["NVIDIA_VISIBLE_DEVICES"] != ""


def test_people_are_warned_on_their_terminal(by_webhooks: Sandbox) -> None:
    """Of what was overridden, of what can't be held to the group, and of a group that isn't there."""
    asked = Namespace(by_webhooks, "default")
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    container: Json = {"name": "main", "image": "busybox", "env": env, "securityContext": {"privileged": True}}

    said = asked.create(a_pod("no-such-group", "odd", containers=[container]), "--dry-run=server")
    early = asked.create(a_pod("no-such-group", "early"), "--dry-run=server")

    assert "Warning: spec.containers[0] 'main': env NVIDIA_VISIBLE_DEVICES is replaced" in said
    assert "Warning: spec.containers[0] 'main' is privileged" in said
    assert "Warning: SharedDeviceGroup 'no-such-group' doesn't exist yet" in early


def test_a_dry_run_shows_what_would_be_made(cluster: Namespace, group: str) -> None:
    """`sideEffects: None` holds: the API server would refuse to ask otherwise."""
    said = cluster.create(a_pod(group), "--dry-run=server", "-o", "json")

    assert read(json.loads(said)).injected


@pytest.mark.parametrize("name", ["multi-gpu.yaml", "single-gpu.yaml"])
def test_the_examples_are_admitted_as_they_are(cluster: Namespace, name: str) -> None:
    """They are the first thing people apply."""
    status, said = cluster.run("apply", "--dry-run=server", "-f", str(assets.examples() / name))

    assert status == 0, said
    assert "created (server dry run)" in said


def test_pods_without_a_group_are_left_alone(cluster: Namespace) -> None:
    """Not a field of ours in them."""
    cluster.create(a_pod(None))

    text = json.dumps(cluster.pod())

    assert "VISIBLE_DEVICES" not in text
    assert '"schedulerName": "default-scheduler"' in text


# Pods are refused.


@pytest.mark.parametrize(
    ("change", "field", "way_out"),
    [
        ({"nodeName": "node-1"}, "spec.nodeName", "leave it out"),
        ({"schedulerName": "volcano"}, "spec.schedulerName", "set it to deviceshare-scheduler"),
        (
            {"containers": [{"name": "a", "image": "b", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
            "leave the limit out",
        ),
    ],
    ids=["nodeName", "schedulerName", "limits"],
)
def test_a_pod_that_would_go_round_its_group_is_refused(
    cluster: Namespace, group: str, change: Json, field: str, way_out: str
) -> None:
    """With the field and the way out."""
    said = cluster.refused("create", "-f", "-", manifest=a_pod(group, **change))

    assert refused_with(said, f"{field}: ")
    assert way_out in said


@pytest.mark.parametrize("name", ["Team", "a" * 64, "a/b", ""])
def test_a_pod_with_an_impossible_group_name_is_refused(cluster: Namespace, name: str) -> None:
    """It would wait for ever."""
    manifest = a_pod("placeholder")
    manifest["metadata"]["annotations"]["deviceshare.io/group"] = name

    said = cluster.refused("create", "-f", "-", manifest=manifest)

    assert refused_with(said, "metadata.annotations[deviceshare.io/group]: ")


@pytest.mark.parametrize("identity", ["", "alice"], ids=["admin", "alice"])
@pytest.mark.parametrize(
    ("command", "change"),
    [
        ("annotate", "deviceshare.io/nvidia-visible-devices=0,1,2,3"),
        ("annotate", "deviceshare.io/group=other"),
        ("annotate", "deviceshare.io/group-"),
        ("label", "deviceshare.io/group-"),
        ("label", "deviceshare.io/group=other"),
    ],
)
def test_nobody_changes_what_a_pod_was_given(
    cluster: Namespace, group: str, identity: str, command: str, change: str
) -> None:
    """Not even the cluster's admin: the next restart of a container would read it."""
    cluster.create(a_pod(group))

    said = cluster.refused(command, "pod", "pod", "--overwrite", change, identity=identity)

    key = change.split("=", maxsplit=1)[0].removesuffix("-")
    assert f"metadata.{command}s[{key}]".replace("annotates", "annotations") in said


def test_deviceshare_itself_may(cluster: Namespace, group: str) -> None:
    """It wakes waiting pods by an annotation."""
    cluster.create(a_pod(group))

    status, said = cluster.run("annotate", "pod", "pod", "deviceshare.io/woken-at=now", identity="deviceshare")

    assert status == 0, said


def test_a_pods_other_metadata_is_free(cluster: Namespace, group: str) -> None:
    """Labels and annotations of others."""
    cluster.create(a_pod(group))

    assert cluster.run("label", "pod", "pod", "app=a")[0] == 0
    assert cluster.run("annotate", "pod", "pod", "note=mine")[0] == 0


# Groups.


def test_a_group_of_an_unknown_resource_is_refused(cluster: Namespace, group: str) -> None:
    """Also when it is one of two; the schema can't know them."""
    manifest = a_group("impossible", **{"nvidia.com/gpu": 1, "example.com/fpga": 1})

    said = cluster.refused("create", "-f", "-", manifest=manifest)

    assert "spec.resources: unknown resource 'example.com/fpga'; known are nvidia.com/gpu" in said


def test_a_group_in_use_is_neither_changed_nor_deleted(
    cluster: Namespace, group: str, environment: Environment, eventually: Eventually
) -> None:
    """Until its pods are gone; they are named."""
    assert cluster.run("patch", "sdg", group, "--type=merge", "-p", '{"spec": {"deletionPolicy": "Refuse"}}')[0] == 0
    cluster.create(a_pod(group))
    environment(cluster.namespace, "pod")
    # A policy knows the group's pods by its status only.
    eventually(lambda: "pod" in cluster.run("get", "sdg", group, "-o", "jsonpath={.status.allocatedPods}")[1])

    patch = '{"spec": {"resources": {"nvidia.com/gpu": 2}}}'
    changed = cluster.refused("patch", "sdg", group, "--type=merge", "-p", patch)
    deleted = cluster.refused("delete", "sdg", group)

    assert "spec can't be changed while the group is bound to node" in changed
    assert f"used by 1 pod: {cluster.namespace}/pod;" in deleted
    assert cluster.run("delete", "pod", "pod")[0] == 0
    eventually(lambda: cluster.run("delete", "sdg", group)[0] == 0)
