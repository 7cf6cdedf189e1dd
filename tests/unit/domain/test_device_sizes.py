"""The largest device of the shared nodes is known at once, and is always that of the nodes as they are."""

from typing import Any

import pytest
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


def test_a_claim_changes_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of pods are admitted while as many are bound: their nodes aren't all looked at again for each."""
    fleet, looked = Fleet(), list[str]()
    for name in ("n1", "n2"):
        fleet.set_node(name, a_node(name))
        fleet.set_ledger(name, sized(name, 8192))
    assert fleet.largest((GPU,)) == 8192

    class SizesLookedThrough(dict[str, Any]):
        def values(self) -> Any:
            looked.append("all")
            return super().values()

    monkeypatch.setattr(fleet._sizes, "_of", SizesLookedThrough(fleet._sizes._of))
    ledger = sized("n1", 8192)
    fleet.set_ledger("n1", replace(ledger, metadata=replace(ledger.metadata, resource_version="2")))
    assert (fleet.largest((GPU,)), looked) == (8192, [])
    fleet.set_ledger("n1", sized("n1", 4096))
    assert (fleet.largest((GPU,)), looked) == (8192, ["all"])
