"""Which nodes a pod's own nodeSelector and node affinity admit, as Kubernetes documents it."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain.objects.nodes import Affinity, Node, admits
from tests.unit.domain.objects import a_node

Json = dict[str, Any]


def node(name: str = "n1", **labels: str) -> Node:
    """A node with these labels and no others."""
    bare = a_node(name)
    return replace(bare, metadata=replace(bare.metadata, labels=labels))


def affinity(*terms: Json) -> Affinity:
    """The required node affinity with these terms."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return msgspec.convert({"nodeAffinity": required}, Affinity)


def label(key: str, operator: str, *values: str) -> Json:
    """One requirement of a label."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def named(operator: str, *names: str) -> Json:
    """One requirement of the node's name."""
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]}


@pytest.mark.parametrize(
    ("requirement", "fits", "rules_out"),
    [
        (label("zone", "In", "a", "b"), [{"zone": "a"}], [{"zone": "c"}, {}]),
        (label("zone", "NotIn", "a"), [{"zone": "b"}, {}], [{"zone": "a"}]),
        (label("zone", "Exists"), [{"zone": ""}], [{}]),
        (label("zone", "DoesNotExist"), [{}], [{"zone": ""}]),
        (label("gpus", "Gt", "4"), [{"gpus": "8"}], [{"gpus": "4"}, {"gpus": "many"}, {}]),
        (label("gpus", "Lt", "4"), [{"gpus": "-1"}], [{"gpus": "4"}, {"gpus": "3_0"}]),
        (label("gpus", "Gt", "four"), [], [{"gpus": "8"}]),
        (label("gpus", "Lt", "9" * 5000), [], [{"gpus": "8"}]),
        (label("zone", "Resembles", "a"), [{}, {"zone": "b"}], []),
    ],
)
def test_each_operator_means_what_kubernetes_says(
    requirement: Json, fits: list[dict[str, str]], rules_out: list[dict[str, str]]
) -> None:
    """An operator of a later release rules out nothing: nobody is told so in error."""
    terms = affinity(requirement)
    assert all(admits(None, terms, node(**labels)) for labels in fits)
    assert not any(admits(None, terms, node(**labels)) for labels in rules_out)


def test_a_nodes_name_is_a_field() -> None:
    """The way in which one node is asked for."""
    assert admits(None, affinity(named("In", "n1")), node("n1"))
    assert not admits(None, affinity(named("In", "n1")), node("n2"))
    assert admits(None, affinity(named("NotIn", "n1")), node("n2"))


def test_terms_are_alternatives_and_their_requirements_hold_together() -> None:
    """A term without any requirement matches no node, and no term at all none either."""
    both = {**label("zone", "In", "a"), **named("In", "n1")}
    assert admits(None, affinity(both), node("n1", zone="a"))
    assert not admits(None, affinity(both), node("n2", zone="a"))
    assert admits(None, affinity(both, named("In", "n2")), node("n2"))
    assert not admits(None, affinity({}), node())
    assert not admits(None, affinity(), node())


def test_the_node_selector_holds_besides() -> None:
    """Both have to admit the node."""
    assert admits({"zone": "a"}, affinity(named("In", "n1")), node("n1", zone="a", rack="1"))
    assert not admits({"zone": "a"}, affinity(named("In", "n1")), node("n1", zone="b"))


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"nodeAffinity": None},
        {"nodeAffinity": {}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        {"podAntiAffinity": {}},
    ],
)
def test_what_asks_for_no_node_admits_all(spec: Json | None) -> None:
    """Preferences, pods' affinities, and fields that are null."""
    assert admits(None, msgspec.convert(spec, Affinity | None), node())
    assert admits({}, None, node())


def test_lists_that_are_null_hold_nothing() -> None:
    """Go writes an empty list so."""
    empty: Json = {"matchExpressions": None, "matchFields": None}
    assert not admits(None, affinity(empty), node())
    nothing = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": None}}}
    assert not admits(None, msgspec.convert(nothing, Affinity), node())
    assert not admits(None, affinity({"matchExpressions": [{"key": "a", "operator": "In", "values": None}]}), node())
