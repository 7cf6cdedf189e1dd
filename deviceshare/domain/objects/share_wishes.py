"""What a pod's annotations ask of its shares: that limits are enforced, a burst above them, and other sizes."""

import re
from collections.abc import Mapping
from typing import Final

from deviceshare.domain import contract
from deviceshare.domain.objects.printable import quoted
from deviceshare.domain.objects.shares import MIB_PER_GIB
from deviceshare.domain.wording import listed

REQUIRED: Final = "required"
PREFERRED: Final = "preferred"
ISOLATIONS: Final = (REQUIRED, PREFERRED)
"""Whether a share goes only where its limit is enforced, or also where it is only counted."""
_BURST: Final = "[1-9][0-9]{0,3}"
_SIZE: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?=[1-9][0-9]{0,6}(Mi|%)"
RESIZE_PATTERN: Final = f"{_SIZE}(,{_SIZE}){{0,15}}"
RESIZE_CURE: Final = "set it to CONTAINER=SIZE, several with commas, as in main=12288Mi or main=50%"


def fault(annotations: Mapping[str, str], has_share: bool) -> str:
    """What is wrong with those that are fixed at a pod's creation, and what would be right; or ""."""
    for key in (contract.ISOLATION, contract.BURST):
        if key in annotations and not has_share:
            return f"metadata.annotations[{key}] is for pods that ask for a share: leave it out"
    value = annotations.get(contract.ISOLATION, REQUIRED)
    if value not in ISOLATIONS:
        field = f"metadata.annotations[{contract.ISOLATION}]"
        return f"{field} is {quoted(value)}: set it to {listed(ISOLATIONS, link='or')}, or leave it out"
    burst = annotations.get(contract.BURST, "1")
    if not re.fullmatch(_BURST, burst):
        return f"metadata.annotations[{contract.BURST}] is {quoted(burst)}: give whole GiB, such as 16, or leave it out"
    return ""


def burst_mib(annotations: Mapping[str, str]) -> int:
    """MiB of each device that the pod's containers may use while nobody else wants them; 0 where it doesn't say."""
    value = annotations.get(contract.BURST, "")
    return int(value) * MIB_PER_GIB if re.fullmatch(_BURST, value) else 0


def resize_fault(value: str) -> str:
    """What is wrong with a request for other sizes, and what would be right; or ""."""
    return "" if re.fullmatch(RESIZE_PATTERN, value) else RESIZE_CURE


def sizes_wanted(annotations: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """By container, MiB and percent of each of its devices that it is to have, one of which is 0."""
    value, found = annotations.get(contract.RESIZE, ""), {}
    for each in value.split(",") if re.fullmatch(RESIZE_PATTERN, value) else ():
        container, _, size = each.partition("=")
        number = int(size.rstrip("Mi%"))
        found[container] = (0, number) if size.endswith("%") else (number, 0)
    return found
