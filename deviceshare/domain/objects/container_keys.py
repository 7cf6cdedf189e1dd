"""The annotations by which the Binding gives each container of a pod its own devices, and how large its part is.

The name of a container is the end of the annotation's; names that are too long for that end in their digest.
"""

import hashlib
from typing import Final

from deviceshare.domain import contract
from deviceshare.domain.vendors import Vendor

MEMORY_LIMIT: Final = "memory-limit-mib"
"""MiB of device memory that the container may use, over all its devices."""
PERCENT: Final = "percent"
"""The same in hundredths of a device: 150 is one and a half."""
MEMORY_FRACTION: Final = "memory-fraction"
"""The same as a fraction of each of its devices; of several the least."""
HEAP_FRACTION: Final = "heap-fraction"
"""That fraction without a reserve for what a framework's memory pool doesn't count, such as the CUDA context."""
PYTORCH: Final = "pytorch-alloc-conf"
"""The same as PyTorch's allocator takes it."""
DEVICE_INDEX: Final = "device-index"
"""The numbers of its devices."""
DEVICE_GIB: Final = "device-gib"
"""The memory of one of its devices in GiB, rounded down, as gpushare counts."""

LIMITS: Final = (MEMORY_LIMIT, PERCENT, MEMORY_FRACTION, HEAP_FRACTION, PYTORCH, DEVICE_INDEX, DEVICE_GIB)

LONGEST: Final = 40
"""Characters of a container's name: an annotation has 63 behind its domain.

https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/#syntax-and-character-set
"""


def container_annotation(kind: str, container: str) -> str:
    """The annotation of this kind for one container."""
    end = container
    if len(container) > LONGEST:
        end = f"{container[:31]}.{hashlib.sha256(container.encode()).hexdigest()[:8]}"
    return f"{contract.PREFIX}{kind}.{end}"


def devices_of_container(vendor: Vendor, container: str) -> str:
    """The annotation with the container's devices of one vendor."""
    return container_annotation(f"{vendor.name}-devices", container)


def field_path(annotation: str) -> str:
    """The annotation, as a variable refers to it by the downward API."""
    return f"metadata.annotations['{annotation}']"
