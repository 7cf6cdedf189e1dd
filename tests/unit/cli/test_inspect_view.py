"""The picture as text: readable at 3 nodes and at 300, plain where nobody looks at a terminal."""

from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from deviceshare.cli.inspect_view import view
from deviceshare.cli.output import FilteringConsole, show
from deviceshare.domain.answers.picture import Picture, draw
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import Hardware, Overuse, Part, Trespass
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.object_decoder import OwnerReference
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import Share
from tests.unit.domain.dra_objects import a_claim, a_slice, a_view, gpu_json
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus
from tests.unit.domain.test_drawing import a_report, a_scene, with_claim, with_hardware

NOW = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


def text(picture: Picture, *, details: bool = False, wide: bool = False) -> str:
    """What a pipe gets."""
    with CliRunner().isolation() as (out, _, _):
        show(*view(picture, now=NOW, details=details, wide=wide))
        return out.getvalue().decode()


def test_three_nodes_are_told_in_a_few_lines() -> None:
    """Who has what, which pods wait and since when, and how much is left."""
    assert text(a_scene()) == (
        "NODE  RESOURCE        USED  DEVICES\n"
        "n1    nvidia.com/gpu  2/4   a 0,1  free 2,3\n"
        "n2    nvidia.com/gpu  4/4   b 0,1,2,3\n"
        "\n"
        "GROUP  PHASE    NODE  DEVICES                 PODS\n"
        "a      Pending  n1    nvidia.com/gpu 0,1      1 + 1 waiting\n"
        "b      Pending  n2    nvidia.com/gpu 0,1,2,3  0\n"
        "c      Pending  -     wants 4 nvidia.com/gpu  0 + 1 waiting\n"
        "\n"
        "WAITING\n"
        "ns/p4 of group typo, for 119m\n"
        "  group typo does not exist: create it\n"
        "ns/p3 of group c, for 119m\n"
        "  waiting for 4 nvidia.com/gpu, which no shared node has free\n"
        "ns/p2 of group a, for 119m\n"
        "  kube-scheduler has not tried it yet; its group lives on node n1\n"
        "Why on each node: deviceshare explain pod ns/p3\n"
        "\n"
        "nvidia.com/gpu: 6/8 allocated, 2 free, on 2 nodes\n"
    )


def a_large_picture(nodes: int = 300) -> Picture:
    """Each node has eight devices; a third is in use, one node is broken, many pods wait for one group."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    held = [number % 3 == 0 for number in range(nodes)]
    groups: list[Group] = [a_group(f"g{name}", 4, node=name) for name, used in zip(names, held, strict=True) if used]
    ledgers = [
        a_ledger(name, {GPU: 8}, releasing=(), **({f"g{name}": gpus(0, 1, 2, 3)} if used else {}))
        for name, used in zip(names, held, strict=True)
    ]
    broken = Hardware(devices=[Part(GPU, n, unhealthy="Xid 79" if n == 5 else "") for n in range(8)])
    ledgers[-1] = with_hardware(ledgers[-1], broken)
    pods: list[Pod] = [a_pod(f"p{number}", "big") for number in range(500)]
    return draw(a_fleet(*map(a_node, names), ledgers=tuple(ledgers)), [*groups, a_group("big", 9)], pods)


def test_three_hundred_nodes_fit_on_a_screen() -> None:
    """What needs somebody first, the rest counted; 500 pods that wait for the same are one line."""
    lines = text(a_large_picture()).splitlines()
    assert len(lines) < 60
    assert lines[1].startswith("n300  ")
    assert "unusable 5!" in lines[1]
    assert "and 280 more nodes (81 partly used, 199 free); all: -d" in lines
    assert "and 81 more groups; all: -d" in lines
    assert [line for line in lines if line.startswith("ns/p0 and 499 more")]
    assert lines[-1] == "nvidia.com/gpu: 400/2400 allocated, 1999 free, 1 unhealthy, on 300 nodes"


def test_pods_of_one_workload_are_one_line_with_its_name() -> None:
    """A Deployment's ReplicaSet is an implementation of it; pods of several workloads are named themselves."""

    def made(name: str, kind: str, owner: str) -> Pod:
        found = a_pod(name, "c")
        by = [OwnerReference(kind=kind, name=owner, uid=owner, controller=True)]
        return replace(found, metadata=replace(found.metadata, owner_references=by))

    infer = [made(f"infer-7d9c5b8f9c-{each}", "ReplicaSet", "infer-7d9c5b8f9c") for each in ("x", "y", "z")]
    fleet, group = a_fleet(a_node(), ledgers=(a_ledger(),)), a_group("c", 9)
    assert "3 pods of Deployment ns/infer of group c\n" in text(draw(fleet, [group], infer))
    one = made("db-0", "StatefulSet", "db")
    both = text(draw(fleet, [group], [*infer, one]))
    assert "\nns/db-0 of group c\n" in both
    assert "\n3 pods of Deployment ns/infer of group c\n" in both
    bare = [a_pod(f"p{number}", "c") for number in range(3)]
    assert "\nns/p0 and 2 more of group c\n" in text(draw(fleet, [group], bare))


def test_at_80_columns_what_waits_takes_four_lines_and_no_name_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many nodes its reason names; the details are those of `explain`, and of `-d`."""
    name = "infer-with-quite-a-long-name-6b74bb45d5-28hdl"
    owner = OwnerReference(kind="ReplicaSet", name=name[:-6], uid="u", controller=True)
    pods = [a_pod(f"{name}{each}", "big") for each in range(9)]
    pods = [replace(each, metadata=replace(each.metadata, owner_references=[owner])) for each in pods]
    names = [f"ip-10-0-1-{number}.eu-west-1.compute.internal" for number in range(1, 12)]
    groups = {f"team-{each}-train": gpus(0, 1, 2, 3) for each in range(11)}
    ledgers = [
        a_ledger(node, {GPU: 4}, releasing=(), **{group: devices})
        for node, (group, devices) in zip(names, groups.items(), strict=True)
    ]
    picture = draw(a_fleet(*map(a_node, names), ledgers=tuple(ledgers)), [a_group("big", 3)], pods)
    monkeypatch.setenv("COLUMNS", "80")
    console = FilteringConsole(width=80, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(*view(picture, now=NOW, details=False, wide=False), sep="\n")
    lines = captured.get().splitlines()
    entry = lines[lines.index("WAITING") + 1 : next(at for at, line in enumerate(lines) if line.startswith("Why on"))]
    assert entry[0] == f"9 pods of Deployment ns/{name.rpartition('-')[0].rpartition('-')[0]} of group big"
    assert len(entry) <= 4
    assert max(map(len, lines)) <= 80
    words = {word.strip("(),;:") for line in lines for word in line.split()}
    assert set(names) <= words
    assert set(groups) <= words
    told = text(picture, details=True)
    assert f"  {names[0]}: 0 of 4 free (team-0-train holds 0,1,2,3)" in told


def test_details_show_every_device() -> None:
    """Nothing folded: one line for each."""
    lines = text(a_large_picture(30), details=True).splitlines()
    assert sum(f" {GPU} " in line and line.endswith(("healthy", "not watched")) for line in lines) == 239
    assert sum(line.endswith("healthy") for line in lines) == 7  # of the one node with an agent
    assert [line for line in lines if line.endswith("Xid 79") and f"{GPU} 5" in line]
    assert not [line for line in lines if line.startswith("and ")]


def test_names_are_in_the_order_of_their_numbers() -> None:
    """node-10 comes after node-2."""
    lines = text(a_large_picture(12)).splitlines()
    assert [line.split()[0] for line in lines[1:13]] == [f"n{number}" for number in range(1, 13)]


def test_trouble_says_what_to_do() -> None:
    """For a broken device in use, and for processes that don't belong there."""
    parts = [Part(GPU, 0, unhealthy="Xid 79", since="2026-11-21T01:00:00Z"), *(Part(GPU, n) for n in (1, 2, 3))]
    trespasses = [Trespass(GPU, 1, "python3", "ns/rogue"), Trespass(GPU, 2, "nvtop")]
    ledger = with_hardware(a_ledger(a=gpus(0, 1)), Hardware(devices=parts, trespasses=trespasses))
    told = text(draw(a_fleet(a_node(), ledgers=(ledger,)), [], []))
    assert "a 0!,1  free 2,3" in told
    lines = [line for line in told.splitlines() if line.startswith("n1 nvidia.com/gpu ")]
    assert [line.split("  ")[0] for line in lines] == [f"n1 {GPU} {index}" for index in (0, 1, 2)]
    assert "Xid 79 (since 2026-11-21T01:00:00Z)" in lines[0]
    assert lines[0].endswith("deviceshare rebind a; repair it, then deviceshare recover n1 0")
    assert lines[1].endswith("kubectl delete pod -n ns rogue")
    assert "process 'nvtop' outside of any pod uses it  " in lines[2]


def test_wide_shows_model_and_memory_where_an_agent_tells_them() -> None:
    """And the driver."""
    hardware = Hardware(driver="550.54", devices=[Part(GPU, n, f"GPU-{n}", "H100", 81559) for n in range(4)])
    fleet = a_fleet(a_node(), ledgers=(with_hardware(a_ledger(), hardware),))
    assert "n1    nvidia.com/gpu  0/4   H100   80 GiB  550.54  free 0,1,2,3" in text(draw(fleet, [], []), wide=True)
    assert "H100   80 GiB  GPU-2" in text(draw(fleet, [], []), details=True, wide=True)


def test_turns_are_shown_as_they_were_reported() -> None:
    """Who has it and who waits, how many more wait, and which agent may have stopped."""
    report = a_report()
    for time, stopped in (
        ("2026-11-21T01:59:00Z", ""),
        ("2026-11-20T23:00:00Z", "3h ago"),
        ("?", "at an unknown time"),
    ):
        ledger = with_hardware(a_ledger(a=gpus(0)), Hardware(turns=replace(report, time=time)))
        pods = [a_pod("p1", "a", node="n1"), a_pod("p2", "a", node="n1")]
        told = text(draw(a_fleet(a_node(), ledgers=(ledger,)), [a_group("a", 1, node="n1")], pods))
        table = told[told.index("TURN OF") :].split("\n\n")[0].splitlines()
        assert table[1].split() == ["a", "n1", "ns/p1", "has", "it", "(asked", "to", "end)", "60m", "0"]
        assert table[2].split() == ["ns/gone", "waits", "(no", "such", "pod)", "30m", "5"]
        assert table[3].split() == ["and", "3", "more", "wait"]
        assert table[7].split()[:7] == [GPU, "3", "n1", "-", "none", "given:", "a"]
        assert table[8].split() == ["ns/p2", "waits", "0"]
        assert table[9] == "2 more queues on n1: deviceshare top"
        rest = [f"The agent of n1 reported its turns {stopped}, and may have stopped: kubectl get pods -A -o wide -l"]
        assert [line.partition(" app.")[0] for line in table[10:]] == (rest if stopped else [])


def test_an_exceeded_share_is_a_trouble_of_its_node() -> None:
    """With what is used beside the share, and the way out."""
    share = Share("main", GPU, 0, memory_mib=8192)
    ledger = with_claim(a_ledger(), "uid-of-greedy", Claim(pod="ns/greedy", shares=[share]))
    row = Overuse(GPU, 0, "ns/greedy", "main", 12288, 8192, "2026-11-21T01:00:00Z")
    parts = [Part(GPU, n, memory_mib=16384) for n in range(4)]
    picture = draw(a_fleet(a_node(), ledgers=(with_hardware(ledger, Hardware(devices=parts, overuses=[row])),)), [], [])
    told, details = text(picture), text(picture, details=True)
    [line] = [line for line in told.splitlines() if line.startswith(f"n1 {GPU} 0 ")]
    assert f"pod ns/greedy: container main uses 12288 MiB of {GPU} 0, its share is 8192 MiB (since 2026-" in line
    assert line.endswith("limit what the program allocates, or ask for a larger share")
    assert f"ns/greedy  8 GiB, counted, main uses 12 GiB  n1 {GPU} 0" in details


def test_devices_of_resource_claims_are_shown_with_the_claim() -> None:
    """As allocated, with what the driver publishes of them; nobody watches their health."""
    published = a_view(a_slice("n1", gpu_json(0), gpu_json(1)), a_claim("ns/train", "gpu-1")).publication("n1")
    bare = a_ledger(devices={})
    ledger = replace(bare, status=replace(bare.status, published=published, devices=list(gpus(0, 1))))
    picture = draw(a_fleet(a_node(), ledgers=(ledger,)), [], [])
    told = text(picture, wide=True)
    assert "1/2   NVIDIA H100  80 GiB  570.86.15  free 0  claim ns/train 1" in told
    assert "nvidia.com/gpu: 1/2 allocated, 1 free" in told
    (line,) = [line for line in text(picture, details=True).splitlines() if "ns/train" in line]
    assert line.split()[-4:] == ["claimed", "ns/train", "not", "watched"]


def test_an_empty_cluster_says_how_to_share_a_node() -> None:
    """Instead of nothing."""
    assert text(draw(a_fleet(), [], [])) == (
        "No node is shared yet. Share one: kubectl label node NODE deviceshare.io/mode=shared\n"
    )


def test_names_are_never_taken_for_markup() -> None:
    """A reason may hold brackets."""
    scene = a_scene()
    why = Reason(ReasonKind.WAITING, "[red]0/1[/red] nodes [are] available")
    waiting = [replace(scene.waiting[0], why=why)]
    assert "[red]0/1[/red] nodes [are] available" in text(replace(scene, waiting=waiting))


@pytest.mark.parametrize("width", [60, 100, 200])
def test_on_a_terminal_no_line_is_wider_than_it(width: int) -> None:
    """Long reasons are wrapped in their column."""
    console = FilteringConsole(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(*view(a_large_picture(), now=NOW, details=False, wide=True), sep="\n")
    assert max(map(len, captured.get().splitlines())) <= width


def test_a_group_that_is_idle_says_for_how_long() -> None:
    """So nobody has to look for devices that forgotten groups hold; a pod that is there already counts more."""
    group, used = a_group("a", 2, node="n1"), a_group("b", 1, node="n1")
    since = "2026-11-20T23:00:00Z"
    groups = [replace(each, status=replace(each.status, idle_since=since)) for each in (group, used)]
    ledger = a_ledger("n1", {GPU: 4}, a=gpus(0, 1), b=gpus(2))
    pod = a_pod("p", "b", node="n1", devices=gpus(2))
    picture = draw(a_fleet(a_node("n1"), ledgers=(ledger,), pods=(pod,)), groups, [pod])

    assert [view.idle_since for view in picture.groups] == [since, ""]
    assert "nvidia.com/gpu 0,1  0, idle 3h\n" in text(picture)
    assert text(picture).count("idle") == 1
