"""What ResourceSlices and ResourceClaims say of a node, whoever writes them."""

import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.objects.hardware import NOTHING_PUBLISHED, Part, Publication
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice
from tests.unit.domain.dra_objects import (
    DRIVER,
    Json,
    a_claim,
    a_slice,
    a_view,
    card,
    claim_json,
    gpu_json,
    mig_json,
    slice_json,
    vfio_json,
)
from tests.unit.domain.objects import GPU

FOUR = tuple(gpu_json(number) for number in range(4))


def reasons(published: Publication) -> str:
    """Why devices are withheld, in one line."""
    return "; ".join(map(str, published.withheld))


def held(published: Publication) -> dict[int, str]:
    """Which claims hold which devices."""
    return {hold.index: hold.claim for hold in published.claims}


def test_a_complete_pool_names_its_gpus() -> None:
    """With all that an agent would have told; bytes become MiB."""
    found = a_view(a_slice("n1", *FOUR)).publication("n1")
    first = Part(GPU, 0, card(0), "NVIDIA H100", 81920, "0000:00:00.0")
    assert (found.driver, found.devices[0], len(found.devices)) == ("570.86.15", first, 4)
    assert (found.claims, found.withheld) == ([], [])
    assert a_view(a_slice("n1", *FOUR)).publication("n2") == NOTHING_PUBLISHED


def test_the_first_beta_says_the_same() -> None:
    """It wraps what a device is in `basic`."""
    wrapped = [{"name": each["name"], "basic": {k: v for k, v in each.items() if k != "name"}} for each in FOUR]
    assert a_view(a_slice("n1", *wrapped)).publication("n1") == a_view(a_slice("n1", *FOUR)).publication("n1")


@pytest.mark.parametrize(
    "driver", ["gpu.example.com", "gpu.nvidia.com.evil", "GPU.nvidia.com", "compute-domain.nvidia.com", ""]
)
def test_drivers_of_other_names_count_for_nothing(driver: str) -> None:
    """However their devices are called."""
    view = a_view(a_slice("n1", *FOUR, driver=driver), a_claim("a/b", "gpu-0", driver=driver))
    assert view.publication("n1") == NOTHING_PUBLISHED


def test_an_incomplete_pool_is_not_trusted() -> None:
    """Its driver is updating it, or has died meanwhile; devices stay known by name."""
    first = a_slice("n1", *FOUR[:2], name="a", resourceSliceCount=2)
    found = a_view(first, a_claim("ns/train", "gpu-1")).publication("n1")
    assert "incomplete: 1 of 2 ResourceSlices" in reasons(found)
    assert found.withheld[0].devices == []
    assert held(found) == {1: "ns/train"}
    second = a_slice("n1", *FOUR[2:], name="b", resourceSliceCount=2)
    assert a_view(first, second).publication("n1").withheld == []


def test_slices_of_earlier_generations_are_left_over() -> None:
    """Of the newest all are needed."""
    old = a_slice("n1", *FOUR, name="a", generation=4)
    new = a_slice("n1", *FOUR[:2], name="b", generation=5)
    found = a_view(old, new).publication("n1")
    assert ([part.index for part in found.devices], found.withheld) == ([0, 1], [])
    half = a_slice("n1", *FOUR[:2], name="b", generation=5, resourceSliceCount=2)
    assert "incomplete" in reasons(a_view(old, half).publication("n1"))


def test_a_pool_of_several_nodes_is_not_trusted() -> None:
    """Whose device is whose can't be said."""
    mine = a_slice("n1", *FOUR[:2], name="a", resourceSliceCount=2)
    theirs = a_slice("n2", *FOUR[2:], name="b", resourceSliceCount=2)
    spec = msgspec.structs.replace(theirs.spec, pool=mine.spec.pool)
    view = a_view(mine, msgspec.structs.replace(theirs, spec=spec))
    for node in ("n1", "n2"):
        assert "isn't of this node alone" in reasons(view.publication(node))


def test_devices_that_claims_hold_are_theirs() -> None:
    """Whole or in part; who has shares of one is counted. Administrative access holds nothing."""
    view = a_view(
        a_slice("n1", *FOUR),
        a_claim("ns/train", "gpu-0", "gpu-1"),
        a_claim("ns/half", "gpu-2", shareID="1", consumedCapacity={"memory": "1Gi"}),
        a_claim("ns/other-half", "gpu-2", shareID="2"),
        a_claim("ns/monitor", "gpu-3", adminAccess=True),
        a_claim("ns/waits"),
    )
    assert held(view.publication("n1")) == {0: "ns/train", 1: "ns/train", 2: "ns/half and ns/other-half"}


def test_a_deallocated_claim_frees_its_devices() -> None:
    """Its nodes are named, so that their ledgers are written."""
    before, after = a_claim("ns/train", "gpu-0"), a_claim("ns/train")
    view = a_view(a_slice("n1", *FOUR), before)
    assert view.change_claim(before, after) == {"n1"}
    assert view.publication("n1").claims == []
    again = a_view(a_slice("n1", *FOUR), before)
    assert again.change_claim(before, None) == {"n1"}
    assert again.publication("n1").claims == []


def test_a_gpu_that_is_split_is_nobodys() -> None:
    """Beforehand: it isn't published itself, or is by older drivers. The parts are others'."""
    for whole in ((), (FOUR[0],)):
        found = a_view(a_slice("n1", *whole, mig_json(0), mig_json(0, 1), FOUR[1])).publication("n1")
        assert [(part.index, part.uuid, part.mig) for part in found.devices] == [
            (0, card(0), True),
            (1, card(1), False),
        ]
        assert found.withheld == []


def test_a_gpu_that_may_be_split_is_whole_until_a_part_is_held() -> None:
    """The parts share its counters."""
    counters = {"consumesCounters": [{"counterSet": "gpu-0-counter-set"}]}
    slices = a_slice("n1", gpu_json(0) | counters, mig_json(0, counters=True), mig_json(0, 1, counters=True))
    assert [part.mig for part in a_view(slices).publication("n1").devices] == [False]
    found = a_view(slices, a_claim("ns/part", "gpu-0-mig-1g10gb-19-1")).publication("n1")
    assert held(found) == {0: "ns/part"}


def test_a_gpu_of_a_virtual_machine_is_found_by_its_address() -> None:
    """Where its driver still publishes it as a GPU, too."""
    claim = a_claim("ns/vm", "gpu-vfio-7")
    assert held(a_view(a_slice("n1", *FOUR, vfio_json(7, 2)), claim).publication("n1")) == {2: "ns/vm"}
    found = a_view(a_slice("n1", *FOUR, vfio_json(7, 9)), claim).publication("n1")
    assert (found.claims, found.withheld) == ([], [])


def test_a_tainted_gpu_is_withheld_with_its_taint() -> None:
    """Unless the taint is only for information; unknown effects are that, by the API's word."""
    xid = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
    told = [{"key": "gpu.nvidia.com/unmonitored", "effect": "None"}, {"key": "x/y", "effect": "Perhaps"}]
    found = a_view(a_slice("n1", gpu_json(0, taints=xid), gpu_json(1, taints=told))).publication("n1")
    assert [device.index for each in found.withheld for device in each.devices] == [0]
    assert "gpu.nvidia.com/xid=79:NoSchedule" in reasons(found)


def test_many_tainted_gpus_are_one_entry() -> None:
    """A ledger has room for some dozens, and whoever may write slices may taint any number."""
    taints = [{"key": "a/b", "effect": "NoExecute"}]
    many = [gpu_json(number, uuid=f"GPU-{number}", taints=taints) for number in range(100)]
    (entry,) = a_view(a_slice("n1", *many)).publication("n1").withheld
    assert len(entry.devices) == 100
    assert "and 99 more are" in entry.reason


def test_a_claim_on_what_no_slice_names_holds_the_whole_node() -> None:
    """Its driver was uninstalled while pods use its devices, or the slices are behind."""
    gone = a_view(a_claim("ns/train", "gpu-0", pool="n1"))
    assert "ResourceClaim ns/train holds 'gpu-0' of the DRA driver gpu.nvidia.com" in reasons(gone.publication("n1"))
    assert gone.publication("n2") == NOTHING_PUBLISHED
    elsewhere = a_view(a_claim("ns/train", "gpu-0", pool="rack-1", node="n3"))
    assert reasons(elsewhere.publication("n3"))
    behind = a_view(a_slice("n1", *FOUR), a_claim("ns/train", "gpu-9")).publication("n1")
    assert behind.withheld[0].devices == []


def test_a_known_driver_that_is_not_understood_withholds_what_it_allocates() -> None:
    """AMD's: which of our devices a claim holds can't be said."""
    amd = {"driver": "gpu.amd.com"}
    slices = a_slice("n1", {"name": "gpu-0-128"}, **amd)
    assert a_view(slices).publication("n1") == Publication()
    found = a_view(slices, a_claim("ns/train", "gpu-0-128", **amd)).publication("n1")
    assert [(each.resource, each.devices) for each in found.withheld] == [("amd.com/gpu", [])]


@pytest.mark.parametrize(
    "device",
    [
        {"name": "gpu-0"},
        gpu_json(0, uuid="0"),
        gpu_json(0, uuid="GPU-\x1b[31mred"),
        {**gpu_json(0), "name": "gpu-00"},
        {**gpu_json(0), "name": "gpu-9999"},
        {**gpu_json(0), "name": "nvidia.com/gpu"},
        {**gpu_json(1), "name": "gpu-1"},
        gpu_json(9, uuid=card(1)),
    ],
)
def test_what_is_not_understood_makes_the_pool_untrusted(device: Json) -> None:
    """No UUID, a number that isn't one, a number or a UUID twice."""
    found = a_view(a_slice("n1", gpu_json(1), device)).publication("n1")
    assert [each.devices for each in found.withheld] == [[]]
    assert reasons(found).isprintable()


@pytest.mark.parametrize(("memory", "mib"), [("80Gi", 81920), ("1", 0), ("-1", 0), ("9e99", 0), ("x", 0), ("16E", 0)])
def test_a_size_that_can_not_be_is_unknown(memory: str, mib: int) -> None:
    """Pods that ask for memory then don't go there."""
    assert [
        part.memory_mib for part in a_view(a_slice("n1", gpu_json(0, memory=memory))).publication("n1").devices
    ] == [mib]


def test_names_are_shown_escaped_and_cut() -> None:
    """A product's name is whatever was written."""
    named = gpu_json(0)
    named["attributes"]["productName"]["string"] = "\x1b[31m" + "x" * 500
    (part,) = a_view(a_slice("n1", named)).publication("n1").devices
    assert part.model.isprintable()
    assert len(part.model) < 100


@pytest.mark.parametrize("driver", [DRIVER, "gpu.amd.com"])
def test_slices_without_any_claims_may_be_held_whole(driver: str) -> None:
    """On nodes that a driver publishes; elsewhere there is nothing that claims could hold."""
    view = a_view(a_slice("n1", *FOUR, driver=driver))
    (found,) = view.publication("n1", claims_known=False).withheld
    assert (found.reason, found.devices) == ("ResourceClaims can't be read, and may hold any of its devices", [])
    assert view.publication("n1").withheld == []
    assert view.publication("n2", claims_known=False) == NOTHING_PUBLISHED


def test_claims_that_can_not_be_read_may_hold_anything() -> None:
    """On nodes that a driver publishes."""
    body = claim_json("ns/odd", "gpu-0")
    body["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = "perhaps"
    odd = decoder_of(ResourceClaim).salvage(msgspec.json.encode(body))
    view = a_view(a_slice("n1", *FOUR), odd)
    assert "ResourceClaim ns/odd can't be read" in reasons(view.publication("n1"))
    assert view.change_claim(odd, None) == {"n1"}
    assert view.publication("n1").withheld == []


def test_a_slice_that_can_not_be_read_makes_its_pool_untrusted() -> None:
    """Nothing is concluded from the rest of it."""
    body = slice_json("n1", *FOUR)
    body["spec"]["devices"][2]["taints"] = "many"
    odd = decoder_of(ResourceSlice).salvage(msgspec.json.encode(body))
    assert "can't be read" in reasons(a_view(odd).publication("n1"))


NAMES = st.sampled_from(["gpu-0", "gpu-1", "gpu-2", "gpu-0-mig-1g10gb-19-0", "gpu-vfio-0", "gpu-x", "n1", "\x1b[0m"])
POOLS = st.sampled_from(["n1", "n2", "other"])
DRIVERS = st.sampled_from([DRIVER, "gpu.amd.com", "gpu.example.com"])
CLAIMS = st.builds(
    lambda key, devices, pool, driver, admin: a_claim(
        f"ns/{key}", *devices, pool=pool, driver=driver, **({"adminAccess": True} if admin else {})
    ),
    st.sampled_from(string.ascii_lowercase[:4]),
    st.lists(NAMES, max_size=3),
    POOLS,
    DRIVERS,
    st.booleans(),
)


def _a_slice(name: str, node: str, pool: Json, devices: list[Json]) -> ResourceSlice:
    body = slice_json(node, *devices, name=name)
    body["spec"]["pool"] = pool
    return decoder_of(ResourceSlice).salvage(msgspec.json.encode(body))


DEVICES: st.SearchStrategy[Json] = st.one_of(
    st.builds(gpu_json, st.integers(0, 3), taints=st.just([])),
    st.builds(mig_json, st.integers(0, 3), st.integers(0, 2), counters=st.booleans()),
    st.builds(vfio_json, st.integers(0, 1), st.integers(0, 3)),
    st.builds(lambda name: {"name": name}, NAMES),
)
SLICES = st.builds(
    _a_slice,
    st.sampled_from(["s", "t", "u"]),
    st.sampled_from(["n1", "n2"]),
    st.fixed_dictionaries({"name": POOLS, "generation": st.integers(1, 2), "resourceSliceCount": st.integers(1, 2)}),
    st.lists(DEVICES, max_size=4),
)


@given(st.lists(SLICES | CLAIMS, max_size=12), st.data())
def test_however_it_came_about_the_view_is_what_is_there_now(objects: list[Any], data: st.DataObject) -> None:
    """Additions, replacements and deletions in any order; each node whose publication changed was named."""
    view = a_view()
    there: dict[tuple[type, str], Any] = {}
    for each in objects:
        key = type(each), each.metadata.key
        new = None if data.draw(st.booleans()) and key in there else each
        old = there.pop(key, None)
        # The pool of a slice, its driver and its node never change: another one is another object.
        steps = [(old, new)]
        if (
            old
            and new
            and isinstance(old, ResourceSlice)
            and (old.pool, old.spec.node_name) != (new.pool, new.spec.node_name)
        ):
            steps = [(old, None), (None, new)]
        before = {node: view.publication(node) for node in ("n1", "n2", "other")}
        change = view.change_slice if key[0] is ResourceSlice else view.change_claim
        concerned = {node for step in steps for node in change(*step)}
        changed = {node for node, was in before.items() if view.publication(node) != was}
        assert changed <= concerned
        if new:
            there[key] = new
    fresh = a_view(*there.values())
    for node in ("n1", "n2", "other"):
        assert view.publication(node) == fresh.publication(node)


@given(st.lists(SLICES, max_size=4), st.lists(CLAIMS, max_size=4))
def test_nothing_that_a_claim_holds_is_ever_left_out(slices: list[ResourceSlice], claims: list[ResourceClaim]) -> None:
    """Either the device is known to be held, or nobody gets any of that vendor, or containers couldn't get it."""
    every: list[Any] = [*slices, *claims]
    objects = {(type(each), each.metadata.key): each for each in every}.values()
    view = a_view(*objects)
    for claim in (each for each in objects if isinstance(each, ResourceClaim)):
        for result in (each for each in claim.holds if each.driver == DRIVER and each.device in ("gpu-0", "gpu-1")):
            nodes = {
                each.spec.node_name
                for each in objects
                if isinstance(each, ResourceSlice) and each.pool == (DRIVER, result.pool)
            }
            for node in nodes or claim.nodes:
                found = view.publication(node)
                number = int(result.device[-1])
                assert number in held(found) or any(not each.devices for each in found.withheld), found
