"""The command line of people with `edit` in one namespace: what they may not see is left out, and said."""

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import yaml

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Forbidden
from tests.controlplane.pool import GPU, Json, Pool, pod

SINCE = "2026-11-21T03:00:00Z"
ALLOWS = {
    "deviceshare-view": ("list", "nodedevices.deviceshare.io"),
    "deviceshare-recover": ("patch", "nodedevices.deviceshare.io", "--subresource=status"),
}
"""For each role something that only it allows her."""


class Person(NamedTuple):
    """A ServiceAccount with few rights, whose kubeconfig names its namespace."""

    pool: Pool
    name: str
    file: Path

    def runs(self, *arguments: str, stdin: str | None = None, code: int = 0) -> tuple[str, str]:
        """What the command printed on both streams."""
        done = subprocess.run(
            [sys.executable, "-m", "deviceshare", *arguments],
            env={**os.environ, "KUBECONFIG": str(self.file)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        said = f"deviceshare {' '.join(arguments)}: {done.stdout}{done.stderr}"
        assert done.returncode == code and "Traceback" not in said, said
        return done.stdout, done.stderr

    def may(self, role: str) -> None:
        """Binds the ClusterRole in the whole cluster, until the namespace's end."""
        subject = f"--serviceaccount={self.pool.name}:{self.name}"
        name = f"{role}-{self.pool.name}-{self.name}"
        self.pool.kubectl("create", "clusterrolebinding", name, f"--clusterrole={role}", subject)
        self.await_right(role)

    def await_right(self, role: str) -> None:
        """Until the API server knows what the role allows: its authorizer reads bindings from a cache."""
        ask = ("auth", "can-i", *ALLOWS[role], f"--as=system:serviceaccount:{self.pool.name}:{self.name}")
        self.pool.eventually(lambda: self.pool.sandbox.kubectl(*ask).returncode == 0)


@pytest.fixture
def alice(pool: Pool, tmp_path: Path) -> Person:
    """She has `edit` in the pool's namespace, and nothing else."""
    pool.kubectl("create", "serviceaccount", "alice", "-n", pool.name)
    subject = f"--serviceaccount={pool.name}:alice"
    pool.kubectl("create", "rolebinding", "alice", "-n", pool.name, "--clusterrole=edit", subject)
    wanted = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    path = f"/api/v1/namespaces/{pool.name}/serviceaccounts/alice/token"
    token = json.loads(pool.kubectl("create", "--raw", path, "-f", "-", stdin=wanted))["status"]["token"]
    config = yaml.safe_load(pool.sandbox.kubeconfig.read_text())
    config["users"] = [{"name": "alice", "user": {"token": token}}]
    context = {"cluster": config["clusters"][0]["name"], "user": "alice", "namespace": pool.name}
    config |= {"contexts": [{"name": "lab", "context": context}], "current-context": "lab"}
    file = tmp_path / "alice"
    file.write_text(yaml.safe_dump(config))
    return Person(pool, "alice", file)


def test_who_may_read_nothing_learns_which_role_to_ask_for(alice: Person) -> None:
    """With the administrator's command, which is enough when it is run."""
    _, refusal = alice.runs("inspect", code=1)
    account = f"{alice.pool.name}:alice"
    assert f"--clusterrole=deviceshare-view --serviceaccount={account}" in refusal
    command = refusal.splitlines()[-1].split()
    alice.pool.kubectl(*command[1:])
    alice.await_right("deviceshare-view")
    alice.runs("inspect")


def test_with_edit_in_one_namespace_the_commands_answer_and_say_what_they_leave_out(alice: Person) -> None:
    """inspect, explain, plan, top and rebind, with deviceshare-view; no answer claims what only others can see."""
    pool = alice.pool
    alice.may("deviceshare-view")
    node, other = pool.node(), pool.another_namespace()
    group, unmatched = pool.group("first", 3), f"{pool.name}-nowhere"
    pool.apply(pod("one", group))
    pool.apply(pod("two", group), namespace=other)
    pool.eventually(lambda: pool.status(group).get("podCount"), lambda count: count == 2)
    spec = {"resources": {GPU: 1}, "nodeSelector": {"pool": "nowhere"}}
    metadata = {"name": unmatched, "labels": {"pool": pool.name}}
    head = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup", "metadata": metadata}
    pool.apply(head | {"spec": spec}, pod("three", unmatched))
    pool.eventually(
        lambda: pool.condition(unmatched).get("message", ""), lambda said: "matches spec.nodeSelector" in said
    )

    answer, notes = alice.runs("inspect", "-o", "json")
    picture: Json = json.loads(answer)
    assert {each["what"] for each in picture["unseen"]} >= {"nodes", "pods"}
    assert "Note: Nodes can't be listed by you" in notes
    assert f"Note: Pods outside of namespace {pool.name} can't be listed by you" in notes
    (mine,) = [each for each in picture["groups"] if each["name"] == group]
    assert mine["pods"] == sorted([f"{pool.name}/one", f"{other}/two"])
    (there,) = [each for each in picture["nodes"] if each["name"] == node]
    assert (there["counts"][0]["free"], "obstacle" in there) == (1, False)

    # Both count the cluster's shared nodes, of which other tests add some and take some away.
    told = pool.eventually(
        lambda: json.loads(alice.runs("explain", "group", unmatched, "-o", "json")[0]),
        lambda answer: answer["message"] == pool.condition(unmatched)["message"],
    )
    assert "would go to" not in told["facts"] and "which the verdicts leave out" in told["facts"]["nodeSelector"]
    held = json.loads(alice.runs("explain", "pod", "one", "-o", "json")[0])
    assert held["facts"]["health"] == pool.condition(group, "Healthy")["message"]
    assert "The ClusterRole view grants it; an administrator" in alice.runs("explain", "pod", f"{other}/two", code=1)[1]

    planned, said = alice.runs("plan", "-f", "-", "-o", "json", stdin=json.dumps(pod("new", group)))
    assert json.loads(planned)["groups"][0]["pods"] == [f"{pool.name}/new"]
    assert "Note: Nodes" in said
    shown, said = alice.runs("top", node)
    assert group in shown and "--clusterrole=deviceshare-top" in said
    assert "All devices of group" in alice.runs("rebind", group)[0]


def test_recover_needs_no_right_to_write_claims(alice: Person) -> None:
    """deviceshare-recover writes the status; the spec, where claims are, stays closed."""
    pool = alice.pool
    node = pool.node()
    alice.may("deviceshare-view")
    assert "No agent reports on node" in alice.runs("recover", node, "0", code=1)[1]
    broken = Part(GPU, 0, "GPU-0", unhealthy="Xid 79", since=SINCE)
    report(pool, node, broken)
    assert "--clusterrole=deviceshare-recover" in alice.runs("recover", node, "0", code=1)[1]
    alice.may("deviceshare-recover")
    with ThreadPoolExecutor() as threads:
        recovering = threads.submit(alice.runs, "recover", node, "0")
        pool.eventually(
            lambda: pool.get("ndev", node)["status"].get("recovered"), lambda said: said == [f"GPU-0@{SINCE}"]
        )
        report(pool, node, Part(GPU, 0, "GPU-0"))  # as an agent does then
        assert "can be allocated again (it was: Xid 79)" in recovering.result()[0]
    assert "deviceshare.io/recovered" not in pool.get("ndev", node)["metadata"].get("annotations", {})
    refused = [
        "--kubeconfig",
        str(alice.file),
        "patch",
        "ndev",
        node,
        "--type=merge",
        "-p",
        '{"spec": {"claims": null}}',
    ]
    assert "forbidden" in pool.kubectl(*refused, fails=True)
    with pytest.raises(Forbidden, match=r"only deviceshare and its agents write status\.hardware: who may not patch"):
        report(pool, node, Part(GPU, 0, "GPU-1"), file=alice.file)


def report(pool: Pool, node: str, *parts: Part, file: Path | None = None) -> None:
    """What the node's agent would report; as the admin unless told otherwise."""

    async def apply() -> None:
        async with connect(str(file or pool.sandbox.kubeconfig)) as connection:
            body = {"status": {"hardware": msgspec.to_builtins(Hardware(devices=list(parts)))}}
            await Api(connection).apply(NODE_DEVICES, node, body, manager=contract.AGENT, subresource="status")

    asyncio.run(apply())
