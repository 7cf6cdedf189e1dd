"""What other systems' device plugins do on a node, and what they leave there."""

import json
from collections.abc import Mapping

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.hardware import NO_HARDWARE, Hardware, Part
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.objects.shares import DIALECTS, Dialect
from deviceshare.domain.placement.inventory import Offer, take
from deviceshare.domain.placement.shared_resources import advertised, leftover_reason
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, gpus

MEM, COUNT, META = "aliyun.com/gpu-mem", "aliyun.com/gpu-count", "cnvrg.io/metagpu"
AGENT = Hardware(devices=[Part(GPU, index, f"GPU-{index}") for index in range(2)])


def a_node_with(capacity: Mapping[str, object], allocatable: Mapping[str, object] | None = None) -> Node:
    status = {"capacity": capacity, "allocatable": capacity if allocatable is None else allocatable}
    return msgspec.convert({"metadata": {"name": "n1"}, "status": status}, Node)


def withheld(offer: Offer) -> str:
    assert offer.devices == ()
    [each] = offer.withheld
    return each.text


def test_what_a_kubelet_counts_is_advertised_even_as_nothing() -> None:
    """It refuses pods that ask for more than 0; what it doesn't name, it ignores."""
    assert advertised(a_node_with({MEM: "30"}, {MEM: "0", GPU: "2", "cpu": "4"})) == {MEM}
    assert advertised(a_node_with({MEM: "30"}, {})) == frozenset()
    assert advertised(a_node_with({}, {META: None, "deviceshare.io/gpu-mem": "8"})) == {META, "deviceshare.io/gpu-mem"}


def test_the_cure_removes_exactly_what_is_left() -> None:
    """From capacity and allocatable, and nothing else."""
    reason = leftover_reason({MEM, META})
    assert reason.kind is ReasonKind.OTHER_PLUGIN
    assert f"counts {MEM} and {META} itself" in reason.text
    command, patch = reason.cure.split("'")[:2]
    assert "kubectl patch node NODE --subresource=status --type=merge -p " in command
    gone = {MEM: None, META: None}
    assert json.loads(patch) == {"status": {"capacity": gone, "allocatable": gone}}


@pytest.mark.parametrize("hardware", [NO_HARDWARE, AGENT])
@pytest.mark.parametrize(
    ("capacity", "allocatable", "system"),
    [
        ({MEM: "30", COUNT: "2"}, None, "gpushare (aliyun.com/gpu-mem)"),
        ({MEM: "30", COUNT: "2"}, {MEM: "0", COUNT: "2"}, "gpushare"),  # stopped less than five minutes ago
        ({MEM: "many"}, None, "gpushare"),
        ({META: "200"}, None, "metagpu (cnvrg.io/metagpu)"),
        ({GPU: "2", "cnvrg.io/metagpu-a100": "200"}, None, "metagpu (cnvrg.io/metagpu-a100)"),
    ],
)
def test_a_plugin_of_another_system_keeps_all_gpus(
    capacity: Mapping[str, str], allocatable: Mapping[str, str] | None, system: str, hardware: Hardware
) -> None:
    """It allocates them to anybody; an agent's eyes don't change that."""
    text = withheld(take(a_node_with(capacity, allocatable), hardware))
    assert f"the device plugin of {system}" in text
    assert "kubectl patch node NODE" in text and "kubectl annotate node NODE" in text


def test_a_plugin_that_is_gone_leaves_a_number_that_nobody_vouches_for() -> None:
    """The cure repeats it; an agent knows better."""
    node = a_node_with({MEM: "0", COUNT: "2"})
    text = withheld(take(node, NO_HARDWARE))
    assert "found 2 GPUs" in text and f"{contract.INVENTORY_ANNOTATION}={GPU}=2" in text
    assert len(take(node, AGENT).devices) == 2
    assert take(a_node_with({GPU: "4", MEM: "0", COUNT: "2"}), NO_HARDWARE).devices == gpus(0, 1, 2, 3)
    assert take(a_node_with({MEM: "0", COUNT: "0"}), NO_HARDWARE) == Offer()
    assert take(a_node_with({MEM: None, COUNT: "-3"}), NO_HARDWARE) == Offer()


@pytest.mark.parametrize("hardware", [NO_HARDWARE, AGENT])
def test_the_owners_word_wins_over_the_plugin(hardware: Hardware) -> None:
    """Who keeps some GPUs from the other system says which."""
    node = a_node_with({META: "200", GPU: "2"})
    node = replace(node, metadata=replace(node.metadata, annotations={contract.INVENTORY_ANNOTATION: f"{GPU}=1-1"}))
    assert take(node, hardware).devices == gpus(1)


def a_pod_asking(resource: str, labels: Mapping[str, str], where: str = "containers") -> Pod:
    container = {"name": "main", "resources": {"limits": {resource: "3"}}}
    spec = {"nodeName": "n1", "containers": [{"name": "other"}], where: [container]}
    return msgspec.convert({"metadata": {"name": "p", "uid": "p", "labels": labels}, "spec": spec}, Pod)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_share_of_ours_is_no_plugins_and_anothers_is(dialect: Dialect, where: str) -> None:
    """By deviceshare's label, which only its webhook's pods have."""
    resource = dialect.resource
    ours, other = a_pod_asking(resource, {contract.GROUP: ""}, where), a_pod_asking(resource, {}, where)
    assert not ours.past_us and ours.share
    assert other.plugin_resources() == ({resource} if dialect.system else set())
    vendor = vendors.plugin_vendor_of(resource)
    assert (vendor.resource if vendor else None) == (dialect.devices[0] if dialect.system else None)
    for pod in (ours, other):
        assert not any(container.resources.devices for container in pod.spec.containers)


@pytest.mark.parametrize("resource", [MEM, META, "cnvrg.io/metagpu-a100"])
def test_a_pod_of_another_system_makes_its_node_opaque(resource: str) -> None:
    """It has a GPU, unknown which."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    fleet.set_plugin_pods("n1", {"p": frozenset({resource})})
    assert fleet.filter(a_group().request, ["n1"]).reasons["n1"].kind is ReasonKind.DEVICES_OPAQUE
