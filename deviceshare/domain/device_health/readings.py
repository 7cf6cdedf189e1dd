"""A reading of a node's devices: what their driver shows at one moment, and what the kernel does of the processes."""

from collections.abc import Mapping

from msgspec import Struct, field

from deviceshare.domain.device_health.containers import ProcessUse
from deviceshare.domain.objects.hardware import Link, Part


class Inventory(Struct, frozen=True):
    """The devices that answer, without marks of their health."""

    driver: str
    """The driver's version."""
    devices: list[Part]
    links: list[Link]
    silent: Mapping[int, str]
    """Why the device with this index doesn't answer; only an earlier inventory can identify it."""


class DeviceUse(Struct, frozen=True):
    """The use of one device. None stands for what its driver doesn't report."""

    index: int
    uuid: str
    memory_used_mib: int | None = None
    """Without what the driver reserves, where it reports that separately."""
    memory_total_mib: int | None = None
    utilization: int | None = None
    """Percent of the driver's last sample period in which a kernel ran; GPUs split by MIG have none."""
    processes: list[ProcessUse] = field(default_factory=list)
    """Each once, by PID."""


class Xid(Struct, frozen=True):
    """An error that the driver reported, perhaps one of several for one fault."""

    uuid: str
    """Empty where the driver doesn't name the device."""
    number: int
    text: str


class Reading(Struct, frozen=True):
    inventory: Inventory | None = None
    """None while the driver doesn't answer: `trouble` then says why."""
    uses: list[DeviceUse] = field(default_factory=list)
    xids: list[Xid] = field(default_factory=list)
    """Since the last reading."""
    boot_id: str = ""
    trouble: str = ""
    cdi_kinds: list[str] | None = None
    """As `Hardware.cdi_kinds`; of interest only where there are devices, and so is `runtime`."""
    runtime: str = ""
    read_at: float | None = None
    """When the reading of `uses` began, in seconds of the monotonic clock; None for now."""

    @property
    def devices(self) -> list[Part]:
        return self.inventory.devices if self.inventory else []
