"""The sandbox itself: what runs, what the simulated nodes do, and how it starts, recovers and ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from deviceshare.cli.main import main
from deviceshare_sandbox import RUN_FOR, Options, Sandbox, running, status
from deviceshare_sandbox.simulated_pods import TURN_SECONDS, USES_MIB
from tests.controlplane.conftest import Kubectl
from tests.controlplane.kills import LEASE_SECONDS, leads
from tests.kubernetes_versions import since

Eventually = Callable[..., Any]
Environment = Callable[[str, str], dict[str, dict[str, str]]]


def pod(name: str, **spec: Any) -> str:
    """A plain pod whose one container refers to an annotation that is there and to one that isn't."""
    refer = "metadata.annotations['{}']".format
    env = [
        {"name": "THERE", "valueFrom": {"fieldRef": {"fieldPath": refer("example.org/there")}}},
        {"name": "ABSENT", "valueFrom": {"fieldRef": {"fieldPath": refer("example.org/absent")}}},
        {"name": "BOTH", "value": "$(THERE)|$(ABSENT)"},
    ]
    annotations = {"example.org/there": "0,1", **spec.pop("annotations", {})}
    container = {"name": "main", "image": "busybox", "env": env}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [container], **spec},
        }
    )


def phase(kubectl: Kubectl, namespace: str, name: str) -> str:
    """The pod's phase."""
    return kubectl("get", "pod", name, "--namespace", namespace, "--output=jsonpath={.status.phase}")


def invoke(*arguments: str | Path) -> Result:
    """`deviceshare sandbox ARGUMENTS`."""
    return CliRunner().invoke(main, ["sandbox", *map(str, arguments)])


def test_every_process_is_healthy(sandbox: Sandbox, eventually: Eventually) -> None:
    """By the names that people and programs know them by. One that is busy may miss a probe."""
    eventually(lambda: sandbox.status().ready)
    assert {process.name for process in sandbox.status().processes} == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "deviceshare-scheduler",
        "deviceshare",
        "kubelet",
    }


def test_the_nodes_are_ready_shared_and_have_devices(kubectl: Kubectl) -> None:
    """As nodes with a device plugin would be."""
    nodes = json.loads(kubectl("get", "nodes", "--selector=deviceshare.io/mode=shared", "--output=json"))["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node-1", "node-2"]
    for node in nodes:
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
        assert "taints" not in node["spec"]
        assert {each["type"]: each["status"] for each in node["status"]["conditions"]}["Ready"] == "True"


def test_each_node_sends_heartbeats(kubectl: Kubectl, eventually: Eventually) -> None:
    """Without them the controller manager would give the nodes up after two minutes."""
    arguments = ("get", "leases", "--namespace=kube-node-lease", "--output=jsonpath={.items[*].metadata.name}")
    assert eventually(lambda: {"node-1", "node-2"} <= set(kubectl(*arguments).split()))


def test_a_plain_pod_runs_and_tells_its_environment(
    kubectl: Kubectl, namespace: str, environment: Environment, eventually: Eventually
) -> None:
    """The default scheduler places it; the kubelet resolves the downward API."""
    kubectl("apply", "--namespace", namespace, "--filename=-", stdin=pod("plain"))
    assert environment(namespace, "plain") == {"main": {"THERE": "0,1", "ABSENT": "", "BOTH": "0,1|"}}
    eventually(lambda: phase(kubectl, namespace, "plain") == "Running")


def test_a_deleted_pod_goes_away(kubectl: Kubectl, namespace: str, eventually: Eventually) -> None:
    """kubectl waits for it, as for a real kubelet."""
    kubectl("apply", "--namespace", namespace, "--filename=-", stdin=pod("short-lived"))
    eventually(lambda: phase(kubectl, namespace, "short-lived") == "Running")
    kubectl("delete", "pod", "short-lived", "--namespace", namespace, "--timeout=45s")
    assert kubectl("get", "pods", "--namespace", namespace, "--output=name") == ""


def test_a_job_completes(kubectl: Kubectl, namespace: str) -> None:
    """Its pods succeed, and its controller sees them."""
    kubectl("create", "job", "once", "--image=busybox", "--namespace", namespace)
    kubectl("wait", "--for=condition=Complete", "job/once", "--timeout=45s", "--namespace", namespace)


def test_a_deployment_becomes_available(kubectl: Kubectl, namespace: str) -> None:
    """Its controller believes the kubelet."""
    kubectl("create", "deployment", "web", "--image=busybox", "--replicas=3", "--namespace", namespace)
    kubectl("rollout", "status", "deployment/web", "--timeout=45s", "--namespace", namespace)


def test_a_pod_ends_when_it_said_it_would(kubectl: Kubectl, namespace: str, eventually: Eventually) -> None:
    """For tests that need a pod to finish."""
    manifest = pod("timed", restartPolicy="Never", annotations={RUN_FOR: "0.5"})
    kubectl("apply", "--namespace", namespace, "--filename=-", stdin=manifest)
    eventually(lambda: phase(kubectl, namespace, "timed") == "Succeeded")


@since(33)
def test_a_sidecar_is_ready_and_a_container_is_resized_in_place(
    kubectl: Kubectl, namespace: str, eventually: Eventually
) -> None:
    """As newer clients expect: kubectl counts the sidecar, and the kubelet reports the container's new request."""
    sidecar = {"name": "sidecar", "image": "busybox", "restartPolicy": "Always"}
    kubectl("create", "-n", namespace, "-f", "-", stdin=pod("two", initContainers=[sidecar]))
    kubectl("wait", "pod/two", "-n", namespace, "--for=condition=Ready", "--timeout=45s")
    assert kubectl("get", "pod", "two", "-n", namespace, "--no-headers").split()[1] == "2/2"

    wanted = {"containers": [{"name": "sized", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}]}
    kubectl("create", "-n", namespace, "-f", "-", stdin=pod("one", **wanted))
    wanted["containers"][0] = {"name": "sized", "resources": {"requests": {"cpu": "2"}}}
    kubectl("wait", "pod/one", "-n", namespace, "--for=condition=Ready", "--timeout=45s")
    kubectl("patch", "pod", "one", "-n", namespace, "--subresource=resize", "-p", json.dumps({"spec": wanted}))
    path = "--output=jsonpath={.status.containerStatuses[0].resources.requests.cpu}"
    eventually(lambda: kubectl("get", "pod", "one", "-n", namespace, path) == "2")


def test_rbac_is_on(kubectl: Kubectl, namespace: str) -> None:
    """A right that deviceshare's manifests forget must be missed here."""
    kubectl("get", "pods", "--namespace", namespace, identity="alice")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        kubectl("get", "secrets", "--all-namespaces", identity="deviceshare")
    assert "forbidden" in refused.value.stderr


def test_people_may_edit_groups_but_not_claims(kubectl: Kubectl) -> None:
    """Through the cluster's own role `edit`."""
    asked = {resource: ("auth", "can-i", "create", resource) for resource in ("shareddevicegroups", "nodedevices")}
    assert kubectl(*asked["shareddevicegroups"], identity="alice").strip() == "yes"
    with pytest.raises(subprocess.CalledProcessError):
        kubectl(*asked["nodedevices"], identity="alice")


@pytest.mark.parametrize("name", ["deviceshare", "kubelet"])
def test_a_killed_process_is_started_again(sandbox: Sandbox, eventually: Eventually, name: str) -> None:
    """With another process id, and healthy."""
    killed = sandbox.pid(name)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: sandbox.pid(name) != killed and sandbox.status().ready)
    (process,) = [process for process in sandbox.status().processes if process.name == name]
    assert process.restarts >= 1
    assert "SIGKILL" in process.message
    if name == "deviceshare":  # the lease of the killed one runs out first; the tests that follow need a leader
        eventually(lambda: leads(sandbox), LEASE_SECONDS)


def test_a_simulated_pod_says_that_it_is_one(
    sandbox: Sandbox, kubectl: Kubectl, namespace: str, eventually: Eventually
) -> None:
    """Its log is the environment that its container would have; nothing can be run in it."""
    kubectl("apply", "--namespace", namespace, "--filename=-", stdin=pod("asked"))
    eventually(lambda: phase(kubectl, namespace, "asked") == "Running")
    assert "THERE=0,1\nABSENT=\nBOTH=0,1|" in kubectl("logs", "asked", "--namespace", namespace)
    refused = sandbox.kubectl("exec", "asked", "--namespace", namespace, "--", "true")
    assert refused.returncode != 0
    assert f"{namespace}/asked is simulated: nothing runs in it" in refused.stderr


def test_up_status_and_down_do_what_they_say(tmp_path: Path, eventually: Eventually) -> None:
    """A second sandbox beside the session's, on ports of its own, and nothing of it is left."""
    directory = tmp_path / "sandbox"
    started = invoke(
        "up", "--detach", "--no-deviceshare", "--nodes", "1", "--resource", "amd.com/gpu", "--dir", directory
    )
    assert started.exit_code == 0, started.output
    assert f"export KUBECONFIG={directory}/kubeconfig" in started.output
    try:
        eventually(lambda: invoke("status", "--dir", directory).exit_code == 0)  # one that is busy may miss a probe
        answer = json.loads(invoke("status", "--dir", directory, "-o", "json").stdout)
        assert "deviceshare" not in [process["name"] for process in answer["processes"]]
        again = invoke("up", "--detach", "--dir", directory)
        assert again.exit_code == 1
        assert "A sandbox is running" in again.output
    finally:
        ended = invoke("down", "--dir", directory)
    assert ended.exit_code == 0, ended.output
    assert [process["name"] for process in answer["processes"] if alive(process["pid"])] == []
    assert invoke("status", "--dir", directory).exit_code == 1


def test_a_killed_supervisor_leaves_nothing_behind(tmp_path: Path, eventually: Eventually) -> None:
    """Nor does it keep the directory from being used again."""
    with running(Options(nodes=0, deviceshare=False), tmp_path) as sandbox:
        state = sandbox.layout.state()
        assert state is not None
        os.kill(state.pid, signal.SIGKILL)
        eventually(lambda: not any(alive(process.pid) for process in state.processes))
        assert not status(tmp_path).ready


def test_up_in_the_foreground_ends_everything_at_ctrl_c(tmp_path: Path) -> None:
    """The signal that a terminal sends."""
    command = [sys.executable, "-m", "deviceshare", "sandbox", "up", "--no-deviceshare", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        while "Ctrl-C ends everything" not in (line := process.stdout.readline()):
            assert line, "up ended before it was ready"
        pids = [each.pid for each in status(tmp_path).processes]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert len(pids) == 6
    assert [pid for pid in pids if alive(pid)] == []


def alive(pid: int) -> bool:
    """Whether a process with this id runs; one that only waits to be buried doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_agents_of_simulated_nodes_show_programs_over_use_and_turns(eventually: Eventually) -> None:
    """So that `top`, eviction and turns can be tried where there is no GPU."""
    share = {"limits": {"deviceshare.io/gpu-mem": 4}}
    greedy = json.loads(pod("greedy", annotations={USES_MIB: "8000"}))
    greedy["spec"]["containers"][0]["resources"] = share
    group = {
        "apiVersion": "deviceshare.io/v1alpha1",
        "kind": "SharedDeviceGroup",
        "metadata": {"name": "lab"},
        "spec": {"resources": {"nvidia.com/gpu": 1}},
    }
    turn = {"deviceshare.io/group": "lab", USES_MIB: "3000", TURN_SECONDS: "6"}
    with running(Options(nodes=1, devices=2, agents=True)) as started:

        def create(manifest: str) -> None:
            assert started.kubectl("create", "-f", "-", stdin=manifest).returncode == 0

        def shown(*words: str) -> set[str]:
            table = CliRunner().invoke(main, ["top", "--kubeconfig", str(started.kubeconfig)]).output
            return {each for each in words if each in table}

        for manifest in (json.dumps(group), *(pod(name, annotations=turn) for name in ("one", "two"))):
            create(manifest)
        # One look may take seconds beside the other tests, and both programs have to be seen in one.
        eventually(lambda: {"has it", "waits", "3000 / 16384"} == shown("has it", "waits", "3000 / 16384"), 120)
        eventually(
            lambda: not shown("TURN OF", "3000 / 16384"), 90
        )  # agents look for ended processes every few seconds

        create(json.dumps(greedy))
        eventually(lambda: shown("more than its share"))
        eventually(lambda: started.kubectl("get", "pod", "greedy").returncode != 0)
