"""Which words a node's runtime takes: by what its agent reports, its label and the cluster's setting."""

import pytest
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.answers.ledger_status import devices_patch
from deviceshare.domain.objects.devices import Device, Devices, visible, with_uuids
from deviceshare.domain.objects.hardware import NO_HARDWARE, Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerStatus, NodeDevices
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.placement import handover
from deviceshare.domain.placement.handover import Handover, HandoverSetting, decide
from deviceshare.domain.placement.inventory import Offer
from tests.unit.domain.objects import AMD, GPU, a_ledger, gpus

PLUGINS = "k8s.device-plugin.nvidia.com/gpu"
HOSTS = "nvidia.com/gpu"
NAMED: Devices = (Device(GPU, 0, "GPU-a"), Device(GPU, 1, "GPU-b"))


def seen(*, runtime: str = "", kinds: list[str] | None = None, uuid: bool = True) -> Hardware:
    """What an agent reports of two GPUs."""
    parts = [Part(GPU, number, f"GPU-{number}" if uuid else "") for number in range(2)]
    return Hardware(devices=parts, runtime=runtime, cdi_kinds=kinds)


def decided(hardware: Hardware, style: str = "auto", *, kind: str = "", label: str = "") -> Handover:
    labels = {contract.HANDOVER_LABEL: label} if label else {}
    return decide(vendors.NVIDIA, labels, hardware, HandoverSetting(style, kind))


@pytest.mark.parametrize(
    ("hardware", "style", "words"),
    [
        (NO_HARDWARE, "auto", ""),
        (seen(uuid=False), "auto", ""),
        (NO_HARDWARE, "index", "index"),
        (seen(), "auto", "uuid"),
        (seen(), "index", "index"),
        (seen(), "uuid", "uuid"),
        (seen(), "cdi", PLUGINS),
        (seen(runtime="variable", kinds=[PLUGINS]), "auto", "uuid"),
        (seen(runtime="cdi", kinds=[HOSTS, PLUGINS]), "auto", PLUGINS),
        (seen(runtime="cdi", kinds=[HOSTS]), "auto", HOSTS),
        (seen(runtime="cdi"), "auto", PLUGINS),
        (seen(runtime="cdi", kinds=[PLUGINS]), "uuid", "uuid"),
    ],
)
def test_the_setting_decides_and_auto_follows_the_agent(hardware: Hardware, style: str, words: str) -> None:
    """With CDI the plugin's kind is preferred: NVIDIA documents it."""
    assert decided(hardware, style) == Handover(words)


def test_a_nodes_label_wins() -> None:
    """One cluster may have both worlds."""
    assert decided(seen(kinds=[PLUGINS]), "uuid", label="cdi").words == PLUGINS
    assert decided(seen(kinds=[PLUGINS]), "cdi", label="index").words == "index"
    assert "is none of auto, index, uuid and cdi" in decided(seen(), label="CDI").obstacle


@pytest.mark.parametrize(
    ("hardware", "style", "kind", "cure"),
    [
        (NO_HARDWARE, "uuid", "", "agent.enabled=true"),
        (NO_HARDWARE, "cdi", "", "agent.enabled=true"),
        (seen(uuid=False), "cdi", "", "agent.enabled=true"),
        (seen(runtime="cdi", kinds=[]), "auto", "", "nvidia-ctk cdi generate"),
        (seen(kinds=[HOSTS]), "cdi", PLUGINS, f"names all its devices by UUID as {PLUGINS}:"),
    ],
)
def test_what_cant_be_handed_over_has_a_cure(hardware: Hardware, style: str, kind: str, cure: str) -> None:
    """A container that starts without its devices helps nobody."""
    assert cure in decided(hardware, style, kind=kind).obstacle


@pytest.mark.parametrize(
    ("labels", "cure"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "gke-no-default-nvidia-gpu-device-plugin=true"),
        ({"eks.amazonaws.com/compute-type": "auto"}, "managed node group"),
    ],
)
def test_a_managed_node_that_reads_no_variable_is_offered_to_nobody(labels: dict[str, str], cure: str) -> None:
    """Unless GKE leaves its GPUs to others, or a label of ours says that it works."""
    found = decide(vendors.NVIDIA, labels, NO_HARDWARE, handover.DEFAULT)
    assert found.words == handover.NONE and cure in found.obstacle
    ours = labels | {contract.HANDOVER_LABEL: "index"}
    assert decide(vendors.NVIDIA, ours, NO_HARDWARE, handover.DEFAULT).words == "index"
    left = {"gke-no-default-nvidia-gpu-device-plugin": "true", "eks.amazonaws.com/compute-type": "ec2"}
    assert decide(vendors.NVIDIA, labels | left, NO_HARDWARE, handover.DEFAULT) == Handover("")
    assert decide(vendors.AMD, labels, NO_HARDWARE, handover.DEFAULT) == Handover("")


def test_a_kind_that_also_names_numbers_needs_no_agent() -> None:
    """Those of NVIDIA's nvidia-cdi-refresh."""
    assert decided(NO_HARDWARE, "cdi", kind=HOSTS) == Handover(HOSTS)


def test_a_vendor_without_cdi_keeps_its_variable() -> None:
    """What is set for NVIDIA's nodes must not stop AMD's."""
    for style in handover.STYLES:
        assert decide(vendors.AMD, {}, NO_HARDWARE, HandoverSetting(style)) == Handover("")


@pytest.mark.parametrize("vendor", [vendors.AMD, vendors.ASCEND])
def test_a_node_that_is_labelled_for_cdi_offers_nothing_of_a_vendor_without_it(vendor: vendors.Vendor) -> None:
    """Its runtime takes no CDI names from a pod; the label speaks of this node, the setting of most."""
    labels = {contract.HANDOVER_LABEL: "cdi"}
    decision = decide(vendor, labels, NO_HARDWARE, handover.DEFAULT)
    assert decision.words == "none"
    assert decision.obstacle == (
        f"{vendor.env} takes no CDI names, and the node's label deviceshare.io/handover=cdi asks for them: "
        "kubectl label node NODE deviceshare.io/handover-"
    )
    assert decide(vendor, {contract.HANDOVER_LABEL: "index"}, NO_HARDWARE, handover.DEFAULT) == Handover("")


def test_amds_devices_are_named_by_uuid_once_an_agent_reports_them_and_by_number_where_the_label_says_so() -> None:
    """AMD's container toolkit takes unique IDs from 1.2 on."""
    hardware = Hardware(devices=[Part(AMD, 0, "0x8f1e")])
    for style in handover.STYLES:
        assert decide(vendors.AMD, {}, hardware, HandoverSetting(style)) == Handover("uuid")
    assert decide(vendors.AMD, {contract.HANDOVER_LABEL: "index"}, hardware, handover.DEFAULT) == Handover("index")
    assert visible((Device(AMD, 0, "0x8f1e"),), {}) == {vendors.AMD.annotation: "0x8f1e"}


def test_what_cant_be_handed_over_is_withheld_from_groups() -> None:
    """Each vendor by itself, and only those that the node has."""
    have = Offer((*NAMED, Device(AMD, 0)))
    offer, words = handover.apply(have, {}, seen(runtime="cdi", kinds=[]), handover.DEFAULT)
    assert offer.devices == (Device(AMD, 0),)
    [withheld] = offer.withheld
    assert (withheld.resource, tuple(withheld.devices)) == (GPU, NAMED)
    assert withheld.reason.startswith("no CDI specification on the node")
    assert words == {"nvidia": "none"}
    assert handover.apply(have, {}, seen(), handover.DEFAULT) == (have, {"nvidia": "uuid"})


def test_cdi_names_stand_in_the_variable_and_the_annotation_alike() -> None:
    """Sorted, without blanks; and what was written can be read back."""
    told = visible(reversed(NAMED), {"nvidia": PLUGINS})
    names = f"{PLUGINS}=GPU-a,{PLUGINS}=GPU-b"
    assert told == {vendors.NVIDIA.annotation: names, "nvidia.cdi.k8s.io/pod": names}
    assert with_uuids(gpus(0, 1), told) == NAMED


def test_no_device_no_annotation() -> None:
    """NVIDIA's plugin refuses an empty one, and the container doesn't start."""
    assert visible([Device(AMD, 0)], {"nvidia": PLUGINS, "amd": "index"}) == {vendors.AMD.annotation: "0"}


def test_where_numbers_are_told_claims_name_numbers() -> None:
    """After a reboot containers open what has the number then, so that is what must be claimed."""
    assert handover.as_claimed(NAMED, {"nvidia": "index"}) == gpus(0, 1)
    assert handover.as_claimed(NAMED, {"nvidia": "uuid"}) == NAMED
    assert handover.as_claimed(NAMED, {}) == NAMED


def test_numbers_mean_nothing_to_a_kind_that_names_uuids() -> None:
    """Such a claim is from before the agent came."""

    def fault(devices: Devices, words: str) -> Reason | None:
        ledger = NodeDevices(status=LedgerStatus(handover={"nvidia": words}))
        return handover.handover_fault(ledger, Claim("team", list(devices)))

    found = fault(gpus(0, 1), PLUGINS)
    assert found and str(found).startswith(f"{GPU} 0 was claimed before its UUID was known")
    assert fault(gpus(0, 1), HOSTS) is None
    assert fault(NAMED, PLUGINS) is None
    assert fault(gpus(0), "uuid") is None


def test_a_ledger_forgets_what_no_longer_holds() -> None:
    """A vendor whose devices are gone must not keep its words; and who doesn't know them leaves them as they are."""
    seen = a_ledger()
    before = replace(seen, status=replace(seen.status, handover={"nvidia": PLUGINS, "amd": "index"}))
    assert devices_patch(before, gpus(0), LedgerStatus(handover={"nvidia": "none"}))["status"]["handover"] == {
        "nvidia": "none",
        "amd": None,
    }
    assert devices_patch(before, gpus(0), before.status)["status"]["handover"] == {"nvidia": PLUGINS, "amd": "index"}
