"""The examples as they are: what a person applies first must work, and so must what their comments say to type."""

import shlex
from functools import partial
from pathlib import Path

import pytest

from deviceshare import assets
from tests.controlplane.pool import GPU, VISIBLE, Json, Pool

PODS = {
    "multi-gpu": 5,
    "notebook-gpu": 1,
    "nvidia-smi": 1,
    "pytorch": 2,
    "single-gpu": 2,
    "turns": 2,
    "two-notebooks": 2,
    "vllm": 2,
}
"""Group, which is the example's name too, and how many pods join it."""


def commands(file: Path, verb: str) -> list[list[str]]:
    """The commands `kubectl VERB …` in the comments, without `kubectl`."""
    said = [line.removeprefix("#").strip() for line in file.read_text().splitlines() if line.startswith("#")]
    typed = [part.strip() for line in said for part in line.split("&&")]
    return [shlex.split(line, comments=True)[1:] for line in typed if line.startswith(f"kubectl {verb} ")]


@pytest.mark.parametrize("file", sorted(assets.examples().glob("*.yaml")), ids=lambda file: file.stem)
def test_an_example_runs_as_it_is(pool: Pool, file: Path) -> None:
    """All of its pods start on one node, every container sees the group's devices, and it goes as it says."""
    group = file.stem
    here = ("-n", pool.name)

    said = pool.kubectl("apply", *here, "-f", str(file)).splitlines()
    # The webhook may hear of the file's group a moment after it is asked about the file's pods.
    assert [line for line in said if "Warning" in line and "doesn't exist yet" not in line] == []
    pods: list[Json] = pool.eventually(pool.running, lambda seen: len(seen) == PODS[group])
    status = pool.status(group)
    assert {each["spec"]["nodeName"] for each in pods} == {status["nodeName"]}
    assert {each[VISIBLE] for each in pool.environments(pods)} == {status["selectedDevices"][GPU]}

    for command in commands(file, "get"):
        pool.kubectl(*command, *here)
    deletions = commands(file, "delete")
    assert deletions
    for command in deletions:
        # By policies a group can be deleted when its status says that its pods have gone: a moment later.
        pool.eventually(partial(pool.sandbox.kubectl, *command, *here), lambda done: done.returncode == 0)
    pool.eventually(lambda: pool.get("pods") == [])
    assert "NotFound" in pool.kubectl("get", "sdg", group, fails=True)
