"""Which of NVIDIA's stacks a cluster has, and what keeps devices from containers there."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Finding
from deviceshare.doctor.handover import Stack, injects_by_nri, judge, summary
from deviceshare.doctor.kinds import ClusterPolicy, NodeSoftware, Rollout, RuntimeClass
from deviceshare.domain import vendors
from deviceshare.domain.objects.hardware import Part, Publication, Withheld
from deviceshare.domain.objects.ledger import NodeDevices
from tests.unit.doctor.installations import deployed
from tests.unit.domain.objects import GPU, a_ledger, gpus


def a_machine(runtime: str = "containerd://1.7.34") -> NodeSoftware:
    body = {"metadata": {"name": "n1"}, "status": {"nodeInfo": {"containerRuntimeVersion": runtime}}}
    return msgspec.convert(body, NodeSoftware)


def a_policy(**cdi: Any) -> ClusterPolicy:
    return msgspec.convert({"metadata": {"name": "cluster-policy"}, "spec": {"cdi": cdi}}, ClusterPolicy)


def a_toolkit(tag: str) -> Rollout:
    containers = [{"name": "toolkit", "image": f"registry.example.com:5000/container-toolkit{tag}"}]
    return msgspec.convert({"spec": {"template": {"spec": {"containers": containers}}}}, Rollout)


NVIDIA = msgspec.convert({"metadata": {"name": "nvidia"}, "handler": "nvidia"}, RuntimeClass)
PLUGIN = a_policy(enabled=True, nriPluginEnabled=True)


def told(node: str, words: str) -> NodeDevices:
    """The ledger of a node that is told devices in these words."""
    ledger = a_ledger(node)
    return replace(ledger, status=replace(ledger.status, handover={"nvidia": words} if words else {}))


def marks(findings: Iterable[Finding]) -> list[str]:
    return [finding.mark for finding in findings]


def test_a_cluster_that_needs_nothing_is_well() -> None:
    """NVIDIA's runtime is the default, or no node has NVIDIA's devices."""
    assert [*judge(Stack([a_machine()], [NVIDIA], ours=deployed()))] == []
    assert [*judge(Stack([a_machine()], [NVIDIA], [a_policy(enabled=False)]))] == []
    assert [*judge(Stack([], [], [PLUGIN]))] == []
    assert summary(Stack()).startswith("no GPU operator")


def test_an_operator_by_cdi_needs_a_style_and_a_class() -> None:
    """Else containers see no GPU, or don't start."""
    stack = Stack([a_machine()], [NVIDIA], [a_policy(enabled=True)], ours=deployed("--handover=auto"))
    without_class, without_style = judge(stack)
    assert marks([without_class, without_style]) == [WARNING, WARNING]
    assert "handover.runtimeClassName=nvidia" in without_class.cure
    assert "handover.style=cdi" in without_style.cure
    assert [*judge(replace(stack, ours=deployed("--handover=cdi", "--runtime-class=nvidia")))] == []
    assert marks(judge(replace(stack, ours=deployed("--handover=uuid", "--runtime-class=nvidia")))) == [PROBLEM]
    assert "by CDI" in summary(stack)


def test_an_nri_plugin_takes_names_by_annotation_only() -> None:
    """And there is no RuntimeClass that a pod could name."""
    stack = Stack([a_machine()], [], [PLUGIN], ours=deployed("--handover=cdi"))
    assert [*judge(stack)] == []
    [wrong] = judge(replace(stack, ours=deployed(), ledgers=[told("n1", "")]))
    assert (wrong.mark, "handover.nri=true" in wrong.cure) == (PROBLEM, True)
    [refused] = judge(replace(stack, ours=deployed("--handover=cdi", "--runtime-class=nvidia")))
    assert "pods of groups are refused" in refused.what
    assert "NRI plugin" in summary(stack)


@pytest.mark.parametrize("cdi", [{"nriPluginEnabled": True}, {}])
def test_it_is_what_nodes_are_told_that_counts(cdi: dict[str, bool]) -> None:
    """`auto` is no fault on nodes whose agents report CDI, and a node's label may overrule what is set right."""
    stack = Stack([a_machine()], [], [a_policy(enabled=True, **cdi)], ours=deployed("--handover=auto"))
    named, bare = told("n1", vendors.NVIDIA.kinds[0]), told("n2", "uuid")
    assert marks(judge(replace(stack, ledgers=[named]))) == [WARNING]
    [found] = judge(replace(stack, ledgers=[named, bare]))
    assert (found.mark, found.what.endswith(": n2")) == (PROBLEM, True)
    labelled = replace(stack, ours=deployed("--handover=cdi"), ledgers=[named, bare])
    assert [finding.cure for finding in judge(labelled)] == [
        "kubectl label node NODE deviceshare.io/handover-; see docs/handover.md"
    ]
    assert [*judge(replace(labelled, ledgers=[named]))] == []


@pytest.mark.parametrize(
    ("runtime", "able"),
    [
        ("containerd://1.7.29", False),
        ("containerd://1.7.30-k3s1", True),
        ("containerd://v1.7.34", True),
        ("containerd://2.0.5", False),
        ("containerd://2.1.0", True),
        ("containerd://2.2.7", True),
        ("containerd://1.6.36", False),
        ("containerd://Unknown", None),
        ("cri-o://1.30.4", None),
        ("", None),
    ],
)
def test_containerds_version_decides_whether_a_plugin_can_inject(runtime: str, able: bool | None) -> None:
    """1.7.30 and 2.1.0 are the first of their lines."""
    assert injects_by_nri(runtime) is able
    found = judge(Stack([a_machine(runtime)], [], [PLUGIN], ours=deployed("--handover=cdi")))
    assert marks(found) == {True: [], False: [PROBLEM], None: [UNTESTED]}[able]


@pytest.mark.parametrize(
    ("tag", "old"),
    [(":v1.19.0-ubuntu20.04", True), (":v1.20.0", False), (":1.18.2", True), ("@sha256:0", False), ("", False)],
)
def test_a_plugin_that_serves_its_own_namespace_only_is_found(tag: str, old: bool) -> None:
    """By its image's tag, where it has one."""
    found = judge(Stack([a_machine()], [], [PLUGIN], [a_toolkit(tag)], deployed("--handover=cdi")))
    assert marks(found) == [PROBLEM] * old


def test_nodes_that_cant_hand_over_are_named_with_the_reason() -> None:
    """And counted by their words otherwise."""
    ledger = a_ledger("n1")
    withheld = [Withheld(GPU, "no CDI specification", devices=[*gpus(0, 1, 2, 3)]), Withheld(GPU, "kept out")]
    mute = replace(ledger, status=replace(ledger.status, devices=[], handover={"nvidia": "none"}, withheld=withheld))
    [found] = judge(Stack(ledgers=[mute]))
    assert found.what == "no group gets nvidia.com/gpu: no CDI specification: n1"
    named = replace(ledger, status=replace(ledger.status, handover={"nvidia": "uuid"}))
    said = summary(Stack(ledgers=[named, ledger, mute]))
    assert ": 1 by UUID or number and 1 by uuid; possible: 2 by index, 0 by UUID, 0 by CDI, 0 by ResourceClaim" in said
    publishing = replace(
        ledger,
        status=replace(
            ledger.status, published=Publication(driver="gpu.nvidia.com", devices=[Part(GPU, 0, "GPU-0")], held=[])
        ),
    )
    assert summary(Stack(ledgers=[publishing])).endswith(
        "possible: 0 by index, 1 by UUID, 1 by CDI, 1 by ResourceClaim (dra.handover is off)"
    )
    on = Stack(ledgers=[publishing], ours=deployed("--dra-handover=on"))
    assert summary(on).endswith("1 by ResourceClaim")
