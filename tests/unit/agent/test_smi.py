"""`/smi`: what a pod is shown of its node, and what it isn't."""

import json

import msgspec
import pytest

from deviceshare.agent import pods_api
from deviceshare.agent.pods_api import Callers, prefers_json, smi_endpoint
from deviceshare.domain.answers.pod_view import PodView
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage, Usage
from tests.unit.agent.asking import A, B, C, ask, runs, serving
from tests.unit.agent.node import NODE, NOW, TEAM, Node, part, uuid
from tests.unit.domain.objects import GPU

OTHER = "uid-of-other"


def use(index: int, *processes: DeviceProcess) -> DeviceUsage:
    return DeviceUsage(GPU, index, uuid(index), "H100", 30000, 81559, 93, list(processes))


def process(pid: int, pod: str, name: str = "python", memory: int = 1000) -> DeviceProcess:
    return DeviceProcess(pid, name, memory, pod, "main" if pod else "")


class Shown(Node):
    """Two groups on four GPUs: `team` of `member` (A) and `mate` (B) has 0 and 1, `other` of `stranger` (C) has 2."""

    def __init__(self) -> None:
        super().__init__()
        held = {
            TEAM: {"group": "team", "devices": [{"resource": GPU, "index": i, "uuid": uuid(i)} for i in (0, 1)]},
            OTHER: {"group": "other", "devices": [{"resource": GPU, "index": 2, "uuid": uuid(2)}]},
        }
        self.set_ledger(Hardware("550", "boot-1", [part(index) for index in range(4)]), held)
        self.add_pod("member", group_uid=TEAM, ips=[A])
        self.add_pod("mate", group_uid=TEAM, ips=[B])
        self.add_pod("stranger", group_uid=OTHER, ips=[C])
        self.usage = Usage(
            NODE,
            NOW,
            [
                use(0, process(11, "ns/member"), process(12, "ns/mate", "secret-of-mate", 500)),
                use(1, process(13, "ns/mate", "secret-of-mate", 0), process(14, "ns/mate", "second", 70)),
                use(2, process(15, "ns/stranger", "secret-of-stranger")),
                use(3, process(16, "", "secret-of-the-node")),
            ],
        )

    async def smi(self, source: str, accept: str = "*/*") -> str:
        async with serving([smi_endpoint(self.own, Callers(self.own, runs), lambda: self.usage)]) as server:
            status, text = await ask(server, "/smi", source=source, headers={"Accept": accept})
        assert status == 200, text
        return text

    async def view(self, source: str) -> PodView:
        return msgspec.json.decode(await self.smi(source, "application/json"), type=PodView)


async def test_a_pod_sees_its_own_devices_only() -> None:
    """As the ledger numbers them."""
    node = Shown()

    assert [(each.index, each.uuid) for each in (await node.view(A)).devices] == [(0, uuid(0)), (1, uuid(1))]
    assert [(each.index, each.uuid) for each in (await node.view(C)).devices] == [(2, uuid(2))]


async def test_of_its_own_processes_it_sees_everything() -> None:
    """Names, containers and memory."""
    first, second = (await Shown().view(A)).devices

    assert [(each.pid, each.name, each.container, each.memory_mib) for each in first.processes] == [
        (11, "python", "main", 1000)
    ]
    assert second.processes == []


async def test_of_group_mates_it_sees_names_and_memory() -> None:
    """Not what they run."""
    node = Shown()
    view = await node.view(A)

    assert view.mates == ["ns/mate"]
    assert [[(mate.pod, mate.memory_mib, mate.processes) for mate in each.mates] for each in view.devices] == [
        [("ns/mate", 500, 1)],
        [("ns/mate", 70, 2)],
    ]
    for accept in ("text/plain", "application/json"):
        assert "secret" not in await node.smi(A, accept)


@pytest.mark.parametrize("accept", ["text/plain", "application/json"])
async def test_nothing_of_others_is_in_an_answer(accept: str) -> None:
    """Neither their names, their devices nor their groups."""
    said = await Shown().smi(A, accept)

    for word in ("stranger", "other", "secret", uuid(2), uuid(3), "15", "16"):
        assert word not in said.replace(NODE, "").replace("81559", ""), word


async def test_a_pod_that_takes_anothers_name_sees_nothing_of_it() -> None:
    """The claim is found by the holder's UID, which only deviceshare writes."""
    node = Shown()
    node.add_pod("thief", ips=[C], group_uid=TEAM, annotations={"deviceshare.io/group": "team"}, labels={})
    node.add_pod("stranger", ips=[])

    async with serving([smi_endpoint(node.own, Callers(node.own, runs), lambda: node.usage)]) as server:
        assert (await ask(server, "/smi", source=C))[0] == 403


async def test_the_text_is_a_table() -> None:
    """With who shares the devices above it."""
    lines = (await Shown().smi(A)).splitlines()

    assert lines[0] == f"pod ns/member of group team on node n1, {NOW}"
    assert lines[1] == "shares its devices with pod ns/mate"
    assert [line.split() for line in lines[3:]] == [
        ["DEVICE", "UTIL", "MEMORY", "(MiB)", "MODEL", "/", "PROCESS", "PID", "UUID", "/", "CONTAINER", "OR", "POD"],
        ["0", "93%", "30000", "/", "81559", "H100", uuid(0)],
        ["1000", "python", "11", "main"],
        ["500", "1", "process", "pod", "ns/mate"],
        ["1", "93%", "30000", "/", "81559", "H100", uuid(1)],
        ["70", "2", "processes", "pod", "ns/mate"],
    ]


async def test_a_device_that_was_not_read_is_shown_without_figures() -> None:
    """Its model and memory are in the last report."""
    node = Shown()
    node.usage = Usage(NODE)

    device = (await node.view(C)).devices[0]
    assert (device.model, device.memory_used_mib, device.memory_total_mib, device.utilization) == (
        "H100",
        None,
        81559,
        None,
    )
    assert "- / 81559" in await node.smi(C)


@pytest.mark.parametrize("accept", ["text/plain", "application/json"])
async def test_no_text_controls_a_terminal(accept: str) -> None:
    """Programs name themselves."""
    node = Shown()
    node.usage = Usage(NODE, NOW, [use(2, process(15, "ns/stranger", "\x1b[2J\x7f\x9b31m\u202e\n\ud800fake"))])

    said = await node.smi(C, accept)

    assert all(sign.isprintable() or sign == "\n" for sign in said)
    assert "[2J" in said


class Parted(Shown):
    """Device 3 is shared: `sharer` (A) has a GiB in each of two containers, `neighbour` (B) 30 percent."""

    def __init__(self) -> None:
        super().__init__()
        self.pods.objects.clear()
        of = {"resource": GPU, "index": 3, "uuid": uuid(3)}
        self.shares = {
            "sharer": [{"container": name, **of, "memoryMib": 1024} for name in ("one", "two")],
            "neighbour": [{"container": "main", **of, "percent": 30}],
        }
        claims = {f"uid-of-{pod}": {"pod": f"ns/{pod}", "shares": shares} for pod, shares in self.shares.items()}
        self.set_ledger(Hardware("550", "boot-1", [part(index) for index in range(4)]), claims)
        self.add_pod("sharer", group_uid="uid-of-sharer", ips=[A])
        self.add_pod("neighbour", group_uid="uid-of-neighbour", ips=[B])
        mine = DeviceProcess(21, "mine", 700, "ns/sharer", "two")
        self.usage = Usage(NODE, NOW, [use(3, mine, process(22, "ns/neighbour", "secret-of-neighbour", 25000))])


async def test_a_pod_with_shares_sees_its_parts_and_nothing_of_others() -> None:
    """Not even in the device's own figures: they would tell how much others use."""
    node = Parted()
    [device] = (await node.view(A)).devices

    assert (device.index, device.memory_used_mib, device.memory_total_mib, device.utilization) == (3, 700, 2048, None)
    assert (device.part_mib, device.part_percent) == (2048, 2)
    assert [(each.container, each.memory_mib, each.percent, each.used_mib) for each in device.parts] == [
        ("one", 1024, 1, 0),
        ("two", 1024, 1, 700),
    ]
    assert [each.name for each in device.processes] == ["mine"]
    for accept in ("text/plain", "application/json"):
        said = await node.smi(A, accept)
        assert not [word for word in ("neighbour", "secret", "25000", "30000", "81559", "93%") if word in said]
    text = await node.smi(A)
    assert text.splitlines()[0] == f"pod ns/sharer on node n1, {NOW}"
    assert f"has 2048 MiB (2 %) of {GPU} 3, of which it uses 700 MiB" in text
    assert f"container two has 1024 MiB (1 %) of {GPU} 3, of which it uses 700 MiB" in text
    assert "700 / 2048" in text


async def test_a_share_in_percent_is_told_in_mib_too() -> None:
    """As the container's own variable has it."""
    [device] = (await Parted().view(B)).devices

    assert (device.part_mib, device.part_percent, device.memory_used_mib) == (24467, 30, 25000)


async def test_shares_inside_of_a_group_show_the_part_and_the_mates() -> None:
    """The group's other devices are none of its own."""
    node = Shown()
    share = {"container": "main", "resource": GPU, "index": 1, "uuid": uuid(1), "percent": 50}
    held = {TEAM: {"group": "team", "devices": [{"resource": GPU, "index": i, "uuid": uuid(i)} for i in (0, 1)]}}
    held["uid-of-member"] = {"pod": "ns/member", "shares": [share], "within": TEAM}
    node.set_ledger(Hardware("550", "boot-1", [part(index) for index in range(4)]), held)

    view = await node.view(A)
    assert [(each.index, each.part_percent) for each in view.devices] == [(1, 50)]
    assert (view.holder, view.mates) == ("group team", ["ns/mate"])
    assert [each.index for each in (await node.view(B)).devices] == [0, 1]


async def test_a_pod_that_says_that_it_is_another_does_not_see_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are of one pod, found by its own UID."""
    monkeypatch.setattr(pods_api, "PATIENCE_SECONDS", 0.05)
    node = Parted()
    node.add_pod("thief", group_uid="uid-of-sharer", ips=[C])

    async with serving([smi_endpoint(node.own, Callers(node.own, runs), lambda: node.usage)]) as server:
        status, text = await ask(server, "/smi", source=C)
    assert (status, "sharer" in text) == (403, False)
    assert "pod ns/thief has devices by its annotations, but its group holds none" in text


@pytest.mark.parametrize(
    ("accept", "preferred"),
    [
        ("", False),
        ("*/*", False),
        ("application/*", False),
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/json, */*", True),
        ("text/plain, application/json", False),
        ("text/plain;q=0.5, application/json", True),
        ("application/json;q=0.5, text/plain;q=0.9", False),
        ("application/json;q=0", False),
        ("application/json;q=nan", False),
        ("application/json;q=x", False),
        (";;;,,,=", False),
    ],
)
def test_json_is_for_who_prefers_it(accept: str, preferred: bool) -> None:
    """curl and wget accept anything, and get text."""
    assert prefers_json(accept) is preferred


async def test_former_and_unhealthy_devices_are_shown_as_such() -> None:
    """A pod may use what a rebind replaced, until it ends."""
    node = Shown()
    parts = [part(0, unhealthy="Xid 79", since=NOW), part(1)]
    claim = {"group": "team", "devices": [msgspec.to_builtins(parts[1].device)]}
    node.set_ledger(Hardware(devices=parts), {TEAM: {**claim, "former": [msgspec.to_builtins(parts[0].device)]}})

    view = await node.view(A)

    assert [(each.index, each.former, each.unhealthy) for each in view.devices] == [(1, False, ""), (0, True, "Xid 79")]
    text = await node.smi(A)
    assert f"{GPU} 0 was replaced" in text
    assert f"{GPU} 0 is unhealthy: Xid 79" in text
    assert json.loads(await node.smi(A, "application/json"))["pod"] == "ns/member"
