"""The rights that the chart gives to agents: enough for what one asks of the API server, and none to spare."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from charts import helm
from deviceshare.domain.contract import AGENT
from deviceshare_sandbox import Sandbox
from deviceshare_sandbox.nvml.library import build
from tests.controlplane.agents import NodeAgent
from tests.controlplane.installed import RECORDER
from tests.controlplane.pool import Pool, pod
from tests.controlplane.rights import granted, missing, request, spare
from tests.unit.chart.objects import named

DISCOVERY = ("/api/v1", "/version")
"""Everybody who is known may ask for these."""

Json = dict[str, Any]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """What the agent asked of the API server."""
    return tmp_path / "requests"


@pytest.fixture
def node(pool: Pool) -> str:
    """With one GPU."""
    return pool.node(devices=1)


@pytest.fixture
def agent(sandbox: Sandbox, node: str, record: Path, tmp_path: Path) -> Iterator[NodeAgent]:
    """The node's, with leave to evict."""
    directory = tmp_path / "agent"
    directory.mkdir()
    library = build(tmp_path)
    agent = NodeAgent(sandbox, node, library, directory, "--enforce=evict")
    agent._command[1:3] = [RECORDER, str(record)]  # in place of -m deviceshare
    agent.script.gpus(1)
    agent.start()
    yield agent
    agent.stop()


def broken(pool: Pool, node: str) -> Json:
    """The node's only device, where it is marked."""
    [part] = pool.get("ndev", node)["status"]["hardware"]["devices"]
    return part if "unhealthy" in part else {}


def told(pool: Pool, node: str) -> int:
    """How often people were told that a device of the node is unhealthy."""
    chosen = f"reason=DeviceUnhealthy,involvedObject.name={node}"
    events = json.loads(pool.kubectl("get", "events", "-n", "default", "--field-selector", chosen, "-o", "json"))
    return sum(each["count"] for each in events["items"])


def break_and_mend(pool: Pool, agent: NodeAgent, node: str) -> None:
    """A device breaks, and a person has dealt with it."""
    before, uuid = told(pool, node), pool.get("ndev", node)["status"]["hardware"]["devices"][0]["uuid"]
    agent.script.xid(uuid, 79)
    since = pool.eventually(lambda: broken(pool, node))["since"]
    pool.eventually(lambda: told(pool, node), lambda times: times == before + 1)
    pool.kubectl("annotate", "ndev", node, "--overwrite", f"deviceshare.io/recovered={uuid}@{since}")
    pool.eventually(lambda: broken(pool, node), lambda part: not part)


def trespass(pool: Pool, agent: NodeAgent, node: str) -> None:
    """A pod uses a group's device without being of the group, and is evicted."""
    group = pool.group(count=1)
    stranger = pod("stranger", scheduler="default-scheduler")
    stranger["spec"]["nodeName"] = node
    pool.apply(pod("member", group), stranger)
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in pool.running("member", "stranger")}
    agent.process(100, "python", f"/kubepods/burstable/pod{uids['stranger']}/{'0a' * 32}")
    agent.script.processes(pool.get("ndev", node)["status"]["hardware"]["devices"][0]["uuid"], {100: 1024})
    pool.eventually(lambda: [each["metadata"]["name"] for each in pool.get("pods")], lambda names: names == ["member"])


def test_every_right_of_an_agent_is_enough_and_needed(pool: Pool, agent: NodeAgent, node: str, record: Path) -> None:
    """Each request is allowed; and whichever right were taken away, some request would be refused."""
    break_and_mend(pool, agent, node)
    # The same again is counted in the same event.
    break_and_mend(pool, agent, node)
    trespass(pool, agent, node)
    asked = [json.loads(line) for line in record.read_text().splitlines()]
    requests = {request(*each) for each in asked if each[1] not in DISCOVERY}
    role = named(helm.render({"agent": {"enabled": True, "enforce": "evict"}}), "ClusterRole", AGENT)
    rights = set(granted([role]))

    assert missing(rights, requests) == set()
    assert spare(rights, requests) == set()
