"""Whose an address is: of pods that run, that have ended, that have the node's, and of nobody."""

import ipaddress

import msgspec
import pytest

from deviceshare.domain.device_health.containers import NODES_OWN, SHARED, UNKNOWN, UNREADABLE, NodePod, normal
from tests.unit.agent.node import HOST_IP, Node


def owner(node: Node, address: str) -> str:
    """The name of the pod, or what the address is instead."""
    found = node.own.present_pods().at(address)
    return found if isinstance(found, str) else found.metadata.name


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("FD00:0:0::1", "fd00::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("", ""),
        ("10.0.0.1, 10.0.0.2", ""),
        ("localhost", ""),
    ],
)
def test_addresses_are_compared_as_kubernetes_writes_them(written: str, same: str) -> None:
    """An IPv4 address stays one inside an IPv6 socket; what is no address equals none."""
    assert normal(written) == same


def test_a_pod_is_found_by_each_of_its_addresses() -> None:
    """A dual-stack pod has two."""
    node = Node()
    node.add_pod("a", ips=["10.0.0.1", "fd00::1"])
    node.add_pod("b", ips=["10.0.0.2", "fd00::2"])

    assert [owner(node, each) for each in ("10.0.0.1", "::ffff:10.0.0.1", "fd00::1")] == ["a"] * 3
    assert owner(node, "fd00:0::2") == "b"


def test_a_pods_address_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each request of whoever reaches the node: of a full node that takes a millisecond."""
    node = Node()
    for number in range(1, 111):
        node.add_pod(f"p{number}", ips=[f"10.7.0.{number}", f"fd07::{number:x}"])
    assert owner(node, "10.7.0.9") == "p9"
    monkeypatch.setattr(ipaddress, "ip_address", lambda address: pytest.fail(f"parsed {address} again"))
    assert owner(node, "10.7.0.9") == "p9"


def test_an_address_of_nobody_is_nobodys() -> None:
    """Nor is an empty one that of pods without an address."""
    node = Node()
    node.add_pod("starting")
    node.add_pod("odd", ips=["", "nonsense"])

    assert owner(node, "10.0.0.1") == UNKNOWN
    assert owner(node, "") == UNKNOWN
    assert owner(node, "nonsense") == UNKNOWN


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_reused_address_is_its_new_owners(phase: str) -> None:
    """A pod that has ended is listed with its last address until it is deleted."""
    node = Node()
    node.add_pod("ended", ips=["10.0.0.1"], phase=phase)
    assert owner(node, "10.0.0.1") == UNKNOWN
    node.add_pod("new", ips=["10.0.0.1"])

    assert owner(node, "10.0.0.1") == "new"


def test_of_two_running_pods_with_one_address_neither_is_taken_for_the_other() -> None:
    """As while it isn't known here that one has ended."""
    node = Node()
    node.add_pod("a", ips=["10.0.0.1"])
    node.add_pod("b", ips=["10.0.0.1"])

    assert owner(node, "10.0.0.1") == SHARED


def test_a_pod_that_is_being_deleted_still_has_its_address() -> None:
    """Its containers may run for its grace period."""
    node = Node()
    node.add_pod("a", ips=["10.0.0.1"], deletionTimestamp="2026-11-21T03:00:00Z")

    assert owner(node, "10.0.0.1") == "a"


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_pods_with_the_nodes_network_are_not_told_apart(phase: str) -> None:
    """From it, nor from each other, though only one of them may run."""
    node = Node()
    node.add_pod("proxy", ips=[HOST_IP, "fd00::ff"], host_network=True, phase=phase)

    assert owner(node, HOST_IP) == NODES_OWN
    assert owner(node, "fd00::ff") == NODES_OWN


def test_the_nodes_address_is_known_without_such_a_pod() -> None:
    """Any pod's status names it."""
    node = Node()
    node.add_pod("a", ips=["10.0.0.1"])

    assert owner(node, HOST_IP) == NODES_OWN


@pytest.mark.parametrize("path", ["status.podIPs[0]", "spec.hostNetwork", "status.phase", ""])
def test_a_pod_that_can_not_be_read_is_nobody(path: str) -> None:
    """What is hidden may be what matters."""
    node = Node()
    node.add_pod("a", ips=["10.0.0.1"])
    pod: NodePod = node.pods.objects["ns/a"]
    metadata = msgspec.structs.replace(pod.metadata, resource_version="9", unreadable={path: "odd"})
    node.pods.set("ns/a", msgspec.structs.replace(pod, metadata=metadata))

    assert owner(node, "10.0.0.1") == UNREADABLE
