"""Pods of others that can't be written: what they cost, and whom."""

import json
import time

import pytest

from tests.controlplane.admission import validation_away
from tests.controlplane.pool import Pool, pod
from tests.controlplane.test_controller import claims, pod_events

FULL = 262_144
"""Bytes of all annotations of an object, at most (apimachinery, `TotalAnnotationSizeLimitB`)."""
BINDS_OVER_SECONDS = 28.0
"""What is waited in any case while a pod is pending, before Kubernetes 1.21; less on later ones."""


def fill(pool: Pool, name: str) -> None:
    """Leaves a few bytes of room in the annotations of a pod."""

    def filled() -> bool:
        stranger = pool.get("pod", name)
        annotations = stranger["metadata"].setdefault("annotations", {})
        taken = sum(len(key) + len(value) for key, value in annotations.items())
        annotations["padding"] = "x" * (FULL - taken - len("padding") - 10)
        done = pool.sandbox.kubectl("replace", "-f", "-", stdin=json.dumps(stranger))
        return done.returncode == 0  # others write the pod, too

    pool.eventually(filled)


def test_a_pending_pod_without_room_for_an_annotation_holds_up_no_release(
    pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its status is written in place of it, and the devices are free as soon as beside any pending pod."""
    node = pool.node()
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    with validation_away(pool, "one"):
        pool.kubectl(
            "create", "-n", pool.name, "-f", "-", stdin=json.dumps(pod("stranger", group, nodeSelector={"no": "where"}))
        )
        fill(pool, "stranger")
        pool.kubectl("delete", "pod", "one", "-n", pool.name)
        pool.eventually(lambda: "one" not in pool.kubectl("get", "pods", "-n", pool.name))
        pool.kubectl("delete", "sdg", group)
    deleted = time.monotonic()
    pool.eventually(lambda: claims(pool, node), lambda left: not left, BINDS_OVER_SECONDS + 2)
    with capsys.disabled():
        print(f"\nBeside a pod that can't be annotated devices were free after {time.monotonic() - deleted:.1f} s")
    said = pool.get("pod", "stranger")["status"]["message"]
    assert said.startswith("deviceshare can't annotate this pod")
    assert "CannotBeWritten" not in pod_events(pool, "stranger"), "its status could be"
