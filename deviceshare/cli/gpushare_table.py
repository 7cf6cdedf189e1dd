"""The table that users of gpushare know from `kubectl inspect cgpu`, for eyes and scripts that expect it.

Written anew after its output: AliyunContainerService/gpushare-device-plugin, `cmd/inspect`. Columns are as wide as
their longest cell and two blanks. It counts GiB, a device's size rounded down; unlike there, cards of different sizes
on a node are each shown as they are. What a group or a pod of the device plugin has is allocated as a whole.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from deviceshare.cli.output import natural, say
from deviceshare.domain.answers.device_parts import gib
from deviceshare.domain.answers.picture import DeviceView, NodeView, Picture
from deviceshare.domain.objects.shares import DIALECTS, MIB_PER_GIB, WHOLE
from deviceshare.domain.wording import listed, printable

UNKNOWN: Final = "unknown"
SHOWN_NODES: Final = 5
_RESOURCES: Final = tuple(dict.fromkeys(resource for row in DIALECTS.values() for resource in row.devices))
_RULE: Final = 20
"""So many dashes more than the first node's cells have characters, each with its tab."""
_IN_CLUSTER: Final = "Allocated/Total GPU Memory In Cluster:"


class _Cards(NamedTuple):
    """A node's devices of which the memory is known, by number."""

    node: str
    address: str
    devices: dict[int, DeviceView]
    total: int
    allocated: int


def show_table(picture: Picture, *, details: bool) -> None:
    """Prints the table, and which nodes it leaves out on standard error."""
    for line in lines(picture, details=details):
        say(line)
    if others := left_out(picture):
        names = listed(others, most=SHOWN_NODES)
        say(f"Left out, since the memory of their devices is not known: {names}; see deviceshare inspect", err=True)


def lines(picture: Picture, *, details: bool) -> list[str]:
    """The table; `details` lists the pods of each node, too."""
    nodes = [_cards(view) for view in sorted(picture.nodes, key=lambda view: natural(view.name))]
    nodes = [node for node in nodes if node.total]
    columns = range(max((max(node.devices) + 1 for node in nodes), default=0))
    used, total = sum(node.allocated for node in nodes), sum(node.total for node in nodes)
    sums = f"{gib(used)}/{total} ({_percent(used, total)}%)"
    if details:
        body = [line for node in nodes for line in _details(node, columns)]
        return [*body, "", "", f"{_IN_CLUSTER}  {sums}  "]
    rows = []
    for node in nodes:
        cards = (node.devices.get(number) for number in columns)
        cells = (f"{gib(_taken(card))}/{_total(card)}" if card else "0/0" for card in cards)
        rows.append([node.node, node.address, *cells, f"{gib(node.allocated)}/{node.total}"])
    rule = "-" * (len("\t".join(rows[0])) + 1 + _RULE) if rows else "-" * _RULE
    heads = ["NAME", "IPADDRESS", *(f"GPU{n}(Allocated/Total)" for n in columns), "GPU Memory(GiB)"]
    return [*_aligned([heads, *rows]), rule, _IN_CLUSTER, f"{sums}  "]


def left_out(picture: Picture) -> list[str]:
    """The nodes with devices that the table can't show, since their memory is unknown."""
    return [view.name for view in picture.nodes if _of(view) and not _cards(view).total]


def _of(view: NodeView) -> list[DeviceView]:
    """The devices of the first resource that shares are taken from; the numbers of another would be the same."""
    present = [device for device in view.devices if not device.lost]
    found = ([device for device in present if device.resource == resource] for resource in _RESOURCES)
    return next(filter(None, found), [])


def _cards(view: NodeView) -> _Cards:
    devices = {device.index: device for device in _of(view) if device.memory_mib}
    total, allocated = (sum(map(amount, devices.values())) for amount in (_total, _taken))
    return _Cards(printable(view.name), printable(view.address) or UNKNOWN, devices, total, allocated)


def _details(node: _Cards, columns: Sequence[int]) -> list[str]:
    had: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for number, device in node.devices.items():
        for holder, memory in _holders(device):
            had[holder][number] += memory
    rows = [[*holder, *(gib(amounts[n]) for n in columns), ""] for holder, amounts in sorted(had.items())]
    heads = ["NAME", "NAMESPACE", *(f"GPU{n}(Allocated)" for n in columns), ""]
    sums = [
        ["Allocated :", f"{gib(node.allocated)} ({_percent(node.allocated, node.total)}%)", ""],
        ["Total :", str(node.total), ""],
    ]
    table = _aligned([heads, *rows, *sums])
    title = _aligned([["NAME:", node.node], ["IPADDRESS:", node.address]])
    return ["", *title, "", *table, "-" * max(map(len, table))]


def _holders(device: DeviceView) -> Iterator[tuple[tuple[str, str], int]]:
    """Who, by name and namespace, has how many MiB of it. A group is a line of its own: which of its pods use how much
    isn't counted."""
    if device.group:
        yield (printable(device.group), "(group)"), _taken(device)
        return
    pods = [(device.pod, _taken(device))] if device.pod else [(part.pod, part.memory_mib) for part in device.parts]
    for pod, memory in pods:
        namespace, _, name = printable(pod).partition("/")
        yield (name, namespace), memory


def _total(device: DeviceView) -> int:
    return device.memory_mib // MIB_PER_GIB


def _taken(device: DeviceView) -> int:
    """MiB, without the rest of less than one GiB, which isn't in the total either."""
    return min(device.allocated_mib, _total(device) * MIB_PER_GIB)


def _percent(used_mib: int, total_gib: int) -> int:
    return WHOLE * used_mib // (total_gib * MIB_PER_GIB) if total_gib else 0


def _aligned(rows: list[list[str]]) -> list[str]:
    """The rows with their cells below each other; the last cell of a row is as long as it is."""
    columns = zip_longest(*(row[:-1] for row in rows), fillvalue="")
    widths = [max(map(len, cells)) + 2 for cells in columns]
    return ["".join([*(cell.ljust(widths[n]) for n, cell in enumerate(row[:-1])), row[-1]]) for row in rows]
