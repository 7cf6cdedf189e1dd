"""`deviceshare plan` with files and no cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from deviceshare import assets
from deviceshare.cli.main import main
from deviceshare.cli.plan import WAITS

NODES = """\
- {name: gpu-1, devices: {nvidia.com/gpu: 4}, labels: {zone: west}}
- {name: gpu-2, devices: {nvidia.com/gpu: 8}}
"""
GROUP = """\
apiVersion: deviceshare.io/v1alpha1
kind: SharedDeviceGroup
metadata: {name: team}
spec: {resources: {nvidia.com/gpu: 2}}
"""
POD = """\
kind: Pod
metadata: {name: p, creationTimestamp: 2026-11-21T00:00:00Z, annotations: {deviceshare.io/group: team}}
spec: {containers: [{name: main}]}
"""


def plan(directory: Path, *manifests: str, nodes: str = NODES, flags: tuple[str, ...] = ()) -> Result:
    """Runs the command on files with these texts."""
    arguments = []
    for number, text in enumerate(manifests):
        file = directory / f"{number}.yaml"
        file.write_text(text)
        arguments += ["-f", str(file)]
    (directory / "nodes.yaml").write_text(nodes)
    return CliRunner().invoke(main, ["plan", *arguments, "--nodes", str(directory / "nodes.yaml"), *flags])


def test_the_examples_fit_on_two_nodes(tmp_path: Path) -> None:
    """What a person tries first; workloads of every kind in them are counted."""
    texts = [file.read_text() for file in sorted(assets.examples().glob("*.yaml"))]
    result = plan(tmp_path, *texts, flags=("-o", "json"))
    assert result.exit_code == 0, result.output
    placed = {group["group"]: group for group in json.loads(result.stdout)["groups"]}
    assert (placed["multi-gpu"]["node"], placed["multi-gpu"]["devices"]) == ("gpu-1", {"nvidia.com/gpu": "0,1"})
    assert len(placed["multi-gpu"]["pods"]) == 5


def test_a_table_says_where_and_what_is_left(tmp_path: Path) -> None:
    """The same as text."""
    result = plan(tmp_path, GROUP + "---\n" + POD)
    assert result.exit_code == 0
    (header, line, *_, last) = result.output.splitlines()
    assert header.split() == ["GROUP", "NODE", "DEVICES", "PODS", "WHY"]
    assert line.split()[:5] == ["team", "gpu-1", "nvidia.com/gpu", "0,1", "1"]
    assert last == "nvidia.com/gpu: 2/12 allocated, 10 free, on 2 nodes"


def test_what_waits_is_said_and_told_by_the_exit_status(tmp_path: Path) -> None:
    """3, which no failure has."""
    result = plan(tmp_path, GROUP.replace("gpu: 2", "gpu: 9"), POD)
    assert result.exit_code == 3
    assert "waiting for 9 nvidia.com/gpu, but no shared node has more than 8" in result.output
    assert "default/p" in result.output


SHARE = """\
kind: Pod
metadata: {name: s}
spec: {SPEC, containers: [{name: main, resources: {limits: {deviceshare.io/gpu-percent: 30}}}]}
"""


@pytest.mark.parametrize(
    ("limits", "wants"),
    [
        ("deviceshare.io/gpu-percent: 900", "9 whole GPUs"),
        ("deviceshare.io/gpu-percent: 60, deviceshare.io/gpu-count: 9", "9 x 60% of a GPU"),
    ],
)
def test_a_share_of_more_devices_than_any_node_has_never_fits(tmp_path: Path, limits: str, wants: str) -> None:
    """Whatever others give up; of eight GPUs it would only wait."""
    text = SHARE.replace("SPEC, ", "").replace("deviceshare.io/gpu-percent: 30", limits)
    said = " ".join(plan(tmp_path, text).output.split())
    assert f"waiting for {wants}, but no shared node has more than 8 GPUs: ask for fewer" in said
    assert plan(tmp_path, text.replace("900", "800").replace("9}", "8}")).exit_code == 0


def a_node(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "labels": {"deviceshare.io/mode": "shared"},
        "annotations": {"deviceshare.io/devices": "nvidia.com/gpu=4"},
    }
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"kind": "Node", "metadata": metadata, "spec": spec, "status": status}


@pytest.mark.parametrize("what", ["share", "group"])
def test_what_keeps_a_pod_off_every_node_with_room_is_said(tmp_path: Path, what: str) -> None:
    """The taint of the devices is tolerated, as admission adds that; another taint and a cordon aren't."""
    manifests = [SHARE.replace("SPEC, ", "")] if what == "share" else [GROUP, POD]
    taints = [{"key": key, "effect": "NoSchedule"} for key in ("nvidia.com/gpu", "team")]
    nodes = [a_node("gpu-1", taints=taints), a_node("gpu-2", unschedulable=True)]
    result = plan(tmp_path, *manifests, nodes=yaml.safe_dump({"kind": "List", "items": nodes}))
    assert result.exit_code == 3, result.output
    said = " ".join(result.output.split())
    assert "gpu-1: the pod doesn't tolerate the node's taint {team: }" in said
    assert "gpu-2: the node is cordoned" in said


def test_a_node_selector_that_no_node_matches_is_said(tmp_path: Path) -> None:
    """And one that a node matches decides."""
    result = plan(tmp_path, SHARE.replace("SPEC", "nodeSelector: {zone: east}"))
    assert result.exit_code == 3
    assert "rules out every shared node" in " ".join(result.output.split())
    result = plan(tmp_path, SHARE.replace("SPEC", "nodeSelector: {zone: west}"), flags=("-o", "json"))
    assert [pod["node"] for pod in json.loads(result.stdout)["pods"]] == ["gpu-1"]


def test_a_pod_that_may_not_go_where_its_group_lives_waits(tmp_path: Path) -> None:
    """The group lives where its first pod may go."""
    first = POD.replace("spec: {", "spec: {nodeSelector: {zone: west}, ")
    second = POD.replace("name: p,", "name: q,").replace("spec: {", "spec: {nodeSelector: {zone: east}, ")
    result = plan(tmp_path, GROUP, first, second)
    assert result.exit_code == 3
    assert "rules out node gpu-1, where group team lives" in " ".join(result.output.split())


def test_yaml_out_is_yaml(tmp_path: Path) -> None:
    """With the same fields as the JSON."""
    as_yaml = plan(tmp_path, GROUP, flags=("-o", "yaml")).stdout
    assert yaml.safe_load(as_yaml) == json.loads(plan(tmp_path, GROUP, flags=("-o", "json")).stdout)


def test_nodes_may_be_what_kubectl_writes(tmp_path: Path) -> None:
    """Nodes, NodeDevices and groups in one List: what is held stays held, and a node without the label isn't used."""
    label = {"deviceshare.io/mode": "shared"}
    ready = [{"type": "Ready", "status": "True"}]
    node = {"allocatable": {"nvidia.com/gpu": "4"}, "conditions": ready}
    items = [
        {"kind": "Node", "metadata": {"name": "n1", "labels": label}, "status": node},
        {"kind": "Node", "metadata": {"name": "n2"}, "status": node},
        {
            "kind": "NodeDevices",
            "metadata": {"name": "n1"},
            "spec": {"claims": {"u": {"group": "old", "devices": [{"resource": "nvidia.com/gpu", "index": 0}]}}},
            "status": {"devices": [{"resource": "nvidia.com/gpu", "index": index} for index in range(4)]},
        },
        {
            "kind": "SharedDeviceGroup",
            "metadata": {"name": "old", "uid": "u"},
            "spec": {"resources": {"nvidia.com/gpu": 1}},
            "status": {"nodeName": "n1"},
        },
    ]
    result = plan(tmp_path, GROUP, nodes=json.dumps({"kind": "List", "items": items}), flags=("-o", "json"))
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["groups"][0]["devices"] == {"nvidia.com/gpu": "1,2"}
    assert [group["name"] for group in answer["after"]["groups"]] == ["old", "team"]


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (
            GROUP.replace("gpu: 2", "gpu: two"),
            "document 1 (SharedDeviceGroup team), spec.resources[nvidia.com/gpu]: expected `int`",
        ),
        (GROUP + "---\nkind: Pod\nmetadata: {}\n", "0.yaml, document 2 (Pod ), metadata.name: it is missing"),
        ("a: [\n", "0.yaml is neither YAML nor JSON: "),
        ("[" * 100_000, "it is nested more than 100 levels deep"),
        ("kind: A\nspec: &s\n  template: *s\n", "the alias *s stands for what contains it"),
        (
            "l0: &l0 [1]\n" + "".join(f"l{at}: &l{at} [{f'*l{at - 1}, ' * 9}]\n" for at in range(1, 12)),
            "its aliases stand for more than 100000 values",
        ),
        (
            "l0: &l0 [1]\n" + "".join(f"l{at}: &l{at} [*l{at - 1}]\n" for at in range(1, 200)),
            "it is nested more than 100 levels deep",
        ),
        ("hello\n", "0.yaml, document 1: an object with apiVersion, kind and metadata was expected, not 'hello'"),
        ("kind: Service\nmetadata: {name: s}\n", "The files hold no SharedDeviceGroup, and no pod or pod template"),
    ],
)
def test_a_wrong_manifest_is_named_with_document_and_field(tmp_path: Path, manifest: str, said: str) -> None:
    """Exit status 2, as for wrong flags."""
    result = plan(tmp_path, manifest)
    assert result.exit_code == 2
    assert said in result.output


def test_a_file_of_nodes_knows_no_namespace_so_none_is_shut_out_by_its_labels(tmp_path: Path) -> None:
    """Which is said."""
    group = GROUP.replace("2}", "2}, allowedNamespaces: {from: Selector, selector: {matchLabels: {team: vision}}}")
    result = plan(tmp_path, group, POD)
    assert result.exit_code == 0, result.output
    assert "Note: group team: its allowedNamespaces.selector team=vision was not considered" in result.output


QUOTA = """
kind: DeviceQuota
metadata: {name: all}
spec: {groupSelector: {}, hard: {nvidia.com/gpu: %d}}
---
"""
NAMESPACE = "kind: Namespace\nmetadata: {name: default, labels: {team: %s}}\n---\n"


@pytest.mark.parametrize("with_nodes", [True, False], ids=["--nodes", "-f"])
def test_namespaces_and_quotas_of_the_files_count(tmp_path: Path, *, with_nodes: bool) -> None:
    """Wherever they stand, as if they had been applied; bound groups count in a quota without a status."""
    group = GROUP.replace("2}", "2}, allowedNamespaces: {from: Selector, selector: {matchLabels: {team: vision}}}")

    def planned(more: str, wanted: str = group) -> Result:
        nodes, manifests = (NODES, (more + wanted, POD))
        if with_nodes:
            nodes, manifests = f"{more}kind: List\nitems:\n{NODES}", (wanted, POD)
        return plan(tmp_path, *manifests, nodes=nodes)

    fits = planned(NAMESPACE % "vision" + QUOTA % 2)
    assert (fits.exit_code, "Note:" in fits.output) == (0, False), fits.output
    outsider = planned(NAMESPACE % "sound")
    assert outsider.exit_code == WAITS
    assert "takes no pods of namespace default" in outsider.output
    beyond = planned(QUOTA % 1, GROUP)
    assert beyond.exit_code == WAITS
    assert "quota all allows 1 nvidia.com/gpu in all; group team wants 2" in beyond.output
    other = "kind: SharedDeviceGroup\nmetadata: {name: old, uid: '7'}\nspec: {resources: {nvidia.com/gpu: 1}}\n"
    bound = other + "status: {nodeName: gpu-9, phase: Bound}\n---\n"
    if with_nodes:
        held = planned(bound + QUOTA % 2, GROUP)
        assert "quota all: 1 of 2 nvidia.com/gpu are held by group old; group team wants 2" in held.output


def test_a_manifest_may_repeat_itself_by_aliases(tmp_path: Path) -> None:
    """As people write them, also with merge keys; an anchor may be defined again."""
    named = "annotations: &a {deviceshare.io/group: team}"
    pod = "kind: Pod\nmetadata: {{name: {}, {}}}\nspec: {{containers: [{{name: main}}]}}\n---\n"
    again = "kind: List\nitems:\n- &p {kind: Pod, metadata: {name: p, %s}, spec: {containers: [{name: c}]}}\n"
    more = "- {<<: *p, metadata: {name: q, annotations: *a}}\n"
    result = plan(tmp_path, GROUP + "---\n" + pod.format("x", named) + again % named + more, flags=("-o", "json"))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["groups"][0]["pods"] == ["default/x", "default/p", "default/q"]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("- {name: n1, device: 3}", "nodes.yaml, document 1, item 1, as a whole: object contains unknown field"),
        ("- {name: n1, devices: {nvidia.com/gpu: four}}", "item 1, devices[nvidia.com/gpu]: expected `int`, got `str`"),
        ("", "nodes.yaml: it holds no node; fill it with kubectl get nodes,nodedevices,sdg,dq,ns -o yaml"),
    ],
)
def test_a_wrong_node_list_is_named_likewise(tmp_path: Path, nodes: str, said: str) -> None:
    """A misspelt field would otherwise be a node without devices."""
    result = plan(tmp_path, GROUP, nodes=nodes)
    assert result.exit_code == 2
    assert said in result.output


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    """As click says it."""
    result = CliRunner().invoke(main, ["plan", "-f", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_manifests_may_come_through_a_pipe(tmp_path: Path) -> None:
    """`helm template … | deviceshare plan -f -`"""
    (tmp_path / "nodes.yaml").write_text(NODES)
    result = CliRunner().invoke(main, ["plan", "-f", "-", "--nodes", str(tmp_path / "nodes.yaml")], input=GROUP)
    assert result.exit_code == 0, result.output
