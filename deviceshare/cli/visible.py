"""What the person who asks may read, as the API server's authorizer says, and notes on what is left out for that.

https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import to_builtins

from deviceshare.cli.output import say
from deviceshare.doctor.kinds import OWN_ACCESS, Attributes
from deviceshare.domain.answers.picture import Unseen
from deviceshare.domain.wording import counted, listed
from deviceshare.kube.visibility import WHOLE_CLUSTER, Visibility
from deviceshare.loops.ports import ApiError, Unavailable

if TYPE_CHECKING:
    from deviceshare.kube.api import Api
    from deviceshare.kube.mirrors import Mirrors

SHOWN_NODES: Final = 3


async def visibility_of(api: "Api", namespace: str) -> Visibility:
    """Whether nodes, namespaces, and the pods of all namespaces or of this one, may be listed.

    Where the API server doesn't say, everything is asked for, and its refusals are the answer.
    """
    try:
        async with asyncio.TaskGroup() as group:
            nodes = group.create_task(_may_list(api, "nodes"), name="ask for the right to list nodes")
            spaces = group.create_task(_may_list(api, "namespaces"), name="ask for the right to list namespaces")
            every = group.create_task(_may_list(api, "pods"), name="ask for the right to list pods")
            some = group.create_task(_may_list(api, "pods", namespace), name="ask for the right to list its pods")
    except ExceptionGroup as failed:
        if isinstance(failed.exceptions[0], Unavailable):
            raise failed.exceptions[0] from failed
        if isinstance(failed.exceptions[0], ApiError):
            return WHOLE_CLUSTER
        raise
    if every.result():
        return Visibility(nodes.result(), namespaces=spaces.result())
    return Visibility(nodes.result(), namespace, some.result(), spaces.result())


async def _may_list(api: "Api", resource: str, namespace: str = "") -> bool:
    right = Attributes("list", "", resource, namespace=namespace)
    answer = await api.create(OWN_ACCESS, {"spec": {"resourceAttributes": to_builtins(right)}})
    return bool(answer.status.get("allowed"))


def unseen(mirrors: "Mirrors") -> list[Unseen]:
    """What is left out of what these mirrors show."""
    visibility, found = mirrors.visibility, []
    if not visibility.nodes:
        found.append(
            Unseen(
                "nodes",
                "Nodes can't be listed by you (forbidden). Known of them is what NodeDevices say: their labels"
                " (nodeSelector, node affinity), taints, cordons and readiness are not considered.",
            )
        )
    if not visibility.namespaces and (choosy := _by_labels(mirrors)):
        found.append(
            Unseen(
                "namespaces",
                "Namespaces can't be listed by you (forbidden): whether their labels let pods join"
                f" {listed(choosy, most=SHOWN_NODES)} (spec.allowedNamespaces) is not considered.",
            )
        )
    if visibility.namespace:
        found.append(Unseen("pods", _pods(mirrors, visibility)))
        if blind := mirrors.without_allocations():
            where = listed(blind, most=SHOWN_NODES)
            found.append(
                Unseen(
                    "devices of other pods",
                    f"No agent reports which devices the vendor's device plugin allocated on {where}: devices shown as"
                    " free there may be in use by pods that you can't see.",
                )
            )
    return found


def _by_labels(mirrors: "Mirrors") -> list[str]:
    """The groups that choose namespaces by their labels."""
    allowed = {group.name: group.spec.allowed_namespaces for group in mirrors.groups.values()}
    return sorted(name for name, each in allowed.items() if each and each.selector)


def _pods(mirrors: "Mirrors", visibility: Visibility) -> str:
    named = [pod for group in mirrors.groups.values() for pod in group.status.allocated_pods]
    hidden = sum(not visibility.shows(pod) for pod in named)
    if visibility.pods:
        first = f"Pods outside of namespace {visibility.namespace} can't be listed by you (forbidden)"
    else:
        first = f"Pods can't be listed by you, nor those of namespace {visibility.namespace} (forbidden)"
    known = f"{hidden} of the {counted(len(named), 'pod')} that have devices of groups" if hidden else ""
    known = f": {known} {'is' if hidden == 1 else 'are'} known by name only, and" if known else ":"
    return f"{first}{known} those that wait are not shown."


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as kubectl writes them."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def note(left_out: Iterable[Unseen]) -> None:
    """Says on standard error what is left out."""
    for each in left_out:
        say(f"Note: {each.text}", err=True)
