"""What the doctor makes of what it saw, each thing that may be wrong for itself."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import create_autospec

import msgspec
import pytest
from msgspec.structs import replace

from charts import helm
from deviceshare.doctor import canary, handover, installation, nodes
from deviceshare.doctor.findings import OK, PROBLEM, UNTESTED, WARNING, Finding, check, listed
from deviceshare.doctor.kinds import Attributes, Installation, NodeSoftware, Rollout, RuntimeClass
from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.kube.definitions import Crd, shipped_definitions
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.ports import Cluster
from tests.controlplane.rights import granted
from tests.unit.chart.objects import named
from tests.unit.domain.objects import AMD, GPU, a_ledger, a_node, gpus

RELEASE = contract.NAMESPACE
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def only(findings: Iterable[Finding], mark: str = PROBLEM) -> str:
    """The text and the cure of the one finding there should be."""
    [finding] = findings
    assert finding.mark == mark
    return f"{finding.what}; {finding.cure}"


def test_a_check_is_as_bad_as_its_worst_finding() -> None:
    """Worst first, so that who reads one line reads that one."""
    found = [Finding(mark, mark, "") for mark in (UNTESTED, PROBLEM, WARNING)]
    made = check("x", "fine", found)
    assert made.mark == PROBLEM and [each.mark for each in made.findings] == [PROBLEM, WARNING, UNTESTED]
    assert check("x", "fine", []).mark == OK


def test_many_names_are_cut_short() -> None:
    """300 nodes with one fault are one finding."""
    assert listed(list("gfedcba")) == "a, b, c, d, e and 2 more"


# CRDs


def shipped() -> Crd:
    return next(each for each in shipped_definitions() if each.metadata.name.startswith("nodedevices."))


def installed(**changes: Any) -> Crd:
    """The shipped one as an API server shows it."""
    body = msgspec.to_builtins(shipped())
    body["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    return msgspec.convert({**body, **changes}, Crd)


def test_the_crds_of_this_release_are_well() -> None:
    """All are looked at; an upgrade that left the newest out is noticed."""
    kinds = {each.spec.names["kind"] for each in shipped_definitions()}
    assert kinds == {"SharedDeviceGroup", "NodeDevices", "DeviceQuota"}
    assert installation.judge_definition(shipped(), installed()) == []


def test_a_missing_crd_is_found() -> None:
    """Somebody installed with crds.enabled=false."""
    assert "is missing" in only(installation.judge_definition(shipped(), None))


def test_a_crd_that_serves_another_version_is_found() -> None:
    """A later release's, which dropped ours."""
    found = installed(spec={"versions": [{"name": "v2", "served": True}]})
    assert "doesn't serve v1alpha1 but v2" in only(installation.judge_definition(shipped(), found))


def test_a_crd_that_is_not_established_is_found_with_the_reason() -> None:
    """Another CRD has its names."""
    conditions = [{"type": "NamesAccepted", "status": "False", "message": "sdg is taken"}]
    assert "sdg is taken" in only(
        installation.judge_definition(shipped(), installed(status={"conditions": conditions}))
    )


def test_a_crd_of_an_earlier_release_is_found_by_the_fields_it_lacks() -> None:
    """The API server would drop what the agents report without a word."""
    body = msgspec.to_builtins(installed())
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["status"]["properties"]["hardware"]
    lacking = only(installation.judge_definition(shipped(), msgspec.convert(body, Crd)))
    assert "status.hardware" in lacking and "kubectl apply -f" in lacking


# Rights

CERT_MANAGER = {"certManager": {"enabled": True}}


@pytest.mark.parametrize(
    "values",
    [
        *({}, {"roles": ["extender"]}, {"roles": ["controller"]}, CERT_MANAGER),
        *({"dra": {"holds": True}}, {"dra": {"holds": True, "handover": True}}),
        *({"preemption": False}, {"autoscaling": {"scalingPods": True}}, {"placement": "gates"}),
        {"placement": "gates", "roles": ["extender", "webhook"]},
    ],
)
def test_what_the_doctor_asks_about_is_what_the_chart_grants(values: dict[str, Any]) -> None:
    """Both follow from the same templates, but by which flags a setting of the chart is seen stands in doctor alone."""
    granting = [
        each
        for each in helm.render(values)
        if each["kind"] in ("ClusterRole", "Role")
        and each["metadata"]["name"] in {"deviceshare", *(f"deviceshare-{role}" for role in installation.ROLES)}
    ]
    grants = {
        Attributes(each.verb, each.group, *each.resource.partition("/")[::2], each.namespace, each.name)
        for each in granted(granting)
    }
    ours = Installation(RELEASE, msgspec.convert(named(helm.render(values), "Deployment"), Rollout))
    assert set(installation.needed(ours, dra=True)) == grants


def test_a_missing_right_is_found_with_its_name() -> None:
    """What is said is what kubectl auth can-i takes."""
    denied = [Attributes("patch", contract.API_GROUP, "nodedevices", "status")]
    assert "sa may not patch nodedevices/status.deviceshare.io" in only(
        installation.judge_rights("sa", denied, [False])
    )
    assert installation.judge_rights("sa", denied, [True]) == []


def test_a_person_with_few_rights_is_warned_only() -> None:
    """They may be meant to have few."""
    assert "you may not create pods" in only(
        installation.judge_rights("", [Attributes("create", "", "pods")], [False]), WARNING
    )


# Replicas


def a_deployment(ready: int, wanted: int) -> Rollout:
    return msgspec.convert({"spec": {"replicas": wanted}, "status": {"readyReplicas": ready}}, Rollout)


def test_replicas_that_are_not_ready_are_found() -> None:
    """One is enough to work; none is not."""
    assert installation.judge_deployment(a_deployment(2, 2), RELEASE) == []
    assert "1 of 2 replicas" in only(installation.judge_deployment(a_deployment(1, 2), RELEASE), WARNING)
    assert "describe pods" in only(installation.judge_deployment(a_deployment(0, 2), RELEASE))
    assert "scale deployment" in only(installation.judge_deployment(a_deployment(0, 0), RELEASE))
    assert installation.judge_deployment(None, RELEASE) == []


def test_a_lease_that_stands_still_is_found_with_what_stands_still_with_it() -> None:
    """The leader's and the kube-scheduler's; where there is neither lease nor Deployment, nothing is installed."""
    assert installation.judge_lease("deviceshare", RELEASE, renewed=True, deployed=False) == []
    stale = only(installation.judge_lease("deviceshare", RELEASE, renewed=False, deployed=True))
    assert "nobody renews" in stale and "-c deviceshare " in stale
    scheduler = only(installation.judge_lease(contract.SCHEDULER_NAME, RELEASE, renewed=None, deployed=True))
    assert "no pod of a group is placed" in scheduler and "-c kube-scheduler " in scheduler
    assert "helm install" in only(installation.judge_lease("deviceshare", RELEASE, renewed=None, deployed=False))


def test_agents_that_are_wanted_and_not_ready_are_found() -> None:
    """Without agents at all, nothing is wrong."""
    some = msgspec.convert({"status": {"desiredNumberScheduled": 3, "numberReady": 1}}, Rollout)
    assert "1 of 3 agents" in only(installation.judge_agents(some, RELEASE), WARNING)
    assert installation.judge_agents(None, RELEASE) == []


# Nodes


def labelled(name: str, **labels: str) -> Node:
    """A node with other labels than ours."""
    metadata = {"name": name, "labels": {key.replace("__", "/").replace("_", "."): v for key, v in labels.items()}}
    body = msgspec.to_builtins(a_node(name))
    return msgspec.convert({**body, "metadata": metadata}, Node)


def judged(every: list[Node], ledgers: list[NodeDevices]) -> list[Finding]:
    return [*nodes.judge(every, {ledger.node: ledger for ledger in ledgers}, RELEASE)]


def test_a_shared_node_with_devices_and_a_ledger_is_well() -> None:
    """Other nodes may be as they like."""
    assert judged([a_node("a"), a_node("b", shared=False, ready=False)], [a_ledger("a")]) == []


def test_a_cluster_that_shares_no_node_is_found_with_those_that_could_be() -> None:
    """The first thing that people forget."""
    text = only(judged([a_node("a", shared=False), a_node("b", {}, shared=False)], []))
    assert "these have devices: a;" in text and "kubectl label node NODE --overwrite deviceshare.io/mode=shared" in text


@pytest.mark.parametrize(
    "label",
    [
        {"deviceshare_io__mode": "Shared"},
        {"deviceshare_io__mod": "shared"},
        {"deviceshare__mode": "shared"},
        {"deviceshare_io__Mode": "shared"},
        {"devicesshare_io__mode": "shared"},
    ],
    ids=str,
)
def test_a_label_that_was_meant_to_be_ours_is_found(label: dict[str, str]) -> None:
    """Kubernetes takes any label."""
    found = judged([a_node("good"), labelled("slip", **label)], [a_ledger("good")])
    assert "slip" in only(found, WARNING)


def test_the_label_that_says_how_devices_are_handed_over_is_no_slip() -> None:
    """Removing it, as the cure of a slip would have it, has pods told words that their runtime doesn't know."""
    node = labelled("a", **{contract.MODE_LABEL: contract.MODE_SHARED, contract.HANDOVER_LABEL: "cdi"})
    found = judged([a_node("good"), node], [a_ledger("good"), a_ledger("a")])
    assert not [finding for finding in found if contract.HANDOVER_LABEL in f"{finding.what} {finding.cure}"]


def test_other_peoples_labels_are_left_alone() -> None:
    """However much they look like labels."""
    other = labelled("b", kubernetes_io__hostname="b", example_com__mode="shared", nvidia_com__mig_mode="shared")
    assert judged([a_node("a"), other], [a_ledger("a")]) == []


def test_shared_nodes_that_can_give_nothing_are_found() -> None:
    """Without devices, without a ledger, not ready, or with an inventory that can't be read."""
    ledgers = [a_ledger("bare", {}), a_ledger("down"), a_ledger("good"), a_ledger("odd")]
    body = msgspec.to_builtins(a_node("odd"))
    body["metadata"]["annotations"] = {contract.INVENTORY_ANNOTATION: "nvidia.com/gpu=many"}
    every = [a_node("good"), a_node("bare", {}), a_node("down", ready=False), a_node("unknown")]
    found = judged([*every, msgspec.convert(body, Node)], ledgers)
    assert {(each.mark, each.what.rpartition(": ")[2]) for each in found} == {
        (WARNING, "bare"),
        (WARNING, "down"),
        (PROBLEM, "unknown"),
        (PROBLEM, "nvidia.com/gpu wants a number of devices, a list such as 0,2-3, or UUIDs, not 'many'"),
    }


def test_what_shared_nodes_tell_of_sharing_is_said() -> None:
    """How often a plugin gives each device away, how many there are, and why some are withheld."""
    sliced = {"nvidia.com/gpu.count": "4", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"}
    nodes_ = [a_node("sliced", {GPU: 16}), a_node("split", {GPU: 16}), a_node("chosen")]
    metas = (
        {"labels": {**nodes_[0].metadata.labels, **sliced}},
        {"labels": {**nodes_[1].metadata.labels, "nvidia.com/gpu.product": "A100-MIG-1g.5gb"}},
        {"annotations": {contract.INVENTORY_ANNOTATION: f"{GPU}=1-3"}},
    )
    told = [replace(n, metadata=replace(n.metadata, **meta)) for n, meta in zip(nodes_, metas, strict=True)]
    ledgers = [a_ledger("sliced"), a_ledger("split", {}), a_ledger("chosen")]
    found = {(each.mark, each.what): each.cure for each in judged(told, ledgers)}
    split = (WARNING, f"no group gets {GPU}: its GPUs are split by MIG, unknown which: split")
    assert found.keys() == {
        (OK, f"4 {GPU} (mps, 4 replicas): sliced"),
        (OK, f"{GPU} 0: kept out by the node's annotation: chosen"),
        split,
    }
    assert "deviceshare.io/devices=nvidia.com/gpu=0,2-3" in found[split]


def test_a_device_plugin_that_may_give_a_groups_devices_away_is_found() -> None:
    """On shared nodes, unless placeholder pods keep the groups' devices from it."""
    kept = a_ledger("kept")
    hardware = Hardware(devices=[Part(GPU, 0)], placeholders=True)
    kept = replace(kept, status=replace(kept.status, hardware=hardware))
    every = [a_node("loose"), a_node("kept"), a_node("other", shared=False), a_node("bare", {GPU: 0})]
    assert "to a plain pod: loose;" in only(nodes.judge_plugins(every, [a_ledger("loose"), kept]), WARNING)
    assert [*nodes.judge_plugins(every[1:], [kept])] == []
    assert "kept;" in only(nodes.judge_plugins([a_node("kept", {GPU: 4, AMD: 2})], [kept]), WARNING)


# The runtime


def a_machine(*handlers: str, system: str = "Debian GNU/Linux 12") -> NodeSoftware:
    status = {"nodeInfo": {"osImage": system}, "runtimeHandlers": [{"name": name} for name in handlers]}
    return msgspec.convert({"metadata": {"name": "n"}, "status": status}, NodeSoftware)


def a_class(handler: str = "nvidia") -> RuntimeClass:
    return msgspec.convert({"metadata": {"name": handler}, "handler": handler}, RuntimeClass)


def test_a_runtime_that_no_class_names_is_found() -> None:
    """And a class whose runtime is missing; nodes before 1.30 don't tell."""
    assert "no RuntimeClass names it" in only(handover.judge_handlers([a_machine("", "nvidia")], []), WARNING)
    assert "these nodes lack" in only(handover.judge_handlers([a_machine("", "runc")], [a_class()]), WARNING)
    assert handover.judge_handlers([a_machine("", "nvidia")], [a_class()]) == []
    assert handover.judge_handlers([a_machine()], []) == handover.judge_handlers([a_machine()], [a_class()]) == []


def test_a_system_that_ignores_the_variable_by_default_is_found() -> None:
    """Bottlerocket's settings are the opposite of ours."""
    assert "apiclient set" in only(handover.judge_systems([a_machine(system="Bottlerocket OS 1.57.0")]), WARNING)
    assert handover.judge_systems([a_machine()]) == []


DEFAULTS = """
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
#swarm-resource = "DOCKER_RESOURCE_GPU"
[nvidia-container-runtime]
mode = "auto"
"""


def test_the_toolkits_own_settings_are_well() -> None:
    """As its packages install them."""
    assert [*handover.judge_settings(DEFAULTS)] == []


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false", PROBLEM),
        ("accept-nvidia-visible-devices-as-volume-mounts = true", WARNING),
        ('swarm-resource = "DOCKER_RESOURCE_GPU"', WARNING),
    ],
)
def test_a_setting_that_ignores_or_overrules_the_variable_is_found(line: str, mark: str) -> None:
    """With the setting's name, and what to set it to."""
    assert line.partition(" ")[0] in only(handover.judge_settings(line + DEFAULTS), mark)


def test_a_runtime_that_takes_cdi_names_only_is_found() -> None:
    """As the GPU operator sets it."""
    by_cdi = DEFAULTS.replace('"auto"', '"cdi"')
    operators = f'{by_cdi}[nvidia-container-runtime.modes.cdi]\ndefault-kind = "management.nvidia.com/gpu"\n'
    assert "default-kind='management.nvidia.com/gpu'" in only(handover.judge_settings(operators), WARNING)
    assert "handover.style=cdi" in only(handover.judge_settings(by_cdi), WARNING)
    assert [*handover.judge_settings("nvidia-container-runtime = 1")] == []


def test_a_file_that_is_no_settings_is_told() -> None:
    """A pipe that carried ssh's error."""
    assert "ssh NODE cat" in only(handover.judge_settings("cat: No such file or directory"))


# The canary


def bound(**changes: Any) -> Pod:
    """A canary's pod that got GPU 0 on n1."""
    body = canary.pod("c")
    body["metadata"]["annotations"][contract.SELECTED_DEVICES] = '{"nvidia.com/gpu": "0"}'
    body["spec"]["nodeName"] = "n1"
    return msgspec.convert({**body, **changes}, Pod)


def waiting(**condition: str) -> Pod:
    """One that is not bound."""
    conditions = [{"type": "PodScheduled", "status": "False", **condition}] if condition else []
    return msgspec.convert({**canary.pod("c"), "status": {"conditions": conditions}}, Pod)


def test_a_canary_that_is_bound_with_devices_is_well() -> None:
    """And so is its group once the leader says so."""
    group = msgspec.convert({"status": {"phase": "Bound", "nodeName": "n1"}}, Group)
    assert canary.judge_pod(bound(), RELEASE) == canary.judge_group(group, bound(), RELEASE) == []
    assert "no leader writes statuses" in only(canary.judge_group(Group(), bound(), RELEASE))


def test_a_canary_that_somebody_else_bound_is_found() -> None:
    """A scheduler of our name, without the extender."""
    naked = canary.pod("c")
    naked["spec"]["nodeName"] = "n1"
    assert "not by deviceshare's extender" in only(canary.judge_pod(msgspec.convert(naked, Pod), RELEASE))


def test_why_a_canary_waits_decides_the_cure() -> None:
    """Nobody looks at it, the extender can't be reached, or it just doesn't fit."""
    assert "no kube-scheduler schedules" in only(canary.judge_pod(waiting(), RELEASE))
    refused = 'Post "http://127.0.0.1:8888/filter": connection refused'
    broken = only(canary.judge_pod(waiting(reason="Unschedulable", message=refused), RELEASE))
    assert refused in broken and "-c kube-scheduler " in broken
    full = only(canary.judge_pod(waiting(reason="Unschedulable", message="0/2 nodes are available"), RELEASE))
    assert "0/2 nodes" in full and "deviceshare inspect" in full


async def test_a_canary_needs_a_device_that_is_free_on_a_node_that_works() -> None:
    """Else nothing is sent, and nothing is known."""

    async def found(there: list[Node], ledgers: list[NodeDevices], wanted: str = "") -> str:
        api = create_autospec(Cluster)
        api.list.side_effect = {NODES: there, NODE_DEVICES: ledgers}.get
        return await canary.free(api, wanted)

    free, held = a_ledger("n1"), a_ledger("n1", group=gpus(0, 1, 2, 3))
    assert await found([a_node()], [free]) == "nvidia.com/gpu"
    assert await found([a_node()], [held]) == ""
    mixed = a_ledger("n1", {GPU: 1, AMD: 1})
    assert await found([a_node()], [mixed]) == AMD
    assert await found([a_node()], [mixed], GPU) == GPU
    assert await found([a_node()], [held], GPU) == ""
    assert await found([a_node(ready=False)], [free]) == await found([], [free]) == ""


def test_a_canary_that_a_killed_doctor_left_is_found() -> None:
    """It holds a device until somebody deletes it."""
    left = msgspec.convert({"metadata": {"name": "deviceshare-canary-1"}}, Group)
    assert "kubectl delete sdg -l app.kubernetes.io/name=deviceshare-canary" in only(
        canary.judge_leftovers([left]), WARNING
    )
    assert canary.judge_leftovers([]) == []
