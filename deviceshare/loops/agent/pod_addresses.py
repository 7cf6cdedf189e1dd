"""The pod behind a connection, by the address from which it came.

Pods of a node have addresses of their own, and a connection can't be completed from another's. Pods with hostNetwork,
and every program outside of pods, have the node's. An address is free for the next pod as soon as the containers of
the last have ended, so pods that have finished own none; two pods that seem to own one are both refused.
"""

import ipaddress
from functools import lru_cache
from typing import Final, NamedTuple

from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.agent.ports import NodePod

NODES_OWN: Final = "the address of the node itself"
UNKNOWN: Final = "the address of no running pod"
SHARED: Final = "an address that several pods seem to have"
UNREADABLE: Final = "the address of a pod that can't be read"


_REMEMBERED: Final = 4096
"""A node's pods have a few hundred."""


class Whose(NamedTuple):
    """The pod that owns an address, or what the address is instead: one of the constants above."""

    pod: NodePod | None
    instead: str = ""


@lru_cache(_REMEMBERED)  # to parse all pods' addresses at each request took the loop a millisecond and more
def normal(address: str) -> str:
    """The address as `status.podIPs` writes it: an IPv4 address in an IPv6 one is itself; "" for what is none."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def whose(node: OwnNode, address: str) -> Whose:
    """The one running pod of the node that has this address, of its own."""
    wanted = normal(address)
    owners, nodes_own = [], False
    for pod in node.pods.values():
        status = pod.status
        own = {normal(each.ip) for each in status.pod_ips}
        # A pod with hostNetwork may have ended: the address is the node's all the same.
        nodes_own |= wanted == normal(status.host_ip) or (pod.spec.host_network and wanted in own)
        if wanted and wanted in own and not pod.finished:
            owners.append(pod)
    if nodes_own and wanted:
        return Whose(None, NODES_OWN)
    if len(owners) != 1:
        return Whose(None, SHARED if owners else UNKNOWN)
    meta = owners[0].metadata
    if not meta.uid or any(map(meta.hides, ("metadata", "spec.hostNetwork", "status.phase", "status.podIPs"))):
        return Whose(None, UNREADABLE)
    return Whose(owners[0])
