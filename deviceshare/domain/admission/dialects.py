"""What pods ask for in the words of other systems, written in deviceshare's own at admission.

HAMi's limits and KAI's annotations can't stay: `nvidia.com/gpu` would have the kubelet allocate whole devices, and
neither scheduler nor kubelet reads the annotations. gpushare's and MetaGPU's limits stay as they are (shares.DIALECTS);
of gpushare's a label is translated. What a system has and deviceshare doesn't is removed with a warning, or refused.

HAMi: https://project-hami.io/docs/userguide/nvidia-device/specify-device-memory-usage
KAI: https://github.com/kai-scheduler/KAI-Scheduler/tree/main/docs/gpu-sharing
ACK: https://www.alibabacloud.com/help/en/ack/ack-managed-and-ack-dedicated/user-guide/use-multi-gpu-sharing
"""

from collections.abc import Collection
from fractions import Fraction
from typing import Any, Final

from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.bypasses import REFUSE
from deviceshare.domain.admission.drafts import CORES, SEVERAL, Draft, DraftResources, Json, Place, Systems
from deviceshare.domain.objects.quantities import amount
from deviceshare.domain.objects.share_wishes import STRATEGIES
from deviceshare.domain.objects.shares import ALIYUN_GPU_MEM, DEVICE_COUNT, GPU_MEM_MIB, GPU_PERCENT, GPUSHARE, WHOLE
from deviceshare.domain.wording import printable, quoted

HAMI, KAI = "hami", "kai"
OPT_IN: Final = (HAMI, KAI)
"""Served where a setting names them: these systems may run beside deviceshare, on other nodes."""

_HAMI_PARTS: Final = {"nvidia.com/gpumem": GPU_MEM_MIB, "nvidia.com/gpumem-percentage": GPU_PERCENT}
_LACKING: Final = {
    "nvidia.com/gpucores": "computing time isn't divided",
    "nvidia.com/priority": "containers have no priority on a device (turns have: docs/turns.md)",
    CORES: "computing time isn't divided",
}
"""Limits, and why they can't be kept."""
_HAMI_STRATEGY: Final = "hami.io/gpu-scheduler-policy"
_HAMI_CHOICE: Final = frozenset(
    f"nvidia.com/{each}" for each in ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid", "vgpu-mode")
)
_KAI_FRACTION, _KAI_MEMORY = "gpu-fraction", "gpu-memory"
_KAI_CONTAINER, _KAI_COUNT = "gpu-fraction-container-name", "gpu-fraction-num-devices"
_SCHEDULERS: Final = ("hami-scheduler", "kai-scheduler")

MARKERS: Final = {HAMI: tuple(_HAMI_PARTS)[:1], KAI: (_KAI_FRACTION, _KAI_MEMORY)}
"""By system, what is in every pod that asks in its words."""


def translated(pod: Draft, dialects: Systems, unsupported: str) -> tuple[Draft, list[Json], list[str], str]:
    """The pod in deviceshare's words, the patch (RFC 6902) that makes the author's one so, its warnings, and its fault.

    Unchanged where it asks in none of the words of the systems that are served.
    """
    work = _Work(pod)
    if GPUSHARE in dialects:
        work.gpushare()
    if HAMI in dialects:
        work.hami()
    fault = work.kai() if KAI in dialects else ""
    fault = fault or ("; ".join(work.lacking) if unsupported == REFUSE else "")
    return work.pod, work.patch, [*work.warnings, *work.lacking], fault


class _Work:
    def __init__(self, pod: Draft) -> None:
        self.pod = pod
        self.patch: list[Json] = []
        self.warnings: list[str] = []
        self.lacking: list[str] = []
        """What it asks for that deviceshare doesn't have."""

    def gpushare(self) -> None:
        """ACK's label divides the memory of each container that asks for some; gpushare itself has only one device."""
        number, places = (self.pod.metadata.labels or {}).get(SEVERAL), self.pod.spec.places()
        if not any(place.asks_for(ALIYUN_GPU_MEM) for place in places):
            return
        for place in places:
            divides = (
                number is not None and place.asks_for(ALIYUN_GPU_MEM) and DEVICE_COUNT not in place.container.limits
            )
            self._change(place, {DEVICE_COUNT: number} if divides else {}, self._unsupported(place, (CORES,)))

    def hami(self) -> None:
        """`nvidia.com/gpu: N` beside a part is a number of devices; alone it is the device plugin's."""
        places = self.pod.spec.places()
        if not any(place.asks_for(name) for place in places for name in _HAMI_PARTS):
            return
        for place in places:
            gone = self._unsupported(place, _LACKING)
            ours = {_HAMI_PARTS[name]: place.container.limits[name] for name in _HAMI_PARTS if place.asks_for(name)}
            if ours and place.asks_for(vendors.NVIDIA.resource):
                ours[DEVICE_COUNT] = place.container.limits[vendors.NVIDIA.resource]
            self._change(place, ours, [*_HAMI_PARTS, vendors.NVIDIA.resource, *gone] if ours else gone)
        annotations = self.pod.metadata.annotations or {}
        for name in sorted(annotations.keys() & _HAMI_CHOICE):
            self._lacks(f"metadata.annotations[{name}]", "it chooses no device here; choose nodes by spec.nodeSelector")
        strategy = annotations.get(_HAMI_STRATEGY, "")
        if strategy in STRATEGIES and contract.STRATEGY not in annotations:
            annotations, key = {**annotations, contract.STRATEGY: strategy}, contract.STRATEGY.replace("/", "~1")
            self.patch.append({"op": "add", "path": f"/metadata/annotations/{key}", "value": strategy})
            self.pod = replace(self.pod, metadata=replace(self.pod.metadata, annotations=annotations))
        elif strategy not in ("", *STRATEGIES):
            self._lacks(f"metadata.annotations[{_HAMI_STRATEGY}]", f"{quoted(strategy)} is no strategy")
        self._leave_scheduler()

    def kai(self) -> str:
        """Returns what is wrong. The annotations are about one container, the first where they don't name one."""
        annotations = self.pod.metadata.annotations or {}
        found = [name for name in (_KAI_FRACTION, _KAI_MEMORY) if annotations.get(name)]
        if not found:
            return ""
        name, places = annotations.get(_KAI_CONTAINER, ""), self.pod.spec.places()
        place = next((each for each in places if not name or each.container.name == name), None)
        if place is None:
            return f"metadata.annotations[{_KAI_CONTAINER}]: {quoted(name)} is no container of the pod"
        if len(found) > 1:
            return f"metadata.annotations[{_KAI_MEMORY}] and {_KAI_FRACTION} are both there; keep one of them"
        value = annotations[found[0]]
        if (size := amount(value)) is None or size <= 0 or (found[0] == _KAI_FRACTION and size > 1):
            what = "a part of a device, such as 0.5" if found[0] == _KAI_FRACTION else "MiB of device memory"
            return f"metadata.annotations[{found[0]}]: {quoted(value)} isn't {what}"
        ours = {GPU_MEM_MIB: value} if found[0] == _KAI_MEMORY else {GPU_PERCENT: self._percent(value, size)}
        if count := annotations.get(_KAI_COUNT):
            ours[DEVICE_COUNT] = count
        # Admission may see the pod twice, and people copy pods.
        if any(place.container.limits.get(limit) != quantity for limit, quantity in ours.items()):
            self._change(place, ours)
        self._leave_scheduler()
        return ""

    def _percent(self, text: str, size: Fraction) -> str:
        percent = max(int(size * WHOLE), 1)
        if size * WHOLE != percent:
            counts = f"{printable(text)} counts as {percent} hundredths of a device, the smallest parts that there are"
            self.warnings.append(f"metadata.annotations[{_KAI_FRACTION}]: {counts}")
        return str(percent)

    def _unsupported(self, place: Place, names: Collection[str]) -> list[str]:
        """Those of these limits that the container has."""
        found = list(filter(place.asks_for, names))
        for name in found:
            self._lacks(f"{place}.resources.limits[{name}]", _LACKING[name])
        return found

    def _lacks(self, where: str, why: str) -> None:
        self.lacking.append(f"{where} is not supported: {why}")

    def _change(self, place: Place, ours: Json, gone: Collection[str] = ()) -> None:
        """The container with these limits, and without those."""
        resources, path = place.container.resources, f"/spec/{place.field}/{place.position}/resources"
        if not ours and place.container.limits.keys().isdisjoint(gone):
            return
        # The API server fills in the requests of such resources by their limits, and did so before it asked us.
        limits, requests = (
            {name: quantity for name, quantity in (each or {}).items() if name not in gone} | ours
            for each in (place.container.limits, resources and resources.requests)
        )
        if resources is None:
            self.patch.append({"op": "add", "path": path, "value": {"limits": limits, "requests": requests}})
        else:
            self.patch.append({"op": "add", "path": f"{path}/limits", "value": limits})
            self.patch.append({"op": "add", "path": f"{path}/requests", "value": requests})
        field = "containers" if place.field == "containers" else "init_containers"
        containers = list(getattr(self.pod.spec, field))
        containers[place.position] = replace(place.container, resources=DraftResources(limits, requests))
        spec: Any = {field: containers}
        self.pod = replace(self.pod, spec=replace(self.pod.spec, **spec))

    def _leave_scheduler(self) -> None:
        """The other system's would look for devices that no node has; from the default one `pod_injection` takes it."""
        if self.pod.spec.scheduler_name in _SCHEDULERS:
            default = contract.DEFAULT_SCHEDULER_NAME
            self.patch.append({"op": "add", "path": "/spec/schedulerName", "value": default})
            self.pod = replace(self.pod, spec=replace(self.pod.spec, scheduler_name=default))
