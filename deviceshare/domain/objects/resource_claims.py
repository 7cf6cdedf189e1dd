"""ResourceClaim: which devices DRA has allocated; only the fields that are read, equal in v1beta1, v1beta2 and v1.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-claim-v1/
"""

from typing import Final

from msgspec import Struct, field

from deviceshare.domain import vendors
from deviceshare.domain.objects.object_meta import ObjectMeta

_NODE_NAME: Final = "metadata.name"


class AllocatedDevice(Struct, frozen=True, gc=False, rename="camel"):
    """One result. Several claims may have shares of one device (`shareID`, `consumedCapacity`): each of them holds it.

    With `admin_access` it holds nothing: such claims are for monitoring, and get devices that others have.
    """

    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class FieldRequirement(Struct, frozen=True, gc=False):
    """https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/node-selector-requirement/"""

    key: str = ""
    operator: str = ""
    values: list[str] = field(default_factory=list)


class SelectorTerm(Struct, frozen=True, gc=False, rename="camel"):
    match_fields: list[FieldRequirement] = field(default_factory=list)


class AllocationSelector(Struct, frozen=True, gc=False, rename="camel"):
    node_selector_terms: list[SelectorTerm] = field(default_factory=list)


class DeviceAllocation(Struct, frozen=True, gc=False):
    results: list[AllocatedDevice] = field(default_factory=list)


class AllocationResult(Struct, frozen=True, gc=False, rename="camel"):
    """`node_selector`: where the devices can be used; for a node's own devices it names the node."""

    devices: DeviceAllocation = DeviceAllocation()
    node_selector: AllocationSelector | None = None


class ResourceClaimStatus(Struct, frozen=True, gc=False):
    """A claim that isn't allocated, or not any more, holds nothing."""

    allocation: AllocationResult | None = None


class ResourceClaim(Struct, frozen=True, gc=False):
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
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
        fields = (each for term in terms for each in term.match_fields)
        return {name for each in fields if (each.key, each.operator) == (_NODE_NAME, "In") for name in each.values}


def worth_holding(claim: ResourceClaim) -> bool:
    """Whether the claim holds devices of a known vendor, or may."""
    return bool(claim.holds) or claim.hidden
