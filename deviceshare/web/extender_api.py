"""What kube-scheduler and an extender say to each other: JSON with Go's capitalised keys.

https://github.com/kubernetes/kube-scheduler/blob/master/extender/v1/types.go; `nodeCacheCapable` decides whether nodes
come as `NodeNames` or, whole, as `Nodes`.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct, field

from deviceshare.domain.objects.object_decoder import ObjectDecoder
from deviceshare.domain.objects.pods import Pod


class NodeList(Struct, frozen=True):
    """Whole nodes are sent back as they came, so they are never decoded beyond their names."""

    items: list[Raw] | None = None  # Go writes an empty list as null


class Arguments(Struct, frozen=True, rename="pascal"):
    """What filter and prioritize are asked."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class Binding(Struct, frozen=True):
    """What bind is asked."""

    pod_name: str = field(name="PodName")
    pod_namespace: str = field(name="PodNamespace")
    pod_uid: str = field(name="PodUID")
    node: str = field(name="Node")


class MetaPod(Struct, frozen=True):
    """A pod that would be evicted, by its UID."""

    uid: str = field(name="UID")


class MetaVictims(Struct, frozen=True):
    """What would be evicted on one node. Passed on as it came, but for the pods."""

    pods: list[MetaPod] | None = field(default=None, name="Pods")
    disruptions: int = field(default=0, name="NumPDBViolations")


class VictimMetadata(Struct, frozen=True):
    uid: str


class Victim(Struct, frozen=True):
    """As much of a whole pod as its name for `MetaPod` takes."""

    metadata: VictimMetadata


class Victims(Struct, frozen=True):
    pods: list[Victim] | None = field(default=None, name="Pods")
    disruptions: int = field(default=0, name="NumPDBViolations")

    @property
    def meta(self) -> MetaVictims:
        return MetaVictims([MetaPod(victim.metadata.uid) for victim in self.pods or ()], self.disruptions)


class Preemption(Struct, frozen=True, rename="pascal"):
    """What preempt is asked: the nodes where kube-scheduler would evict pods to make room for this one."""

    pod: Pod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    @property
    def victims(self) -> dict[str, MetaVictims]:
        """By node; whole pods come where `nodeCacheCapable` is false."""
        if self.node_name_to_meta_victims is not None:
            return self.node_name_to_meta_victims
        return {node: victims.meta for node, victims in (self.node_name_to_victims or {}).items()}


class _NamedMetadata(Struct, frozen=True):
    name: str


class _Named(Struct, frozen=True):
    metadata: _NamedMetadata


_arguments = ObjectDecoder(Arguments)
_binding = ObjectDecoder(Binding)
_preemption = ObjectDecoder(Preemption)
_named = ObjectDecoder(_Named)


def decode_arguments(body: bytes) -> Arguments:
    """Raises msgspec.DecodeError, whose text names the place in the JSON."""
    return _arguments.decode(body)


def decode_binding(body: bytes) -> Binding:
    """Raises msgspec.DecodeError, whose text names the place in the JSON."""
    return _binding.decode(body)


def decode_preemption(body: bytes) -> Preemption:
    """Raises msgspec.DecodeError, whose text names the place in the JSON."""
    return _preemption.decode(body)


def named_nodes(arguments: Arguments) -> tuple[Sequence[str], dict[str, Raw] | None]:
    """The nodes' names; and whole nodes by name where the scheduler sent those and wants them back.

    Raises:
        msgspec.DecodeError: a node has no name.
    """
    if arguments.node_names is not None:
        return arguments.node_names, None
    items = arguments.nodes.items if arguments.nodes else None
    whole = {_named.decode(item).metadata.name: item for item in items or ()}
    return list(whole), whole


def filter_result(fits: Sequence[str], reasons: Mapping[str, str], whole: Mapping[str, Raw] | None) -> bytes:
    """The answer to filter, in the terms of the question.

    No refusal of ours is cured by preempting pods, since evicting one doesn't end a claim. Releases that know
    `FailedAndUnresolvableNodes` (1.21 and later) prefer it, older ones read `FailedNodes`: both are told.
    """
    refused = Raw(msgspec.json.encode(reasons))
    answer: dict[str, object] = {"FailedNodes": refused, "FailedAndUnresolvableNodes": refused, "Error": ""}
    if whole is None:
        answer["NodeNames"] = fits
    else:
        answer["Nodes"] = {"items": [whole[name] for name in fits]}
    return msgspec.json.encode(answer)


def scores_result(scores: Mapping[str, int]) -> bytes:
    """The answer to prioritize."""
    return msgspec.json.encode([{"Host": node, "Score": score} for node, score in scores.items()])


def preemption_result(victims: Mapping[str, MetaVictims]) -> bytes:
    """The answer to preempt: on these nodes alone pods may be evicted; on none, and none is."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def error_result(message: str) -> bytes:
    """The answer to filter or bind when there is none: the scheduler shows it and tries the pod again."""
    return msgspec.json.encode({"Error": message})
