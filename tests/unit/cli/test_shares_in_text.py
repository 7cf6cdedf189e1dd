"""Shares in the commands' tables: who has how much of which device, where a share would go, and why one waits."""

import json
from pathlib import Path

from click.testing import CliRunner
from msgspec.structs import replace

from deviceshare.cli.explain import view as explained
from deviceshare.cli.inspect_view import troubles
from deviceshare.cli.main import main
from deviceshare.cli.output import show
from deviceshare.cli.top import DeviceNow, NodeNow, cluster_table
from deviceshare.doctor.nodes import judge_waiting
from deviceshare.domain.answers.device_parts import PodPart
from deviceshare.domain.answers.explanation import Case, Explanation, explain_pod
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.cli.test_inspect_view import text
from tests.unit.domain.objects import GPU, a_node, gpus
from tests.unit.domain.test_drawing import with_hardware
from tests.unit.domain.test_shown_shares import a_shared_fleet, a_shared_ledger, part, sharing, with_pods


def a_scene() -> Fleet:
    """Two shared devices, one of them full, one of a group, and one that is free."""
    pods = {"a": [part(0, 8)], "b": [part(0, 8)], "c": [part(1, 3), part(1, 2, container="side")]}
    return a_shared_fleet(with_pods(a_shared_ledger(devices=4, groups={"team": gpus(2)}), pods))


def test_shared_devices_are_told_in_one_line_with_how_much_is_allocated() -> None:
    """And the last line says it of the whole cluster."""
    lines = text(draw(a_scene(), [], [sharing("x", {"aliyun.com/gpu-mem": 17})])).splitlines()
    assert lines[1] == "n1    nvidia.com/gpu  3/4   shared 0,1 (21/32 GiB, 65%, 3 pods)  team 2  free 3"
    assert lines[4] == "ns/x"
    assert lines[5].startswith("  waiting for 17 GiB of a GPU")
    assert lines[-1] == "nvidia.com/gpu: 3/4 allocated, 1 free, on 1 node; 37/64 GiB allocated (57%)"


def test_details_name_each_pod_with_its_part() -> None:
    """With its containers where several have a part."""
    lines = text(draw(a_scene(), [], []), details=True).splitlines()
    assert [" ".join(line.split()) for line in lines[1:10]] == [
        "n1 nvidia.com/gpu 0 shared (16/16 GiB, 100%) 2 pods not watched",
        "nvidia.com/gpu 1 shared (5/16 GiB, 31%) 1 pod not watched",
        "nvidia.com/gpu 2 held team not watched",
        "nvidia.com/gpu 3 free not watched",
        "",
        "SHARE PART OF",
        "ns/a 8 GiB, counted n1 nvidia.com/gpu 0",
        "ns/b 8 GiB, counted n1 nvidia.com/gpu 0",
        "ns/c 5 GiB (main 3 GiB, side 2 GiB), counted n1 nvidia.com/gpu 1",
    ]


def printed(explanation: Explanation) -> list[str]:
    """What a pipe gets."""
    with CliRunner().isolation() as (out, _, _):
        show(*explained(explanation, details=True))
        return out.getvalue().decode().splitlines()


def test_an_explanation_says_of_each_device_what_is_free_and_who_has_the_rest() -> None:
    """Equal ones together."""
    lines = printed(explain_pod(Case(a_scene(), None, None, []), sharing()))
    assert [" ".join(line.split()) for line in lines[-5:]] == [
        "n1: fits, scores 10 of 10; would get 8 GiB of nvidia.com/gpu 1, where the least room is left that suffices",
        "nvidia.com/gpu 0 only 0 of 16 GiB free (ns/a 8 GiB and ns/b 8 GiB); what would free it: pod ns/a ends",
        "nvidia.com/gpu 1 11 of 16 GiB free (ns/c 5 GiB)",
        "nvidia.com/gpu 2 held by group team; what would free it: no pod uses it, so kubectl delete sdg team",
        "nvidia.com/gpu 3 16 of 16 GiB free",
    ]


NODES = '- {name: gpu-1, devices: {nvidia.com/gpu: 2}, labels: {nvidia.com/gpu.memory: "16276"}}\n'
JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: gpu-job}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 5}}}]}
"""
METAGPU = """\
apiVersion: v1
kind: Pod
metadata: {name: half, namespace: cnvrg}
spec:
  tolerations: [{operator: Exists}]
  containers: [{name: main, resources: {limits: {cnvrg.io/metagpu: "150"}}}]
"""
REGISTERED = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: sized}
spec:
  replicas: 2
  template:
    spec:
      schedulerName: ack-co-scheduler
      containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 16}}}]
"""


def test_manifests_of_other_systems_are_planned_unchanged(tmp_path: Path) -> None:
    """Also those that name the other system's scheduler; 16 GiB are more than a card of 16 GB has."""
    files = []
    for number, manifest in enumerate((JOB, METAGPU, REGISTERED)):
        (tmp_path / f"{number}.yaml").write_text(manifest)
        files += ["-f", str(tmp_path / f"{number}.yaml")]
    (tmp_path / "nodes.yaml").write_text(NODES)
    result = CliRunner().invoke(main, ["plan", *files, "--nodes", str(tmp_path / "nodes.yaml"), "-o", "json"])
    assert result.exit_code == 3, result.output
    plan = json.loads(result.stdout)
    assert [(pod["pod"], [(share["index"], share["asked"]) for share in pod["shares"]]) for pod in plan["pods"]] == [
        ("default/gpu-job-0", [(0, "5 GiB")]),
        ("cnvrg/half", [(0, "50%"), (1, "100%")]),
    ]
    assert [(pod["pod"], "at most 15" in pod["reason"]) for pod in plan["waiting"]] == [
        ("default/sized-0", True),
        ("default/sized-1", True),
    ]
    table = CliRunner().invoke(main, ["plan", *files, "--nodes", str(tmp_path / "nodes.yaml")]).output
    assert table.splitlines()[0].split() == ["POD", "NODE", "SHARE", "GROUP", "WHY"]
    assert "5 GiB of nvidia.com/gpu 0" in table


def test_an_unhealthy_device_names_the_pods_that_have_parts_of_it() -> None:
    """They stay on it until somebody moves them; who was moved already isn't named."""
    former = replace(part(0, 2), former=True)
    ledger = a_shared_ledger(a=[part(0, 8)], b=[part(0, 4)], c=[part(1, 2), former])
    broken = Hardware(devices=[Part(GPU, 0, unhealthy="Xid 79"), Part(GPU, 1)])
    [(_, _, cure)] = troubles(draw(a_shared_fleet(with_hardware(ledger, broken)), [], []))
    assert (
        cure == "deviceshare rebind pod NAMESPACE/NAME for pods ns/a and ns/b; repair it, then deviceshare recover n1 0"
    )


def test_doctor_names_a_pod_whose_own_selector_rules_out_every_node_with_room() -> None:
    """As of a group's pods."""
    picky = replace(sharing(), spec=replace(sharing().spec, node_selector={"zone": "moon"}))
    [finding] = judge_waiting([a_node("n1")], [a_shared_ledger()], [], [picky, sharing("other")])
    assert finding.what.startswith("ns/p can't be bound: the pod's own nodeSelector or node affinity rules out")
    assert "its share may go to" in finding.what


def test_top_says_who_has_a_part_of_a_device() -> None:
    """One by name and amount, several by their number."""
    one, two = PodPart("ns/a", asked="8 GiB"), PodPart("ns/b", asked="30%")
    devices = [DeviceNow(GPU, 0, parts=[one]), DeviceNow(GPU, 1, parts=[one, two])]
    with CliRunner().isolation() as (out, _, _):
        show(cluster_table([NodeNow("n1", devices=devices)]))
        lines = out.getvalue().decode().splitlines()
    assert "ns/a 8 GiB" in lines[1] and "2 pods share it" in lines[2]
