"""ResourceSlice: the devices that a DRA driver offers, in pools; only the fields that are read.

One Struct for v1beta1 (Kubernetes 1.32), v1beta2 (1.33) and v1 (1.34): they differ in that v1beta1 wraps a device's
fields in `basic`.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/
"""

from typing import Final

from msgspec import Struct, field

from deviceshare.domain import vendors
from deviceshare.domain.objects.object_meta import ObjectMeta
from deviceshare.domain.objects.quantities import Quantity


class DraAttribute(Struct, frozen=True, gc=False):
    """One value; the fields for other types are not read."""

    string: str = ""
    version: str = ""


_NO_ATTRIBUTE: Final = DraAttribute()


class DraAttributes(Struct, frozen=True, gc=False, rename="camel"):
    """Those that are read, of up to 32 for each device: a name without a domain is of the driver's."""

    type: DraAttribute = _NO_ATTRIBUTE
    uuid: DraAttribute = _NO_ATTRIBUTE
    parent_uuid: DraAttribute = field(default=_NO_ATTRIBUTE, name="parentUUID")
    product_name: DraAttribute = _NO_ATTRIBUTE
    driver_version: DraAttribute = _NO_ATTRIBUTE
    pci: DraAttribute = field(default=_NO_ATTRIBUTE, name="resource.kubernetes.io/pciBusID")


class DraCapacity(Struct, frozen=True, gc=False):
    value: Quantity = None


class DraCapacities(Struct, frozen=True, gc=False):
    """Those that are read."""

    memory: DraCapacity = DraCapacity()


class DraTaint(Struct, frozen=True, gc=False):
    """`effect`: None, NoSchedule or NoExecute; what is unknown counts as None, as the API says."""

    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def keeps_away(self) -> bool:
        """Whether claims that don't tolerate it don't get the device."""
        return self.effect in ("NoSchedule", "NoExecute")

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class CounterConsumption(Struct, frozen=True, gc=False, rename="camel"):
    """Devices that consume the same counters are parts of one (KEP-4815)."""

    counter_set: str = ""


class BasicDevice(Struct, frozen=True, gc=False, rename="camel"):
    """A device's fields."""

    attributes: DraAttributes = DraAttributes()
    capacity: DraCapacities = DraCapacities()
    taints: list[DraTaint] = field(default_factory=list)
    consumes_counters: list[CounterConsumption] = field(default_factory=list)


class SliceDevice(BasicDevice, frozen=True, rename="camel"):
    """One device of a pool, whose name is unique in the pool."""

    name: str = ""
    basic: BasicDevice | None = None

    @property
    def fields(self) -> BasicDevice:
        """Wherever the version has them."""
        return self.basic or self


class ResourcePool(Struct, frozen=True, gc=False, rename="camel"):
    """Only slices of the highest generation count, and only where `resource_slice_count` of them are there."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Struct, frozen=True, gc=False, rename="camel"):
    """Without `node_name` the devices aren't one node's, or each device says whose it is."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    devices: list[SliceDevice] = field(default_factory=list)


class ResourceSlice(Struct, frozen=True, gc=False):
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: ResourceSliceSpec = ResourceSliceSpec()

    @property
    def pool(self) -> tuple[str, str]:
        """The driver and the pool's name, which together name the pool."""
        return self.spec.driver, self.spec.pool.name


def of_known_driver(published: ResourceSlice) -> bool:
    """Whether the slice is of a known vendor's driver."""
    return vendors.dra_vendor(published.spec.driver) is not None
