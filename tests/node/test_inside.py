"""What containers on a real node are told by its agent: over the node's real network, known by their real addresses."""

import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deviceshare.domain.contract import PODS_PORT
from deviceshare_sandbox.machine import entering
from deviceshare_sandbox.network import HOST, NODE
from deviceshare_sandbox.nvml import Script
from tests.node.agents import Agent, release_with_agents
from tests.node.cluster import Cluster, Json, group, pod
from tests.node.processes import process_of
from tests.node.release import Parts, Release

STAY = "sleep 3600 & wait"
PAUSE = 4
"""Seconds: as long as an agent may need to learn a new pod's address."""
ASK = f"""\
from http.client import HTTPConnection
connection = HTTPConnection("{NODE}", {PODS_PORT}, timeout=20)
connection.request("GET", "/smi")
answer = connection.getresponse()
print(answer.status, answer.read().decode())
"""
"""A program that asks, for where there is Python."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Four GPUs."""
    script = Script(tmp_path_factory.mktemp("script") / "script")
    script.gpus(4)
    return script


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, release_parts: Parts, script: Script, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart with agents, all ready."""
    with release_with_agents(cluster, release_parts, script, tmp_path_factory.mktemp("nvml")) as installed:
        yield installed


@pytest.fixture
def agent(cluster: Cluster, clear: None, script: Script) -> Agent:
    """It has reported the GPUs, and answers."""
    found = Agent(cluster, script)
    cluster.eventually(lambda: len(found.hardware().get("devices", [])) == 4)
    return found


def asked(cluster: Cluster, name: str, path: str, accept: str = "*/*", host: str = "$DEVICESHARE_AGENT_HOST") -> str:
    """The whole answer, headers too, to a request from the pod's container, as busybox's nc gets it."""
    lines = f"GET {path} HTTP/1.0\\r\\nAccept: {accept}\\r\\nX-Forwarded-For: 198.19.0.2\\r\\n\\r\\n"
    # The pause keeps nc's connection open: at the end of its input it says that it is done, and isn't answered.
    ask = f'{{ printf "{lines}"; sleep {PAUSE}; }} | nc -w 15 {host} {PODS_PORT}'
    return cluster.kubectl("exec", name, "--", "sh", "-c", ask).replace("\r\n", "\n")


def smi(cluster: Cluster, name: str) -> Json:
    """What the pod is shown, for programs, once its agent knows its address."""
    answer = cluster.eventually(
        lambda: asked(cluster, name, "/smi", "application/json"), lambda said: " 200 " in said.partition("\n")[0]
    )
    found: Json = json.loads(answer.partition("\n\n")[2])
    return found


def test_a_container_is_told_where_to_ask(cluster: Cluster, agent: Agent) -> None:
    """By its environment; the kubelet puts the node's address in."""
    cluster.apply(group("told", 1))
    cluster.apply(pod("asker", "echo $DEVICESHARE_AGENT; " + STAY, "told"))

    assert cluster.tells("asker") == f"http://{NODE}:{PODS_PORT}"
    assert "/smi" in asked(cluster, "asker", "/")


def test_a_container_sees_its_own_group_and_nothing_of_another(cluster: Cluster, agent: Agent, script: Script) -> None:
    """Its devices and processes, and of its group's other pod the name and the memory."""
    cluster.apply(group("ours", 2), group("theirs", 1))
    cluster.apply(
        *(pod(name, f"echo up; {STAY}", "ours") for name in ("one", "two")), pod("far", f"echo up; {STAY}", "theirs")
    )
    for name in ("one", "two", "far"):
        cluster.tells(name)
    held = {each["uuid"] for each in smi(cluster, "one")["devices"]}
    [apart] = [each["uuid"] for each in smi(cluster, "far")["devices"]]
    first = min(held)
    script.processes(first, {process_of("one"): 2000, process_of("two"): 700})
    script.processes(apart, {process_of("far"): 300})
    agent.follow()

    seen = cluster.eventually(
        lambda: smi(cluster, "one"), lambda view: "processes" in str(view["devices"]) and "700" in str(view)
    )

    assert (len(held), apart in held) == (2, False)
    assert (seen["pod"], seen["holder"], seen["mates"]) == ("default/one", "group ours", ["default/two"])
    [device] = [each for each in seen["devices"] if each["uuid"] == first]
    assert [(each["container"], each["memoryMib"]) for each in device["processes"]] == [("main", 2000)]
    assert device["mates"] == [{"pod": "default/two", "memoryMib": 700, "processes": 1}]
    for word in ("far", "theirs", apart):
        assert word not in json.dumps(seen)
    theirs = smi(cluster, "far")
    assert [each["uuid"] for each in theirs["devices"]] == [apart]
    assert "mates" not in theirs
    assert "one" not in theirs["pod"] and "ours" not in json.dumps(theirs)
    text = asked(cluster, "one", "/smi")
    assert "pod default/one of group ours on node node-1" in text
    assert "far" not in text


def test_strangers_are_refused_with_the_way_out(cluster: Cluster, agent: Agent) -> None:
    """A pod without devices, one with the node's network, the node itself and this machine."""
    cluster.apply(pod("plain", f"echo up; {STAY}"), pod("hosted", f"echo up; {STAY}", hostNetwork=True))
    for name in ("plain", "hosted"):
        cluster.tells(name)

    plain = cluster.eventually(
        lambda: asked(cluster, "plain", "/smi", host=NODE), lambda said: "the address of no running pod" not in said
    )
    hosted = asked(cluster, "hosted", "/smi", host=NODE)
    itself = on_node(cluster, f"exec {sys.executable} -c '{ASK}'").stdout.decode()
    outside = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, check=False
    ).stdout

    for said in (plain, hosted, itself, outside):
        assert "403" in said.partition("\n")[0], said
    assert "pod default/plain has no devices of deviceshare" in plain
    assert f"comes from {NODE}, the address of the node itself" in hosted
    assert f"comes from {NODE}, the address of the node itself" in itself
    assert f"comes from {HOST}, the address of no running pod on node node-1" in outside


def test_a_groups_pod_with_the_nodes_network_is_refused(cluster: Cluster, agent: Agent) -> None:
    """Though it has devices: nothing tells it apart from the next one."""
    cluster.apply(group("hosted", 1))
    cluster.apply(pod("member", f"echo up; {STAY}", "hosted", hostNetwork=True))
    cluster.tells("member")

    assert "can't be told apart" in asked(cluster, "member", "/smi")


def test_an_address_that_is_used_again_is_its_new_pods(cluster: Cluster, agent: Agent) -> None:
    """A pod that has ended is listed with its last address until it is deleted, and another may have it by then."""
    cluster.apply(group("former", 1), group("next", 1))
    cluster.apply(pod("former", "exit 0", "former", restartPolicy="Never"))
    phase = "{.status.phase} {.status.podIP}"
    ended = cluster.eventually(
        lambda: cluster.kubectl("get", "pod", "former", "-o", f"jsonpath={phase}").split(),
        lambda said: said[0] == "Succeeded",
    )
    address = ended[1]
    cluster.eventually(lambda: on_node(cluster, f"test ! -e {RESERVED}/{address}").returncode == 0)
    # The plugin gives the addresses in turn, from the one after the last.
    before = ipaddress.ip_address(address) - 1
    assert on_node(cluster, f"printf {before} > {RESERVED}/last_reserved_ip.0").returncode == 0
    cluster.apply(pod("again", f"echo up; {STAY}", "next"))
    cluster.tells("again")

    seen = smi(cluster, "again")

    both = cluster.kubectl("get", "pods", "former", "again", "-o", "jsonpath={.items[*].status.podIP}").split()
    assert both == [address, address]
    assert (seen["pod"], seen["holder"]) == ("default/again", "group next")


RESERVED = "/var/lib/cni/networks/deviceshare-sandbox"
"""Where the plugin host-local remembers which addresses are taken."""


def on_node(cluster: Cluster, script: str) -> "subprocess.CompletedProcess[bytes]":
    """Runs a shell script on the machine of the node."""
    command = [*entering(cluster.sandbox.layout), "sh", "-c", script]
    return subprocess.run(command, capture_output=True, timeout=30, check=False)
