"""Lists of nodes that are alike: whatever changed in whatever order, they are those of a look at all nodes."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.placement import node_indexes
from deviceshare.domain.placement.node_indexes import NodesAlike

LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))
CHANGES = st.tuples(st.sampled_from(["n1", "n2", "n3", "n4"]), LABELS, st.sampled_from(["full", "empty"]) | st.none())

Nodes = dict[str, tuple[Mapping[str, str], str]]


def looked_at(nodes: Nodes, selector: Mapping[str, str]) -> dict[str, list[str]]:
    """The same, from scratch."""
    found: dict[str, list[str]] = {}
    for name, (labels, value) in sorted(nodes.items()):
        if labels.items() >= selector.items():
            found.setdefault(value, []).append(name)
    return found


@given(st.lists(CHANGES | LABELS))
def test_the_lists_are_those_of_a_look_at_all_nodes(
    history: list[tuple[str, Mapping[str, str], str | None] | Mapping[str, str]],
) -> None:
    """Nodes come, go, and change their labels and values between the questions; a version stands for one answer."""
    alike, nodes, seen = NodesAlike[str](), Nodes(), dict[tuple[str, int], dict[str, list[str]]]()
    for step in history:
        if isinstance(step, tuple):
            name, labels, value = step
            alike.put(name, labels, value)
            nodes.pop(name, None)
            if value is not None:
                nodes[name] = labels, value
            continue
        expected = looked_at(nodes, step)
        found = {value: list(names) for value, names in alike.of(step).names.items()}
        assert found == expected
        assert alike.of(step).every == {name for names in expected.values() for name in names}
        assert seen.setdefault((str(sorted(step.items())), alike.of(step).version), expected) == expected
    assert len(alike) == len(nodes)


def test_selectors_that_nobody_asks_for_any_more_are_forgotten() -> None:
    """Else whoever makes groups could fill the memory; one that is forgotten gets a new version."""
    alike: NodesAlike[str] = NodesAlike()
    alike.put("n1", {"zone": "a"}, "full")
    before = alike.of({"zone": "a"}).version
    assert alike.of({"zone": "a"}).version == before
    for number in range(node_indexes.KEPT):
        alike.of({"zone": str(number)})
    assert alike.of({"zone": "a"}).version != before
