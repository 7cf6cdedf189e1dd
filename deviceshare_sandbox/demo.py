"""`deviceshare sandbox demo`: its steps, in a sandbox of its own, on a console that stops at the first surprise.

Every command that is shown is the command that is run, and what is shown below it is its own output.
"""

import shlex
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console
from rich.text import Text

from deviceshare.domain.contract import GROUP
from deviceshare.domain.objects.groups import Group
from deviceshare_sandbox import story
from deviceshare_sandbox.lifecycle import running
from deviceshare_sandbox.reports import Progress, SandboxError
from deviceshare_sandbox.state import Options

T = TypeVar("T")

WIDTH = 96
PATIENCE = 30.0
"""Seconds for anything to become true; a healthy sandbox needs two or three."""
_POLL_SECONDS = 0.1


class Surprise(Exception):
    """Something that a step relies on isn't so."""

    def __init__(self, expected: str, seen: str) -> None:
        super().__init__(f"expected {expected}, saw {seen}")
        self.expected = expected
        self.seen = seen


class StageCluster(Protocol):
    """What the stage needs of a Sandbox."""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]: ...


class Stage:
    """One cluster, and the console on which people watch it."""

    def __init__(self, cluster: StageCluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console

    def kubectl(
        self, *arguments: str, manifest: str | None = None, file: str = "", fails: bool = False, grep: str = ""
    ) -> str:
        """Runs a command as a person would type it and shows both it and its answer; returns the answer.

        A `manifest` is shown as the `file` it would be kept in. Of the answer only the last line with `grep` counts.
        Raises Surprise when the command fails, or, if it `fails` by intent, when it succeeds.
        """
        shown = ["kubectl", *arguments, *(["-f", file] if manifest else [])]
        self.say(f"$ {shlex.join(shown)}{f' | grep {grep} | tail -1' if grep else ''}", "bold cyan")
        answer = self._run(*arguments, *(["-f", "-"] if manifest else []), manifest=manifest, fails=fails)
        if grep:
            answer = [line.strip() for line in answer.splitlines() if grep in line][-1]
        self.say(answer.rstrip())
        return answer

    def ask(self, *arguments: str) -> str:
        """Runs a command behind the scenes; returns its answer or raises Surprise."""
        return self._run(*arguments, manifest=None, fails=False)

    def eventually(self, expected: str, look: Callable[[], T], fault: Callable[[T], str]) -> T:
        """Looks until there is no fault, and returns what was seen last; raises Surprise after `PATIENCE` seconds."""
        deadline = time.monotonic() + PATIENCE
        while True:
            seen = look()
            wrong = fault(seen)
            if not wrong:
                return seen
            if time.monotonic() > deadline:
                raise Surprise(expected, f"{wrong} (still so after {PATIENCE:.0f} s)")
            time.sleep(_POLL_SECONDS)

    def expect(self, truth: object, expected: str, seen: str) -> None:
        """Raises Surprise unless it is true."""
        if not truth:
            raise Surprise(expected, seen)

    def title(self, number: int, text: str) -> None:
        """Begins a step."""
        self._console.print()
        self._console.print(Text(f"{number}. {text}", "bold"), soft_wrap=True)

    def held(self, conclusion: str) -> None:
        """Ends a step that went as it should."""
        self._print(f"✓ {conclusion}", "green", hang=2)

    def say(self, text: str, style: str = "") -> None:
        """Prints something in the course of a step; long lines are broken at words."""
        for line in text.splitlines():
            self._print(line, style, hang=4)

    def _print(self, line: str, style: str, *, hang: int) -> None:
        # A table's spaces are its columns, so only what is too long is touched.
        fits = len(line) <= WIDTH
        lines = [line] if fits else textwrap.wrap(line, WIDTH, subsequent_indent=" " * hang, break_on_hyphens=False)
        for part in lines:
            self._console.print(Text(f"   {part}".rstrip(), style), soft_wrap=True)

    def _run(self, *arguments: str, manifest: str | None, fails: bool) -> str:
        command = shlex.join(["kubectl", *arguments])
        try:
            done = self._cluster.kubectl(*arguments, stdin=manifest)
        except subprocess.TimeoutExpired as error:
            raise Surprise(f"{command} to end", f"nothing for {error.timeout:.0f} s") from error
        said = done.stdout + done.stderr
        if (done.returncode != 0) != fails:
            raise Surprise(f"{command} to {'be refused' if fails else 'succeed'}", said.strip())
        return said


def run_demo(console: Console, progress: Progress) -> bool:
    """Runs the demo; True if every step held. Nothing is left but, after a failure, the logs.

    Raises SandboxError when there can't be a sandbox.
    """
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="deviceshare-demo-"))
    try:
        options = Options(nodes=story.NODES, devices=story.DEVICES, resource=story.RESOURCE)
        with running(options, directory, progress=progress) as sandbox:
            version = sandbox.plan.binaries.version
            console.print(
                f"Kubernetes {version} is up and real; only its nodes and GPUs are simulated.", soft_wrap=True
            )
            fault = play(Stage(sandbox, console))
    except SandboxError as error:
        raise SandboxError(str(error), f"The logs are kept in {directory / 'logs'}") from error
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)  # Ctrl-C is no failure: the logs go, too.
        raise
    if fault is None:
        shutil.rmtree(directory, ignore_errors=True)
        console.print()
        console.print(f"Every step held. Everything has ended, {time.monotonic() - began:.0f} s after it began.")
        console.print("To try it yourself: deviceshare sandbox up")
        return True
    for label, text in (("expected", fault.expected), ("seen", fault.seen), ("logs", str(directory / "logs"))):
        console.print(Text(f"   {label}: {text}"), soft_wrap=True)
    return False


def play(stage: Stage) -> Surprise | None:
    """Runs the steps until one doesn't hold; returns why."""
    for number, (title, step) in enumerate(STEPS, start=1):
        stage.title(number, title)
        try:
            stage.held(step(stage))
        except Surprise as surprise:
            stage.say(f"✗ Step {number} didn't hold.", "bold red")
            return surprise
    return None


def _two_groups(stage: Stage) -> str:
    stage.eventually(
        "the devices of both nodes to be known",
        lambda: stage.ask("get", "ndev", "-o", "jsonpath={.items[*].spec.summary.total}"),
        lambda seen: "" if seen.count(f"={story.DEVICES}") == story.NODES else f"totals {seen!r}",
    )
    stage.kubectl("apply", manifest=story.TWO_GROUPS, file="groups.yaml")
    stage.eventually(
        "both groups to be Pending",
        lambda: _groups(stage),
        lambda known: _phases(known, training="Pending", notebooks="Pending"),
    )
    stage.kubectl("get", "sdg")
    return "A group holds nothing until its first pod comes."


def _five_pods(stage: Stage) -> str:
    stage.kubectl("apply", manifest=story.FIVE_PODS, file="pods.yaml")
    _await_sharing(stage, story.MEMBERS)
    stage.kubectl("get", "sdg", "-o", "wide")
    _show_sights(stage)
    return "The pods of a group are on one node and see the same GPUs. No GPU is in two groups."


def _third_group(stage: Stage) -> str:
    stage.kubectl("apply", manifest=story.THIRD_GROUP, file="rendering.yaml")
    described = ("describe", "pod", "render", "-n", "serving")
    stage.eventually(
        "an event FailedScheduling that says what the pod waits for",
        lambda: [line for line in stage.ask(*described).splitlines() if "FailedScheduling" in line],
        lambda events: "" if any("needs 3 nvidia.com/gpu" in event for event in events) else f"the events {events}",
    )
    stage.kubectl(*described, grep="FailedScheduling")
    message = ("get", "sdg", "rendering", "-o", 'jsonpath={.status.conditions[?(@.type=="Bound")].message}')
    stage.eventually(
        "a condition of the group that says who is in the way",
        lambda: stage.ask(*message),
        lambda text: "" if "training holds" in text and "notebooks holds" in text else f"the condition {text!r}",
    )
    stage.kubectl(*message)
    stage.eventually(
        "the ledgers' columns to say so, too",  # they are written a second after a bind
        lambda: stage.ask("get", "ndev", "-o", "jsonpath={.items[*].spec.summary.held}"),
        lambda held: "" if "training" in held and "notebooks" in held else f"the holders {held!r}",
    )
    stage.kubectl("get", "ndev")
    return "Three GPUs are free, but on two nodes, and a group never spans nodes. The pod's event says so."


def _deleted_in_use(stage: Stage) -> str:
    stage.kubectl("delete", "sdg", "notebooks", "--wait=false")
    stage.eventually(
        "the group to be Terminating, with its devices",
        lambda: _groups(stage),
        lambda known: _phases(known, notebooks="Terminating"),
    )
    stage.kubectl("get", "sdg", "notebooks")
    held = stage.kubectl("get", "ndev")
    stage.expect("notebooks: nvidia.com/gpu=0,1" in held, "the group to hold its GPUs still", held)
    return "Nobody takes a group's GPUs away under its pods: it goes with the last of them, and no pod joins it."


def _waiting_pod_bound(stage: Stage) -> str:
    stage.kubectl("delete", "pods", "-A", "-l", f"{GROUP}=notebooks")
    began = time.monotonic()
    stage.kubectl("wait", "pod/render", "-n", "serving", "--for=condition=PodScheduled", "--timeout=30s")
    took = time.monotonic() - began
    _await_sharing(stage, {"training": 3, "rendering": 1})
    stage.kubectl("get", "sdg", "-o", "wide")
    _show_sights(stage)
    return f"The waiting pod was scheduled and got its GPUs {took:.1f} s after the group's last pod had gone."


STEPS: tuple[tuple[str, Callable[[Stage], str]], ...] = (
    ("Two groups of GPUs, on a cluster of two nodes with four GPUs each", _two_groups),
    (f"Five pods in two namespaces join them, by the annotation {GROUP}: NAME", _five_pods),
    ("A third group asks for three GPUs, and has to wait", _third_group),
    ("A group is deleted under its pods, and keeps its GPUs", _deleted_in_use),
    ("Its pods end, the group goes with them, and the waiting pod is scheduled at once", _waiting_pod_bound),
)


def _groups(stage: Stage) -> dict[str, Group]:
    return story.groups(stage.ask("get", "sdg", "-o", "json"))


def _phases(known: dict[str, Group], **wanted: str) -> str:
    wrong = {name: known[name].status.phase if name in known else None for name in wanted}
    return "" if wrong == wanted else f"the phases {wrong}"


def _await_sharing(stage: Stage, members: dict[str, int]) -> None:
    stage.eventually(
        "every pod to run beside the others of its group, seeing the group's GPUs and nobody else's",
        lambda: (story.sights(stage.ask("get", "pods", "-A", "-o", "json")), _groups(stage)),
        lambda seen: story.sharing_fault(*seen, members),
    )


def _show_sights(stage: Stage) -> None:
    seen = sorted(story.sights(stage.ask("get", "pods", "-A", "-o", "json")), key=lambda sight: sight[2::-1])
    rows = [("NAMESPACE", "POD", "GROUP", "NODE", story.VISIBLE)]
    rows += [(each.namespace, each.pod, each.group, each.node, each.visible) for each in seen]
    stage.say("# What their containers see:", "cyan")
    stage.say(story.columns(rows))
