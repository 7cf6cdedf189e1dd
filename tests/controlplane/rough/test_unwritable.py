"""Strangers' pods that take no write of ours: they hold up nobody else's release, and nobody else's waking.

A waker that stops at such a pod is noticed by `tests/unit/loops/test_waker.py` only: here the kube-scheduler of 1.20
retries the next pod by itself soon enough.
"""

import json
import time
from collections.abc import Callable

import pytest

from tests.controlplane.admission import validation_away
from tests.controlplane.pool import Json, Pool, pod, refers
from tests.controlplane.test_shares import MEMORY_LABEL, container, sharer

MOST = 262_134
"""Bytes of annotations; Kubernetes admits ten more, which none of ours fits in."""


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
STRANGERS: dict[str, Make] = {"full-annotations": with_full_annotations, "30000-arguments": with_30000_arguments}


def come(pool: Pool, make: Make, body: Json, user: str) -> None:
    """Creates the stranger's pod in a namespace of its own; `user` is a pod with devices.

    Full annotations are refused. Such a pod may be older than that, or have come while nothing was validated.
    """
    create = ("create", "-n", pool.another_namespace(), "-f", "-")
    document = json.dumps(make(body))
    if make is not with_full_annotations:
        pool.kubectl(*create, stdin=document)
        return
    assert "metadata.annotations take more than 192 KiB" in pool.kubectl(*create, stdin=document, fails=True)
    with validation_away(pool, user):
        pool.kubectl(*create, stdin=document)


@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_release_goes_on_beside_a_pod_that_cannot_be_written(pool: Pool, make: Make) -> None:
    """Of the stranger's pods one fills what Kubernetes gives annotations, another what we read of a review."""
    node, group = pool.node(2), pool.group(releaseAfter="1s")
    pool.apply(pod("mine", group))
    pool.running("mine")
    come(pool, make, pod("stranger", group, nodeSelector={"nowhere": "at-all"}), "mine")
    pool.kubectl("delete", "pod", "mine", "-n", pool.name, "--now")
    pool.eventually(lambda: pool.get("ndev", node)["spec"].get("claims"), lambda claims: not claims)


@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_pod_is_woken_beside_one_that_cannot_be_written(pool: Pool, make: Make) -> None:
    """The stranger's pod wants the same share, and has waited for longer."""
    pool.node(1, **MEMORY_LABEL)
    pool.apply(sharer(pool, "first", container(mem=9)))
    pool.running("first")
    come(pool, make, sharer(pool, "stranger", container(mem=8)), "first")
    time.sleep(1.5)  # creation times are whole seconds
    pool.apply(sharer(pool, "mine", container(mem=8)))
    pool.eventually(lambda: pool.reason("mine"), refers("7 of 16 GiB"))
    pool.kubectl("delete", "pod", "first", "-n", pool.name, "--now")
    pool.eventually(lambda: pool.placed("mine"))
