"""`inspect`, `explain`, `plan` and the kubectl plugin, on a real cluster: what they say is what happens."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.controlplane.pool import GPU, VISIBLE, Json, Pool, deployment, job, pod, refers


def deviceshare(pool: Pool, *arguments: str, stdin: str | None = None, code: int = 0) -> str:
    """What the command printed; fails the test unless it ends with this exit status."""
    done = subprocess.run(
        [sys.executable, "-m", "deviceshare", *arguments],
        env={**os.environ, "KUBECONFIG": str(pool.sandbox.kubeconfig)},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, f"deviceshare {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout if code in (0, 3) else done.stderr


@pytest.fixture
def busy(pool: Pool) -> tuple[str, str]:
    """One node of four, three of them held by the first group, for which the second waits with one pod."""
    pool.node()
    first, second = pool.group("first", 3), pool.group("second", 2)
    pool.apply(pod("one", first))
    pool.running("one")
    pool.eventually(lambda: pool.status(first).get("podCount"))
    pool.apply(pod("two", second))
    pool.eventually(lambda: pool.condition(second), lambda seen: f"{first} holds" in seen.get("message", ""))
    return first, second


def test_inspect_shows_who_holds_what_and_who_waits(pool: Pool, busy: tuple[str, str]) -> None:
    """As a table of the node, and as JSON."""
    first, second = busy
    node = f"{pool.name}-node-1"
    lines = deviceshare(pool, "inspect", node, "-o", "wide").splitlines()
    assert f"{GPU}: 3/4 allocated, 1 free, on 1 node" in lines
    assert [line for line in lines if line.startswith(first) and f"{pool.name}/one" in line]

    picture = json.loads(deviceshare(pool, "inspect", "-o", "json"))
    (mine,) = [each for each in picture["nodes"] if each["name"] == node]
    assert [device.get("group", "") for device in mine["devices"]] == [first, first, first, ""]
    (waiting,) = [each for each in picture["waiting"] if each["group"] == second]
    assert waiting["pod"] == f"{pool.name}/two"
    assert waiting["reason"] == pool.condition(second)["message"]


def test_explain_begins_with_what_condition_and_event_say(pool: Pool, busy: tuple[str, str]) -> None:
    """Its beginning, word for word; then the node's devices and what would free them. Programs get all of it."""
    first, second = busy
    message = pool.condition(second)["message"]
    told = deviceshare(pool, "explain", "group", second).splitlines()
    assert told[0] == message.partition("; ")[0]
    assert deviceshare(pool, "explain", "pod", f"{pool.name}/two").splitlines()[0] == told[0]
    answer = json.loads(deviceshare(pool, "explain", "group", second, "-o", "json"))
    assert answer["message"] == message
    assert answer["why"]["text"] == told[0]
    assert [line for line in told if f"{GPU} 0,1,2" in line and f"kubectl delete sdg {first}" in line]

    chosen = f"reason=Waiting,involvedObject.name={second}"
    events = ("get", "events", "-A", "--field-selector", chosen, "-o", "jsonpath={.items[*].message}")
    pool.eventually(lambda: pool.kubectl(*events), refers(message))


def test_what_was_seen_is_explained_without_the_cluster(pool: Pool, busy: tuple[str, str], tmp_path: Path) -> None:
    """The file says what the cluster did, and nothing of what a container's variables are."""

    def said(answer: Json) -> Json:
        """Of this test's node; others' come and go, and kube-scheduler counts them."""
        mine = [each for each in answer.get("nodes", ()) if each["node"].startswith(f"{pool.name}-")]
        facts = {name: fact for name, fact in answer.get("facts", {}).items() if name != "kube-scheduler"}
        return {"nodes": mine, "facts": facts, "message": re.sub(r"\d+/\d+ nodes.*", "", answer["message"])}

    first, second = busy
    container = {"name": "main", "image": "busybox", "env": [{"name": "PASSWORD", "value": "secret-of-mine"}]}
    pool.apply(pod("three", second, containers=[container]))
    pool.eventually(lambda: deviceshare(pool, "explain", "group", second), refers("three"))
    file = str(tmp_path / "seen.json")
    deviceshare(pool, "snapshot", "-f", file)
    for what in (("group", first), ("group", second), ("pod", f"{pool.name}/one"), ("pod", f"{pool.name}/three")):
        live = json.loads(deviceshare(pool, "explain", *what, "-o", "json"))
        mine = json.loads(deviceshare(pool, "explain", *what, "-o", "json", "--snapshot", file))
        assert mine["subject"] == live["subject"] and said(mine) == said(live)
    text = Path(file).read_text()
    assert "PASSWORD" not in text and "secret-of-mine" not in text
    manifest = json.dumps(pod("late", second))
    planned = deviceshare(pool, "plan", "-d", "-f", "-", "--nodes", file, "-n", pool.name, stdin=manifest, code=3)
    assert second in planned and f"{first} holds" in planned
    assert "no pod x/y" in deviceshare(pool, "explain", "pod", "x/y", "--snapshot", file, code=1)


def test_explain_tells_what_a_bound_group_and_its_pod_have(pool: Pool, busy: tuple[str, str]) -> None:
    """The same as the status and the variables."""
    first, _ = busy
    told = json.loads(deviceshare(pool, "explain", "group", first, "-o", "json"))
    assert told["message"] == pool.condition(first)["message"]
    assert told["facts"]["health"] == pool.condition(first, "Healthy")["message"]
    assert told["facts"]["used by"] == f"{pool.name}/one"
    of_pod = json.loads(deviceshare(pool, "explain", "pod", "one", "-n", pool.name, "-o", "json"))
    assert of_pod["facts"]["NVIDIA_VISIBLE_DEVICES"] == pool.status(first)["selectedDevices"][GPU]


def _sharing(resource: str, size: int) -> Json:
    limits = {"limits": {resource: size}}
    return {"containers": [{"name": "main", "image": "busybox", "resources": limits}]}


def test_explain_tells_of_a_workload_what_only_its_controller_is_told(pool: Pool) -> None:
    """Why it can't create pods, by a condition or by Events; and what admission warns of."""
    pool.node()
    env = [{"name": VISIBLE, "value": "all"}]
    [container] = _sharing("deviceshare.io/gpu-percent", 10)["containers"]
    spec = {"nodeSelector": {"pool": pool.name}, "containers": [{**container, "env": env}]}
    pool.apply(
        deployment("typo", "", 1, **_sharing("aliyun.com/gpu_mem", 1)),
        job("typo", "", **_sharing("deviceshare.io/gpu-memory", 1)),
        deployment("sound", "", 2, **spec),
    )
    for kind, meant in (("deployment", "aliyun.com/gpu-mem"), ("job", "deviceshare.io/gpu-mem")):
        explain = partial(deviceshare, pool, "explain", kind, f"{pool.name}/typo")
        pool.eventually(explain, refers(f"did you mean {meant}"))
    pool.eventually(lambda: [each for each in pool.get("pods") if each["status"]["phase"] == "Running"], len)
    told = deviceshare(pool, "explain", "deployment", "sound", "-n", pool.name)
    assert "pods with a node, 0 waiting" in told and f"env {VISIBLE} is replaced" in told
    assert f"kubectl get jobs -n {pool.name}" in deviceshare(pool, "explain", "job", f"{pool.name}/none", code=1)


def test_explain_tells_of_a_rolling_update_that_waits_for_itself(pool: Pool) -> None:
    """Of the Deployment and of its new pod."""
    pool.node(1)
    spec = {"nodeSelector": {"pool": pool.name}, **_sharing("deviceshare.io/gpu-percent", 100)}
    pool.apply(deployment("d", "", 1, **spec))
    pool.eventually(lambda: [each for each in pool.get("pods") if each["status"]["phase"] == "Running"], len)
    changed = deployment("d", "", 1, **spec)
    changed["spec"]["template"]["metadata"]["labels"]["version"] = "b"
    pool.apply(changed)
    told = pool.eventually(lambda: deviceshare(pool, "explain", "deployment", f"{pool.name}/d"), refers("maxSurge: 0"))
    [new] = [each["metadata"]["name"] for each in pool.get("pods") if each["status"]["phase"] == "Pending"]
    assert new in told
    assert "of the same Deployment has what it waits for" in deviceshare(pool, "explain", "pod", f"{pool.name}/{new}")


def test_who_asks_for_what_is_not_there_is_told_where_to_look(pool: Pool) -> None:
    """With exit status 1."""
    assert "kubectl get sdg" in deviceshare(pool, "explain", "group", f"{pool.name}-none", code=1)
    assert f"kubectl get pods -n {pool.name}" in deviceshare(pool, "explain", "pod", f"{pool.name}/none", code=1)
    assert "kubectl label node nowhere" in deviceshare(pool, "inspect", "nowhere", code=1)


def manifests(pool: Pool, name: str, count: int) -> list[Json]:
    """A group that stays on the pool's nodes, and a Deployment of two pods that join it."""
    group = {
        "apiVersion": "deviceshare.io/v1alpha1",
        "kind": "SharedDeviceGroup",
        "metadata": {"name": name, "labels": {"pool": pool.name}},
        "spec": {"resources": {GPU: count}, "nodeSelector": {"pool": pool.name}},
    }
    workload = deployment("workload", name, 2)
    workload["metadata"]["namespace"] = pool.name
    return [group, workload]


def test_what_is_planned_is_what_happens(pool: Pool) -> None:
    """On the cluster as it is: the same node, the same devices; and what would wait waits, in the same words."""
    pool.node()
    other = pool.node(devices=8)
    pool.apply(pod("one", pool.group("first", 3)))
    pool.running("one")
    name = f"{pool.name}-planned"
    documents = manifests(pool, name, 4)

    said = deviceshare(pool, "plan", "-f", "-", "-o", "json", stdin=json.dumps({"kind": "List", "items": documents}))
    (planned,) = json.loads(said)["groups"]
    assert planned["node"] == other
    assert len(planned["pods"]) == 2

    pool.apply(*documents)
    pool.eventually(lambda: pool.status(name).get("podCount"), lambda count: count == 2)
    assert (pool.status(name)["nodeName"], pool.status(name)["selectedDevices"]) == (
        planned["node"],
        planned["devices"],
    )
    assert pool.condition(name)["message"] == planned["message"]

    late = manifests(pool, f"{pool.name}-late", 5)
    said = deviceshare(pool, "plan", "-f", "-", "-o", "json", stdin=json.dumps({"kind": "List", "items": late}), code=3)
    (waits,) = json.loads(said)["groups"]
    pool.apply(pod("late", pool.group("late", 5)))
    pool.eventually(lambda: pool.condition(f"{pool.name}-late"), lambda seen: seen.get("message") == waits["message"])


def test_twenty_shares_fill_five_of_ten_nodes_as_planned(pool: Pool) -> None:
    """Of 10 GiB each, one on a GPU of 16: each node that is begun is filled, so that five stay whole for groups."""
    for _ in range(10):
        pool.node(4, **{"nvidia.com/gpu.memory": "16384"})
    limits = {"limits": {"deviceshare.io/gpu-mem": 10}}
    container = {"name": "main", "image": "busybox", "resources": limits}
    names = [f"share-{number:02}" for number in range(20)]
    documents = [pod(name, nodeSelector={"pool": pool.name}, containers=[container]) for name in names]
    for each in documents:
        each["metadata"]["namespace"] = pool.name

    said = deviceshare(pool, "plan", "-f", "-", "-o", "json", stdin=json.dumps({"kind": "List", "items": documents}))
    planned = Counter(each["node"] for each in json.loads(said)["pods"])
    pool.apply(*documents)
    bound = Counter(each["spec"]["nodeName"] for each in pool.running(*names))
    assert sorted(planned.values()) == [4] * 5
    # kube-scheduler may ask about a pod before it has the one before bound, and so begin one node more.
    assert len(bound) in (5, 6)


def test_kubectl_finds_the_plugin(pool: Pool, busy: tuple[str, str], tmp_path: Path) -> None:
    """kubectl runs the program `kubectl-deviceshare` that it finds on PATH, and usage lines name it as typed."""
    program = tmp_path / "kubectl-deviceshare"
    # The repository comes last, so that an installed deviceshare is what is tested.
    path = f"import sys\n\nsys.path.append({str(Path(__file__).parents[2])!r})\n"
    program.write_text(f"#!{sys.executable}\n{path}from deviceshare.cli.main import plugin\n\nplugin()\n")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "KUBECONFIG": str(pool.sandbox.kubeconfig),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }

    def run(*arguments: str) -> str:
        command = [pool.sandbox.plan.binaries.kubectl, "deviceshare", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    assert f"{GPU}: 3/4 allocated" in run("inspect", f"{pool.name}-node-1")
    assert pool.condition(busy[1])["message"].startswith(run("explain", "group", busy[1]).splitlines()[0])
    assert "Usage: kubectl deviceshare inspect " in run("inspect", "--help")


def test_watching_shows_each_change_and_ends_with_ctrl_c(pool: Pool, tmp_path: Path) -> None:
    """With exit status 0 and nothing said about it."""
    node = pool.node()
    out = tmp_path / "out"
    with out.open("w") as stream:
        watching = subprocess.Popen(
            [sys.executable, "-m", "deviceshare", "inspect", node, "--watch"],
            env={**os.environ, "KUBECONFIG": str(pool.sandbox.kubeconfig)},
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        pool.eventually(out.read_text, lambda text: f"{GPU}: 0/4 allocated" in text)
        pool.apply(pod("one", pool.group("first", 3)))
        pool.eventually(out.read_text, lambda text: f"{GPU}: 3/4 allocated" in text and f"{pool.name}-first" in text)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(15) == 0
    finally:
        watching.kill()
        watching.wait()
    said = out.read_text()
    assert "Traceback" not in said
    assert "Aborted" not in said
