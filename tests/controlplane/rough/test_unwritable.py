"""Strangers' pods that take no write of ours: they hold up nobody else's release, and nobody else's waking.

Each is timed beside the same without such a pod.
"""

import json
import time
from collections.abc import Callable

import pytest

from deviceshare_sandbox import Sandbox
from tests.controlplane.admission import validation_away
from tests.controlplane.pool import Json, Pool, pod, refers
from tests.controlplane.test_shares import MEMORY_LABEL, container, sharer
from tests.kubernetes_versions import minor_of

MOST = 262_134
"""Bytes of annotations; Kubernetes admits ten more, which none of ours fits in."""
SLACK_SECONDS = 2.0
WAITS_BEFORE = 24
"""The minor version. Binds of pending pods are waited out before it, of any pod: 28 s with 1.20, 13 s from 1.21 on."""


def ordinary(body: Json) -> Json:
    return body


def with_full_annotations(body: Json) -> Json:
    annotations = body["metadata"]["annotations"]
    taken = sum(len(key) + len(value) for key, value in annotations.items())
    annotations["full"] = "x" * (MOST - taken - len("full"))
    return body


def with_30000_arguments(body: Json) -> Json:
    """A review of its update has twice as many members, more than we read of anybody else."""
    body["spec"]["containers"][0]["args"] = [""] * 30_000
    return body


Make = Callable[[Json], Json]
STRANGERS: dict[str, Make | None] = {
    "nobody": None,
    "ordinary": ordinary,
    "full-annotations": with_full_annotations,
    "30000-arguments": with_30000_arguments,
}


def come(pool: Pool, make: Make | None, body: Json, user: str) -> None:
    """Creates the stranger's pod in a namespace of its own; `user` is a pod with devices.

    Full annotations are refused. Such a pod may be older than that, or have come while nothing was validated.
    """
    if make is None:
        return
    create = ("create", "-n", pool.another_namespace(), "-f", "-")
    document = json.dumps(make(body))
    if make is not with_full_annotations:
        pool.kubectl(*create, stdin=document)
        return
    assert "metadata.annotations take more than 192 KiB" in pool.kubectl(*create, stdin=document, fails=True)
    with validation_away(pool, user):
        pool.kubectl(*create, stdin=document)


def test_a_release_takes_no_longer_beside_a_pod_that_cannot_be_written(
    sandbox: Sandbox, pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the stranger's pods one fills what Kubernetes gives annotations, another what we read of a review."""
    groups: dict[str, str] = {}
    nodes: dict[str, str] = {}
    for name, make in STRANGERS.items():
        nodes[name] = pool.node(2, only=name)
        groups[name] = pool.group(name, nodeSelector={"only": name}, releaseAfter="1s")
        pool.apply(pod(name, groups[name]))
        pool.running(name)
        come(pool, make, pod("stranger", groups[name], nodeSelector={"nowhere": "at-all"}), name)
    time.sleep(1)
    pool.kubectl("delete", "pod", *STRANGERS, "-n", pool.name, "--now")
    ended, took = time.monotonic(), dict[str, float]()
    while len(took) < len(nodes):
        assert time.monotonic() < ended + 60, f"released are {took}"
        for name in nodes.keys() - took.keys():
            if not pool.get("ndev", nodes[name])["spec"].get("claims"):
                took[name] = time.monotonic() - ended
        time.sleep(0.1)
    with capsys.disabled():
        print("\nReleased beside:", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items()))
    control = took["ordinary" if minor_of(sandbox.plan.binaries.version) < WAITS_BEFORE else "nobody"]
    assert max(took.values()) <= control + SLACK_SECONDS


def test_a_pod_is_woken_no_later_beside_one_that_cannot_be_written(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stranger's pod wants the same share, and has waited for longer."""
    took: dict[str, float] = {}
    for name, make in STRANGERS.items():
        if name == "ordinary":
            continue  # it would get the share
        pool = Pool(sandbox, f"test-waking-{name}")
        pool.node(1, **MEMORY_LABEL)
        pool.apply(sharer(pool, "first", container(mem=9)))
        pool.running("first")
        come(pool, make, sharer(pool, "stranger", container(mem=8)), "first")
        time.sleep(1.5)
        pool.apply(sharer(pool, "mine", container(mem=8)))
        pool.eventually(lambda pool=pool: pool.reason("mine"), refers("7 of 16 GiB"))  # type: ignore[misc]
        pool.kubectl("delete", "pod", "first", "-n", pool.name, "--now")
        ended = time.monotonic()
        pool.eventually(lambda pool=pool: pool.placed("mine"))  # type: ignore[misc]
        took[name] = time.monotonic() - ended
        pool.end()
    with capsys.disabled():
        print("\nWoken beside:", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items()))
    assert max(took.values()) <= took["nobody"] + SLACK_SECONDS
