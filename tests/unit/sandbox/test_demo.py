"""The demo's own judgement: it must notice what it claims to show, and show what it really typed."""

import io
import json
import subprocess
from typing import Any

import pytest
from rich.console import Console

from deviceshare_sandbox import demo, story
from deviceshare_sandbox.demo import WIDTH, Stage, Surprise
from deviceshare_sandbox.simulated_pods import ENV

GPU = story.RESOURCE


def pod(name: str, group: str, node: str, visible: str | None) -> dict[str, Any]:
    """A pod as kubectl prints it; without `visible` it hasn't started."""
    annotations = {"deviceshare.io/group": group}
    if visible is not None:
        annotations[ENV] = json.dumps({"main": {story.VISIBLE: visible}})
    metadata = {"namespace": "ns", "name": name, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"name": "main"}]}}


def group(name: str, node: str, devices: str, pods: int, count: int) -> dict[str, Any]:
    """A group as kubectl prints it."""
    status = {"phase": "Bound", "nodeName": node, "selectedDevices": {GPU: devices}}
    return {
        "metadata": {"name": name},
        "spec": {"resources": {GPU: count}},
        "status": status | {"allocatedPods": [f"ns/{number}" for number in range(pods)]},
    }


def fault(groups: list[dict[str, Any]], *pods: dict[str, Any]) -> str:
    """What is wrong with two groups, `a` of two pods and `b` of one."""
    seen = story.sights(json.dumps({"items": pods}))
    return story.sharing_fault(seen, story.groups(json.dumps({"items": groups})), {"a": 2, "b": 1})


GROUPS = [group("a", "n", "0,1", 2, 2), group("b", "n", "2", 1, 1)]
A1, A2, B = pod("a1", "a", "n", "0,1"), pod("a2", "a", "n", "0,1"), pod("b1", "b", "n", "2")


def test_pods_that_share_as_told_are_found_without_fault() -> None:
    """Two groups on one node, each with devices of its own; other people's pods don't count."""
    other = {"metadata": {"namespace": "ns", "name": "other"}, "spec": {"containers": []}}
    assert fault(GROUPS, A1, A2, B, other) == ""


@pytest.mark.parametrize(
    ("groups", "pods", "said"),
    [
        (GROUPS[:1], (A1, A2, B), "group b is missing"),
        ([GROUPS[0], {**GROUPS[1], "status": {}}], (A1, A2, B), "group b is new, not Bound"),
        (GROUPS, (A1, B), "1 of 2 pods of group a have started"),
        (GROUPS, (A1, pod("a2", "a", "n", None), B), "1 of 2 pods of group a have started"),
        (GROUPS, (A1, pod("a2", "a", "m", "0,1"), B), "ns/a2 on m sees '0,1'"),
        (GROUPS, (A1, pod("a2", "a", "n", ""), B), "ns/a2 on n sees ''"),
        ([GROUPS[0], group("b", "n", "1", 1, 1)], (A1, A2, pod("b1", "b", "n", "1")), "GPU 1 of n is in both a and b"),
        ([group("a", "n", "0,1", 2, 3), GROUPS[1]], (A1, A2, B), "group a has '0,1', not 3 devices"),
        ([group("a", "n", "0,1", 0, 2), GROUPS[1]], (A1, A2, B), "group a lists 0 of its 2 pods"),
    ],
)
def test_every_way_not_to_share_is_noticed(groups: list[dict[str, Any]], pods: Any, said: str) -> None:
    """A demo that can't fail shows nothing."""
    assert said in fault(groups, *pods)


def test_a_container_without_the_variable_is_shown_as_such() -> None:
    """An empty value means no device, a missing one means that nobody said anything."""
    unset = pod("p", "a", "n", "0")
    unset["metadata"]["annotations"][ENV] = '{"main": {}, "init": {"NVIDIA_VISIBLE_DEVICES": ""}}'
    seen = story.sights(json.dumps({"items": [unset]}))
    assert [(sight.container, sight.visible) for sight in seen] == [("main", "(unset)"), ("init", "")]


def test_columns_are_aligned_as_kubectl_does() -> None:
    """By the widest cell, without spaces at the end."""
    assert story.columns([("NAME", "NODE"), ("a-long-name", "n")]) == "NAME          NODE\na-long-name   n"


class ScriptedKubectl:
    """Answers kubectl with an exit status and a text."""

    def __init__(self, status: int = 0, said: str = "done") -> None:
        self.status, self.said = status, said
        self.typed: list[tuple[tuple[str, ...], str | None]] = []

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        self.typed.append((arguments, stdin))
        if self.status < 0:
            raise subprocess.TimeoutExpired("kubectl", 60)
        return subprocess.CompletedProcess(arguments, self.status, self.said, "")


def stage(cluster: ScriptedKubectl) -> tuple[Stage, io.StringIO]:
    """A stage, and what is seen on it."""
    shown = io.StringIO()
    return Stage(cluster, Console(file=shown, width=WIDTH)), shown


def test_a_manifest_is_applied_and_shown_as_a_file() -> None:
    """What a person would type."""
    sandbox = ScriptedKubectl(said="pod/p created\n")
    on, shown = stage(sandbox)
    on.kubectl("apply", manifest="kind: Pod", file="pods.yaml")
    assert sandbox.typed == [(("apply", "-f", "-"), "kind: Pod")]
    assert shown.getvalue() == "   $ kubectl apply -f pods.yaml\n   pod/p created\n"


def test_of_a_long_answer_the_last_line_that_matters_is_shown() -> None:
    """As `| grep | tail -1` would."""
    on, shown = stage(ScriptedKubectl(said="Name: p\n  Warning old\n  Warning new\nEvents: 2"))
    assert on.kubectl("describe", "pod", "p", grep="Warning") == "Warning new"
    assert shown.getvalue() == "   $ kubectl describe pod p | grep Warning | tail -1\n   Warning new\n"


def test_long_lines_are_broken_at_words_and_tables_are_left_alone() -> None:
    """The README quotes it."""
    on, shown = stage(ScriptedKubectl())
    on.say("a " * WIDTH)
    on.say("NAME      NODE")
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= WIDTH + 3
    assert lines[1].startswith("       a")
    assert lines[-1] == "   NAME      NODE"


@pytest.mark.parametrize(
    ("status", "fails", "expected"),
    [
        (1, False, "kubectl get sdg to succeed"),
        (0, True, "kubectl get sdg to be refused"),
        (-1, False, "kubectl get sdg to end"),
    ],
)
def test_a_command_that_ends_otherwise_is_a_surprise(status: int, fails: bool, expected: str) -> None:
    """The step and what was said instead reach the user."""
    on, _ = stage(ScriptedKubectl(status, "the answer"))
    with pytest.raises(Surprise) as surprise:
        on.kubectl("get", "sdg", fails=fails)
    assert surprise.value.expected == expected
    assert surprise.value.seen in ("the answer", "nothing for 60 s")


def test_what_never_becomes_true_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was wrong last."""
    monkeypatch.setattr(demo, "PATIENCE", 0.0)
    on, _ = stage(ScriptedKubectl())
    with pytest.raises(Surprise, match="expected peace, saw war"):
        on.eventually("peace", lambda: "war", lambda seen: seen)


def test_a_step_that_does_not_hold_ends_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next steps rely on it."""

    def breaks(_: Stage) -> str:
        raise Surprise("rain", "sun")

    monkeypatch.setattr(demo, "STEPS", (("First", lambda _: "Well."), ("Second", breaks), ("Third", breaks)))
    on, shown = stage(ScriptedKubectl())
    surprise = demo.play(on)
    assert surprise is not None
    assert surprise.seen == "sun"
    assert shown.getvalue().split("\n") == [
        "",
        "1. First",
        "   ✓ Well.",
        "",
        "2. Second",
        "   ✗ Step 2 didn't hold.",
        "",
    ]
