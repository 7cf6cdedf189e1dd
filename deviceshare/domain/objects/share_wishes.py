"""What a pod's annotations ask of its shares: which devices, enforced limits, a burst above them, other sizes."""

import re
from collections.abc import Mapping
from typing import Final

from deviceshare.domain import contract
from deviceshare.domain.objects.shares import MIB_PER_GIB
from deviceshare.domain.wording import listed, quoted

STRATEGIES: Final = ("binpack", "spread")
"""Where a share is taken: from the device with the least room for it, or the most."""
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
    for key in (contract.STRATEGY, contract.ISOLATION, contract.BURST):
        if key in annotations and not has_share:
            instead = " and set the group's spec.schedulingStrategy" if key == contract.STRATEGY else ""
            return f"metadata.annotations[{key}] is for pods that ask for a share: leave it out{instead}"
    for key, words in ((contract.STRATEGY, STRATEGIES), (contract.ISOLATION, ISOLATIONS)):
        if (value := annotations.get(key, words[0])) not in words:
            cure = f"set it to {listed(words, link='or')}, or leave it out"
            return f"metadata.annotations[{key}] is {quoted(value)}: {cure}"
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
