"""Who holds the devices of the agent's own node."""

from tests.unit.agent.node import NODE, Node
from tests.unit.domain.objects import GPU, a_ledger, gpus


def test_the_agent_knows_which_group_holds_a_device() -> None:
    """By claims; also while the last pods of a deleted group may still use it. Free ones are nobody's."""
    node = Node()
    assert node.own.groups() == {}, "before the ledger was read"
    node.ledgers.set(NODE, a_ledger(NODE, releasing=("gone",), team=gpus(0, 1), gone=gpus(2)))
    assert node.own.groups() == {(GPU, 0): "team", (GPU, 1): "team", (GPU, 2): "gone"}
