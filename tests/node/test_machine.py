"""The real node itself: what runs on it, and that nothing of it outlives it.

Only one real node fits on a machine, so each of these tests starts and ends its own.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deviceshare.cli.main import main
from deviceshare_sandbox import Layout, Options, Sandbox, running
from deviceshare_sandbox.network import INTERFACE
from tests.node.cluster import TELL, Cluster, group, pod

_BUILT_IN = ("/run/containerd", "/var/lib/cni", "/var/lib/kubelet", "/var/log/pods", "/var/log/containers")
"""Directories that a node's programs insist on."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A sandbox's; what was there of nodes before is there afterwards, and no more."""
    before = traces(tmp_path)
    yield tmp_path
    invoke("down", "--dir", tmp_path)
    assert traces(tmp_path) == before


def test_up_starts_containers_and_down_leaves_nothing(directory: Path) -> None:
    """With deviceshare as a process of this machine: the shortest way to see a container's devices."""
    started = invoke("up", "--real-node", "--detach", "--dir", directory)
    assert started.exit_code == 0, started.output
    cluster = Cluster(Sandbox(Layout(directory)))
    cluster.eventually(lambda: cluster.inventory() >= {"serviceaccount/default"})
    names = {"containerd", "kubelet", "kube-proxy", "deviceshare", "deviceshare-scheduler"}
    assert names <= {process.name for process in cluster.sandbox.status().processes}
    cluster.eventually(lambda: cluster.sandbox.status().ready)  # one that is busy may miss a probe
    cluster.apply(group("pair", 2))
    ask = "wget -O - http://$KUBERNETES_SERVICE_HOST:443/ 2>&1"
    cluster.apply(pod("a", f"{TELL}; {ask}; sleep 3600 & wait", "pair"))
    assert cluster.tells("a") == "[0,1]"
    # The API as pods reach it: through its Service's address, which only kube-proxy's rules lead anywhere. A server of
    # TLS says so to a client without it, as busybox's wget is to newer API servers.
    cluster.eventually(lambda: cluster.kubectl("logs", "a"), lambda said: "HTTP/1.0 400 Bad Request" in said)
    second = invoke("up", "--real-node", "--detach", "--dir", directory / "second")
    assert second.exit_code == 1
    assert "Another sandbox's real node runs on this machine" in second.output
    assert cluster.kubectl("exec", "a", "--", "sh", "-c", TELL).strip() == "[0,1]"


def test_nothing_outlives_a_killed_supervisor(directory: Path) -> None:
    """No container, no interface; the empty directories go with the next `down`."""
    with running(Options(real_node=True, deviceshare=False, bare=True), directory) as sandbox:
        cluster = Cluster(sandbox)
        cluster.eventually(lambda: cluster.inventory() >= {"serviceaccount/default"})
        cluster.apply(pod("left-alone", f"{TELL}; sleep 3600 & wait"))
        assert cluster.tells("left-alone") == "[]"
        state = sandbox.layout.state()
        assert state is not None
        os.kill(state.pid, signal.SIGKILL)
        cluster.eventually(lambda: processes(directory) == [] and not Path("/sys/class/net", INTERFACE).exists())


def test_a_node_that_loses_its_runtime_starts_anew(directory: Path) -> None:
    """As a machine that was switched off and on: its pods run again."""
    with running(Options(real_node=True, deviceshare=False, bare=True), directory) as sandbox:
        cluster = Cluster(sandbox)
        cluster.eventually(lambda: cluster.inventory() >= {"serviceaccount/default"})
        cluster.apply(pod("back-again", f"{TELL}; sleep 3600 & wait"))
        assert cluster.tells("back-again") == "[]"
        os.kill(sandbox.pid("containerd"), signal.SIGKILL)
        # Once again, or twice where the kubelet was in a hurry.
        cluster.eventually(
            lambda: statuses(cluster, "back-again"), lambda seen: bool(seen) and all(n and runs for n, runs in seen)
        )


def invoke(*arguments: str | Path) -> Result:
    """`deviceshare sandbox ARGUMENTS`."""
    return CliRunner().invoke(main, ["sandbox", *map(str, arguments)])


def statuses(cluster: Cluster, name: str) -> list[tuple[int, bool]]:
    """How often each container was started again, and whether it runs; none while the API is out of reach."""
    done = cluster.sandbox.kubectl("get", "pod", name, "-o", "json")
    found = json.loads(done.stdout or "{}").get("status", {}).get("containerStatuses", [])
    return [(status["restartCount"], "running" in status["state"]) for status in found]


def processes(directory: Path) -> list[str]:
    """What runs with this directory in its command line or its file system: the sandbox's processes and containers."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            mounts = (process / "mountinfo").read_text()
        except OSError:  # It has ended meanwhile.
            continue
        if process.name != str(os.getpid()) and str(directory) in command + mounts:
            found.append(command)
    return found


def traces(directory: Path) -> dict[str, object]:
    """Everything on this machine that a real node could leave behind."""
    return {
        "processes": processes(directory),
        "directories": [path for path in _BUILT_IN if Path(path).exists()],
        "groups": [str(path) for path in Path("/sys/fs/cgroup").glob("**/deviceshare-sandbox")],
        "interface": Path("/sys/class/net", INTERFACE).exists(),
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if str(directory) in line],
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "overcommit": Path("/proc/sys/vm/overcommit_memory").read_text(),
    }
