"""Where the doctor says that nodes' devices come from."""

from msgspec.structs import replace

from charts import helm
from deviceshare.doctor import installation, nodes
from deviceshare.doctor.findings import PROBLEM, WARNING
from deviceshare.doctor.kinds import Installation
from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import NodeDevices
from tests.controlplane.rights import granted
from tests.unit.domain.dra_objects import a_claim, a_slice, a_view, card, gpu_json
from tests.unit.domain.objects import GPU, a_ledger, a_node, gpus


def _a_published_ledger(*, claimed: bool = False) -> NodeDevices:
    """The ledger of n1, whose GPUs a DRA driver publishes."""
    claims = [a_claim("ns/train", "gpu-0")] if claimed else []
    ledger = a_ledger(devices={}, team=(Device(GPU, 0, card(0)),))
    status = replace(
        ledger.status,
        published=a_view(a_slice("n1", gpu_json(0), gpu_json(1)), *claims).publication("n1"),
        devices=list(gpus(0, 1)),
    )
    return replace(ledger, status=status)


def test_the_doctor_says_where_each_node_s_devices_come_from() -> None:
    """The first source that knows them."""
    bare = a_node(devices={})
    annotated = replace(
        a_node("n2"), metadata=replace(a_node("n2").metadata, annotations={contract.INVENTORY_ANNOTATION: f"{GPU}=2"})
    )
    reported = replace(a_ledger("n4").status, hardware=Hardware(devices=[Part(GPU, 0, "GPU-a")]))
    every = [_a_published_ledger(), a_ledger("n2"), a_ledger("n3"), replace(a_ledger("n4"), status=reported)]
    every_node, ledgers = [bare, annotated, a_node("n3"), a_node("n4")], {ledger.node: ledger for ledger in every}
    [found] = nodes.judge_inventory(every_node, ledgers)
    assert "kube-scheduler may give devices of groups and shares" in found.what and "dra.holds=true" in found.cure
    assert nodes.summary(every_node, ledgers).split("; ") == [
        f"{GPU} from {nodes.SLICES}: n1",
        f"{GPU} from {nodes.AGENT}: n4",
        f"{GPU} from {nodes.ANNOTATION}: n2",
        f"{GPU} from {nodes.COUNTED}: n3",
    ]


def test_the_doctor_warns_where_a_plugin_and_dra_allocate_the_same() -> None:
    """And names what both deviceshare and DRA have allocated."""
    found = [*nodes.judge_inventory([a_node()], {"n1": _a_published_ledger(claimed=True)})]
    assert [each.mark for each in found] == [WARNING, WARNING, PROBLEM]
    assert "a device plugin and a DRA driver both" in found[0].what
    assert f"team and ResourceClaim ns/train both have {GPU} 0 of n1" in found[2].what


def test_the_doctor_names_devices_that_are_not_held_yet() -> None:
    """With the command that shows why."""
    ledger = _a_published_ledger()
    published = replace(ledger.status.published, held=[])
    ledger = replace(ledger, status=replace(ledger.status, published=published))
    [found] = nodes.judge_inventory([a_node(devices={})], {"n1": ledger})
    assert found.mark == WARNING and f"has not allocated {GPU} 0 on node n1" in found.what
    assert "kubectl get resourceclaims,pods" in found.cure


def test_the_doctor_names_both_owners_of_a_device() -> None:
    """A finding for each, so that who looks for one finds it."""
    found = [*nodes.judge_inventory([a_node()], {"n1": a_ledger(team=gpus(0, 1), other=gpus(1))})]
    assert [each.mark for each in found] == [PROBLEM, PROBLEM]
    assert found[0].what == f"{GPU} 1 of group other is claimed by group team, too, on node n1"
    assert "delete one of them with its pods" in found[0].cure


def test_before_dra_the_chart_grants_no_right_to_it() -> None:
    """Nor does the doctor miss it there."""
    roles = [each for each in helm.render({}, "1.31.0") if each["kind"] in ("ClusterRole", "Role")]
    assert not any(right.group == "resource.k8s.io" for right in granted(roles))
    assert not any(right.group == "resource.k8s.io" for right in installation.needed(Installation(contract.NAMESPACE)))


def test_limits_of_shares_are_said_of_nodes_whose_agent_reports_alone() -> None:
    """What a DRA driver publishes says nothing of them."""
    published = _a_published_ledger()
    hardware = Hardware(devices=[Part(GPU, 0, "GPU-0", memory_mib=1024)])
    by_agent = replace(published, status=replace(published.status, hardware=hardware))
    said = [[each.what for each in nodes.judge_shares([a_node()], [ledger])] for ledger in (published, by_agent)]
    assert ["limits of shares" in " ".join(each) for each in said] == [False, True]
