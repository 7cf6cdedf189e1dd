"""A control plane, an agent over the machine's own driver, and containers with real processes."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceshare_sandbox.network import free_ports
from tests.controlplane.agents import AgentProcess
from tests.controlplane.conftest import pool, sandbox
from tests.controlplane.pool import Pool
from tests.gpu.containers import Container, cuda_program

__all__ = ["pool", "sandbox"]

Json = dict[str, Any]
Enter = Callable[..., Container]


class MachineAgent(AgentProcess):
    """Over the machine's own driver and processes; it evicts, and answers containers at `pods_url`."""

    def __init__(self, pool: Pool, node: str, directory: Path) -> None:
        [port] = free_ports(1)
        self.node = node
        self.pods_url = f"http://127.0.0.1:{port}"
        flags = ("--enforce=evict", "--overuse-grace=10", f"--serve-pods=127.0.0.1:{port}")
        super().__init__(pool.sandbox, node, directory, *flags, f"--turns-directory={directory}")


@pytest.fixture(scope="session")
def uuids() -> list[str]:
    """Of the machine's GPUs, as CUDA says; fails where it doesn't run."""
    done = subprocess.run(cuda_program(1, 0), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.fixture
def agent(pool: Pool, uuids: list[str], tmp_path: Path) -> Iterator[MachineAgent]:
    """The agent of a node of the pool that has the machine's GPUs."""
    process = MachineAgent(pool, pool.node(devices=len(uuids)), tmp_path)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[Enter]:
    """`enter(pod, variables)`: a container of the pod."""
    containers: list[Container] = []

    def go(pod: Json, variables: Json, address: str = "127.0.0.1") -> Container:
        containers.append(Container(pod, variables, tmp_path, address))
        return containers[-1]

    yield go
    for container in containers:
        container.end()
