"""Completion of names that the cluster knows: groups, shared nodes, pods and namespaces.

It is asked at each press of a key, so it is short of time, and silent where it can't know.
https://click.palletsprojects.com/en/stable/shell-completion/#custom-type-completion
"""

import io
import os
from contextlib import redirect_stderr
from importlib import import_module
from typing import Final

import click
from msgspec import Struct, field

from deviceshare.cli.cluster import Target
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES
from deviceshare.loops.ports import Kind

SECONDS: Final = 2.0
"""For the cluster's answer, after which nothing is offered."""


class NamedObject(Struct, frozen=True):
    """Any object, of which only the name is read."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)


_GROUPS = Kind(GROUPS.api_version, GROUPS.kind, GROUPS.plural, NamedObject, namespaced=False)
_NODES = Kind(NODE_DEVICES.api_version, NODE_DEVICES.kind, NODE_DEVICES.plural, NamedObject, namespaced=False)
_PODS = Kind("v1", "Pod", "pods", NamedObject, namespaced=True)
_NAMESPACES = Kind("v1", "Namespace", "namespaces", NamedObject, namespaced=False)


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of SharedDeviceGroups."""
    return _beginning(incomplete, _names(ctx, _GROUPS))


def complete_nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of shared nodes, which the NodeDevices have."""
    return _beginning(incomplete, _names(ctx, _NODES))


def complete_namespaces(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of namespaces."""
    return _beginning(incomplete, _names(ctx, _NAMESPACES))


def complete_pods(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of pods: of the namespace that the word names, or the flag, or the context."""
    namespace, slash, _name = incomplete.partition("/")
    if slash:
        return _beginning(incomplete, [f"{namespace}/{name}" for name in _names(ctx, _PODS, namespace)])
    return _beginning(incomplete, _names(ctx, _PODS, ctx.params.get("namespace")))


def complete_group_or_pod(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Groups, and after the word `pod` pods."""
    before = ctx.params.get(parameter.name or "") or ()
    if tuple(before) == ("pod",):
        return complete_pods(ctx, parameter, incomplete)
    return [] if before else [*_beginning(incomplete, ["pod"]), *complete_groups(ctx, parameter, incomplete)]


def _target(ctx: click.Context) -> Target:
    return Target(ctx.params.get("kubeconfig") or os.environ.get("KUBECONFIG"), ctx.params.get("context"))


def _names(ctx: click.Context, kind: Kind[NamedObject], namespace: str | None = "") -> list[str]:
    """All names; None means the context's namespace."""
    with redirect_stderr(io.StringIO()):
        try:
            import_module("deviceshare.kube.kubeconfig")  # a slow import is not the cluster's delay
            target = _target(ctx)
            within = target.namespace if namespace is None else namespace
            found = target.ask(lambda api: api.list(kind, namespace=within), seconds=SECONDS)
        except Exception:  # noqa: BLE001 - whatever it is, a shell that completes has no place to say it
            return []
    return sorted(each.metadata.name for each in found)


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
