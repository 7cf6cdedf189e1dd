"""Where a group's pod may run, said in the pod's own node affinity.

kube-scheduler shows an extender only a sample of the nodes that it finds feasible itself: above 100 nodes, the one
node that a group lives on may be missing. Requirements in the pod make its own filter leave only nodes that count.
"""

from deviceshare.domain import contract
from deviceshare.domain.drafts import Affinity, Json, add
from deviceshare.domain.groups import Group

_NODE_AFFINITY = "/spec/affinity/nodeAffinity"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def require(affinity: Affinity | None, group: Group | None) -> list[Json]:
    """The JSON patch by which a pod asks for a shared node, its group's selector and, once bound, its group's node.

    Terms are alternatives, so each term that the pod has is narrowed; one without any requirement matches no node and
    stays as it is.
    """
    expressions, fields = _requirements(group)
    node_affinity = affinity.node_affinity if affinity else None
    required = node_affinity.required if node_affinity else None
    if required is not None:
        path = f"{_NODE_AFFINITY}/{_REQUIRED}/nodeSelectorTerms"
        patch = []
        for position, term in enumerate(required.node_selector_terms or ()):
            if term.match_expressions or term.match_fields:
                patch += _narrow(f"{path}/{position}/matchExpressions", term.match_expressions, expressions)
                patch += _narrow(f"{path}/{position}/matchFields", term.match_fields, fields)
        return patch
    term_json = {"matchExpressions": expressions} | ({"matchFields": fields} if fields else {})
    value: Json = {"nodeSelectorTerms": [term_json]}
    if node_affinity is not None:
        return [add(f"{_NODE_AFFINITY}/{_REQUIRED}", value)]
    if affinity is not None:
        return [add(_NODE_AFFINITY, {_REQUIRED: value})]
    return [add("/spec/affinity", {"nodeAffinity": {_REQUIRED: value}})]


def _requirements(group: Group | None) -> tuple[list[Json], list[Json]]:
    labels = {(contract.MODE_LABEL, contract.MODE_SHARED)}
    if group is not None:
        labels |= set(group.spec.node_selector.items())
    node = [_in("metadata.name", group.node)] if group is not None and group.node else []
    return [_in(key, value) for key, value in sorted(labels)], node


def _in(key: str, value: str) -> Json:
    return {"key": key, "operator": "In", "values": [value]}


def _narrow(path: str, have: list[Json] | None, need: list[Json]) -> list[Json]:
    missing = [requirement for requirement in need if requirement not in (have or ())]
    return [add(path, [*(have or ()), *missing])] if missing else []
