"""Other systems' device plugins on a node: whether one allocates its GPUs, and what one that is gone leaves behind.

While a plugin runs, it allocates GPUs to pods that deviceshare doesn't place. When it is gone, the kubelet sets its
resource to 0 instead of removing it, and refuses every pod that asks for more (kubernetes/kubernetes,
`pkg/kubelet/nodestatus/setters.go`, `pkg/kubelet/lifecycle/predicate.go`). An administrator can remove it; for five
minutes after the plugin has gone the kubelet still refuses (`pkg/kubelet/cm/devicemanager`).
"""

import json
from collections.abc import Collection, Iterable
from typing import Final

from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.quantities import is_some, whole
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.domain.placement.annotated_devices import MOST
from deviceshare.domain.placement.share_capacity import uncounted
from deviceshare.domain.wording import listed

GPU_COUNT: Final = "aliyun.com/gpu-count"
"""How many GPUs gpushare's device plugin found. It writes that once, and nobody removes it."""

_OTHERS: Final = {dialect.resource: dialect.system for dialect in DIALECTS.values() if dialect.system}


def advertised(node: Node) -> frozenset[str]:
    """The resources of shares that the node's kubelet counts, be it as 0: it refuses pods that ask for more."""
    told = node.status.allocatable
    return frozenset(each for each in told.keys() & DIALECTS.keys() if not uncounted(told[each]))


def leftover_reason(resources: Collection[str]) -> Reason:
    """Why no pod that asks for one of these, which the node advertises, can run there."""
    names = listed(sorted(resources))
    text = f"the node's kubelet counts {names} itself, since another device plugin runs or ran there, and refuses pods"
    return Reason(ReasonKind.OTHER_PLUGIN, text, f"without that plugin, {removal(resources)}")


def removal(resources: Iterable[str]) -> str:
    """The command that removes the resources from a node's status, for good."""
    gone = dict.fromkeys(sorted(resources))
    body = json.dumps({"status": {"capacity": gone, "allocatable": gone}}, separators=(",", ":"))
    return f"kubectl patch node NODE --subresource=status --type=merge -p '{body}' (kubectl 1.24 or later)"


def allocating(node: Node) -> dict[str, str]:
    """By resource, the systems whose device plugins allocate the node's GPUs; their plugins' names may be longer."""
    every = [*node.status.capacity.items(), *node.status.allocatable.items()]
    return {
        name: system
        for name, quantity in sorted(every, key=lambda entry: entry[0])
        for resource, system in _OTHERS.items()
        if name.startswith(resource) and is_some(quantity) and not uncounted(quantity)
    }


def gpu_count(node: Node) -> int:
    """How many GPUs gpushare's device plugin found; 0 where it never ran, or can't be read."""
    number = whole(node.status.capacity.get(GPU_COUNT, 0)) or 0
    return number if number <= MOST else 0
