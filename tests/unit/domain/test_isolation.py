"""Shares whose limits have to be enforced: where they may go, what their containers are told, what people are shown."""

from fractions import Fraction
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare import assets
from deviceshare.doctor.nodes import judge_shares
from deviceshare.domain import contract
from deviceshare.domain.answers.explanation import Case, explain_pod
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.objects.hardware import BY_AGENT, DMEM, ENFORCING, HOOK, INTERCEPT, Hardware, LimitReport, Part
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement.handover import share_annotations
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.protocol.bind import _choose_share
from tests.unit.domain.objects import GPU, a_fleet, a_node
from tests.unit.domain.test_shown_shares import GIB, a_shared_ledger, bound, part, sharing

OLD = "NVIDIA's driver 550 has no memory limits: install r615 or later"


def a_limiting_ledger(node: str, by: str = "", *limits: LimitReport, size: int = 80 * GIB, **pods: Any) -> NodeDevices:
    """A ledger whose agent sets memory limits so, or says why not."""
    ledger = a_shared_ledger(node, size=size, **pods)
    parts = [Part(GPU, index, f"GPU-{index}", memory_mib=size) for index in range(2)]
    hardware = Hardware(
        devices=parts, memory_limits=by, counts_only="" if by in ENFORCING else OLD, limits=list(limits)
    )
    return replace(ledger, status=replace(ledger.status, hardware=hardware))


def isolated(name: str = "p", isolation: str = "required", **more: str) -> Pod:
    pod = sharing(name, {"deviceshare.io/gpu-mem": 8})
    annotations = {**pod.metadata.annotations, contract.ISOLATION: isolation, **more}
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations))


@pytest.mark.parametrize("by", ENFORCING)
def test_a_share_that_has_to_be_enforced_goes_nowhere_else(by: str) -> None:
    """By filter, by the claim itself, and the reason names the cure of each node."""
    ledgers = (a_limiting_ledger("n1"), a_limiting_ledger("n2", by), a_shared_ledger("n3"))
    fleet = a_fleet(*(a_node(name, {GPU: 2}) for name in ("n1", "n2", "n3")), ledgers=ledgers)
    request = request_of(isolated(), None)
    assert request is not None
    found = fleet.filter(request, ["n1", "n2", "n3"])
    assert found.fits == ["n2"]
    reasons = found.reasons
    assert {each.kind for each in reasons.values()} == {ReasonKind.COUNTED_ONLY}
    assert str(reasons["n1"]) == f"node(s) that only count shares: {OLD}"
    assert "no agent sets memory limits: set agent.enabled=true" in str(reasons["n3"])
    refused = [_choose_share(request, ledger, (), ()) for ledger in ledgers]
    assert [getattr(each, "kind", None) for each in refused] == [ReasonKind.COUNTED_ONLY, None, ReasonKind.COUNTED_ONLY]

    preferred = request_of(isolated(isolation="preferred"), None)
    assert preferred and fleet.filter(preferred, ["n1", "n2", "n3"]).fits == ["n1", "n2", "n3"]


def test_a_share_that_waits_for_a_node_that_enforces_says_which_could() -> None:
    fleet = a_fleet(a_node("n1", {GPU: 2}), ledgers=(a_limiting_ledger("n1"),))
    [node] = explain_pod(Case(fleet, None, None, []), isolated()).nodes
    assert not node.fits and "install r615 or later" in f"{node}"


@pytest.mark.parametrize(
    ("by", "wanted"),
    [
        (HOOK, {"gpu-memory-limit": "8192", "gpu-memory-request": "8192"}),
        (INTERCEPT, {"cuda-memory-limit": "8192m"}),
        (BY_AGENT, {}),
        (DMEM, {}),
        ("", {}),
    ],
)
def test_variables_have_values_where_the_node_has_what_reads_them_and_nowhere_else(
    by: str, wanted: dict[str, str]
) -> None:
    """NVIDIA's hook, or HAMi-core."""
    share = part(0, gib=8)
    told = share_annotations(isolated(), a_limiting_ledger("n1", by, p=[share]), [share])
    told = {key.partition(".main")[0].removeprefix(contract.PREFIX): value for key, value in told.items()}
    read = ("gpu-memory-limit", "gpu-memory-request", "cuda-memory-limit")
    assert {key: told[key] for key in read if key in told} == wanted


def test_who_can_be_evaded_enforces_nothing() -> None:
    """A pod that requires it doesn't go there."""
    fleet = a_fleet(a_node("n1", {GPU: 2}), ledgers=(a_limiting_ledger("n1", INTERCEPT),))
    request = request_of(isolated(), None)
    assert request and not fleet.filter(request, ["n1"]).fits


def test_the_hook_is_told_the_burst_and_of_unequal_parts_the_largest() -> None:
    """One pair of variables is for all devices: the agent then sets each device's own."""
    shares = [part(0, gib=8), part(1, gib=4)]
    ledger = a_limiting_ledger("n1", HOOK, p=shares)
    plain = share_annotations(isolated(), ledger, shares)
    burst = share_annotations(isolated(**{contract.BURST: "16"}), ledger, shares)
    kinds = ("deviceshare.io/gpu-memory-request.main", "deviceshare.io/gpu-memory-limit.main")
    assert [plain[kind] for kind in kinds] == ["4096", "8192"]
    assert [burst[kind] for kind in kinds] == ["4096", "16384"]


@given(st.integers(1, 79))
def test_a_framework_at_its_own_limit_does_not_meet_the_drivers(gib: int) -> None:
    """It sees its part as the whole memory, of which NVIDIA's own figures lose 816 of 30,000 MiB."""
    share = part(0, gib=gib)
    told = share_annotations(isolated(), a_limiting_ledger("n1", BY_AGENT, p=[share]), [share])
    pool = Fraction(told["deviceshare.io/heap-fraction.main"]) * gib * GIB
    assert pool + 816 <= gib * GIB or pool <= gib * GIB / 2
    assert told["deviceshare.io/memory-fraction.main"] == f"{int(Fraction(gib, 80) * 10_000) / 10_000:.4f}"


def test_where_the_kernel_limits_memory_a_framework_sees_the_whole_device() -> None:
    """So its fraction is of that, as where shares are only counted."""
    share = part(0, gib=8)
    counted, limited, shown = (
        share_annotations(isolated(), a_limiting_ledger("n1", by, p=[share]), [share])[
            "deviceshare.io/heap-fraction.main"
        ]
        for by in ("", DMEM, BY_AGENT)
    )
    assert counted == limited and Fraction(limited) < Fraction(1, 10) < Fraction(shown)


def test_the_api_server_takes_every_word_that_agents_have() -> None:
    """A word that the CRD doesn't list makes it refuse the whole report."""
    crd = yaml.safe_load((assets.manifests() / "crds/deviceshare.io_nodedevices.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert {*schema["hardware"]["properties"]["memoryLimits"]["enum"]} == {*ENFORCING, INTERCEPT}


def test_doctor_names_the_nodes_that_enforce_and_of_each_other_the_cure() -> None:
    ledgers = [a_limiting_ledger("n1"), a_limiting_ledger("n2", DMEM), a_limiting_ledger("n3", HOOK)]
    found = [
        each
        for each in judge_shares([a_node(each.node, {GPU: 2}) for each in ledgers], ledgers)
        if "limits" in each.what
    ]
    assert [(each.what, each.cure) for each in found] == [
        ("limits of shares can't be exceeded on n2 and n3", ""),
        ("limits of shares aren't enforced on n1: NVIDIA's driver 550 has no memory limits", "install r615 or later"),
    ]


@pytest.mark.parametrize(
    ("by", "limits", "word"),
    [
        ("", [], f"counted: {OLD}"),
        (BY_AGENT, [], "enforced"),
        (DMEM, [], "enforced"),
        (INTERCEPT, [], f"intercepted: {OLD}"),
        (BY_AGENT, [LimitReport("ns/p", "uid-of-p", "main", "GPU-0", missing="refused")], "counted: refused"),
        (INTERCEPT, [LimitReport("ns/p", "uid-of-p", "main", "GPU-0", missing="refused")], "counted: refused"),
    ],
)
def test_people_are_shown_whether_a_share_is_enforced(by: str, limits: list[LimitReport], word: str) -> None:
    ledger = a_limiting_ledger("n1", by, *limits, p=[part(0, gib=8)])
    fleet, pod = a_fleet(a_node("n1", {GPU: 2}), ledgers=(ledger,)), bound(isolated(), "n1", part(0, gib=8))
    assert explain_pod(Case(fleet, None, None, [pod]), pod).facts["limits"] == word
    [node] = draw(fleet, [], [pod]).nodes
    assert node.devices[0].parts[0].limits == word.partition(":")[0]
    assert (node.memory_limits, node.counts_only) == (by, "" if by in ENFORCING else OLD)


def test_a_resize_that_is_refused_says_how_much_is_in_use() -> None:
    row = LimitReport("ns/p", "uid-of-p", "main", "GPU-0", used_mib=6000)
    ledger = a_limiting_ledger("n1", BY_AGENT, row, p=[part(0, gib=8)])
    pod = bound(isolated(**{contract.RESIZE: "main=4096Mi"}), "n1", part(0, gib=8))
    facts = explain_pod(Case(a_fleet(a_node("n1", {GPU: 2}), ledgers=(ledger,)), None, None, [pod]), pod).facts
    assert facts["resize"].startswith("keeps its share: container main uses 6000 MiB, more than asked for")
    later = bound(isolated(**{contract.RESIZE: "main=7000Mi"}), "n1", part(0, gib=8))
    facts = explain_pod(Case(a_fleet(a_node("n1", {GPU: 2}), ledgers=(ledger,)), None, None, [later]), later).facts
    # The report is of an earlier request: now it is the agent's turn.
    assert facts["resize"] == "keeps its share until the node's agent has lowered the limit of its running container"
