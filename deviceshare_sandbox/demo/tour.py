"""The steps of the demo, in a sandbox of its own."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from deviceshare.domain.contract import GROUP
from deviceshare.domain.objects.groups import Group
from deviceshare_sandbox.demo import story
from deviceshare_sandbox.demo.stage import Stage, Surprise
from deviceshare_sandbox.errors import SandboxError
from deviceshare_sandbox.lifecycle import running
from deviceshare_sandbox.progress import Progress
from deviceshare_sandbox.state import Options


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
    stage.kubectl("get", "ndev")
    return "Three GPUs are free, but on two nodes, and a group never spans nodes. The pod's event says so."


def _refused_deletion(stage: Stage) -> str:
    refusal = stage.kubectl("delete", "sdg", "notebooks", fails=True)
    for pod in ("research/ada", "serving/bob"):
        stage.expect(pod in refusal, f"the refusal to name {pod}", refusal)
    stage.expect("notebooks" in _groups(stage), "the group to be there still", "no group notebooks")
    return "Nobody deletes a group under its pods."


def _waiting_pod_bound(stage: Stage) -> str:
    stage.kubectl("delete", "pods", "-A", "-l", f"{GROUP}=notebooks")
    began = time.monotonic()
    stage.kubectl("delete", "sdg", "notebooks")
    stage.kubectl("wait", "pod/render", "-n", "serving", "--for=condition=PodScheduled", "--timeout=30s")
    took = time.monotonic() - began
    _await_sharing(stage, {"training": 3, "rendering": 1})
    stage.kubectl("get", "sdg", "-o", "wide")
    _show_sights(stage)
    return f"The waiting pod was scheduled and got its GPUs {took:.1f} s after the group was deleted."


STEPS: tuple[tuple[str, Callable[[Stage], str]], ...] = (
    ("Two groups of GPUs, on a cluster of two nodes with four GPUs each", _two_groups),
    (f"Five pods in two namespaces join them, by the annotation {GROUP}: NAME", _five_pods),
    ("A third group asks for three GPUs, and has to wait", _third_group),
    ("A group in use can't be deleted", _refused_deletion),
    ("The group's pods end, the group is deleted, and the waiting pod is scheduled at once", _waiting_pod_bound),
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
