"""The nodes that match selectors: whatever was asked for before, the answer is that of a look at all of them."""

from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.placement.node_indexes import KEPT_SELECTIONS, Selections

LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))
CHANGES = st.tuples(st.sampled_from(["n1", "n2", "n3"]), LABELS | st.none())


@given(st.lists(CHANGES | LABELS))
def test_an_answer_is_as_true_as_a_look_at_all_nodes(
    history: list[tuple[str, dict[str, str] | None] | dict[str, str]],
) -> None:
    """Nodes come, go and change between the questions."""
    selections, nodes = Selections(), dict[str, dict[str, str]]()
    for step in history:
        if isinstance(step, dict):
            assert selections.matching(step) == {
                name for name, labels in nodes.items() if labels.items() >= step.items()
            }
            continue
        name, labels = step
        selections.set_labels(name, labels)
        nodes.pop(name, None)
        if labels is not None:
            nodes[name] = labels


def test_selectors_that_nobody_asks_for_any_more_are_forgotten() -> None:
    """Else whoever makes groups could fill the memory; those in use stay."""
    selections = Selections()
    selections.set_labels("n1", {"zone": "a"})
    kept = selections.matching({"zone": "a"})
    for number in range(2 * KEPT_SELECTIONS):
        selections.matching({"zone": str(number)})
        assert selections.matching({"zone": "a"}) is kept
    first = selections.matching({"zone": "0"})
    for number in range(1, KEPT_SELECTIONS + 1):
        selections.matching({"zone": str(number)})
    assert selections.matching({"zone": "0"}) is not first
