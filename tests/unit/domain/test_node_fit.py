"""The fit check behind scheduling gates: what kube-scheduler would refuse, as far as it is asked first."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.objects.nodes import Node, Taint, Toleration, untolerated
from deviceshare.domain.objects.object_decoder import OwnerReference, decoder_of
from deviceshare.domain.objects.pod_requests import requests_of, without_surplus
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import GPU_MEM
from deviceshare.domain.placement.node_choice import (
    AT_A_TIME,
    Choice,
    Occupancy,
    alike,
    choose_node,
    in_turn,
    misfit,
    room,
    summary,
)
from deviceshare.domain.placement.shared_resources import UNCOUNTED
from tests.unit.domain.objects import GPU, INJECTED, a_fleet, a_group, a_ledger, gpus

READY = [{"type": "Ready", "status": "True"}]
HAVE = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "3", GPU: "4"}


def a_host(name: str = "n1", *, ready: bool = True, have: dict[str, str] | None = None, **spec: Any) -> Node:
    body = {
        "metadata": {"name": name, "uid": name, "labels": {"deviceshare.io/mode": "shared", "zone": f"z-{name}"}},
        "spec": spec,
        "status": {"allocatable": have or HAVE, "conditions": READY if ready else []},
    }
    return msgspec.convert(body, Node)


def container(name: str = "main", restart: str = "", **requests: str) -> dict[str, Any]:
    return {"name": name, "env": INJECTED, "restartPolicy": restart, "resources": {"requests": requests}}


def a_pod(name: str = "p", *, group: str = "team", status: dict[str, Any] | None = None, **spec: Any) -> Pod:
    named = {"deviceshare.io/group": group}
    meta = {"name": name, "namespace": "ns", "uid": name, "labels": named, "annotations": named}
    return msgspec.convert(
        {"metadata": meta, "spec": {"containers": [container()], **spec}, "status": status or {}}, Pod
    )


def chosen(*search: Any) -> Choice:
    """By a search without pauses."""
    steps = choose_node(*search)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            choice: Choice = end.value
            return choice


def why(pod: Pod, node: Node, **used: int) -> str:
    found = misfit(pod, requests_of(pod), node, used)
    return found.text if found else ""


# What a pod requests.


def test_containers_add_up_and_init_containers_peak() -> None:
    """Init containers end one before the next; a sidecar stays beside all that come after it."""
    pod = a_pod(
        containers=[container("a", cpu="100m", memory="1Gi"), container("b", cpu="0.2")],
        initContainers=[
            container("big", cpu="1"),
            container("side", "Always", cpu="500m"),
            container("beside", cpu="900m"),
        ],
    )
    assert requests_of(pod) == {"cpu": 1400, "memory": 2**30, "pods": 1}


def test_requests_of_the_pod_as_a_whole_win_and_overhead_is_added() -> None:
    """Both are the pod's: the first by its author, the second by its RuntimeClass."""
    pod = a_pod(
        containers=[container(cpu="100m", memory="1Gi")], resources={"requests": {"cpu": "2"}}, overhead={"cpu": "250m"}
    )
    assert requests_of(pod) == {"cpu": 2250, "memory": 2**30, "pods": 1}


def test_a_resize_counts_until_the_kubelet_has_given_back() -> None:
    """A container whose requests were lowered may still have what it was allocated."""
    seen = {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "3"}}]}
    assert requests_of(a_pod(containers=[container(cpu="1")], status=seen))["cpu"] == 3000


def test_a_quantity_that_cannot_be_read_fits_nowhere() -> None:
    """Better a pod too few than one that kube-scheduler refuses."""
    assert "Insufficient cpu" in why(a_pod(containers=[container(cpu="much")]), a_host())


def test_what_other_pods_are_mirrored_as_requests_the_same() -> None:
    """In large clusters they are many: their variables and labels aren't held."""
    pod = a_pod(containers=[container(cpu="1")], initContainers=[container(cpu="2")], nodeName="n1")
    slim = without_surplus(pod)
    assert requests_of(slim) == requests_of(pod)
    assert not slim.spec.containers[0].env and not slim.metadata.labels
    assert (slim.node, slim.metadata.key, slim.lives) == ("n1", "ns/p", True)


# Nodes that don't fit.


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (a_host(), ""),
        (a_host(ready=False), "node(s) were not ready"),
        (a_host(unschedulable=True), "node(s) were unschedulable"),
        (
            a_host(taints=[{"key": "gpu", "value": "mine", "effect": "NoSchedule"}]),
            "node(s) had untolerated taint {gpu: mine}",
        ),
        (a_host(taints=[{"key": "gpu", "effect": "NoExecute"}]), "node(s) had untolerated taint {gpu: }"),
        (a_host(taints=[{"key": "gpu", "effect": "PreferNoSchedule"}]), ""),
        (a_host(have={**HAVE, "pods": "0"}), "Too many pods"),
        (a_host(have={**HAVE, "cpu": "500m"}), "Insufficient cpu"),
        (a_host(have={**HAVE, "cpu": "0.5", "memory": "1"}), "Insufficient cpu, Insufficient memory"),
    ],
)
def test_a_node_that_does_not_fit_says_why_in_kube_schedulers_words(node: Node, expected: str) -> None:
    """So that people find what they know from its events."""
    assert why(a_pod(containers=[container(cpu="1", memory="1Gi")]), node) == expected


def test_a_pod_that_tolerates_a_cordon_fits_on_a_cordoned_node() -> None:
    """As kube-scheduler has it, for DaemonSets."""
    tolerates = [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]
    assert why(a_pod(tolerations=tolerates), a_host(unschedulable=True)) == ""


def test_what_a_pod_requires_of_nodes_rules_them_out() -> None:
    """By its nodeSelector, or by its required node affinity."""
    wanted = "node(s) didn't match Pod's node affinity/selector"
    assert why(a_pod(nodeSelector={"zone": "z-n2"}), a_host()) == wanted
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z-n1"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert why(a_pod(affinity=affinity), a_host()) == ""
    assert why(a_pod(affinity=affinity), a_host("n2")) == wanted


def test_shares_of_devices_are_not_counted_here() -> None:
    """The ledger decides about them, where the node advertises them at all: else kube-scheduler refuses the pod."""
    pod = a_pod(containers=[container(**{GPU_MEM: "4000"})])
    advertising = a_host(have={**HAVE, GPU_MEM: str(UNCOUNTED)})
    assert why(pod, advertising, **{GPU_MEM: UNCOUNTED}) == ""
    for number in ("", "0"):
        rebooted = a_host(have={**HAVE, **({GPU_MEM: number} if number else {})})
        assert why(pod, rebooted) == f"Insufficient {GPU_MEM}"


def apart(**of: Any) -> dict[str, Any]:
    """Required anti-affinity, on one node."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}, **of}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def of_controller(name: str, controller: str = "rs", app: str = "a", **spec: Any) -> Pod:
    """As a mirror holds it."""
    body = json.loads(msgspec.json.encode(a_pod(name, **spec)))
    owner = {"kind": "ReplicaSet", "name": controller, "uid": controller, "controller": True}
    body["metadata"] |= {"ownerReferences": [owner], "labels": {"app": app, **body["metadata"]["labels"]}}
    body["spec"] |= spec
    return decoder_of(Pod).decode(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("other", "repels"),
    [
        (of_controller("b", affinity=apart()), True),
        (of_controller("b", "another", affinity=apart()), False),
        (of_controller("b"), False),
    ],
)
def test_pods_of_one_controller_that_avoid_each_other_are_kept_apart(other: Pod, *, repels: bool) -> None:
    """Before kube-scheduler is asked. Of pods of other controllers it isn't known here what their labels are."""
    wanted = "node(s) didn't match pod anti-affinity rules" * repels
    assert why(of_controller("a", affinity=apart()), a_host(), **requests_of(other)) == wanted


def test_what_is_held_of_anti_affinity_stays_when_it_is_trimmed_again() -> None:
    """A binder trims what a mirror shows, whose labels are gone by then."""
    pod = of_controller("a", affinity=apart())
    assert pod.trimmed() == pod and "apart rs" in requests_of(pod)


@pytest.mark.parametrize(
    "affinity",
    [
        {"podAntiAffinity": {}},
        apart(topologyKey="topology.kubernetes.io/zone"),
        apart(labelSelector={"matchLabels": {"app": "b"}}),
        apart(labelSelector={"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}),
        apart(labelSelector=None),
        apart(namespaces=["elsewhere"]),
        apart(namespaceSelector={}),
    ],
)
def test_what_may_be_about_other_pods_is_left_to_kube_scheduler(affinity: dict[str, Any]) -> None:
    """Rather one refusal too many than a node too few."""
    pod = of_controller("a", affinity=affinity)
    assert why(pod, a_host(), **requests_of(of_controller("b", affinity=affinity))) == ""


@pytest.mark.parametrize(
    ("mine", "theirs", "fits"),
    [
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "TCP"}, False),
        ({"hostPort": 80}, {"hostPort": 80, "hostIP": "0.0.0.0"}, False),
        ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, True),
        ({"hostPort": 80}, {"hostPort": 81}, True),
        ({"containerPort": 80}, {"containerPort": 80}, True),
        ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
    ],
)
def test_a_node_has_each_host_port_once(mine: dict[str, Any], theirs: dict[str, Any], *, fits: bool) -> None:
    """Whoever has it. An address of its own is left to kube-scheduler."""
    one, other = (a_pod(containers=[container() | {"ports": [port]}]) for port in (mine, theirs))
    assert why(one, a_host(), **requests_of(other)) == (
        "" if fits else "node(s) didn't have free ports for the requested pod ports"
    )


# Taints.

keys, values = st.sampled_from(["a", "b"]), st.sampled_from(["", "x", "y"])
effects = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
taints = st.builds(Taint, keys, values, effects)
tolerations = st.builds(
    Toleration,
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", "Equal", "Exists", "Lt"]),
    values,
    st.sampled_from(["", "NoSchedule", "NoExecute"]),
)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """The rule of the Kubernetes documentation, in its own order."""
    same_effect = toleration.effect == taint.effect or not toleration.effect
    if toleration.operator == "Exists":
        return same_effect and toleration.key in ("", taint.key)
    return (
        toleration.operator in ("", "Equal")
        and same_effect
        and toleration.key == taint.key
        and toleration.value == taint.value
    )


@given(st.lists(taints), st.lists(tolerations))
def test_a_pod_is_repelled_by_a_taint_that_none_of_its_tolerations_matches(
    there: list[Taint], has: list[Toleration]
) -> None:
    """But for those that only count in scores."""
    expected = [
        each for each in there if each.effect != "PreferNoSchedule" and not any(tolerates(t, each) for t in has)
    ]
    assert untolerated(there, has) == (expected[0] if expected else None)


# What is used.

moves = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "n1", "n2"]), st.integers(0, 3)))


@given(moves)
def test_what_is_used_is_what_the_pods_there_request(changes: list[tuple[str, str, int]]) -> None:
    """Whatever order they come, move, change and go in."""
    occupancy, pods = Occupancy(), dict[str, Pod]()
    for name, node, cpu in changes:
        new = a_pod(name, containers=[container(cpu=str(cpu))], nodeName=node) if cpu else None
        occupancy.change(pods.pop(name, None), new)
        if new:
            pods[name] = new
    for node in ("n1", "n2"):
        here = [requests_of(pod) for pod in pods.values() if pod.spec.node_name == node]
        used = occupancy.used(node)
        assert used.get("cpu", 0) == sum(each.get("cpu", 0) for each in here)
        assert used.get("pods", 0) == len(here)


def test_a_pod_that_is_being_placed_counts_until_that_ends() -> None:
    """Twice for a moment, when its change comes first: rather too much than too little."""
    occupancy, pod = Occupancy(), a_pod(containers=[container(cpu="1")])
    occupancy.assume(pod, "n1")
    assert occupancy.used("n1") == {"cpu": 1000, "pods": 1} and occupancy.assumed(pod)
    assert occupancy.change(pod, a_pod(containers=[container(cpu="1")], nodeName="n1")) is False
    occupancy.forget(pod)
    assert occupancy.used("n1") == {"cpu": 1000, "pods": 1}
    assert occupancy.change(a_pod(containers=[container(cpu="1")], nodeName="n1"), None) is True
    assert occupancy.used("n1") == {}


def test_a_pod_that_the_kubelet_refused_takes_nothing() -> None:
    """No status says that its containers ended, so it may have devices; but kube-scheduler counts it no more."""
    occupancy, status = Occupancy(), {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    running, failed = a_pod(nodeName="n1"), a_pod(nodeName="n1", status=status)
    occupancy.change(None, running)
    assert failed.lives and occupancy.change(running, failed)
    assert occupancy.used("n1") == {}


# The choice.


def test_devices_choose_first_and_what_is_left_second() -> None:
    """binpack prefers the node with fewer free devices; of equals the emptier one is taken."""
    nodes = [a_host(name) for name in ("n1", "n2", "n3")]
    ledgers = (a_ledger("n1", other=gpus(0)), a_ledger("n2", others=gpus(0)), a_ledger("n3"))
    occupancy = Occupancy()
    occupancy.change(None, a_pod("busy", containers=[container(cpu="3")], nodeName="n1"))
    fleet, request = a_fleet(*nodes, ledgers=ledgers), a_group(count=1).request
    assert chosen(fleet, occupancy, a_pod(), request, ()).node == "n2"
    assert chosen(fleet, occupancy, a_pod(), request, ["n2"]).node == "n1"
    assert chosen(fleet, occupancy, a_pod(), request, ["n1", "n2"]).node == "n3"
    assert room(nodes[0], occupancy.used("n1")) < room(nodes[1], {}) == 1


def test_a_search_among_many_nodes_pauses_between_them() -> None:
    """A cluster may have thousands, and the leader answers webhooks, too."""
    names = [f"n{number:03}" for number in range(2 * AT_A_TIME + 1)]
    fleet = a_fleet(*map(a_host, names), ledgers=tuple(map(a_ledger, names)))
    assert len(list(choose_node(fleet, Occupancy(), a_pod(), a_group(count=2).request, ()))) == 3


def test_why_there_is_none_is_counted_by_reason() -> None:
    """Devices and the fit check in one sentence, like kube-scheduler's."""
    nodes = [a_host("n1"), a_host("n2"), a_host("n3", have={**HAVE, "cpu": "1"})]
    ledgers = (a_ledger("n1", other=gpus(0, 1, 2)), a_ledger("n2"), a_ledger("n3"))
    fleet, pod = a_fleet(*nodes, ledgers=ledgers), a_pod(containers=[container(cpu="2")])
    said = chosen(fleet, Occupancy(), pod, a_group(count=2).request, ["n2"]).reason
    assert said.startswith("0/3 shared nodes fit: ")
    assert "1 Insufficient cpu" in said and "1 node(s) where kube-scheduler lately found no place" in said
    assert summary({}, 0) == "no node is shared"


def test_a_reason_about_one_node_is_counted_as_well() -> None:
    """In words that can be read after a number."""
    other = Reason(ReasonKind.NODE_SELECTOR, "the node does not match the group's nodeSelector")
    assert summary({other: ["n1", "n2"]}, 2).endswith(": 2 node(s): the node does not match the group's nodeSelector")


def test_a_groups_home_is_not_avoided() -> None:
    """There is no other node for it."""
    fleet = a_fleet(a_host("n1"), a_host("n2"), ledgers=(a_ledger("n1", team=gpus(0, 1)), a_ledger("n2")))
    assert chosen(fleet, Occupancy(), a_pod(), a_group(node="n1").request, ["n1"]).node == "n1"


def test_pods_are_taken_by_priority_and_then_by_age() -> None:
    """As in kube-scheduler's queue."""

    def pod(name: str, priority: int | None, created: str) -> Pod:
        body = {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"priority": priority}}
        return msgspec.convert(body, Pod)

    pods = [pod("young", 0, "2026-01-02"), pod("old", None, "2026-01-01"), pod("urgent", 9, "2026-01-03")]
    assert [each.metadata.name for each in in_turn(pods)] == ["urgent", "old", "young"]


def test_every_refusal_has_a_kind() -> None:
    """Programs ask for it."""
    found = misfit(a_pod(containers=[container(cpu="9")]), {"cpu": 9000}, a_host(), {})
    assert found is not None and found.kind is ReasonKind.INSUFFICIENT


def test_pods_that_ask_for_the_same_are_alike_and_no_others() -> None:
    """A pass over a thousand replicas of one Deployment, or a thousand Jobs with one pod each, compares nodes once."""
    fleet = a_fleet(a_host(), ledgers=(a_ledger("n1"),))
    same = alike(fleet, a_pod("a"), ())
    job = [OwnerReference("Job", "b", "b", controller=True)]
    owned = replace(a_pod("b"), metadata=replace(a_pod("b").metadata, owner_references=job))
    assert same == alike(fleet, owned, ()) != alike(fleet, owned, ["n1"])
    others = [
        a_pod(group="other"),
        a_pod(containers=[container(cpu="1")]),
        a_pod(nodeSelector={"zone": "z-n1"}),
        a_pod(tolerations=[{"operator": "Exists"}]),
        a_pod(containers=[{"name": "main"}]),
    ]
    assert len({alike(fleet, each, ()) for each in others} | {same}) == len(others) + 1
