"""A pod's node affinity, tightened to one node: the change that a lifted scheduling gate comes with.

A gated pod's required node affinity may only be tightened: each term may get further requirements, none may go, and
none may be added (kubernetes/kubernetes, `pkg/apis/core/validation`, ValidatePodUpdate). Terms are alternatives, so
each of them gets the requirement, but for those without any: they match no node, and can't be changed.
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/#mutable-pod-scheduling-directives
"""

from typing import Any

import msgspec

from deviceshare.domain.objects.nodes import Affinity, NodeTerm


def pinned_to(node: str, affinity: Affinity | None) -> dict[str, Any]:
    """A JSON merge patch of `spec.affinity`, after which it admits this node at most."""
    terms = affinity.terms if affinity else None
    pinned = [{"matchFields": [_here(node)]}] if terms is None else [_tightened(term, node) for term in terms]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": pinned}}}


def _tightened(term: NodeTerm, node: str) -> dict[str, Any]:
    whole = {key: value for key, value in msgspec.to_builtins(term).items() if value is not None}
    fields, here = whole.get("matchFields") or [], _here(node)
    if not fields and not whole.get("matchExpressions"):
        return whole
    return {**whole, "matchFields": fields if here in fields else [*fields, here]}


def _here(node: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": [node]}
