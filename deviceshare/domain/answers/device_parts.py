"""Parts of devices for people and programs: how much of each device is allocated, and which pod has how much of it.

A group, like a pod of the device plugin, has whole devices, so that these count as allocated as a whole, be it that
pods have parts of the group's devices among themselves.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct, field

from deviceshare.domain.objects.hardware import Overuse
from deviceshare.domain.objects.shares import MIB_PER_GIB, WHOLE, Share, in_gib
from deviceshare.domain.placement.device_states import ALLOCATED, DeviceState, Use
from deviceshare.domain.placement.rooms import capacity, mib, used
from deviceshare.domain.wording import listed

SHOWN_PODS = 2


class PodPart(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one pod has of a device."""

    pod: str
    """`namespace/name`."""
    memory_mib: int = 0
    """0 where the memory of the device is unknown."""
    percent: float = 0.0
    """Of the device, rounded down to a hundredth of a percent."""
    asked: str = ""
    """In the words in which it was asked for: `8 GiB`, `30%`."""
    containers: dict[str, str] = field(default_factory=dict)
    """What each container asked for. Init containers count as Kubernetes counts them, so the sum may be more."""
    within: str = ""
    """The group whose device it is, or ""."""
    former: bool = False
    """Whether a rebind replaced it; the pod may use it until it ends."""
    limits: str = ""
    """Whether it is `enforced`, so that the pod's programs can't exceed it, `intercepted` in them, or `counted`."""

    def __str__(self) -> str:
        """`team-a/web 8 GiB`, `team-a/web 8 GiB (former)`."""
        return f"{self.pod} {self.asked}{' (former)' * self.former}"


class ContainerPart(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What one container has, or would get, of a device."""

    container: str
    resource: str
    index: int
    asked: str
    """As it asked for it: `8 GiB`, `30%`."""
    memory_mib: int = 0
    percent: int = 0

    @classmethod
    def of(cls, share: Share) -> "ContainerPart":
        """The share for people and programs."""
        return cls(share.container, share.resource, share.index, str(share), share.memory_mib, share.percent)

    def __str__(self) -> str:
        """`8 GiB`, `30%`."""
        return self.asked


def allocated(state: DeviceState) -> tuple[int, float]:
    """How much of the device is allocated: MiB, and percent, as of a PodPart."""
    full, size = capacity(state.memory_mib), state.memory_mib
    if state.use in ALLOCATED and state.use is not Use.SHARED:
        return _amount(full, size)
    return _amount(min(sum(used(each.shares, size) for each in state.sharers), full), size)


def _amount(units: int, size: int) -> tuple[int, float]:
    return mib(units, size), units * WHOLE * WHOLE // capacity(size) / WHOLE


def parts(state: DeviceState, limits: Callable[[str], str] = lambda _: "") -> list[PodPart]:
    """What pods have of the device, by name; `limits` as NodeDevices.limits_of, where that is to be shown."""
    found = []
    for sharer in state.sharers:
        shares = sharer.shares
        memory_mib, percent = _amount(used(shares, state.memory_mib), state.memory_mib)
        asked = f"{int(percent)}%"
        if len(shares) == 1:
            asked = str(shares[0])
        elif state.memory_mib and all(share.memory_mib for share in shares):
            asked = in_gib(memory_mib)
        names = sorted({share.container for share in shares})
        of_each = {name: listed(str(share) for share in shares if share.container == name) for name in names}
        part = PodPart(
            pod=sharer.claim.pod,
            memory_mib=memory_mib,
            percent=percent,
            asked=asked,
            containers=of_each if len(names) > 1 else {names[0]: asked},
            within=state.claim.group if state.claim and sharer.claim.within else "",
            former=all(share.former for share in shares),
            limits=limits(sharer.uid),
        )
        found.append(part)
    return found


def parts_text(shares: Iterable[Share | ContainerPart]) -> str:
    """Parts in a sentence: `8 GiB of nvidia.com/gpu 0 and 2 x 30% of nvidia.com/gpu 1`."""
    texts = Counter(f"{share} of {share.resource} {share.index}" for share in shares)
    return listed(f"{count} x {text}" if count > 1 else text for text, count in texts.items())


def sharing(states: Iterable[DeviceState]) -> list[str]:
    """The pods with shares of these devices, by name."""
    return sorted({each.claim.pod for state in states for each in state.sharers})


def named(pods: list[str]) -> str:
    """`pod a/x`, `pods a/x and a/y`, `pods a/x, a/y and 10 more`."""
    return f"pod{'s' * (len(pods) > 1)} {listed(pods, most=SHOWN_PODS)}"


def overuse_text(row: Overuse) -> str:
    """`container main uses 20000 MiB of nvidia.com/gpu 0, its share is 8192 MiB`."""
    who = f"container {row.container}" if row.container else "as a whole it"
    return f"{who} uses {row.used_mib} MiB of {row.resource} {row.index}, its share is {row.limit_mib} MiB"


def gib(memory_mib: int) -> str:
    """`8`, `7.5`."""
    return f"{memory_mib / MIB_PER_GIB:.1f}".removesuffix(".0")
