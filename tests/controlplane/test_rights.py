"""deviceshare and its kube-scheduler with exactly the rights that the chart gives them: enough, and none to spare.

One long story, since a right is only shown to be needed by a history in which it was used.
"""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helm_python import Config

from charts import helm
from deviceshare_sandbox import Options, Sandbox, running
from deviceshare_sandbox.simulated_nodes import node
from tests.controlplane.installed import CLUSTER_ROLE, NAMESPACE, ROLE, Installed
from tests.controlplane.pool import job, pod
from tests.controlplane.rights import Right, granted, missing, request, spare

Json = dict[str, Any]

BY_WEBHOOKS = {"admission": "webhooks"}
"""With policies there are fewer rights, which tests/unit/chart/test_admission.py shows."""
REPLICA = "deviceshare"
"""The role of every replica, whatever else it does."""


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    """The chart, by `helm install`, in a cluster of its own; a ServiceAccount for each process of its pod."""
    with running(Options(nodes=1, devices=4, bare=True, deviceshare=False)) as sandbox:
        with Config(kubeconfig_path=sandbox.kubeconfig, namespace=NAMESPACE) as config:
            config.install(helm.CHART, "deviceshare", BY_WEBHOOKS, create_namespace=True)
        there = Installed(sandbox, tmp_path, helm.render(BY_WEBHOOKS, sandbox.plan.binaries.version.removeprefix("v")))
        cluster_wide = [(CLUSTER_ROLE, name) for name in (REPLICA, "deviceshare-controller", "deviceshare-webhook")]
        there.become("keeper", *cluster_wide, (ROLE, "deviceshare-controller"), (ROLE, "deviceshare-webhook"))
        there.become("extender", (CLUSTER_ROLE, REPLICA), (CLUSTER_ROLE, "deviceshare-extender"))
        system = [(CLUSTER_ROLE, f"system:{name}-scheduler") for name in ("kube", "volume")]
        there.become("scheduler", *system, (ROLE, "deviceshare-scheduler"))
        lead_here(there, sandbox)
        yield there


def lead_here(there: Installed, sandbox: Sandbox) -> None:
    """Has the API server call the webhooks on this machine: no Service leads here."""
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        webhooks = [
            {
                "name": each["name"],
                "clientConfig": {
                    "service": None,
                    "url": f"https://127.0.0.1:{there.webhook}{each['clientConfig']['service']['path']}",
                },
            }
            for each in there.get(kind, "deviceshare")["webhooks"]
        ]
        there.kubectl("patch", kind, "deviceshare", "-p", json.dumps({"webhooks": webhooks}))
    # What the chart's notes tell to do where namespaces have no such label.
    there.kubectl("label", "namespace", "kube-system", "kubernetes.io/metadata.name=kube-system", "--overwrite")


def apply(there: Installed, *documents: Json) -> None:
    """Creates them as soon as the webhooks are trusted."""
    manifest = {"apiVersion": "v1", "kind": "List", "items": documents}
    there.kubectl("apply", "-n", "default", "-f", "-", stdin=manifest)


def group(name: str, count: int) -> Json:
    """A group of GPUs."""
    head = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup", "metadata": {"name": name}}
    return head | {"spec": {"resources": {"nvidia.com/gpu": count}}}


def injects(there: Installed) -> bool:
    """Whether the API server asks the webhooks by now, and believes them: a replica is ready a moment earlier."""
    flags = ("create", "-n", "default", "--dry-run=server", "-o", "jsonpath={.metadata.labels}", "-f", "-")
    return "deviceshare.io/group" in there.tries(*flags, stdin=pod("probe", "probe")).stdout


def placed(there: Installed, *names: str) -> bool:
    """Whether all these pods have a node."""
    return all(there.get("pod", name)["spec"].get("nodeName") for name in names)


def refused(there: Installed, name: str) -> bool:
    """Whether the scheduler has found no place for the pod."""
    conditions = there.get("pod", name)["status"].get("conditions", ())
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def exists(there: Installed, *what: str) -> bool:
    """Whether there is such an object."""
    return there.kubectl("get", *what, "--ignore-not-found", "-o", "name") != ""


def events(there: Installed, name: str, reason: str) -> int:
    """How often it was said of an object."""
    chosen = f"involvedObject.name={name},reason={reason}"
    return sum(each["count"] for each in there.get("events", "-A", "--field-selector", chosen)["items"])


STORIES = 5
"""In one of them the leader's touch comes before the scheduler's own attempt."""
QUOTA = {"metadata": {"name": "every"}, "spec": {"groupSelector": {}, "hard": {"nvidia.com/gpu": 99}}}


def share_and_wait(there: Installed) -> None:
    """Two pods share, a third waits until their group is gone, and is woken then. A quota counts both groups."""
    apply(there, {"apiVersion": "deviceshare.io/v1alpha1", "kind": "DeviceQuota", **QUOTA})
    for _ in range(STORIES):
        wait_and_be_placed(there)
        if "Woke pod" in there.log("keeper"):
            break
        there.kubectl("delete", "pod", "three")
        there.until(lambda: there.tries("delete", "sdg", "second").returncode == 0)
    there.until(lambda: there.get("sdg", "second")["metadata"].get("finalizers"), "keeper")


def wait_and_be_placed(there: Installed) -> None:
    """The third pod is placed when it was woken; or when the end of the others had a slow scheduler try it so late."""
    apply(there, group("first", 4), pod("one", "first"), pod("two", "first"))
    there.until(lambda: placed(there, "one", "two"), "extender")
    apply(there, group("second", 1), pod("three", "second"))
    there.until(lambda: refused(there, "three"), "scheduler")
    there.kubectl("delete", "pod", "one", "two")
    # Their end has the scheduler try once more. After that only deviceshare can tell it that devices came free.
    time.sleep(3)
    there.until(lambda: there.tries("delete", "sdg", "first").returncode == 0)
    there.until(lambda: placed(there, "three"), "keeper")


def end_a_share(there: Installed) -> None:
    """A pod with a part of a device gets a larger one, if no quota counts that, and ends.

    Before the leader releases the part, it looks whether the pod is really gone.
    """
    limits = {"resources": {"limits": {"deviceshare.io/gpu-percent": "30"}}}
    apply(there, pod("part", containers=[{"name": "main", "image": "busybox", **limits}]))
    there.until(lambda: placed(there, "part"), "extender")
    there.kubectl("annotate", "pod", "part", "deviceshare.io/resize=main=40%")
    there.until(lambda: '"percent":40' in there.get("pod", "part")["metadata"]["annotations"]["deviceshare.io/shares"])
    there.kubectl("delete", "pod", "part")
    there.until(lambda: "default/part" not in there.kubectl("get", "ndev", "node-1", "-o", "json"), "keeper")


def preempt(there: Installed) -> None:
    """A pod of a higher priority waits for a device where shares have them all: the leader evicts one of them."""
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
    apply(there, urgent | {"value": 1000})
    limits = {"resources": {"limits": {"deviceshare.io/gpu-percent": "100"}}}
    whole = [{"name": "main", "image": "busybox", **limits}]
    low = [f"low-{number}" for number in range(3)]
    apply(there, *(pod(name, containers=whole) for name in low))
    there.until(lambda: placed(there, *low), "extender")
    apply(there, pod("urgent", containers=whole, priorityClassName="urgent"))
    there.until(lambda: placed(there, "urgent"), "keeper")
    there.kubectl("delete", "pods", "--ignore-not-found", "urgent", *low)


def meet_an_impostor(there: Installed) -> None:
    """A pod with the Binding of its namesake, as old API servers let it come about. Its group isn't there."""
    apply(there, pod("impostor", "nowhere"))
    meta = {"name": "impostor", "annotations": {"deviceshare.io/pod-uid": "another"}}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "node-1"}}
    there.kubectl("create", "--raw", "/api/v1/namespaces/default/pods/impostor/binding", "-f", "-", stdin=binding)
    there.until(lambda: not exists(there, "pod", "impostor"), "extender")
    there.until(lambda: events(there, "impostor", "WrongDevices"), "keeper")


def bind_a_stranger(there: Installed) -> None:
    """A bind for a pod that this extender was never asked about, as after a restart."""
    assert "is gone" in ask_to_bind(there, "stranger", "")


def exceed_the_quota(there: Installed) -> None:
    """Another group holds a part of it. Filter said so; a bind that comes all the same reads before it refuses."""
    apply(there, group("fifth", 99), pod("over", "fifth"))
    uid = there.get("pod", "over")["metadata"]["uid"]
    there.until(lambda: "quota" in ask_to_bind(there, "over", uid), "extender")
    there.kubectl("delete", "pod/over", "sdg/fifth")


def ask_to_bind(there: Installed, name: str, uid: str) -> str:
    """As kube-scheduler does; why not, or ""."""
    body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "node-1"}
    url = f"http://127.0.0.1:{there.extender}/bind"
    question = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(question, timeout=15) as answer:
        return str(json.load(answer)["Error"])


def slip_past(there: Installed) -> None:
    """While the webhooks are away a Job's pod is created, which later API servers would refuse, and a group deleted.

    Its other pod waits, and has no room for another annotation.
    """
    for kind, names in (("mutating", ["mutate-pods"]), ("validating", ["validate-pods", "validate-groups"])):
        webhooks = [{"name": f"{name}.deviceshare.io", "failurePolicy": "Ignore"} for name in names]
        there.kubectl("patch", f"{kind}webhookconfiguration", "deviceshare", "-p", json.dumps({"webhooks": webhooks}))
    apply(there, job("slips", "second"))
    there.until(lambda: there.get("pods", "-l", "job-name=slips")["items"])
    full = pod("full", "left", nodeSelector={"no": "where"})
    full["metadata"]["labels"] = dict(full["metadata"]["annotations"])
    full["metadata"]["annotations"]["padding"] = "x" * 262_100
    there.kubectl("create", "-n", "default", "-f", "-", stdin=full)
    there.kubectl("delete", "pod", "four")
    there.kubectl("delete", "sdg", "left", "--wait=false")


def recreated(there: Installed) -> bool:
    """Whether the Job has an injected pod by now."""
    return exists(there, "pods", "-l", "job-name=slips,deviceshare.io/group=second")


def lose_and_mend(there: Installed) -> None:
    """Somebody deletes what deviceshare keeps for itself, as an upgrade from a chart that had the leases does."""
    leases = ("lease/deviceshare", "lease/deviceshare-scheduler")
    there.kubectl("delete", "-n", NAMESPACE, "secret/deviceshare-ca", *leases)
    for what in ("secret/deviceshare-ca", *leases):
        there.until(lambda what=what: exists(there, what, "-n", NAMESPACE), "keeper")
    assert there.get(leases[0], "-n", NAMESPACE)["spec"]["holderIdentity"].startswith("keeper")
    assert "Lost the lease" not in there.log("keeper")


def come_and_go(there: Installed) -> None:
    """A node gets devices, and leaves again."""
    there.kubectl("annotate", "node", "node-2", "deviceshare.io/devices=nvidia.com/gpu=1")
    total = "jsonpath={.spec.summary.total}"
    there.until(lambda: "1" in there.kubectl("get", "ndev", "node-2", "--ignore-not-found", "-o", total))
    there.kubectl("label", "node", "node-2", "deviceshare.io/mode-")
    there.until(lambda: not exists(there, "ndev", "node-2"), "keeper")


def test_every_right_of_the_chart_is_enough_and_needed(installed: Installed) -> None:
    """Each request is allowed; and whichever right were taken away, some request would be refused."""
    empty = node("node-2", Options(devices=0), installed.get("node", "node-1")["status"]["nodeInfo"]["kubeletVersion"])
    with installed.deviceshare("extender", "extender"), installed.kube_scheduler("scheduler"):
        with installed.deviceshare("keeper", "controller", "webhook"):
            installed.until(lambda: injects(installed), "keeper")
            installed.kubectl("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "Node", **empty})
            share_and_wait(installed)
            end_a_share(installed)
            preempt(installed)
            apply(installed, group("left", 1), pod("four", "left"))
            installed.until(lambda: placed(installed, "four"), "extender")
            bind_a_stranger(installed)
            exceed_the_quota(installed)
            meet_an_impostor(installed)
            installed.until(lambda: events(installed, "node-2", "DevicesUnknown") >= 1, "keeper")
            said = events(installed, "node-2", "DevicesUnknown")
        slip_past(installed)
        with installed.deviceshare("keeper", "controller", "webhook"):
            # A successor says the same again, in the same event.
            installed.until(lambda: events(installed, "node-2", "DevicesUnknown") > said, "keeper")
            installed.until(lambda: recreated(installed), "keeper")
            installed.until(lambda: installed.get("pod", "full")["status"].get("message"), "keeper")
            come_and_go(installed)
            lose_and_mend(installed)
        lease = installed.get("lease", "deviceshare-scheduler", "-n", NAMESPACE)
    keeper, extender = installed.requests("keeper"), installed.requests("extender")
    every = set(granted(installed.roles(REPLICA)))
    keeps = every | set(granted(installed.roles("deviceshare-controller", "deviceshare-webhook")))
    extends = every | set(granted(installed.roles("deviceshare-extender")))

    assert missing(keeps, keeper) == set()
    assert missing(extends, extender) == set()
    assert spare(every, keeper | extender) == set()
    assert spare(keeps, keeper) - every == set()
    assert spare(extends, extender) - every == set()
    assert lease["spec"]["holderIdentity"]
    assert "forbidden" not in installed.log("scheduler")


def test_a_right_that_nobody_uses_is_noticed() -> None:
    """And so is a request that nobody may make: or the test above would show nothing."""
    lists = Right("role", "", "", "pods", "list", "")
    reads = Right("role", "here", "", "secrets", "get", "ca")
    asked = {request("GET", "/api/v1/pods", {}), request("GET", "/api/v1/namespaces/here/secrets/ca", {})}

    assert (spare([lists, reads], asked), missing([lists, reads], asked)) == (set(), set())
    assert spare([lists, reads, lists._replace(verb="watch")], asked) == {lists._replace(verb="watch")}
    for other in (reads._replace(name="key"), reads._replace(namespace="there"), reads._replace(verb="list")):
        assert len(missing([lists, other], asked)) == 1
