"""The table of vendors: one more row, and what generators write, is all that a new vendor needs."""

import json
from collections.abc import Callable, Iterator

import msgspec
import pytest

from charts import generate as charts
from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.bypasses import bypasses
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import inject
from deviceshare.domain.admission.pod_review import review_ephemeral_containers, review_new_pod
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.contract import SCHEDULER_NAME
from deviceshare.domain.objects.devices import Device, devices_of, visible
from deviceshare.domain.objects.groups import spec_faults
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import inventory, shared_resources
from deviceshare.domain.placement.join_obstacles import Namespaces, pod_obstacle
from deviceshare.domain.placement.shared_resources import memory_mib
from deviceshare.domain.vendors import Vendor, vendor_of
from deviceshare.domain.wording import listed
from deviceshare.web import ui
from docs import generate as docs
from tests.unit.domain.objects import a_fleet, a_group, a_node, a_pod

EVEN = Vendor(
    name="even",
    label="Even NPU",
    resource="even.example/npu",
    env="EVEN_VISIBLE_DEVICES",
    runtime="Even's runtime",
    cdi_annotation="even.cdi.example/pod",
    plugin_prefixes=("even.example/half",),
    device_list="/run/even-devices",
    node_paths=("/run/even",),
)
OLDER = msgspec.structs.replace(a_pod(), spec=msgspec.structs.replace(a_pod().spec, scheduler_name=SCHEDULER_NAME))
"""Injected before EVEN's row was there."""


@pytest.fixture
def add_row(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Vendor], None]]:
    """Adds a row, as another release would have it: what was answered by the shorter table is forgotten."""

    def add(row: Vendor) -> None:
        monkeypatch.setattr(vendors, "VENDORS", (*vendors.VENDORS, row))
        vendor_of.cache_clear()

    yield add
    vendor_of.cache_clear()


@pytest.fixture
def _fourth(add_row: Callable[[Vendor], None]) -> None:
    add_row(EVEN)


fourth = pytest.mark.usefixtures("_fourth")


def of_even(**spec: object) -> Draft:
    """A pod whose author knows nothing of deviceshare but the group."""
    metadata = {"annotations": {"deviceshare.io/group": "team"}}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [{"name": "main"}], **spec}}, Draft)


@fourth
def test_its_variable_is_injected_and_filled() -> None:
    """The variable refers to the annotation that the Binding writes."""
    [env] = [each["value"] for each in inject(of_even(), None).patch if each["path"].endswith("/env")]
    [variable] = [each for each in env if each["name"] == EVEN.env]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.annotations['{EVEN.annotation}']"
    assert visible([Device(EVEN.resource, 1)], {}) == {EVEN.annotation: "1"}


@fourth
def test_groups_and_nodes_may_name_its_resource_and_texts_do() -> None:
    """In the fault of a group that has a typo, and in that of an annotation."""
    assert spec_faults(a_group(resources={EVEN.resource: 2}).spec) == []
    [fault] = spec_faults(a_group(resources={"even.example/tpu": 2}).spec)
    assert fault.endswith(f"known are {listed(row.resource for row in vendors.VENDORS)}")
    assert EVEN.resource in shared_resources.read_annotated("x=1").faults[0]


@fourth
def test_a_node_without_an_agent_offers_what_is_allocatable() -> None:
    """No code counts the devices of a vendor whose plugin neither shares nor splits them."""
    offer = inventory.take(a_node("n1", {EVEN.resource: 2}), Hardware())
    assert offer.devices == devices_of({EVEN.resource: 2})


def test_how_its_devices_are_counted_and_measured_is_in_its_row_too(add_row: Callable[[Vendor], None]) -> None:
    """By labels under its own resource's name: two NPUs of 32 GiB, on each of which three pods take turns."""
    add_row(msgspec.structs.replace(EVEN, counting=vendors.Counting.FEATURE_DISCOVERY))
    labels = {
        f"{EVEN.resource}.{key}": value for key, value in (("count", "2"), ("replicas", "3"), ("memory", "32768"))
    }
    node = a_node("n1", {EVEN.resource: 6})
    node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))
    assert inventory.take(node, Hardware()).devices == devices_of({EVEN.resource: 2})
    assert memory_mib(node) == {EVEN.resource: 32768}


@fourth
def test_what_goes_around_its_hand_over_is_seen() -> None:
    """Parts that the plugin allocates, the runtime's other way to ask, the node's paths, and the annotation."""
    container = {
        "name": "main",
        "resources": {"limits": {"even.example/half-2": 1}},
        "volumeMounts": [{"mountPath": "/run/even-devices/0"}],
    }
    found = bypasses(of_even(containers=[container], volumes=[{"hostPath": {"path": "/run/even/x"}}]))
    assert any("is a list of devices to Even's runtime" in each for each in found)
    assert any("'/run/even/x'" in each for each in found)
    assert any("even.example/half-2" in each for each in found)
    assert vendors.is_cdi_annotation("even.cdi.example/container.main")
    assert vendors.plugin_vendor_of("even.example/half-2") is EVEN


@fourth
def test_the_descriptions_and_the_documentation_are_stale_until_they_are_generated() -> None:
    """The CRD's description of spec.resources, in its three files, the page of devices and both first pages."""
    outdated = {file.name: text for file, text in charts.stale()}
    assert EVEN.resource in outdated["deviceshare.io_shareddevicegroups.yaml"]
    page = docs.REFERENCE / "devices.md"
    assert list(docs.stale()) == [page, *docs.READMES]
    row = "| Even NPU | `even.example/npu` | `EVEN_VISIBLE_DEVICES` |"
    assert row in docs.generated()[page]


@fourth
def test_the_page_is_told_what_people_call_it() -> None:
    """Of a pattern's resources each has its own label; unknown ones keep their name."""
    groups = [a_group("a", resources={EVEN.resource: 1}), a_group("b", resources={"huawei.com/Ascend910": 1})]
    state = json.loads(ui.encode(ui.Replica("r", "1", leading=True, faults={}), draw(a_fleet(a_node()), groups, ())))
    assert state["labels"] == {"even.example/npu": "Even NPU", "huawei.com/Ascend910": "Huawei Ascend910"}
    assert vendors.label_of("x.example/y") == "y"


@fourth
def test_a_pod_that_is_older_than_the_row_still_joins_groups_of_other_vendors() -> None:
    """It is bound, and may be created again; only a group of the new vendor's devices can't have it."""
    group, newer = a_group(), a_group(resources={EVEN.resource: 1})
    assert pod_obstacle(OLDER, group, Namespaces()) is None
    assert review_new_pod(OLDER, group) == ""
    assert f"did not inject the env {EVEN.env}" in str(pod_obstacle(OLDER, newer, Namespaces()))
    assert f"did not inject the env {EVEN.env}" in review_new_pod(OLDER, newer)
    assert f"did not inject the env {EVEN.env}" in review_new_pod(OLDER, None)


@fourth
def test_an_ephemeral_container_needs_the_variables_of_its_group_only() -> None:
    """An older replica's mutating webhook may have injected it, and a newer one's validates it."""
    older = [vendor for vendor in vendors.VENDORS if vendor is not EVEN]
    env = [{"name": v.env, "valueFrom": {"fieldRef": {"fieldPath": v.field_path}}} for v in older]
    draft = of_even(ephemeralContainers=[{"name": "debug", "env": env}])
    assert review_ephemeral_containers(draft, (), a_group()) == ""
    assert EVEN.env in review_ephemeral_containers(draft, (), None)
    assert EVEN.env in review_ephemeral_containers(draft, (), a_group(resources={EVEN.resource: 1}))
    overridden = of_even(
        ephemeralContainers=[{"name": "debug", "env": [*env, {"name": env[0]["name"], "value": "all"}]}]
    )
    assert "NVIDIA_VISIBLE_DEVICES" in review_ephemeral_containers(overridden, (), a_group())


def test_a_group_that_is_another_or_unreadable_narrows_no_check() -> None:
    """The devices of a pod's own group, recreated under its name since or unreadable, need their variables, too."""
    env = [{"name": v.env, "valueFrom": {"fieldRef": {"fieldPath": v.field_path}}} for v in (vendors.AMD,)]
    containers = [{"name": "debug", "env": env}]
    asks_amd = a_group(resources={"amd.com/gpu": 1})
    hidden = msgspec.structs.replace(asks_amd.metadata, unreadable={"spec.resources": "Expected object"})
    unreadable = msgspec.structs.replace(asks_amd, metadata=hidden)

    def bound_by(uid: str) -> Draft:
        annotations = {contract.GROUP: asks_amd.name, contract.GROUP_UID: uid}
        body = {"metadata": {"annotations": annotations}, "spec": {"ephemeralContainers": containers}}
        return msgspec.convert(body, Draft)

    assert review_ephemeral_containers(bound_by(asks_amd.uid), (), asks_amd) == ""
    assert vendors.NVIDIA.env in review_ephemeral_containers(bound_by("an earlier group's"), (), asks_amd)
    assert vendors.NVIDIA.env in review_ephemeral_containers(bound_by(asks_amd.uid), (), unreadable)


def test_no_two_vendors_share_a_name_a_variable_or_a_resource() -> None:
    """One would be told the other's devices."""
    rows = vendors.VENDORS
    assert len({row.env for row in rows}) == len({row.name for row in rows}) == len(rows)
    assert all(vendor_of(row.resource.replace(vendors.ANY, "910")) is row for row in rows)


def test_a_pod_without_containers_or_label_is_not_injected() -> None:
    """An object that can't be read has neither."""
    assert Pod().lacking(()) == ["the label deviceshare.io/group"]
    assert "the env NVIDIA_VISIBLE_DEVICES" in Pod().lacking(vendors.VENDORS)
