"""What a waiting group says: who is in the way, on few nodes, in words that someone can act on."""

from deviceshare.domain.answers.waiting import SHOWN_NODES, WaitingReasons
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import NO_LEDGER
from tests.unit.domain.objects import AMD, GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus


def said_of(fleet: Fleet, group: Group) -> str:
    """All of what the group waits for, as its condition says it."""
    return str(WaitingReasons(fleet).of(group.request))


def test_it_names_who_holds_what() -> None:
    """Every holder on the node, those being released in other words."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(b=gpus(2, 3), a=gpus(0, 1), releasing=("b",)),))
    assert said_of(fleet, a_group()) == (
        "waiting for 2 nvidia.com/gpu, which no shared node has free; n1: 0 of 4 free (a holds 0,1; b still uses 2,3)"
    )


def test_a_few_nodes_are_shown_and_the_rest_counted() -> None:
    """On 300 nodes too; nodes that only lack devices come first."""
    names = [f"n{number:03}" for number in range(300)]
    ledgers = tuple(a_ledger(name, a=gpus(0, 1, 2)) for name in names[1:])
    text = said_of(a_fleet(*map(a_node, names), ledgers=ledgers), a_group())
    assert text.endswith("and 295 more nodes")
    assert text.count("a holds 0,1,2") == SHOWN_NODES
    assert "n000" not in text
    assert text.startswith("waiting for 2 nvidia.com/gpu, which no shared node has free; n001: 1 of 4 free")


def test_one_more_node_is_one() -> None:
    """Grammar counts."""
    names = [f"n{number}" for number in range(6)]
    fleet = a_fleet(*map(a_node, names), ledgers=tuple(a_ledger(name, a=gpus(0, 1, 2)) for name in names))
    assert said_of(fleet, a_group()).endswith("and 1 more node")


def test_a_node_with_another_obstacle_says_which() -> None:
    """Not how many devices are free there."""
    fleet = a_fleet(a_node())
    assert said_of(fleet, a_group()).endswith(f"n1: {NO_LEDGER}")


def test_several_resources_are_told_apart() -> None:
    """All or nothing: one may be free and the other not."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger("n1", {GPU: 2, AMD: 1}, a=gpus(0, 1)),))
    text = said_of(fleet, a_group(resources={GPU: 1, AMD: 1}))
    assert text.startswith("waiting for 1 amd.com/gpu and 1 nvidia.com/gpu")
    assert text.endswith("n1: amd.com/gpu 1 of 1 free, nvidia.com/gpu 0 of 2 free (a holds 0,1)")


def test_nodes_outside_the_selector_are_left_out() -> None:
    """Whatever is free there doesn't help."""
    fleet = a_fleet(a_node(zone="west"), a_node("n2"), ledgers=(a_ledger(a=gpus(0, 1, 2)), a_ledger("n2")))
    text = said_of(fleet, a_group(nodeSelector={"zone": "west"}))
    assert "no shared node that matches its nodeSelector has free" in text
    assert "n2" not in text


def test_a_selector_that_no_node_matches_is_said() -> None:
    """A misspelt label waits for ever otherwise."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    text = said_of(fleet, a_group(nodeSelector={"zone": "wset"}))
    assert text == (
        "waiting for 2 nvidia.com/gpu, but none of 1 shared nodes matches spec.nodeSelector zone=wset"
        ": change it, or label a node"
    )


def test_without_a_shared_node_it_says_how_to_share_one() -> None:
    """The very first thing that people forget."""
    text = said_of(a_fleet(a_node(shared=False), ledgers=(a_ledger(),)), a_group())
    assert "no node is shared" in text
    assert "kubectl label node NODE deviceshare.io/mode=shared" in text


def test_where_devices_are_free_it_is_something_else_that_lacks() -> None:
    """The scheduler's own reasons are in the pods' events."""
    fleet = a_fleet(a_node(), a_node("n2"), ledgers=(a_ledger(), a_ledger("n2", a=gpus(0, 1, 2))))
    assert said_of(fleet, a_group()).startswith("1 shared node has 2 nvidia.com/gpu free")
    fleet.set_ledger("n2", a_ledger("n2"))
    assert said_of(fleet, a_group()).startswith("2 shared nodes have 2 nvidia.com/gpu free")


def test_a_group_held_to_one_node_waits_for_that() -> None:
    """A bind left its claim there, and it is being released."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0, 1), releasing=("team",)),))
    assert said_of(fleet, a_group()) == (
        "waiting for a pod to be placed on node n1: the devices of group team are being released"
    )


def test_the_text_does_not_depend_on_pods() -> None:
    """Equal situations need equal texts, or each pod would make another event."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(a=gpus(0, 1, 2)),))
    before = said_of(fleet, a_group())
    for name in ("p", "q"):
        fleet.set_living("uid-of-a", a_pod(name, "a", node="n1").metadata.key, "n1")
    assert said_of(fleet, a_group()) == before
