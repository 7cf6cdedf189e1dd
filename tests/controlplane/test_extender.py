"""The running extender over HTTP, and behind a kube-scheduler that sends it whole nodes; on 300 of them."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.pool import GPU, VISIBLE, Json, Pool, pod

Eventually = Callable[..., Any]
NODES = 300


def ask(sandbox: Sandbox, verb: str, body: bytes) -> tuple[int, Any]:
    """The status and the answer: JSON where it is any."""
    request = urllib.request.Request(f"{sandbox.extender_url}/{verb}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def call(sandbox: Sandbox, verb: str, body: Json) -> Any:
    """The answer to a well-formed request."""
    status, answer = ask(sandbox, verb, json.dumps(body).encode())
    assert status == 200, answer
    return answer


def unscheduled(pool: Pool, name: str, group: str) -> Json:
    """A pod of the group that no scheduler touches, as the webhook made it."""
    said = pool.kubectl(
        "create", "--dry-run=server", "-n", pool.name, "-o", "json", "-f", "-", stdin=json.dumps(pod(name, group))
    )
    document: Json = json.loads(said)
    return document


def test_whole_nodes_are_answered_with_whole_nodes(pool: Pool) -> None:
    """`nodeCacheCapable: false`: those that fit come back as they were sent."""
    fits, small = pool.node(), pool.node(1)
    asked = unscheduled(pool, "p", pool.group())
    nodes = pool.get("nodes")
    whole = {"Pod": asked, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
    # A new node's devices are free once binds are over.
    answer = pool.eventually(
        lambda: call(pool.sandbox, "filter", whole),
        lambda found: "(1 of 1 free)" in found["FailedAndUnresolvableNodes"][small],
    )
    assert answer["Nodes"]["items"] == [each for each in nodes if each["metadata"]["name"] == fits]
    assert "needs 2 nvidia.com/gpu (1 of 1 free)" in answer["FailedAndUnresolvableNodes"][small]
    scores = call(pool.sandbox, "prioritize", {"Pod": asked, "Nodes": answer["Nodes"]})
    assert [each["Host"] for each in scores] == [fits]


def test_unknown_nodes_are_refused_by_name(pool: Pool) -> None:
    """One that the scheduler still knows may be gone already."""
    node = pool.node()
    asked = unscheduled(pool, "p", pool.group())
    answer = call(pool.sandbox, "filter", {"Pod": asked, "NodeNames": [node, "no-such-node"]})
    assert answer["NodeNames"] == [node]
    assert "no-such-node" in answer["FailedAndUnresolvableNodes"]


def test_a_bind_of_a_pod_that_is_gone_says_so_and_takes_nothing(pool: Pool) -> None:
    """kube-scheduler may come late."""
    node = pool.node()
    group = pool.group()
    asked = unscheduled(pool, "gone", group)
    call(pool.sandbox, "filter", {"Pod": asked, "NodeNames": [node]})
    for uid in (asked["metadata"]["uid"], "an-unknown-uid"):
        binding = {"PodName": "gone", "PodNamespace": pool.name, "PodUID": uid, "Node": node}
        assert f"pod {pool.name}/gone is gone" in call(pool.sandbox, "bind", binding)["Error"]


def test_a_bind_is_idempotent(pool: Pool) -> None:
    """kube-scheduler asks again after a time-out; a pod that is there already is a success, elsewhere an error."""
    home, other = pool.node(), pool.node()
    group = pool.group(nodeSelector={"kubernetes.io/hostname": home})
    pool.apply(pod("bound", group))
    (bound,) = pool.running("bound")
    binding = {"PodName": "bound", "PodNamespace": pool.name, "PodUID": bound["metadata"]["uid"]}
    assert call(pool.sandbox, "bind", {**binding, "Node": home}) == {"Error": ""}
    assert f"lives on node {home}" in call(pool.sandbox, "bind", {**binding, "Node": other})["Error"]
    assert pool.get("pod", "bound") == bound


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
def test_what_is_no_request_is_refused_and_harms_nobody(sandbox: Sandbox, eventually: Eventually, verb: str) -> None:
    """A person's curl, or a scheduler of another age."""
    pid = sandbox.pid("deviceshare")
    for body in (b"", b"{", b"null", b'{"Pod": []}', b"\x00" * 100):
        status, answer = ask(sandbox, verb, body)
        assert status == 400
        assert "not a request of a kube-scheduler" in answer
    eventually(lambda: sandbox.status().ready)
    assert sandbox.pid("deviceshare") == pid


def test_a_body_beyond_all_bounds_is_cut_off(sandbox: Sandbox, eventually: Eventually) -> None:
    """130 MiB; 5,000 whole nodes are 40 MB. Memory is not taken for more than the bound.

    The connection is closed with the answer, so who still sends may lose it.
    """
    pid = sandbox.pid("deviceshare")
    try:
        status, _ = ask(sandbox, "filter", b" " * (130 << 20))
    except (urllib.error.URLError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        assert isinstance(reason, ConnectionResetError | BrokenPipeError)
    else:
        assert status == 413
    eventually(lambda: sandbox.status().ready)
    assert sandbox.pid("deviceshare") == pid


# Three hundred nodes.


@pytest.fixture(scope="module")
def large() -> Iterator[Sandbox]:
    """Above 100 nodes, kube-scheduler would show an extender a sample only."""
    with running(Options(nodes=NODES, devices=4)) as started:
        yield started


def pods_of_one_group(large: Sandbox, name: str) -> None:
    """One pod binds the group; twenty more must find its node at their first attempt."""
    pool = Pool(large, name)
    known = ("get", "ndev", "-o", "name")
    pool.eventually(lambda: pool.kubectl(*known).count("\n"), lambda count: count == NODES, seconds=120)
    group = f"{name}-group"
    document = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup", "metadata": {"name": group}}
    pool.apply(document | {"spec": {"resources": {GPU: 2}}})
    pool.apply(pod("first", group))
    pool.running("first")
    pool.apply(*(pod(f"later-{number}", group) for number in range(20)))
    pods = pool.running(seconds=90)
    assert len(pods) == 21
    status = pool.status(group)
    assert {each["spec"]["nodeName"] for each in pods} == {status["nodeName"]}
    assert {each[VISIBLE] for each in pool.environments(pods)} == {status["selectedDevices"][GPU]}
    assert "FailedScheduling" not in pool.kubectl("get", "events", "-n", name, "-o", "jsonpath={..reason}")


def test_on_300_nodes_the_groups_own_node_is_found_at_the_first_attempt(large: Sandbox) -> None:
    """Not one event FailedScheduling."""
    pods_of_one_group(large, "by-name")


def test_a_kube_scheduler_that_sends_whole_nodes_is_served_as_well(large: Sandbox) -> None:
    """Started again with `nodeCacheCapable: false`, on 300 nodes."""
    file = large.layout.config / "deviceshare-scheduler.yaml"
    config = yaml.safe_load(file.read_text())
    config["extenders"][0]["nodeCacheCapable"] = False
    file.write_text(yaml.safe_dump(config))
    pool = Pool(large, "restart")
    killed = large.pid("deviceshare-scheduler")
    os.kill(killed, signal.SIGKILL)
    pool.eventually(lambda: large.pid("deviceshare-scheduler") != killed and large.status().ready)

    pods_of_one_group(large, "whole-nodes")
