"""ResourceSlice: the devices that a DRA driver offers, in pools; only the fields that are read.

One Struct for v1beta1 (Kubernetes 1.32), v1beta2 (1.33) and v1 (1.34): they differ in that v1beta1 wraps a device's
fields in `basic`.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/
"""

from msgspec import Struct, field

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.nodes import NodeTerms, Taint
from deviceshare.domain.objects.object_decoder import NamedObject
from deviceshare.domain.objects.quantities import Quantity

# ResourceClaim: which devices DRA has allocated; only the fields that are read, equal in v1beta1, v1beta2 and v1.
#
# https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-claim-v1/


class AllocatedDevice(Struct, frozen=True, gc=False, rename="camel"):
    """One result. Several claims may have shares of one device (`shareID`, `consumedCapacity`): each of them holds it.

    With `admin_access` it holds nothing: such claims are for monitoring, and get devices that others have.
    """

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class DeviceAllocation(Struct, frozen=True, gc=False):
    results: list[AllocatedDevice] = field(default_factory=list)


class AllocationResult(Struct, frozen=True, gc=False, rename="camel"):
    """`node_selector`: where the devices can be used; for a node's own devices it names the node."""

    devices: DeviceAllocation = DeviceAllocation()
    node_selector: NodeTerms | None = None


class ClaimConsumer(Struct, frozen=True, gc=False, rename="camel"):
    """Whom an allocated claim is reserved for."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""


class ResourceClaimStatus(Struct, frozen=True, gc=False, rename="camel"):
    """A claim that isn't allocated, or not any more, holds nothing."""

    allocation: AllocationResult | None = None
    reserved_for: list[ClaimConsumer] = field(default_factory=list)


class ResourceClaim(NamedObject, frozen=True, gc=False):
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def holds(self) -> list[AllocatedDevice]:
        """What it holds of the known vendors' devices."""
        allocation = self.status.allocation
        results = allocation.devices.results if allocation else ()
        return [each for each in results if not each.admin_access and vendors.dra_vendor(each.driver)]

    @property
    def hidden(self) -> bool:
        """Whether what it holds can't be read."""
        return self.metadata.hides("status")

    @property
    def nodes(self) -> set[str]:
        """The nodes that the allocation names; empty where it names none."""
        allocation = self.status.allocation
        terms = allocation.node_selector.node_selector_terms if allocation and allocation.node_selector else ()
        return {name for term in terms or () for each in term.match_fields or () for name in each.node_names}


def worth_holding(claim: ResourceClaim) -> bool:
    """Whether the claim holds devices of a known vendor, or may, or is to be a hold of ours."""
    return bool(claim.holds) or claim.hidden or contract.HOLD in claim.metadata.labels


class DraAttribute(Struct, frozen=True, gc=False):
    """One value; the fields for other types are not read."""

    string: str = ""
    version: str = ""


class DraAttributes(Struct, frozen=True, gc=False, rename="camel"):
    """The attributes that are read, of up to 32 for each device: a name without a domain is of the driver's."""

    type: DraAttribute = DraAttribute()
    uuid: DraAttribute = DraAttribute()
    parent_uuid: DraAttribute = field(default=DraAttribute(), name="parentUUID")
    product_name: DraAttribute = DraAttribute()
    driver_version: DraAttribute = DraAttribute()
    pci: DraAttribute = field(default=DraAttribute(), name="resource.kubernetes.io/pciBusID")


class DraCapacity(Struct, frozen=True, gc=False):
    value: Quantity = None


class DraCapacities(Struct, frozen=True, gc=False):
    """The capacities that are read."""

    memory: DraCapacity = DraCapacity()


class CounterConsumption(Struct, frozen=True, gc=False, rename="camel"):
    """Devices that consume the same counters are parts of one (KEP-4815)."""

    counter_set: str = ""


class BasicDevice(Struct, frozen=True, gc=False, rename="camel"):
    """A device's fields."""

    attributes: DraAttributes = DraAttributes()
    capacity: DraCapacities = DraCapacities()
    taints: list[Taint] = field(default_factory=list)
    """Of a taint an effect that is unknown counts as None, as the API says."""
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


class ResourceSlice(NamedObject, frozen=True, gc=False):
    spec: ResourceSliceSpec = ResourceSliceSpec()

    @property
    def pool(self) -> tuple[str, str]:
        """The driver and the pool's name, which together name the pool."""
        return self.spec.driver, self.spec.pool.name


def of_known_driver(published: ResourceSlice) -> bool:
    """Whether the slice is of a known vendor's driver."""
    return vendors.dra_vendor(published.spec.driver) is not None
