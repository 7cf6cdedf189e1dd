"""The fleet answers as if it looked at every device of every node, however it came to know them."""

from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.objects.devices import Devices, devices_of
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.allocation import Assumption
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import NOT_SHARED, elsewhere
from tests.unit.domain.objects import AMD, GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus

NAMES = ("n1", "n2", "n3")
INVENTORIES = st.dictionaries(st.sampled_from([GPU, AMD]), st.integers(1, 3))
GROUPS = st.builds(
    a_group,
    resources=st.dictionaries(st.sampled_from([GPU, AMD]), st.integers(1, 3), min_size=1),
    nodeSelector=st.sampled_from([{}, {"zone": "west"}]),
)


Situation = tuple[dict[str, Node | None], dict[str, NodeDevices | None], dict[str, Devices]]


@st.composite
def a_situation(draw: st.DrawFn) -> Situation:
    """Nodes, ledgers and what binds under way have assumed, by node."""
    nodes: dict[str, Node | None] = {}
    ledgers: dict[str, NodeDevices | None] = {}
    assumed: dict[str, Devices] = {}
    for name in NAMES:
        inventory = draw(INVENTORIES)
        zone = draw(st.sampled_from(["", "west"]))
        nodes[name] = draw(st.none() | st.just(a_node(name, inventory, shared=draw(st.booleans()), zone=zone)))
        have = devices_of(inventory)
        held = draw(st.sets(st.sampled_from(have))) if have else set()
        ledgers[name] = draw(st.none() | st.just(a_ledger(name, inventory, other=tuple(sorted(held)))))
        assumed[name] = tuple(sorted(draw(st.sets(st.sampled_from(have))))) if have else ()
    return nodes, ledgers, assumed


def fits(group: Group, node: Node | None, ledger: NodeDevices | None, assumed: Devices) -> bool:
    """The oracle: device by device."""
    if node is None or not node.shared or ledger is None:
        return False
    if any(node.metadata.labels.get(key) != value for key, value in group.spec.node_selector.items()):
        return False
    held = {device for claim in ledger.claims.values() for device in claim.devices} | set(assumed)
    free = [device for device in ledger.devices if device not in held]
    return all(sum(d.resource == r for d in free) >= count for r, count in group.spec.resources.items())


@given(a_situation(), GROUPS, st.permutations(range(9)))
def test_filter_agrees_with_looking_at_every_device(situation: Situation, group: Group, order: list[int]) -> None:
    """In whatever order the fleet was told; each node that does not fit gets a reason, unknown ones too."""
    nodes, ledgers, assumed = situation
    known = Fleet()
    tell: list[Callable[[], None]] = [
        *(partial(known.set_node, name, nodes[name]) for name in NAMES),
        *(partial(known.set_ledger, name, ledgers[name]) for name in NAMES),
        *(partial(known.assume, f"uid-of-a-bind-on-{name}", Assumption(name, assumed[name])) for name in NAMES),
    ]
    for turn in order:
        tell[turn]()
    answer = known.filter(group.request, [*NAMES, "unknown"])
    assert set(answer.fits) == {n for n in NAMES if fits(group, nodes[n], ledgers[n], assumed[n])}
    assert answer.reasons.keys() == {*NAMES, "unknown"} - set(answer.fits)
    assert sum(map(len, answer.refused.values())) == len(answer.reasons)
    for name in answer.fits:
        assert allocation.choose(group.request, known.available(name))


@given(a_situation(), a_situation(), GROUPS)
def test_what_was_known_before_leaves_no_trace(before: Situation, after: Situation, group: Group) -> None:
    """A fleet that changed equals one that never knew anything else."""
    old, new = Fleet(), Fleet()
    for known, history in ((old, (before, after)), (new, (after,))):
        for nodes, ledgers, assumed in history:
            for name in NAMES:
                known.set_node(name, nodes[name])
                known.set_ledger(name, ledgers[name])
                known.forget(f"uid-of-a-bind-on-{name}")
                known.assume(f"uid-of-a-bind-on-{name}", Assumption(name, assumed[name]))
    assert old.filter(group.request, NAMES) == new.filter(group.request, NAMES)
    assert old.prioritize(group.request, NAMES) == new.prioritize(group.request, NAMES)
    assert [old.free(name) for name in NAMES] == [new.free(name) for name in NAMES]


def test_a_bound_group_has_one_node() -> None:
    """Every other says where it lives, also where devices are free."""
    fleet = a_fleet(a_node(), a_node("n2"), ledgers=(a_ledger(team=gpus(0, 1)), a_ledger("n2")))
    answer = fleet.filter(a_group(node="n1").request, ["n2", "n1"])
    assert answer == (["n1"], {elsewhere(a_group().holder, "n1"): ["n2"]})


def test_a_bound_group_whose_node_was_not_asked_about_fits_nowhere() -> None:
    """kube-scheduler shows a sample of the nodes only."""
    fleet = a_fleet(a_node(), a_node("n2"), ledgers=(a_ledger(team=gpus(0, 1)), a_ledger("n2")))
    assert fleet.filter(a_group(node="n1").request, ["n2"]) == ([], {elsewhere(a_group().holder, "n1"): ["n2"]})


def test_a_full_node_takes_more_pods_of_the_group_that_fills_it() -> None:
    """They share what it holds."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0, 1, 2, 3)),))
    assert fleet.filter(a_group(node="n1", count=4).request, ["n1"]).fits == ["n1"]


def test_a_group_that_names_no_node_is_held_to_where_its_pods_live() -> None:
    """Somebody wiped its status; then a bind under way counts, then a claim that a bind left behind."""
    claimed = a_ledger("n3", team=gpus(0, 1))
    living = a_pod(node="n1", devices=gpus(0, 1))
    fleet = a_fleet(a_node(), a_node("n2"), a_node("n3"), ledgers=(a_ledger(), a_ledger("n2"), claimed), pods=(living,))
    group = a_group()
    fleet.assume(group.uid, Assumption("n2", gpus(0, 1)))
    assert fleet.home(group.request) == "n1"
    fleet.set_living(group.uid, living.metadata.key, "")
    assert fleet.home(group.request) == "n2"
    fleet.forget(group.uid)
    assert fleet.home(group.request) == "n3"
    fleet.set_ledger("n3", a_ledger("n3"))
    assert fleet.home(group.request) == ""


def test_why_a_bound_group_takes_no_more_pods() -> None:
    """Each reason in words, on its own node only."""
    held = a_ledger(team=gpus(0, 3))
    group = a_group(node="n1")
    cases = {
        ReasonKind.NODE_GONE: a_fleet(a_node("n2")),
        ReasonKind.NODE_NOT_SHARED: a_fleet(a_node(shared=False), ledgers=(held,)),
        ReasonKind.DEVICES_UNKNOWN: a_fleet(a_node()),
        ReasonKind.CLAIM_RELEASING: a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0), releasing=("team",)),)),
        ReasonKind.DEVICES_LOST: a_fleet(a_node(), ledgers=(a_ledger("n1", {GPU: 2}, team=gpus(0, 3)),)),
    }
    for kind, fleet in cases.items():
        answer = fleet.filter(group.request, ["n1", "n2"])
        assert answer.fits == []
        assert answer.reasons["n1"].kind is kind
        assert answer.reasons["n2"] == elsewhere(group.holder, "n1")


def test_a_claim_that_the_mirror_has_not_seen_yet_is_no_obstacle() -> None:
    """The bind reads the ledger fresh."""
    assert a_fleet(a_node(), ledgers=(a_ledger(),)).filter(a_group(node="n1").request, ["n1"]).fits == ["n1"]


def test_devices_that_a_plugin_hands_out_too_are_not_offered() -> None:
    """It is not known which they are; another resource of the node is not concerned."""
    fleet = a_fleet(a_node(devices={GPU: 2, AMD: 2}), ledgers=(a_ledger("n1", {GPU: 2, AMD: 2}),))
    fleet.set_plugin_pods("n1", {"u": frozenset({GPU})})
    assert fleet.filter(a_group().request, ["n1"]).reasons["n1"].kind is ReasonKind.DEVICES_OPAQUE
    assert fleet.filter(a_group(resources={AMD: 1}).request, ["n1"]).fits == ["n1"]
    fleet.set_plugin_pods("n1", {})
    assert fleet.filter(a_group().request, ["n1"]).fits == ["n1"]


def test_binpack_fills_and_spread_spreads() -> None:
    """By what is free of the resources that the group wants."""
    fleet = a_fleet(a_node(), a_node("n2"), ledgers=(a_ledger(other=gpus(0)), a_ledger("n2")))
    packed = fleet.prioritize(a_group(schedulingStrategy="binpack").request, ["n1", "n2"])
    spread = fleet.prioritize(a_group(schedulingStrategy="spread").request, ["n1", "n2"])
    assert packed["n1"] > packed["n2"]
    assert spread["n2"] > spread["n1"]


def test_a_node_that_is_gone_altogether_is_forgotten() -> None:
    """Neither the node nor its ledger is left."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    fleet.set_node("n1", None)
    assert fleet.names() == ["n1"]
    fleet.set_ledger("n1", None)
    assert fleet.names() == []
    assert fleet.filter(a_group().request, ["n1"]).reasons == {"n1": NOT_SHARED}
