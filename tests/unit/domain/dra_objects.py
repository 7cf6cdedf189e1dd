"""ResourceSlices and ResourceClaims in one line each, as NVIDIA's driver and kube-scheduler write them."""

from typing import Any

import msgspec

from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice
from deviceshare.domain.placement.resource_pools import DraView

DRIVER = "gpu.nvidia.com"
Json = dict[str, Any]


def card(number: int) -> str:
    """The UUID of the GPU with this number."""
    return f"GPU-0000000{number}-aaaa"


def gpu_json(number: int, uuid: str = "", memory: str = "85899345920", **more: Any) -> Json:
    """A whole GPU."""
    texts = {"type": "gpu", "uuid": uuid or card(number), "productName": "NVIDIA H100", "brand": "Nvidia"}
    attributes = {key: {"string": text} for key, text in texts.items()}
    attributes["driverVersion"] = {"version": "570.86.15"}
    attributes["resource.kubernetes.io/pciBusID"] = {"string": f"0000:{number:02x}:00.0"}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": memory}}} | more


def mig_json(number: int, placement: int = 0, *, counters: bool = False) -> Json:
    """A part of a GPU; with `counters` one that is only possible."""
    attributes = {"type": {"string": "mig"}, "parentUUID": {"string": card(number)}, "profile": {"string": "1g.10gb"}}
    consumes = {"consumesCounters": [{"counterSet": f"gpu-{number}-counter-set"}]} if counters else {}
    return {"name": f"gpu-{number}-mig-1g10gb-19-{placement}", "attributes": attributes} | consumes


def vfio_json(index: int, pci: int) -> Json:
    """A GPU bound to vfio-pci."""
    attributes = {
        "type": {"string": "vfio"},
        "uuid": {"string": "made-up"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{pci:02x}:00.0"},
    }
    return {"name": f"gpu-vfio-{index}", "attributes": attributes}


def slice_json(node: str, *devices: Json, name: str = "", driver: str = DRIVER, **pool: int) -> Json:
    """A ResourceSlice; by default a whole pool with the node's name."""
    whole = {"name": node, "generation": 1, "resourceSliceCount": 1, **pool}
    spec = {"driver": driver, "nodeName": node, "pool": whole, "devices": list(devices)}
    return {"metadata": {"name": name or f"{node}-{driver}", "resourceVersion": "1"}, "spec": spec}


def a_slice(node: str, *devices: Json, **more: Any) -> ResourceSlice:
    return decoder_of(ResourceSlice).salvage(msgspec.json.encode(slice_json(node, *devices, **more)))


def claim_json(key: str, *devices: str, pool: str = "n1", driver: str = DRIVER, node: str = "", **more: Any) -> Json:
    """An allocated ResourceClaim; `more` is added to each result."""
    namespace, _, name = key.partition("/")
    results = [{"request": "r", "driver": driver, "pool": pool, "device": device, **more} for device in devices]
    requirement = {"key": "metadata.name", "operator": "In", "values": [node or pool]}
    selector = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
    status = {"allocation": {"devices": {"results": results}, "nodeSelector": selector}} if devices else {}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "resourceVersion": "1"}
    return {"metadata": meta, "status": status}


def a_claim(key: str, *devices: str, **more: Any) -> ResourceClaim:
    return decoder_of(ResourceClaim).salvage(msgspec.json.encode(claim_json(key, *devices, **more)))


def a_view(*objects: ResourceSlice | ResourceClaim) -> DraView:
    """What is known by these."""
    view = DraView()
    for each in objects:
        if isinstance(each, ResourceSlice):
            view.change_slice(None, each)
        else:
            view.change_claim(None, each)
    return view
