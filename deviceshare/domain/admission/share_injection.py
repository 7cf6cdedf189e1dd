"""The variables of a container that asks for a share: its own devices, how much of them, and what programs read.

Everything refers to annotations that the Binding writes for this container; as long as there are none, the variables
are empty, which all their readers take as unset. What containers ask for is in their limits and needs no Binding.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from deviceshare.domain import vendors
from deviceshare.domain.admission.drafts import Draft, DraftContainer, DraftSpec
from deviceshare.domain.admission.variables import Reference, Setting, late
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.quantities import is_some
from deviceshare.domain.objects.shares import (
    ALIYUN_GPU_MEM,
    DIALECTS,
    GPU_PERCENT,
    INIT,
    METAGPU,
    MIB_PER_GIB,
    Need,
    ShareRequest,
)

MEMORY_LIMIT: Final = "DEVICESHARE_MEMORY_LIMIT_MIB"
PERCENT: Final = "DEVICESHARE_PERCENT"
MEMORY_FRACTION: Final = "DEVICESHARE_MEMORY_FRACTION"

JAX_FRACTION: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
JAX_NEW_FRACTION: Final = "XLA_CLIENT_MEM_FRACTION"
"""With both names set, JAX's client refuses to start (jaxlib, `xla_client.py`); older releases read the other one only.
"""
PYTORCH: Final = "PYTORCH_ALLOC_CONF"
PYTORCH_OTHERS: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Earlier names of the same, which win. Under them PyTorch before 2.10 fails on the fraction; under the new name it
ignores it."""
GROWTH: Final = Setting("TF_FORCE_GPU_ALLOW_GROWTH", "true")

_SEVERAL: Final = "aliyun.com/gpu-count"
"""As a pod's label: on how many devices its memory is wanted, in equal parts."""
_CORES: Final = "aliyun.com/gpu-core.percentage"


class ShareOf(NamedTuple):
    """The share of one container."""

    container: str
    resource: str
    """The limit by which it asks."""
    request: ShareRequest
    """The whole pod's."""
    has_env_from: bool

    def references(self, *, framework_limits: bool) -> Iterator[Reference]:
        """What the Binding says of it, by the names under which programs look for it."""
        for vendor in vendors.vendors_of(self.request.of):
            annotation = shares.devices_of_container(vendor, self.container)
            yield Reference(vendor.env, shares.field_path(annotation))
        yield late(MEMORY_LIMIT, shares.MEMORY_LIMIT, self.container, owned=True)
        yield late(PERCENT, shares.PERCENT, self.container, owned=True)
        yield late(MEMORY_FRACTION, shares.MEMORY_FRACTION, self.container, owned=True)
        if self.resource == ALIYUN_GPU_MEM:
            yield late("ALIYUN_COM_GPU_MEM_IDX", shares.DEVICE_INDEX, self.container)
            yield late("ALIYUN_COM_GPU_MEM_DEV", shares.DEVICE_GIB, self.container)
        if self.resource == METAGPU:
            yield late("METAGPU_MAX_MEM", shares.MEMORY_LIMIT, self.container)
        if framework_limits:
            # What a ConfigMap or a Secret sets isn't known here, and the fraction's other name would be fatal.
            jax = late(JAX_FRACTION, shares.HEAP_FRACTION, self.container, gives_way_to=(JAX_NEW_FRACTION,))
            yield jax._replace(withheld=self.has_env_from)
            yield late(PYTORCH, shares.PYTORCH, self.container, gives_way_to=PYTORCH_OTHERS)

    def settings(self, *, framework_limits: bool) -> Iterator[Setting]:
        """What is known before its devices are."""
        if self.resource == ALIYUN_GPU_MEM:
            own = sum(need.memory_mib for need in self.request.container(self.container))
            yield Setting("ALIYUN_COM_GPU_MEM_POD", str(_together(self.request.needs) // MIB_PER_GIB))
            yield Setting("ALIYUN_COM_GPU_MEM_CONTAINER", str(own // MIB_PER_GIB))
        if framework_limits:
            yield GROWTH


def unknown_to_us(pod: Draft) -> Iterator[str]:
    """Warnings of what else a manifest written for gpushare may ask for, which isn't served."""
    if pod.metadata.labels and _SEVERAL in pod.metadata.labels:
        yield (
            f"metadata.labels[{_SEVERAL}] has no meaning to deviceshare: a container's share is of one device; ask for"
            f" several whole ones by {GPU_PERCENT}, or in several containers"
        )
    for field, containers in pod.spec.lists():
        for position, container in enumerate(containers or ()):
            if is_some(container.limits.get(_CORES)):
                yield (
                    f"spec.{field}[{position}].resources.limits[{_CORES}]: computing time isn't divided, and no node"
                    " has this resource, so the pod will not be scheduled: leave it out"
                )


def shares_of(spec: DraftSpec, request: ShareRequest) -> dict[str, ShareOf]:
    """The share of each container that asks for one, by the container's name."""
    return {
        each.name: ShareOf(each.name, resource, request, bool(each.env_from))
        for containers in (spec.init_containers, spec.containers)
        for each in containers or ()
        if (resource := _asked(each))
    }


def _asked(container: DraftContainer) -> str:
    return next((name for name, quantity in container.limits.items() if name in DIALECTS and is_some(quantity)), "")


def _together(needs: tuple[Need, ...]) -> int:
    """MiB of the pod as a whole, as Kubernetes counts init containers: the larger, not the sum."""
    inits = [need.memory_mib for need in needs if need.role == INIT]
    return max(sum(need.memory_mib for need in needs if need.role != INIT), *inits, 0)
