"""The largest device of the shared nodes is known at once, and is always that of the nodes as they are."""

from msgspec.structs import replace

from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import GPU, a_ledger, a_node


def sized(node: str, mib: int) -> NodeDevices:
    ledger = a_ledger(node)
    status: LedgerStatus = replace(ledger.status, memory_mib={GPU: mib} if mib else {})
    return replace(ledger, status=status)


def test_the_largest_device_follows_every_change() -> None:
    """Nodes come, are shared no more, and go; of one that says nothing the size is unknown, and so is the largest."""
    fleet = Fleet()
    assert fleet.largest((GPU,)) == 0
    fleet.set_ledger("n1", sized("n1", 8192))
    assert fleet.largest((GPU,)) == 0, "the node isn't known to be shared"
    fleet.set_node("n1", a_node("n1"))
    assert fleet.largest((GPU,)) == 8192
    fleet.set_node("n2", a_node("n2"))
    fleet.set_ledger("n2", sized("n2", 16384))
    assert (fleet.largest((GPU,)), fleet.largest(("amd.com/gpu",))) == (16384, 0)
    fleet.set_ledger("n2", sized("n2", 0))
    assert fleet.largest((GPU,)) == 0
    fleet.set_ledger("n2", sized("n2", 12288))
    assert fleet.largest((GPU,)) == 12288
    node = a_node("n2")
    fleet.set_node("n2", replace(node, metadata=replace(node.metadata, labels={})))
    assert fleet.largest((GPU,)) == 8192
    fleet.set_node("n1", None)
    assert fleet.largest((GPU,)) == 0


def test_nodes_with_the_same_devices_are_looked_at_once() -> None:
    """Thousands of pods are admitted while as many are bound: all nodes aren't looked at again for each."""
    fleet = Fleet()
    for number in range(100):
        fleet.set_node(f"n{number}", a_node(f"n{number}"))
        fleet.set_ledger(f"n{number}", sized(f"n{number}", 8192))
    different = fleet.situations._devices.of({}).names
    assert (fleet.largest((GPU,)), len(different)) == (8192, 1)
    fleet.set_ledger("n1", sized("n1", 4096))
    assert (fleet.largest((GPU,)), len(different)) == (8192, 2)
