"""The admission policies in a real API server, beside the domain. Collected where MutatingAdmissionPolicy v1 is served.

Nothing else of deviceshare runs: no webhook, no scheduler, no controller.
"""

import copy
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from charts import helm
from deviceshare.domain import contract
from deviceshare.domain.admission.bypasses import REFUSE, bypasses, refusal_or_warnings
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.own_resource_review import (
    review_changed_group,
    review_deleted_group,
    review_new_group,
)
from deviceshare.domain.admission.pod_injection import inject, inject_ephemeral
from deviceshare.domain.admission.pod_review import review_changed_pod, review_new_pod
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.object_decoder import ObjectMeta, decoder_of
from deviceshare.domain.objects.pod_spec import PodSpec, PodStatus
from deviceshare.domain.objects.pods import Pod
from deviceshare_sandbox import Options, Sandbox, running
from tests.kubernetes_versions import since
from tests.unit.domain.jsonpatch import applied
from tests.unit.policies.examples import ADMITTED, REFUSED, REFUSED_FIRST, a_pod, asking, in_group
from tests.unit.policies.sameness import SHORTER

pytestmark = since(36)


Json = dict[str, Any]
Eventually = Callable[..., Any]
PODS, GROUPS = decoder_of(Pod), decoder_of(Group)
DENIED = " denied request: "
LEFT_OUT = "kube-system"
TEAM = {"deviceshare.io/group": "team"}


class PolicedCluster:
    """A cluster with the policies of the chart's default values, and with agents."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def ask(self, verb: str, *arguments: str, of: Json | None = None, user: str = "") -> tuple[Json, str]:
        """What kubectl gets: the object, or what the API server said."""
        who = (f"--as={user}", "--as-group=system:masters") if user else ()
        stdin = ("-f", "-") if of is not None else ()
        text = json.dumps(of) if of is not None else None
        done = self.sandbox.kubectl(verb, *arguments, *stdin, "--output=json", *who, stdin=text)
        if done.returncode:
            return {}, done.stderr.strip()
        return json.loads(done.stdout) if done.stdout else {}, ""

    def create(self, of: Json, *, namespace: str = "default", store: bool = False) -> tuple[Json, str]:
        """A dry run, unless it shall be stored; of a refusal, only what comes after the policy's name."""
        return _denied(self.ask("create", *_dry(store), f"--namespace={namespace}", of=of))

    def replace(self, of: Json, *arguments: str, user: str = "", store: bool = False) -> tuple[Json, str]:
        """Likewise."""
        return _denied(self.ask("replace", *_dry(store), *arguments, of=of, user=user))


def _dry(store: bool) -> tuple[str, ...]:
    return () if store else ("--dry-run=server",)


def _denied(answer: tuple[Json, str]) -> tuple[Json, str]:
    found, said = answer
    return found, said.partition(DENIED)[2] or said


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, eventually: Eventually) -> Iterator[PolicedCluster]:
    with running(Options(nodes=1, deviceshare=False, kubelet=False)) as sandbox:
        cluster = PolicedCluster(sandbox)
        cluster_policies(cluster, tmp_path_factory.mktemp("policies"), {})
        eventually(lambda: DENIED in cluster.ask("create", *_dry(False), of=a_pod(labels=TEAM))[1])
        eventually(lambda: cluster.create(in_group())[0].get("metadata", {}).get("labels"))
        yield cluster


def cluster_policies(cluster: PolicedCluster, directory: Path, values: Json) -> list[str]:
    """Applies the chart's policies with these values; returns their names."""
    agents = {"enabled": True, "pods": {"enabled": False}}
    objects = helm.render({"admission": "policies", "agent": agents, **values}, helm.WITH_POLICIES)
    ours = [each for each in objects if "AdmissionPolicy" in each["kind"]]
    file = directory / "policies.yaml"
    file.write_text(yaml.safe_dump_all(ours))
    done = cluster.sandbox.kubectl("apply", "-f", str(file))
    assert done.returncode == 0, done.stderr
    return sorted({each["metadata"]["name"] for each in ours})


def defaulted(cluster: PolicedCluster, pod: Json) -> Json:
    """The pod as the API server decodes and defaults it, where no policy sees it."""
    found, said = cluster.create(pod, namespace=LEFT_OUT)
    assert not said, said
    found["metadata"]["namespace"] = "default"
    return found


def decided(pod: Json) -> tuple[Json, str]:
    """What the domain makes of it."""
    injection = inject(msgspec.convert(pod, Draft), None)
    result = applied(pod, injection.patch)
    result["metadata"].get("annotations", {}).pop(contract.WARNINGS, None)  # which policies can't write
    return result, injection.refusal or review_new_pod(read(result), None)


def read(pod: Json) -> Pod:
    return PODS.decode(msgspec.json.encode(pod))


def essence(pod: Json) -> Json:
    """What admission decides on."""
    metadata = pod["metadata"]
    labels, annotations = (metadata.get(field) or {} for field in ("labels", "annotations"))
    return {"labels": labels, "annotations": annotations, "spec": pod["spec"]}


@pytest.mark.parametrize("name", ADMITTED)
def test_a_pod_is_injected_as_the_domain_says(cluster: PolicedCluster, name: str) -> None:
    """Each variable in its place, and nothing else changed."""
    wanted, refusal = decided(defaulted(cluster, ADMITTED[name]))
    assert not refusal

    found, said = cluster.create(ADMITTED[name])

    assert said == ""
    assert essence(found) == essence(wanted)


@pytest.mark.parametrize("name", REFUSED)
def test_a_pod_is_refused_in_the_domains_words(cluster: PolicedCluster, name: str) -> None:
    """Word by word."""
    _, refusal = decided(defaulted(cluster, REFUSED[name]))

    assert cluster.create(REFUSED[name]) == ({}, refusal)


@pytest.mark.parametrize("name", REFUSED_FIRST)
def test_what_the_api_server_refuses_itself_is_refused(cluster: PolicedCluster, name: str) -> None:
    """In its words; by webhooks, deviceshare is asked before."""
    _, said = cluster.create(REFUSED_FIRST[name])

    assert "Invalid value" in said or "Unsupported value" in said


def test_a_long_name_is_refused_only_where_its_container_asks(cluster: PolicedCluster) -> None:
    """CEL has no digest for it."""
    assert cluster.create(a_pod(asking("n" * 41)))[1].endswith(SHORTER)
    assert cluster.create(in_group({"name": "n" * 63}))[1] == ""


@pytest.mark.parametrize("share", [False, True], ids=["group", "share"])
def test_large_pods_stay_within_the_cost_that_an_api_server_allows(cluster: PolicedCluster, share: bool) -> None:
    """Some forty containers with a hundred variables each; more than anybody has."""
    env = [{"name": f"VARIABLE_{number}", "value": "x" * 50} for number in range(100)]
    names = [f"container-{number}" for number in range(40)]
    if share:
        pod = a_pod(*(asking(name, "aliyun.com/gpu-mem", "1", env=env) for name in names))
    else:
        pod = in_group(*({"name": name, "env": env} for name in names))
    wanted, _ = decided(defaulted(cluster, pod))

    found, said = cluster.create(pod)

    assert said == ""
    assert essence(found) == essence(wanted)


def test_pods_of_others_are_left_as_they_are(cluster: PolicedCluster) -> None:
    """Whatever they ask for."""
    limits = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.5gb": "1"}}
    other = a_pod({"name": "main", "resources": limits, "securityContext": {"privileged": True}}, hostPID=True)

    found, said = cluster.create(other)

    assert said == ""
    assert essence(found) == essence(defaulted(cluster, other))


CHECKED = ("bypasses", "groups", "ledger-deletions", "node-devices", "pods")


def test_no_policy_has_a_complaint_about_its_types(cluster: PolicedCluster, eventually: Eventually) -> None:
    """The API server's controller checks expressions against the schemas of what they are about."""

    def checked() -> list[Json]:
        found, _ = cluster.ask("get", "validatingadmissionpolicies")
        done = all("observedGeneration" in each.get("status", {}) for each in found["items"])
        return found["items"] if done else []

    complaints = {each["metadata"]["name"]: each["status"].get("typeChecking", {}) for each in eventually(checked)}
    assert complaints == {f"deviceshare-{what}": {} for what in CHECKED}


# What happens later.


@pytest.fixture
def stored(cluster: PolicedCluster) -> Iterator[Json]:
    """A pod of a group that is stored."""
    name = f"pod-{uuid.uuid4().hex[:8]}"
    pod = in_group()
    pod["metadata"]["name"] = name
    found, said = cluster.create(pod, store=True)
    assert not said
    del found["metadata"]["resourceVersion"]  # the scheduler writes its verdict into the status
    yield found
    cluster.ask("delete", "pod", name, "--wait=false", "--output=name")


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {"deviceshare.io/nvidia-visible-devices": "0,1"}},
        {"annotations": {"deviceshare.io/group": "other"}},
        {"labels": {"deviceshare.io/group": "other"}},
        {"annotations": {"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}},
        {"annotations": {"note": "mine"}},
    ],
    ids=str,
)
def test_changed_metadata_are_judged_in_the_domains_words(cluster: PolicedCluster, stored: Json, change: Json) -> None:
    """Deviceshare alone may write its own."""
    after = copy.deepcopy(stored)
    for field, names in change.items():
        after["metadata"][field].update(names)

    _, said = cluster.replace(after, user="alice")

    assert said == review_changed_pod(read(stored), read(after), by_deviceshare=False)
    assert cluster.replace(after, user=contract.IDENTITY)[1] == ""


def test_an_ephemeral_container_is_injected(cluster: PolicedCluster, stored: Json) -> None:
    """Through the subresource, and only what is new."""
    path = f"/api/v1/namespaces/default/pods/{stored['metadata']['name']}/ephemeralcontainers"
    debug = {"name": "debug", "image": "busybox", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    debugging = copy.deepcopy(stored)
    debugging["spec"]["ephemeralContainers"] = [debug]
    wanted = applied(debugging, inject_ephemeral(msgspec.convert(debugging, Draft), ()).patch)

    found = put(cluster, path, debugging)
    assert found["spec"]["ephemeralContainers"][0]["env"] == wanted["spec"]["ephemeralContainers"][0]["env"]
    assert found["spec"]["containers"] == stored["spec"]["containers"]


def put(cluster: PolicedCluster, path: str, of: Json) -> Json:
    done = cluster.sandbox.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(of))
    done.check_returncode()
    found: Json = json.loads(done.stdout)
    return found


def a_group(name: str = "team", **spec: Any) -> Json:
    body = {"resources": {"nvidia.com/gpu": 1}, **spec}
    what = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup"}
    return {**what, "metadata": {"name": name}, "spec": body}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"resources": {"huawei.com/Ascend910": 1, "huawei.com/Ascend310": 2}},
        {"resources": {"nvidia.com/gpus": 1, "example.com/a": 1}},
        {"nodeSelector": {"zone": "a", "a/b/c": "d", "x y": "z"}},
    ],
    ids=str,
)
def test_a_new_group_is_judged_in_the_domains_words(cluster: PolicedCluster, spec: Json) -> None:
    """Beyond what the CRD's schema says."""
    group = a_group(**spec)

    assert cluster.create(group)[1] == review_new_group(GROUPS.decode(msgspec.json.encode(group)))


def test_a_group_that_holds_devices_keeps_its_spec_and_stays_while_it_is_used(cluster: PolicedCluster) -> None:
    """The status says so."""
    name = f"group-{uuid.uuid4().hex[:8]}"
    group, said = cluster.create(a_group(name), store=True)
    assert not said
    changed = copy.deepcopy(group)
    changed["spec"]["resources"] = {"nvidia.com/gpu": 2}
    assert cluster.replace(changed)[1] == ""

    group["status"] = {"nodeName": "node-1", "allocatedPods": ["a/two", "a/one"], "podCount": 2}
    bound, said = cluster.replace(group, "--subresource=status", store=True)
    assert not said

    changed["metadata"] = bound["metadata"]
    old, new = (GROUPS.decode(msgspec.json.encode(each)) for each in (bound, changed))
    assert cluster.replace(changed)[1] == review_changed_group(old, new)
    bound["metadata"]["labels"] = {"app": "a"}
    assert cluster.replace(bound)[1] == ""

    team = {contract.GROUP: name}
    users = [
        Pod(ObjectMeta(name=each, namespace="a", labels=team, annotations=team), PodSpec("n"), PodStatus("Running"))
        for each in ("one", "two")
    ]
    said = cluster.sandbox.kubectl("delete", "sdg", name).stderr.strip()
    assert said.endswith(DENIED + review_deleted_group(old, users))
    bound["status"]["allocatedPods"] = []
    assert cluster.replace(bound, "--subresource=status", store=True)[1] == ""
    assert cluster.sandbox.kubectl("delete", "sdg", name).returncode == 0


@pytest.mark.parametrize(
    ("who", "change", "said"),
    [
        ("agent", {"hardware": {"driver": "550"}}, ""),
        ("agent", {"total": "nvidia.com/gpu=8"}, "an agent may write status.hardware only, not status.total"),
        ("leader", {"total": "nvidia.com/gpu=8"}, ""),
    ],
)
def test_an_agent_writes_its_report_only(cluster: PolicedCluster, who: str, change: Json, said: str) -> None:
    """The leader writes what it wants."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    made, refused = cluster.create(
        {"apiVersion": "deviceshare.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": name}, "spec": {}},
        store=True,
    )
    assert not refused
    user = contract.AGENT_IDENTITY if who == "agent" else contract.IDENTITY

    claim = "--as-user-extra=authentication.kubernetes.io/node-name"
    own = (f"{claim}={name}",) if who == "agent" else ()
    assert cluster.replace(made | {"status": change}, "--subresource=status", *own, user=user)[1] == said
    if who == "agent":
        other = (f"{claim}=node-2", "--subresource=status")
        expected = f"the agent on node node-2 may report on its own node only, not on {name!r}"
        assert cluster.replace(made | {"status": change}, *other, user=user)[1] == expected
        nameless = cluster.replace(made | {"status": change}, "--subresource=status", user=user)[1]
        assert nameless.startswith("an agent reports with the token of its pod")
    cluster.sandbox.kubectl("delete", "nodedevices", name)


# Advised policies.


@pytest.fixture(scope="module")
def advised(
    cluster: PolicedCluster, tmp_path_factory: pytest.TempPathFactory, eventually: Eventually
) -> Iterator[PolicedCluster]:
    """All of them, and ways around are refused in our own pods, too."""
    names = ("environment", "annotations", "deviceLists", "privileged", "sysAdmin", "hostPID", "hostPaths")
    values = {"policies": {"advised": dict.fromkeys(names, True)}, "webhooks": {"bypasses": "refuse"}}
    assert "deviceshare-advised" in cluster_policies(cluster, tmp_path_factory.mktemp("advised"), values)
    eventually(lambda: "policies.advised" in cluster.create(a_pod(hostPID=True))[1])
    eventually(lambda: "--bypasses=refuse" in cluster.create(in_group(hostPID=True))[1])
    yield cluster
    kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy"
    cluster.sandbox.kubectl("delete", kinds, "deviceshare-advised")
    cluster_policies(cluster, tmp_path_factory.mktemp("usual"), {})


def test_advised_policies_refuse_ways_around_in_other_pods(advised: PolicedCluster) -> None:
    """Not in those of excluded namespaces, nor in ours, nor what is harmless."""
    own = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    none = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "AMD_VISIBLE_DEVICES"}]
    annotated = a_pod(annotations={"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"})

    assert advised.create(a_pod({"name": "main", "env": own}))[1].startswith(
        "spec.containers[0] 'main': the env NVIDIA_VISIBLE_DEVICES has the container runtime add devices"
    )
    assert "metadata.annotations['nvidia.cdi.k8s.io/pod']" in advised.create(annotated)[1]
    assert advised.create(annotated, namespace=LEFT_OUT)[1] == ""
    assert advised.create(a_pod({"name": "main", "env": none}))[1] == ""
    large = [{"name": f"VARIABLE_{number}", "value": "x"} for number in range(100)]
    assert advised.create(a_pod(*({"name": f"c{number}", "env": large} for number in range(200))))[1] == ""
    assert advised.create(in_group({"name": "main", "env": own}))[1] == ""
    assert advised.create(a_pod(asking(env=own)))[1] == ""


def test_ways_around_are_refused_in_our_own_pods_where_that_is_set(advised: PolicedCluster) -> None:
    """All of them in one sentence each, as the domain has it; by default they are warned of."""
    pod = in_group(
        {"name": "main", "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}}},
        {"name": "side", "volumeMounts": [{"name": "v", "mountPath": "/var/run//nvidia-container-devices/all"}]},
        volumes=[{"name": "v", "hostPath": {"path": "/dev"}}, {"name": "w", "hostPath": {"path": "/data"}}],
        hostPID=True,
        annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"},
    )
    wanted, _ = decided(defaulted(advised, pod))

    assert advised.create(pod)[1] == refusal_or_warnings(bypasses(msgspec.convert(wanted, Draft)), REFUSE)[0]


def test_what_an_object_already_has_may_stay(advised: PolicedCluster, eventually: Eventually) -> None:
    """A pod from before keeps its annotation, but gets no other."""
    annotated = a_pod(annotations={"nvidia.cdi.k8s.io/pod": "x"}, nodeSelector={"pool": "none"})
    annotated["metadata"]["name"] = f"pod-{uuid.uuid4().hex[:8]}"
    binding, _ = advised.ask("get", "validatingadmissionpolicybinding", "deviceshare-advised")
    advised.sandbox.kubectl("delete", "validatingadmissionpolicybinding", "deviceshare-advised")
    made = eventually(lambda: advised.create(annotated, store=True)[0])
    binding["metadata"] = {"name": "deviceshare-advised"}
    assert advised.ask("create", of=binding)[1] == ""
    eventually(lambda: advised.create(a_pod(hostPID=True))[1])

    pod = made
    del pod["metadata"]["resourceVersion"]
    pod["metadata"]["labels"] = {"app": "a"}
    assert advised.replace(pod)[1] == ""
    pod["metadata"]["annotations"]["cdi.k8s.io/x"] = "y"
    assert "metadata.annotations['cdi.k8s.io/x']" in advised.replace(pod)[1]
    advised.sandbox.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
