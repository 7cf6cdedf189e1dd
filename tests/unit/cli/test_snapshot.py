"""Snapshots in files: what is written is what is read."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from deviceshare.cli.snapshot import recorded
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Kind
from tests.unit.domain.objects import a_group, a_ledger, a_node, a_pod, a_share_pod
from tests.unit.loops.live import MemoryMirror


def written(**objects: list[Any]) -> list[dict[str, Any]]:
    """The objects of the file of a cluster that has these."""
    mirrors = {
        name: MemoryMirror() for name in ("nodes", "ledgers", "groups", "quotas", "namespaces", "pods", "others")
    }
    for name, found in objects.items():
        for each in found:
            mirrors[name].set(each.metadata.key, each)
    listed: list[dict[str, Any]] = json.loads(recorded(SimpleNamespace(**mirrors)))["items"]  # type: ignore[arg-type]
    return listed


@pytest.mark.parametrize(
    ("kind", "where", "found"),
    [
        (NODES, "nodes", a_node("n1")),
        (NODE_DEVICES, "ledgers", a_ledger("n1")),
        (GROUPS, "groups", a_group("team")),
        (PODS, "pods", a_pod("p", "team")),
        (PODS, "others", a_share_pod("q")),
    ],
    ids=["node", "ledger", "group", "pod", "share"],
)
def test_an_object_is_read_as_it_was(kind: Kind[Any], where: str, found: Any) -> None:
    """With its kind, and nothing that is unset."""
    [body] = written(**{where: [found]})
    assert (body.pop("apiVersion"), body.pop("kind")) == (kind.api_version, kind.kind)
    assert decoder_of(kind.type).decode(json.dumps(body).encode()) == found


def test_an_object_that_cant_be_read_hides_the_same_in_a_replay() -> None:
    """Else the devices that it may hold would be free there."""
    node = decoder_of(NODES.type).salvage(b'{"metadata": {"name": "n1"}, "status": {"allocatable": {"x": [1]}}}')
    [body] = written(nodes=[node])
    assert node.metadata.unreadable is not None
    assert decoder_of(NODES.type).decode(json.dumps(body).encode()).metadata.unreadable == node.metadata.unreadable


def test_who_looks_at_a_cluster_does_not_wait_for_the_reader_of_manifests() -> None:
    """Nor for YAML."""
    program = "import sys, deviceshare.cli.inspect_view; print({'yaml', 'deviceshare.cli.manifests'} & {*sys.modules})"
    modules = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=modules, check=True)
    assert done.stdout == "set()\n"
