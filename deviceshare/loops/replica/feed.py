"""The feed of the Fleet: each change of a mirror, as it comes, so that a filter call finds everything up to date."""

import functools

from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import Group, NamespaceObject
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import says_the_same
from deviceshare.loops.ports import Mirror, ObjectChange


class Feed:
    """Subscribes to the mirrors for as long as they live."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        nodes: Mirror[Node],
        ledgers: Mirror[NodeDevices],
        pods: Mirror[Pod],
        others: Mirror[Pod],
        namespaces: Mirror[NamespaceObject] | None = None,
        quotas: Mirror[DeviceQuota] | None = None,
        groups: Mirror[Group] | None = None,
    ) -> None:
        """`pods` are those of groups; `others` those that hold devices through a vendor's device plugin.

        Who forges a pod into the first by a label holds what it holds nevertheless.
        """
        self._fleet = fleet
        self._groups = groups
        self._plugin_pods: dict[str, dict[tuple[str, str], frozenset[str]]] = {}
        """By node: what mirror shows which UID with which resources."""
        if namespaces is not None:
            namespaces.subscribe(lambda c: fleet.namespaces.set_labels(c.key, c.new.labels if c.new else None))
        if quotas is not None:
            quotas.subscribe(lambda change: fleet.quotas.put(change.key, change.new))
        nodes.subscribe(lambda change: fleet.set_node(change.key, change.new))
        ledgers.subscribe(lambda change: fleet.set_ledger(change.key, change.new))
        pods.subscribe(self._on_pod)
        others.subscribe(functools.partial(self._on_plugin, "others"))

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        key, old, new = change
        if old and new and says_the_same(old, new):
            return
        if any(pod.left_out for pod in change.sides):
            self._on_plugin("pods", change)
        for uid in {old.holder_uid, old.share_uid} - {""} if old else ():
            self._fleet.set_living(uid, key, "")
        if any(pod.nominated_node for pod in change.sides):
            wanted = request_of(new, self._groups.get(new.group) if self._groups else None) if new else None
            self._fleet.nominate(key, new.nominated_node if new else "", wanted)
        if new and new.lives and not new.impostor:
            for uid in {new.holder_uid, new.share_uid} - {""}:
                self._fleet.set_living(uid, key, new.node)

    def _on_plugin(self, mirror: str, change: ObjectChange[Pod]) -> None:
        _, old, new = change
        if not any(pod.past_us for pod in change.sides):
            return  # where all pods are mirrored, most have nothing from a device plugin
        if old and (there := self._plugin_pods.get(old.node)):
            there.pop((mirror, old.metadata.uid), None)
            if not there:
                del self._plugin_pods[old.node]  # nodes come and go, too
        if new and new.lives and (resources := new.plugin_resources()):
            self._plugin_pods.setdefault(new.node, {})[mirror, new.metadata.uid] = frozenset(resources)
        for pod in change.sides:
            if pod.containers_hidden:
                self._fleet.note_hidden(pod.node, pod, hidden=pod is new and pod.lives)
        for node in {pod.node for pod in change.sides if pod.node}:
            seen = self._plugin_pods.get(node, {}).items()
            self._fleet.set_plugin_pods(node, {uid: resources for (_, uid), resources in seen})
