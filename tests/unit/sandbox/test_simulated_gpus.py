"""GPUs of simulated nodes, the programs on them, and the API server's way to their agents."""

import asyncio
from pathlib import Path

import msgspec

from deviceshare.domain.contract import AGENT_PORT
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare_sandbox.nvml.script import uuid
from deviceshare_sandbox.simulated_gpus import SimulatedAgent, SimulatedGpus, agent_pod
from deviceshare_sandbox.simulated_network import Address, serve_egress
from deviceshare_sandbox.simulated_pods import (
    ENV,
    TURN_SECONDS,
    USES_MIB,
    KubeletPod,
    KubeletPodSpec,
    KubeletPodStatus,
    pod_ip,
)
from deviceshare_sandbox.state import Options

NODE = "node-1"


def an_agent(directory: Path, pods_port: int = 0) -> SimulatedAgent:
    return SimulatedAgent(NODE, 1234, pods_port, str(directory))


def a_pod(name: str, visible: str, **annotations: str) -> KubeletPod:
    """A running pod whose container was told this."""
    told = msgspec.json.encode({"main": {"NVIDIA_VISIBLE_DEVICES": visible}}).decode()
    meta = ObjectMeta(namespace="ns", name=name, uid=f"uid-{name}", annotations={ENV: told, **annotations})
    return KubeletPod(meta, KubeletPodSpec(node_name=NODE), KubeletPodStatus(phase="Running"))


def processes(agent: SimulatedAgent) -> dict[str, list[str]]:
    """The memory that the script names, by GPU."""
    rows = [line.split("\t") for line in agent.script.read_text().splitlines()]
    return {
        gpu: [row[4] for row in rows if row[0] == "process" and row[1] == gpu]
        for gpu in (row[1] for row in rows if row[0] == "gpu")
    }


def names(agent: SimulatedAgent) -> set[str]:
    """Of the processes of the node."""
    return {file.read_text().strip() for file in agent.proc.glob("[0-9]*/comm")}


async def test_a_program_uses_the_gpus_that_it_was_told_of_while_its_pod_runs(tmp_path: Path) -> None:
    """By number or by UUID; a pod that says nothing of a program has none."""
    agent = an_agent(tmp_path)
    gpus = SimulatedGpus([agent], Options(devices=3))
    first, second, third = (uuid(number) for number in range(3))
    pods = [
        a_pod("by-number", "0,1", **{USES_MIB: "100"}),
        a_pod("by-uuid", second, **{USES_MIB: "20"}),
        a_pod("silent", third),
    ]
    async with asyncio.TaskGroup() as group:
        gpus.take(group, NODE, pods)
        assert processes(agent) == {first: ["100"], second: ["100", "20"], third: []}
        assert names(agent) == {"init", "by-number", "by-uuid"}

        gpus.take(group, NODE, pods[1:])
        gpus.take(group, "a node without an agent", pods)
    assert processes(agent) == {first: [], second: ["20"], third: []}
    assert names(agent) == {"init", "by-uuid"}


async def test_a_program_uses_its_gpu_in_its_turn_only_and_ends_with_it(tmp_path: Path) -> None:
    """It asks from the address of its pod, by which agents know it."""
    callers, may_begin = asyncio.Queue[str](), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.put_nowait(writer.get_extra_info("peername")[0])
        assert (await reader.readline()).startswith(b"GET /turn?token=")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nwait 1\n")
        await may_begin.wait()
        writer.write(b"turn\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    agent = an_agent(tmp_path, server.sockets[0].getsockname()[1])
    gpus = SimulatedGpus([agent], Options(devices=1))
    program = a_pod("program", "0", **{USES_MIB: "100", TURN_SECONDS: "0"})
    async with server, asyncio.TaskGroup() as group:
        gpus.take(group, NODE, [program])
        assert await callers.get() == pod_ip(program)
        assert (processes(agent), names(agent)) == ({uuid(0): []}, {"init", "program"})
        may_begin.set()
    assert names(agent) == {"init"}


def test_an_agents_pod_leads_to_the_agent(tmp_path: Path) -> None:
    """At the agent's port; every other address is what it is."""
    agent = an_agent(tmp_path)
    gpus = SimulatedGpus([agent], Options())
    pod = msgspec.convert(agent_pod(agent), KubeletPod)
    address = pod_ip(pod)
    assert gpus.listener_of((address, AGENT_PORT), [pod]) == ("127.0.0.1", agent.port)
    assert gpus.listener_of((address, 80), [pod]) == (address, 80)


async def test_the_api_server_is_connected_to_what_listens(tmp_path: Path) -> None:
    """Both ways, until either side ends; with what can't be reached it is told so."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    there: Address = server.sockets[0].getsockname()[:2]

    async def ask(host: str) -> bytes:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "egress")
        writer.write(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\nhello\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    egress = await serve_egress(tmp_path / "egress", lambda address: there if address[1] == 9410 else ("127.0.0.1", 1))
    async with server, egress:
        assert await ask("10.128.0.1:9410") == b"HTTP/1.1 200 Connection established\r\n\r\nHELLO\n"
        assert (await ask("10.128.0.1:80")).startswith(b"HTTP/1.1 502 ")
        assert (await ask("nonsense")).startswith(b"HTTP/1.1 502 ")
