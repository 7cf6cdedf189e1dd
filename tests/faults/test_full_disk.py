"""A full disk under deviceshare itself: what it says is lost, and what it does is done."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceshare_sandbox import Options, Sandbox
from tests.controlplane.bare_cluster import bare_cluster
from tests.controlplane.kills import await_leader
from tests.controlplane.pool import Pool, pod


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    options = Options(nodes=1, devices=4)
    with bare_cluster(tmp_path_factory.mktemp("full"), options) as started:
        yield started


@pytest.fixture
def unheard(sandbox: Sandbox) -> Iterator["subprocess.Popen[bytes]"]:
    """deviceshare whose log goes to a device that is always full."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(sandbox.deviceshare_command, stdout=full, stderr=full, env=buffered)
    yield process
    process.kill()
    process.wait(30)


def test_deviceshare_works_while_its_log_is_on_a_full_disk(
    sandbox: Sandbox, unheard: "subprocess.Popen[bytes]"
) -> None:
    """A group is bound, and released; the process lives on, and stops as it should."""
    pool = Pool(sandbox, "full-disk")
    await_leader(pool)
    node, group = pool.node(2), pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.eventually(lambda: sandbox.kubectl("delete", "sdg", group).returncode == 0)
    pool.eventually(lambda: not pool.get("ndev", node)["spec"].get("claims"))
    assert unheard.poll() is None
    unheard.terminate()
    assert unheard.wait(30) == 0
