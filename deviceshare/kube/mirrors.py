"""The mirrors that decisions are made from, as `run` and `--watch` keep them."""

from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.api import Api
from deviceshare.kube.mirror import ApiMirror
from deviceshare.loops.kinds import GROUPS, LIVE_PODS, NODE_DEVICES, NODES, PODS, SHARED_NODES
from deviceshare.loops.replica.feed import Feed


class Mirrors:
    """Groups, ledgers, shared nodes, the pods of groups as the guard sees them, and others that may have devices."""

    def __init__(self, api: Api, guard: PodGuard) -> None:
        self.groups = ApiMirror(api, GROUPS)
        self.ledgers = ApiMirror(api, NODE_DEVICES)
        self.nodes = ApiMirror(api, NODES, label_selector=SHARED_NODES)
        self.pods = ApiMirror(api, PODS, label_selector=contract.GROUP, see=guard)
        # Pods that got devices from a vendor's device plugin. In a large cluster that is a long stream of which nearly
        # nothing is kept; the two selectors spare the API server from sending every pod twice.
        self.others = ApiMirror(
            api, PODS, label_selector=f"!{contract.GROUP}", field_selector=LIVE_PODS, keep=lambda pod: pod.past_us
        )
        self.by_name: dict[str, ApiMirror[Any]] = {
            "groups": self.groups,
            "ledgers": self.ledgers,
            "nodes": self.nodes,
            "pods": self.pods,
            "other-pods": self.others,
        }

    @property
    def synced(self) -> bool:
        """Whether all are."""
        return all(mirror.synced for mirror in self.by_name.values())

    def feed(self, fleet: Fleet) -> None:
        """Has the fleet know what the mirrors show, from now on."""
        Feed(fleet, nodes=self.nodes, ledgers=self.ledgers, pods=self.pods, others=self.others)
