"""The kinds of API object that deviceshare reads and writes."""

from typing import Final

from deviceshare.domain import contract
from deviceshare.domain.groups import Group
from deviceshare.domain.ledger import NodeDevices
from deviceshare.domain.nodes import Node
from deviceshare.domain.pods import Pod
from deviceshare.loops.ports import Kind

_OURS = f"{contract.API_GROUP}/{contract.API_VERSION}"

PODS: Final = Kind("v1", "Pod", "pods", Pod, namespaced=True)
NODES: Final = Kind("v1", "Node", "nodes", Node, namespaced=False)
GROUPS: Final = Kind(_OURS, contract.GROUP_KIND, "shareddevicegroups", Group, namespaced=False)
NODE_DEVICES: Final = Kind(_OURS, contract.NODE_DEVICES_KIND, "nodedevices", NodeDevices, namespaced=False)
