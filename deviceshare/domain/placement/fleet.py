"""The fleet: all shared nodes with their ledgers, the groups, shares and quotas on them, and binds under way."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.device_quota import DeviceQuota, Reservation, counted, reservation_of
from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import GROUP, POD, Request
from deviceshare.domain.placement import allocation, join_obstacles
from deviceshare.domain.placement.allocation import Assumption
from deviceshare.domain.placement.device_states import DeviceState, device_states, doubted, free_devices
from deviceshare.domain.placement.holds import not_held
from deviceshare.domain.placement.join_obstacles import Namespaces, UnreadableObject
from deviceshare.domain.placement.ledger_budget import Crowding, crowding
from deviceshare.domain.placement.node_indexes import put, put_at
from deviceshare.domain.placement.rooms import Room
from deviceshare.domain.placement.shapes import EFFORT, Counts, Filtered, Shape, Situations, counts
from deviceshare.domain.placement.shared_resources import advertised

# The DeviceQuotas as the mirror shows them, and which of them keeps a group from being bound.


class Quotas:
    """Mutable, but pure. It proposes: a bind writes each matching quota, by the version it saw (claims.md, Quotas)."""

    def __init__(self) -> None:
        self._quotas: dict[str, DeviceQuota] = {}

    def put(self, name: str, quota: DeviceQuota | None) -> None:
        """Takes in a quota's newest state; None when it is gone."""
        put(self._quotas, name, quota)

    def apply(self, quota: DeviceQuota, groups: Iterable[Group]) -> None:
        """Takes in a manifest of a quota, for plans: the known quota's reservations stay, and bound groups count."""
        known = self._quotas.get(quota.name, quota).status.reservations
        bound = {each.uid: reservation_of(each) for each in groups if each.node and quota.matches(each.metadata.labels)}
        self.put(quota.name, replace(quota, status=counted(quota, known | bound, complete=True)))

    def matching(self, labels: Mapping[str, str]) -> list[str]:
        """The names of the quotas that count a group with these labels, sorted."""
        return sorted(name for name, quota in self._quotas.items() if quota.matches(labels))

    def obstacle(self, request: Request) -> Reason | None:
        """Why the group can't be bound now, or None."""
        if not self._quotas or request.holder.kind != GROUP:
            return None
        uid, _, group = request.holder
        found = (self._quotas[name].obstacle(uid, group, request.resources) for name in self.matching(request.labels))
        return next(filter(None, found), None)

    def refusal(self, group: Group) -> Reason | None:
        """Why the group could never be bound, whoever else holds devices, or None."""
        names = self.matching(group.metadata.labels)
        found = (self._quotas[name].obstacle(group.uid, group.name, group.spec.resources, alone=True) for name in names)
        return next(filter(None, found), None)

    def reserve(self, request: Request) -> None:
        """Counts the group as bound, in memory alone: for plans."""
        for name in self.matching(request.labels):
            quota = self._quotas[name]
            mine = {request.holder.uid: Reservation(request.holder.name, dict(request.resources))}
            self._quotas[name] = replace(quota, status=counted(quota, quota.status.reservations | mine))


# The fleet: the shared nodes as the mirrors show them, and which of them a request fits on.


class _Evaluated(NamedTuple):
    """What follows from a ledger alone: it changes less often than what is assumed."""

    ledger: NodeDevices
    states: tuple[DeviceState, ...]
    free: Devices
    rooms: tuple[tuple[Device, Room], ...]
    offered: Counts
    withheld: tuple[tuple[str, Reason], ...]
    doubts: tuple[tuple[str, Reason], ...]
    crowding: Crowding | None


def _evaluated(ledger: NodeDevices) -> _Evaluated:
    states = device_states(ledger)
    return _Evaluated(
        ledger,
        states,
        free_devices(states),
        allocation.rooms(states),
        counts([state.device for state in states if state.offered]),
        tuple([(each.resource, join_obstacles.withheld_reason(each)) for each in ledger.status.withheld]),
        tuple([(r, join_obstacles.withheld_reason(doubt)) for r, doubt in doubted(states).items()]),
        crowding(ledger),
    )


_NOTHING: Final = _evaluated(NodeDevices())


class Fleet:
    """Mutable, but pure: no await, no clock, no log."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._evaluated: dict[str, _Evaluated] = {}
        self._plugin_pods: dict[str, Mapping[str, frozenset[str]]] = {}
        self._assumed: dict[str, Assumption] = {}
        self._living: dict[str, dict[str, str]] = {}
        """By the holder's UID the live pods with its devices: `namespace/name` → node."""
        self._claimed_on: dict[str, str] = {}
        """By the holder's UID the node where it has a claim."""
        self._blind_spots: dict[str, dict[str, UnreadableObject]] = {}
        """By node, the pods outside of groups whose devices are unknown; with "" those that may be on any."""
        self.situations = Situations()
        """What groups that wait ask about all nodes."""
        self._nominated: dict[str, tuple[str, Request]] = {}
        """By the waiting pod, `namespace/name`, the node where room is made for it, and what it wants."""
        self.namespaces = Namespaces()
        """Whose pods may join which groups."""
        self.quotas = Quotas()
        """Which groups may be bound."""

    def set_node(self, name: str, node: Node | None) -> None:
        """Takes in a node's newest state; None when it is gone."""
        put(self._nodes, name, node)
        self.situations.count(name, node, self.ledger(name), self.states(name))
        self._reshape(name)

    def set_ledger(self, name: str, ledger: NodeDevices | None) -> None:
        """Takes in a ledger's newest state; None when it is gone."""
        for uid in self._claims(name):
            if self._claimed_on.get(uid) == name:
                del self._claimed_on[uid]
        self._claimed_on |= dict.fromkeys(ledger.claims, name) if ledger else {}
        put(self._evaluated, name, _evaluated(ledger) if ledger else None)
        self.situations.count(name, self._nodes.get(name), ledger, self.states(name))
        self._reshape(name)

    def set_plugin_pods(self, name: str, pods: Mapping[str, frozenset[str]]) -> None:
        """Takes in which pods of the node have which resources from a device plugin, by the pods' UIDs."""
        put(self._plugin_pods, name, pods or None)
        self._reshape(name)

    def note_hidden(self, name: str, pod: Pod, *, hidden: bool) -> None:
        """Takes in whether a pod of the node hides what it has from a device plugin; "" where its node is hidden."""
        key = pod.metadata.key
        put_at(self._blind_spots, name, key, UnreadableObject("Pod", key, pod.metadata.fault) if hidden else None)
        for each in (name,) if name else self.names():
            self._reshape(each)

    def unreadable(self) -> list[UnreadableObject]:
        """The nodes, ledgers and pods outside of groups that can't be read."""
        return [
            *join_obstacles.unreadable("Node", (node.metadata for node in self._nodes.values())),
            *join_obstacles.unreadable(
                contract.NODE_DEVICES_KIND, (each.ledger.metadata for each in self._evaluated.values())
            ),
            *sorted((pod for pods in self._blind_spots.values() for pod in pods.values()), key=lambda pod: pod.name),
        ]

    def _hidden_on(self, name: str) -> list[UnreadableObject]:
        """The pods whose devices are unknown and may be the node's, sorted by name."""
        if not self._blind_spots:
            return []
        found = {**self._blind_spots.get("", {}), **self._blind_spots.get(name, {})}
        return [found[key] for key in sorted(found)]

    def opaque(self, name: str) -> frozenset[str]:
        """Resources of which pods hold devices through a device plugin, unless the agent reports which devices.

        A vendor's devices are the same under all its resources, whole, in turns or in parts, so all of them are named.
        """
        pods, hides = self._plugin_pods.get(name), self._hidden_on(name)
        if not (pods or hides):
            return frozenset()
        ledger = self.ledger(name) or NodeDevices()
        hidden = {device.resource for device in ledger.devices} if hides else set()
        if not pods:
            return frozenset(hidden)
        known = {(each.uid, each.resource) for each in ledger.hardware.allocations or ()}
        held = {resource for uid, resources in pods.items() for resource in resources if (uid, resource) not in known}
        if any(state.split for state in self.states(name)):
            # Who has a part by MIG has it of these, and no group gets these.
            held = {resource for resource in held if not resource.startswith(vendors.MIG_PREFIX)}
        owners = {vendors.plugin_vendor_of(resource) for resource in held}
        mine = {device.resource for device in (*ledger.devices, *ledger.claimed())} if held else set()
        return frozenset(hidden | held | {resource for resource in mine if vendors.vendor_of(resource) in owners})

    def set_living(self, uid: str, pod: str, node: str) -> None:
        """Takes in where a pod that received devices of the holder `uid` lives; "" when it no longer does."""
        put_at(self._living, uid, pod, node or None)

    def nominate(self, pod: str, node: str, request: Request | None) -> None:
        """Takes in where room is made for a waiting pod, which is kept from those of lower priority; "" for nowhere."""
        put(self._nominated, pod, (node, request) if node and request else None)

    def nominated(self, name: str) -> list[tuple[str, Request]]:
        """The pods for which room is made on the node, and what they want, the first to go there first."""
        mine = [(pod, request) for pod, (node, request) in self._nominated.items() if node == name]
        return sorted(mine, key=lambda each: (-each[1].priority, each[0]))

    def _kept_from(self, request: Request) -> set[str]:
        """The nodes with room that is kept from the request; a pod that joins its group takes none."""
        if not self._nominated or (request.node and not request.share):
            return set()
        others = (each for each in self._nominated.values() if each[1].taker != request.taker)
        return {node for node, other in others if other.priority > request.priority}

    def assume(self, uid: str, taken: Assumption) -> None:
        """Takes devices in memory for the holder `uid` while a bind writes its claim."""
        self.forget(uid)
        self._assumed[uid] = taken
        if uid not in self._claims(taken.node):
            self._reshape(taken.node)

    def forget(self, uid: str) -> None:
        """Drops an assumption: its bind failed, or the mirrors show its outcome."""
        gone = self._assumed.pop(uid, None)
        if gone and uid not in self._claims(gone.node):
            self._reshape(gone.node)

    def _assumed_on(self, name: str) -> list[Assumption]:
        """Those of which the ledger has no claim yet; what a claim there says counts in place of what was assumed."""
        return [each for uid, each in self._assumed.items() if each.node == name and uid not in self._claims(name)]

    @property
    def assuming(self) -> bool:
        """Whether any bind is under way."""
        return bool(self._assumed)

    def assumed(self, uid: str) -> Assumption | None:
        """The bind under way for the holder with this UID, if any."""
        return self._assumed.get(uid)

    def ledger(self, name: str) -> NodeDevices | None:
        """The ledger of the node as last seen."""
        known = self._evaluated.get(name)
        return known and known.ledger

    def _claims(self, name: str) -> Mapping[str, Claim]:
        known = self._evaluated.get(name)
        return known.ledger.spec.claims if known else {}

    def states(self, name: str) -> tuple[DeviceState, ...]:
        """The state of each of the node's devices, as its ledger was last seen."""
        known = self._evaluated.get(name)
        return known.states if known else ()

    def node(self, name: str) -> Node | None:
        """The node as last seen; None for nodes that are not shared or unknown."""
        return self._nodes.get(name)

    def names(self) -> list[str]:
        """Every node that is or was shared, sorted."""
        return list(self.situations.names)

    def shared_nodes(self, names: Iterable[str] | None = None) -> list[Node]:
        """The nodes that are shared, in the order of `names`, or all, sorted."""
        every = self.names() if names is None else names
        return [node for name in every if (node := self._nodes.get(name)) and node.shared]

    def pods(self, uid: str) -> dict[str, str]:
        """The live pods with devices of the holder `uid`: `namespace/name` → node."""
        return self._living.get(uid, {})

    def held(self, uid: str, name: str) -> Devices | None:
        """What the claim of the holder `uid` on the node holds; None where its ledger has no such claim."""
        ledger = self.ledger(name)
        claim = ledger.claims.get(uid) if ledger else None
        return ledger.held(claim) if ledger and claim else None

    def free(self, name: str) -> Devices:
        """Devices of the node that neither a claim nor an assumption holds."""
        known, assumed = self._evaluated.get(name), self._assumed_on(name) if self._assumed else ()
        if not (known and assumed):
            return known.free if known else ()
        return allocation.free_beside(known.free, assumed)

    def rooms(self, name: str, within: str = "") -> tuple[tuple[Device, Room], ...]:
        """What is left for shares of the devices of the group with the UID `within`, or of nobody's."""
        known = self._evaluated.get(name)
        rooms = allocation.rooms(self.states(name), within) if within else known.rooms if known else ()
        return allocation.rooms_beside(rooms, self._assumed_on(name) if self._assumed else (), within)

    def available(self, name: str) -> allocation.Available:
        """The devices of the node that neither a claim nor an assumption holds."""
        ledger = self.ledger(name) or NodeDevices()
        return allocation.Available(self.free(name), ledger.hardware.links)

    def largest(self, resources: Collection[str]) -> int:
        """MiB of the largest device of these resources on a shared node; 0 where that of some device is unknown."""
        return self.situations.largest(resources)

    def home(self, request: Request) -> str:
        """The one node the holder's next pod may go to, or "" where any may do.

        By its own word, by its pods, by the bind under way, and by its claim, in this order: pods come before a claim
        since somebody may have wiped a group's status (claims.md, repair). A claim may be of a bind that ended
        half-way: it is used or, once marked, waited for, so that no group comes to live on two nodes.
        """
        if request.node:
            return request.node
        uid = request.holder.uid
        if living := self._living.get(uid):
            return next(iter(living.values()))
        assumed = self._assumed.get(uid)
        return assumed.node if assumed else self._claimed_on.get(uid, "")

    def pinned(self, request: Request) -> str:
        """The node that the holder can't leave, or "".

        A pod may leave its claim behind, unless it was bound by it, or is being bound: its Binding decides where it
        lives, and the claim is collected. A group's claim holds it, since others may have joined by it.
        """
        uid, kind, _ = request.holder
        return "" if kind == POD and uid not in self._assumed and uid not in self._living else self.home(request)

    def filter(self, request: Request, names: Iterable[str]) -> Filtered:
        """Which of the named nodes the holder's next pod may go to."""
        found = self._filter(request, names)
        if kept := self._kept_from(request).intersection(found.fits):
            fits = [name for name in found.fits if name not in kept]
            return Filtered(fits, {**found.refused, join_obstacles.NOMINATED: sorted(kept)})
        return found

    def _filter(self, request: Request, names: Iterable[str]) -> Filtered:
        if not (home := self.home(request)):
            if reason := self.quotas.obstacle(request):
                return Filtered([], {reason: list(names)})
            return self.situations.filter(request, names)
        asked = list(names)
        others = [name for name in asked if name != home]
        here = [home] if len(others) < len(asked) else []
        reason = self.joining_obstacle(request, home) or self.share_obstacle(request, home) if here else None
        if (reason or not here) and not self.pinned(request):
            found = self.situations.filter(request, others)
            if reason:
                found.refused.setdefault(reason, []).extend(here)
            return found
        refused = {reason: here} if reason else {}
        if others:
            refused[join_obstacles.elsewhere(request.holder, home)] = others
        return Filtered([] if reason else here, refused)

    def fitting(self, request: Request) -> Iterable[str]:
        """All nodes that the holder's next pod may go to: those for which `filter` would say so."""
        if home := self.home(request):
            fits = self.filter(request, [home]).fits
            if fits or self.pinned(request):
                return fits
        elif self.quotas.obstacle(request):
            return ()
        every = self.situations.overview(request).fits.names
        return (name for name in every if name not in kept) if (kept := self._kept_from(request)) else every

    def joining_obstacle(self, request: Request, home: str) -> Reason | None:
        """Why no further pod of the holder may go to the node it lives on.

        A claim that isn't in the mirror yet is no obstacle: the bind reads the ledger fresh and decides.
        """
        shape = self.situations.get(home)
        if shape is None:
            text = f"{request.holder} lives on node {home}, which is gone"
            return Reason(ReasonKind.NODE_GONE, text, join_obstacles.recreating(request.holder))
        obstacle, ledger = shape.obstacle, self.ledger(home)
        if obstacle and ledger:
            hidden = self._hidden_on(home)
            obstacle = join_obstacles.node_obstacle(self._nodes.get(home), ledger, hidden, joining=True)
        return (
            obstacle
            or self.opacity(request, home)
            or (join_obstacles.joining_obstacle(ledger, self.states(home), request.holder) if ledger else None)
            or (not_held(ledger, request.holder.uid) if ledger and ledger.status.published.held is not None else None)
        )

    def share_obstacle(self, request: Request, home: str) -> Reason | None:
        """Why the node has no room for the request's share, unless its claim is there already."""
        ledger, sharer = self.ledger(home), request.taker
        if not request.share:
            return None
        if ledger and sharer.uid in ledger.claims:
            return join_obstacles.joining_obstacle(ledger, self.states(home), sharer) or not_held(ledger, sharer.uid)
        shape = self.situations.get(home)
        if obstacle := shape and (shape.obstacle or shape.no_shares(request)):
            return obstacle
        crowded = shape and shape.crowded
        lacks = allocation.share_shortage(request.share, [room for _, room in self.rooms(home, request.within)])
        return lacks or (crowded.obstacle_to(request._replace(resources={})) if crowded else None)

    def how_many(self, request: Request, names: Iterable[str], most: int) -> int:
        """How many pods with the request's share have room on these nodes together; counts no further than `most`."""
        within, known, total = request.within, dict[int, int](), 0
        effort = allocation.Effort(EFFORT)
        for shape in filter(None, map(self.situations.get, names)):
            if id(shape) not in known and total < most:
                rooms = [room for _, room in self.rooms(request.node, within)] if within else shape.rooms
                known[id(shape)] = allocation.how_many(request.share, rooms, most, effort)
            total += known.get(id(shape), 0)
        return min(total, most)

    def obstacle(self, name: str) -> Reason | None:
        """Why no group at all fits on the node."""
        shape = self.situations.get(name)
        return shape.obstacle if shape else join_obstacles.NOT_SHARED

    def opacity(self, request: Request, name: str) -> Reason | None:
        """Why no device of the node can be said to be free for the request; see `opaque`."""
        opaque = self.opaque(name) & set(request.wants)
        return join_obstacles.opaque_reason(opaque) if opaque == set(request.wants) or request.resources else None

    def prioritize(self, request: Request, names: Iterable[str]) -> dict[str, int]:
        """The score of each named node for the request, 0 to 10 (allocation.scores)."""
        return allocation.scores(request.strategy, self.situations.preferences(request, names))

    def best(self, request: Request, names: Iterable[str]) -> list[str]:
        """Those of the nodes, on all of which the request fits, that get the highest score; one at least."""
        preferences = self.situations.preferences(request, names)
        most = allocation.best(request.strategy, preferences.values())
        return [name for name, preference in preferences.items() if preference == most]

    def _reshape(self, name: str) -> None:
        node, ledger, known = self._nodes.get(name), self.ledger(name), self._evaluated.get(name, _NOTHING)
        if node is None and ledger is None:
            self.situations.put(name, None, None)
            return
        opaque, free = self.opaque(name), self.free(name)
        shape = Shape(
            join_obstacles.node_obstacle(node, ledger, self._hidden_on(name)),
            counts(free),
            known.offered,
            opaque,
            known.withheld,
            tuple(sorted([room for device, room in self.rooms(name) if device.resource not in opaque])),
            advertised(node) if node else frozenset(),
            known.doubts,
            tuple(sorted([each.whole for each in known.states if each.device in free])),
            known.crowding,
            ledger.counts_only if ledger else "",
            ledger.claimable if ledger else frozenset(),
        )
        self.situations.put(name, node, shape)
