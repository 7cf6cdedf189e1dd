"""Whose pods may join a group: its allowedNamespaces, and what they are told who may not."""

from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.own_resource_review import review_changed_group, review_new_group
from deviceshare.domain.answers import group_status
from deviceshare.domain.objects.groups import Group, LabelSelector
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import Namespaces, pod_obstacle
from tests.unit.domain.objects import a_fleet, a_group, a_pod, a_share_pod

LABELS = {"team": "vision", "stage": "dev"}


def allowing(**allowed: Any) -> Group:
    """A group with these allowedNamespaces; `from` is Selector unless said."""
    return a_group(allowedNamespaces={"from": "Selector", **allowed})


def known(**labels: dict[str, str]) -> Namespaces:
    namespaces = Namespaces()
    for name, mine in labels.items():
        namespaces.set_labels(name, mine)
    return namespaces


def said(group: Group, namespaces: Namespaces | None = None) -> str:
    """Why no pod of the namespace `ns` may join."""
    return str(pod_obstacle(a_pod(), group, namespaces or known(ns=LABELS)) or "")


def requirement(operator: str, *values: str, key: str = "team") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({}, True),
        ({"matchLabels": {"team": "vision"}}, True),
        ({"matchLabels": {"team": "vision", "stage": "prod"}}, False),
        (requirement("In", "speech", "vision"), True),
        (requirement("In", "speech"), False),
        (requirement("In", "", key="absent"), False),
        (requirement("NotIn", "vision"), False),
        (requirement("NotIn", "vision", key="absent"), True),
        (requirement("Exists"), True),
        (requirement("Exists", key="absent"), False),
        (requirement("DoesNotExist"), False),
        (requirement("DoesNotExist", key="absent"), True),
        (requirement("Like", "vision"), False),
        ({"matchLabels": {"stage": "dev"}, **requirement("DoesNotExist")}, False),
    ],
)
def test_a_selector_selects_as_kubernetes_does(selector: dict[str, Any], matches: bool) -> None:
    """The operators of LabelSelectorRequirement; an unknown one selects nothing."""
    assert msgspec.convert(selector, LabelSelector).matches(LABELS) is matches


@pytest.mark.parametrize(
    "group",
    [
        a_group(),
        a_group(allowedNamespaces={}),
        a_group(allowedNamespaces={"from": "All", "message": "welcome"}),
        allowing(names=["other", "ns"]),
        allowing(selector={}),
        allowing(selector={"matchLabels": {"team": "vision"}}),
        allowing(names=["ns"], selector={"matchLabels": {"team": "speech"}}),
    ],
)
def test_pods_of_allowed_namespaces_may_join(group: Group) -> None:
    """By name or by labels; without the field all may."""
    assert said(group) == ""


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (allowing(), "only those of no namespace, since neither selector nor names says which"),
        (allowing(names=["other"]), "takes no pods of namespace ns, only those of namespace other"),
        (allowing(names=["a", "b"], selector={"matchLabels": {"team": "x"}}), "namespaces a and b and those of"),
        (allowing(selector=requirement("NotIn", "vision")), "namespaces with the labels team notin (vision)"),
        (allowing(selector=requirement("DoesNotExist")), "with the labels !team"),
        (allowing(names=["other"]), "ask whoever may change its spec.allowedNamespaces"),
        (allowing(names=["other"], message="ask #gpus"), "its owner says: ask #gpus"),
    ],
)
def test_who_may_not_is_told_who_may_and_what_the_owner_says(group: Group, words: str) -> None:
    """The group, the namespace, the rule, and the way out."""
    assert said(group).startswith("group team takes no pods of namespace ns, only those of ")
    assert words in said(group)


def test_what_strangers_write_is_shown_escaped_and_bounded() -> None:
    """An owner's message goes to other people's terminals and events."""
    hostile = allowing(names=["\x1b[2Jother"], message="\x1b]0;owned\x07 pay\nhere " + "x" * 5000)
    text = said(hostile)
    assert text.isprintable()
    assert r"\x1b[2Jother" in text
    assert len(text) < 800
    many = allowing(names=[f"n{number}" for number in range(200)], selector=requirement("In", *["v" * 60] * 60))
    assert "n4 and 195 more" in said(many)
    assert len(said(many)) < 800


def test_labels_that_are_not_known_admit_nobody() -> None:
    """A namespace that was created a moment ago, or that may not be read: its pods wait, and names still count."""
    group = allowing(names=["ns"], selector={"matchLabels": {"team": "vision"}})
    other = allowing(selector={})
    assert said(group, known()) == ""
    reason = pod_obstacle(a_pod(), other, known())
    assert reason is not None
    assert reason.kind is ReasonKind.NAMESPACE_UNKNOWN
    assert known().refusal(other, "ns") is None
    namespaces = known(ns=LABELS)
    assert said(other, namespaces) == ""
    namespaces.set_labels("ns", None)
    assert "are not known yet" in said(other, namespaces)


def test_a_share_of_a_groups_devices_is_joining_too() -> None:
    """Who spends inside of the group's devices uses them."""
    pod = a_share_pod(group="team", percent=50)
    assert "takes no pods of namespace ns" in str(pod_obstacle(pod, allowing(names=["other"]), Namespaces()))


@pytest.mark.parametrize(
    ("allowed", "fault"),
    [
        ({}, ""),
        ({"from": "All"}, ""),
        ({"from": "Selector", "selector": requirement("Exists")}, ""),
        ({"from": "Selector", "selector": {"matchLabels": {"a.example/b": ""}}}, ""),
        ({"names": ["a"]}, "spec.allowedNamespaces: from is All, so selector and names would not count: set from:"),
        ({"from": "All", "selector": {}}, "spec.allowedNamespaces: from is All"),
        (
            {"from": "Selector", "selector": {"matchLabels": {"-bad": "no/value", "ok": "fine"}}},
            (
                "spec.allowedNamespaces.selector.matchLabels: '-bad' can't be a label's key;"
                " spec.allowedNamespaces.selector.matchLabels: 'no/value' can't be a label's value"
            ),
        ),
        (
            {"from": "Selector", "selector": {"matchLabels": {f"{'x' * 90}/{'y' * 80}": "v"}}},
            f"spec.allowedNamespaces.selector.matchLabels: '{'x' * 79}…' can't be a label's key",
        ),
        (
            {"from": "Selector", "selector": requirement("In")},
            "spec.allowedNamespaces.selector.matchExpressions: In needs values",
        ),
        (
            {"from": "Selector", "selector": requirement("DoesNotExist", "x")},
            "spec.allowedNamespaces.selector.matchExpressions: DoesNotExist takes no values",
        ),
        (
            {"from": "Selector", "selector": requirement("NotIn", "a b", key="K ey")},
            (
                "spec.allowedNamespaces.selector.matchExpressions: 'K ey' can't be a label's key;"
                " spec.allowedNamespaces.selector.matchExpressions: 'a b' can't be a label's value"
            ),
        ),
    ],
)
def test_what_kubernetes_would_refuse_in_a_selector_is_refused(allowed: dict[str, Any], fault: str) -> None:
    """At creation and change, also of a bound group, of which it may be changed; the policy says the same."""
    group = a_group(allowedNamespaces=allowed)
    for refusal in (
        review_new_group(group),
        review_changed_group(a_group(), group),
        review_changed_group(a_group(node="n1"), a_group(node="n1", allowedNamespaces=allowed)),
    ):
        assert refusal.startswith(fault)
        assert bool(refusal) is bool(fault)


def test_an_operator_that_the_schema_would_not_take_is_named() -> None:
    """Where groups are reviewed whose schema is older, or was left out."""
    assert "'Like' is no operator: use In, NotIn, Exists or DoesNotExist" in review_new_group(
        allowing(selector=requirement("Like", "x"))
    )
    assert "spec.allowedNamespaces.from: 'Some' is neither" in review_new_group(
        a_group(allowedNamespaces={"from": "Some"})
    )


def test_a_groups_condition_names_the_pods_that_may_not_join() -> None:
    """They don't count as pods that ask for it: nobody may keep the condition from saying what is so."""
    fleet: Fleet = a_fleet()
    reason = group_status.bound(allowing(names=["other"]), fleet, [a_pod("x"), a_pod("y", node="n1")])
    assert reason.kind is ReasonKind.NO_PODS
    assert "pod ns/x can't join it: group team takes no pods of namespace ns" in str(reason)
