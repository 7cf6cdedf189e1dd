"""Share capacity: what nodes advertise of the resources by which pods ask for shares, where no scheduler of ours runs.

The cluster's own scheduler refuses a pod whose limits name a resource that no node advertises, and the kubelet one that
asks for more than its node does. deviceshare's ledger decides how much is left; so shared nodes advertise more than any
pods can ask for, and neither of the two has anything to count.
https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.quantities import Quantity, is_some, whole

UNCOUNTED: Final = 1_000_000_000
"""More GiB, and more hundredths of devices, than the pods of a node can ask for; a kubelet's plugin never says it."""


def uncounted(quantity: Quantity) -> bool:
    """Whether this is what deviceshare advertises, not a device plugin's number."""
    return whole(quantity) == UNCOUNTED


def lacking(node: Node, resources: Collection[str]) -> list[str]:
    """The resources that the node doesn't advertise, or as 0: left by a plugin that is gone, or by a reboot."""
    allocatable = node.status.allocatable
    return sorted(each for each in resources if not is_some(allocatable.get(each, 0)))


def capacity_patch(node: Node, resources: Collection[str]) -> Mapping[str, Any]:
    """A JSON merge patch of the node's status that advertises them, if nobody wrote the node meanwhile."""
    told = dict.fromkeys(sorted(resources), str(UNCOUNTED))
    version = {"resourceVersion": node.metadata.resource_version}
    return {"metadata": version, "status": {"capacity": told, "allocatable": told}}
