"""Questions and answers of the scheduler extender protocol, JSON with Go's capitalised keys.

https://github.com/kubernetes/kube-scheduler/blob/master/extender/v1/types.go; `nodeCacheCapable` decides whether nodes
come as `NodeNames` or, whole, as `Nodes`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from deviceshare.domain.objects.object_decoder import ObjectDecoder
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason


class NodeList(Struct, frozen=True):
    """Whole nodes are sent back as they came, so they are never decoded beyond their names."""

    items: list[Raw] | None = None  # Go writes an empty list as null


class Arguments(Struct, frozen=True, rename="pascal"):
    """The request of filter and prioritize."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class Binding(Struct, frozen=True):
    """The request of bind."""

    pod_name: str = field(name="PodName")
    pod_namespace: str = field(name="PodNamespace")
    pod_uid: str = field(name="PodUID")
    node: str = field(name="Node")


class MetaPod(Struct, frozen=True):
    """A pod that would be evicted, by its UID."""

    uid: str = field(name="UID")


class MetaVictims(Struct, frozen=True):
    """The pods that would be evicted on one node, by UID."""

    pods: list[MetaPod] | None = field(default=None, name="Pods")
    disruptions: int = field(default=0, name="NumPDBViolations")


class VictimMetadata(Struct, frozen=True):
    uid: str


class Victim(Struct, frozen=True):
    """The part of a whole pod that `MetaPod` has."""

    metadata: VictimMetadata


class Victims(Struct, frozen=True):
    pods: list[Victim] | None = field(default=None, name="Pods")
    disruptions: int = field(default=0, name="NumPDBViolations")

    @property
    def meta(self) -> MetaVictims:
        return MetaVictims([MetaPod(victim.metadata.uid) for victim in self.pods or ()], self.disruptions)


class Preemption(Struct, frozen=True, rename="pascal"):
    """The request of preempt: the nodes where kube-scheduler would evict pods to make room for this one."""

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


# Each raises msgspec.DecodeError, which names the position in the JSON.
ARGUMENTS: Final = ObjectDecoder(Arguments)
BINDING: Final = ObjectDecoder(Binding)
PREEMPTION: Final = ObjectDecoder(Preemption)
_NAMED: Final = ObjectDecoder(_Named)


def named_nodes(arguments: Arguments) -> tuple[Sequence[str], dict[str, Raw] | None]:
    """The nodes' names; and whole nodes by name where the scheduler sent those and expects them back.

    Raises:
        msgspec.DecodeError: a node has no name.
    """
    if arguments.node_names is not None:
        return arguments.node_names, None
    items = arguments.nodes.items if arguments.nodes else None
    whole = {_NAMED.decode(item).metadata.name: item for item in items or ()}
    return list(whole), whole


def filter_result(
    fits: Sequence[str], refused: Mapping[Reason, Sequence[str]], whole: Mapping[str, Raw] | None
) -> bytes:
    """The answer to filter, with names or whole nodes as the request has them; `refused` are nodes by reason.

    Preempting pods resolves no refusal of deviceshare, since evicting one doesn't end a claim. Releases that know
    `FailedAndUnresolvableNodes` (1.21 and later) prefer it, older ones read `FailedNodes`: both are set.
    """
    texts = [(_for_events(str(reason)), nodes) for reason, nodes in refused.items()]
    failed = Raw(msgspec.json.encode({node: text for text, nodes in texts for node in nodes}))
    answer: dict[str, object] = {"FailedNodes": failed, "FailedAndUnresolvableNodes": failed, "Error": ""}
    if whole is None:
        answer["NodeNames"] = fits
    else:
        answer["Nodes"] = {"items": [whole[name] for name in fits]}
    return msgspec.json.encode(answer)


def scores_result(scores: Mapping[str, int]) -> bytes:
    """The answer to prioritize."""
    return msgspec.json.encode([{"Host": node, "Score": score} for node, score in scores.items()])


def preemption_result(victims: Mapping[str, MetaVictims]) -> bytes:
    """The answer to preempt: pods may be evicted on these nodes only; with no nodes, none is."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def error_result(message: str) -> bytes:
    """The answer to filter or bind that failed: kube-scheduler records the message and retries the pod."""
    return msgspec.json.encode({"Error": _for_events(message)})


def _for_events(text: str) -> str:
    """kube-scheduler takes its event's text for a format (client-go's `Eventf`): "5% of" came out "5%!o(MISSING)f"."""
    return text.replace("%", " percent")
