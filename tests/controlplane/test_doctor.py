"""`deviceshare doctor` on a healthy cluster, and on one that is broken in one way after the other."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import Struct

from deviceshare.cli.main import main
from deviceshare.domain.contract import IDENTITY
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import PODS
from deviceshare_sandbox import Options, Sandbox
from tests.controlplane.bare_cluster import bare_cluster
from tests.controlplane.kills import leads
from tests.controlplane.pool import GPU, pod

Json = dict[str, Any]

OK, WARNING, PROBLEM, UNTESTED = "ok", "warning", "problem", "not tested"
NAMES = [
    "CRDs",
    "your rights",
    "its rights",
    "replicas",
    "scheduler",
    "webhooks",
    "injection",
    "objects",
    "nodes",
    "inventory",
    "waiting pods",
    "plugin",
    "shares",
    "runtime",
    "hand-over",
    "canary",
]
SECONDS = 60.0


class Told(Struct):
    """The exit status, and each check's mark and text with its cures."""

    status: int
    marks: dict[str, str]
    texts: dict[str, str]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes with a device each; the tests start deviceshare themselves."""
    options = Options(nodes=2, devices=1)
    with bare_cluster(tmp_path_factory.mktemp("doctor"), options) as started:
        yield started


@contextmanager
def deviceshare(sandbox: Sandbox, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """deviceshare at work, with these flags besides."""
    with (sandbox.layout.logs / "deviceshare.log").open("ab") as log:
        process = subprocess.Popen(
            [*sandbox.deviceshare_command, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        wait(lambda: answers(f"{sandbox.probe_url}/readyz"))
        wait(lambda: leads(sandbox))  # one that was killed before keeps its lease for a while
        wait(lambda: all("=" in kubectl(sandbox, "get", "ndev", node, "--no-headers") for node in ("node-1", "node-2")))
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(SECONDS)


def answers(url: str) -> bool:
    """Whether it says 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait(true: Any) -> None:
    """Until it is true; fails after a minute."""
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def kubectl(sandbox: Sandbox, *arguments: str, stdin: str | None = None) -> str:
    """What it printed, with or without success."""
    return sandbox.kubectl(*arguments, stdin=stdin).stdout


def examine(sandbox: Sandbox, *flags: str, identity: str = "") -> Told:
    """What the doctor tells a program."""
    kubeconfig = sandbox.kubeconfig_of(identity) if identity else sandbox.kubeconfig
    done = CliRunner().invoke(main, ["doctor", f"--kubeconfig={kubeconfig}", "-o", "json", *flags])
    answer = json.loads(done.stdout)
    assert answer["healthy"] == (done.exit_code == 0)
    texts = {
        each["name"]: "\n".join(f"{found['what']}\n{found['cure']}" for found in each["findings"]) or each["said"]
        for each in answer["checks"]
    }
    return Told(done.exit_code, {each["name"]: each["mark"] for each in answer["checks"]}, texts)


def nothing_left(sandbox: Sandbox) -> bool:
    """No canary is in the cluster."""
    return (
        kubectl(sandbox, "get", "sdg,pods", "-A", "-l", "app.kubernetes.io/name=deviceshare-canary", "-o", "name") == ""
    )


def dry_run(sandbox: Sandbox) -> str:
    """The labels of a pod of a group as it would be stored, or why it would not: what admission does at this moment.

    The API server learns of a changed configuration a moment after it was changed.
    """
    body = pod("probe", "probe")
    body["metadata"]["labels"] = {"probe": "probe"}
    arguments = ("create", "--dry-run=server", "-o", "jsonpath={.metadata.labels}", "-f", "-")
    done = sandbox.kubectl(*arguments, stdin=json.dumps(body))
    return done.stdout + done.stderr


def marks(told: Told, **others: str) -> Json:
    """All is well, as far as it can be told, but for these checks. A device plugin seems to tell of the devices."""
    usual = {"plugin": WARNING, "runtime": UNTESTED, "scheduler": UNTESTED}
    assert told.marks == dict.fromkeys(NAMES, OK) | usual | others, told.texts
    return told.texts


def test_a_healthy_cluster_is_well_and_left_as_it_was(sandbox: Sandbox) -> None:
    """Only the files on the nodes can't be seen from here."""
    with deviceshare(sandbox):
        told = examine(sandbox)
    texts = marks(told)
    assert told.status == 0 and nothing_left(sandbox)
    assert "a pod of a new group got nvidia.com/gpu on node-" in texts["canary"]
    assert "deviceshare doctor --runtime-config -" in texts["runtime"]


def test_people_read_a_line_for_each_check(sandbox: Sandbox) -> None:
    """The mark first, so that the eye finds what isn't ok; each finding's cure beneath it."""
    with deviceshare(sandbox):
        done = CliRunner().invoke(
            main, ["doctor", f"--kubeconfig={sandbox.kubeconfig}", "--runtime-config=-"], input="swarm-resource = 'X'\n"
        )
    lines = done.stdout.splitlines()
    assert [line[12:26].strip() for line in lines if not line.startswith(" ")] == NAMES
    [_, warning] = [number for number, line in enumerate(lines) if line.startswith("warning")]
    assert "swarm-resource='X'" in lines[warning] and "cure: remove swarm-resource" in lines[warning + 1]
    assert done.exit_code == 0


def test_without_a_canary_nothing_is_made(sandbox: Sandbox) -> None:
    """Not even for a moment: who watches the groups sees one of ours only, which shows that it looks."""
    marker = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup", "metadata": {"name": "marker"}}
    watch = [sandbox.plan.binaries.kubectl, f"--kubeconfig={sandbox.kubeconfig}", "get", "sdg", "--watch", "-o", "name"]
    with deviceshare(sandbox):
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
            told = examine(sandbox, "--no-canary")
            kubectl(sandbox, "create", "-f", "-", stdin=json.dumps({**marker, "spec": {"resources": {GPU: 1}}}))
            assert watching.stdout is not None
            seen = watching.stdout.readline()
            watching.terminate()
        kubectl(sandbox, "delete", "sdg", "marker")
    assert seen.endswith("/marker\n")
    assert "canary" not in told.marks and told.status == 0


def tell(sandbox: Sandbox, image: str, message: str) -> threading.Thread:
    """In a thread, what the kubelet would do with the canary of this image: its container ends, with this message."""

    def canary() -> Json | None:
        found = json.loads(
            kubectl(sandbox, "get", "pods", "-l", "app.kubernetes.io/name=deviceshare-canary", "-o=json")
        )
        pods: list[Json] = found["items"]
        mine = [each for each in pods if each["spec"]["containers"][0]["image"] == image]
        return next((each for each in mine if each["status"]["phase"] == "Running"), None)

    async def end(name: str) -> None:
        exited = {"exitCode": 0, "reason": "Completed", "message": message}
        container = {"name": "canary", "image": image, "imageID": image, "ready": False, "restartCount": 0}
        body = {"phase": "Succeeded", "containerStatuses": [{**container, "state": {"terminated": exited}}]}
        async with connect(str(sandbox.kubeconfig)) as connection:
            await Api(connection).patch(PODS, name, {"status": body}, namespace="default", subresource="status")

    def work() -> None:
        wait(canary)
        found = canary()
        assert found is not None
        asyncio.run(end(found["metadata"]["name"]))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("message", "mark", "text"),
    [
        ('{"variable": "0", "devices": ["GPU-a"]}', OK, "opened the GPU of its group, and sees no other"),
        ('{"variable": "0", "library": false}', PROBLEM, "the runtime isn't NVIDIA's"),
        ("exec failed", UNTESTED, "reported nothing"),
    ],
)
def test_a_canary_says_whether_it_opened_its_gpu(sandbox: Sandbox, message: str, mark: str, text: str) -> None:
    """And is gone afterwards, whatever it said."""
    with deviceshare(sandbox):
        kubelet = tell(sandbox, "example.com/deviceshare:1", message)
        told = examine(sandbox, "--gpu", "--gpu-image=example.com/deviceshare:1")
        kubelet.join(SECONDS)
    assert (told.marks["gpu"], told.marks["canary"]) == (mark, OK)
    assert text in told.texts["gpu"] and nothing_left(sandbox)


def test_without_an_image_no_canary_can_open_a_gpu(sandbox: Sandbox) -> None:
    """Where deviceshare runs outside of the cluster, nobody knows its image."""
    with deviceshare(sandbox):
        told = examine(sandbox, "--gpu")
    assert told.marks["gpu"] == UNTESTED and "--gpu-image" in told.texts["gpu"] and nothing_left(sandbox)


def test_a_lost_webhook_configuration_is_found(sandbox: Sandbox) -> None:
    """By its name, by the dry run, and by the canary, which the extender refuses then."""
    saved = kubectl(sandbox, "get", "mutatingwebhookconfiguration", "deviceshare", "-o", "json")
    with deviceshare(sandbox):
        kubectl(sandbox, "delete", "mutatingwebhookconfiguration", "deviceshare")
        try:
            wait(lambda: "deviceshare.io/group" not in dry_run(sandbox))
            told = examine(sandbox, "--no-canary")
        finally:
            kubectl(sandbox, "create", "-f", "-", stdin=saved)
    assert told.status == 1
    assert (told.marks["webhooks"], told.marks["injection"]) == (PROBLEM, PROBLEM)
    assert "MutatingWebhookConfiguration deviceshare is missing" in told.texts["webhooks"]
    assert "manifests/webhooks.yaml" in told.texts["webhooks"]
    assert "the mutating webhook is not called" in told.texts["injection"]


def test_a_webhook_that_trusts_nobody_is_found(sandbox: Sandbox) -> None:
    """An empty caBundle: the system's CAs are believed then, and none of them is ours."""
    saved = json.loads(kubectl(sandbox, "get", "validatingwebhookconfiguration", "deviceshare", "-o", "json"))
    bundle = saved["webhooks"][0]["clientConfig"]["caBundle"]
    path = "/webhooks/0/clientConfig/caBundle"

    def write(value: str) -> None:
        patch = json.dumps([{"op": "add", "path": path, "value": value}])
        kubectl(sandbox, "patch", "validatingwebhookconfiguration", "deviceshare", "--type=json", "-p", patch)

    with deviceshare(sandbox):
        write("")
        try:
            wait(lambda: "x509" in dry_run(sandbox))
            told = examine(sandbox, "--no-canary")
        finally:
            write(bundle)
    assert "validate-pods.deviceshare.io: caBundle holds no certificate" in told.texts["webhooks"]
    assert "x509" in told.texts["injection"] and "caBundle" in told.texts["injection"]


def test_agents_that_nothing_keeps_to_their_nodes_are_found(sandbox: Sandbox) -> None:
    """The webhook that does is looked for only where agents are wanted; these are wanted on no node there is."""
    saved = kubectl(sandbox, "get", "validatingwebhookconfiguration", "deviceshare", "-o", "json")
    names = [webhook["name"] for webhook in json.loads(saved)["webhooks"]]
    patch = [{"op": "remove", "path": f"/webhooks/{names.index('validate-node-devices.deviceshare.io')}"}]
    labels = {"app.kubernetes.io/name": "deviceshare-agent"}
    spec = {"containers": [{"name": "agent", "image": "agent"}], "nodeSelector": {"no": "node"}}
    agents = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "deviceshare-agent", "namespace": "deviceshare-system", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    with deviceshare(sandbox):
        kubectl(
            sandbox, "patch", "validatingwebhookconfiguration", "deviceshare", "--type=json", "-p", json.dumps(patch)
        )
        try:
            before = examine(sandbox, "--no-canary")
            kubectl(sandbox, "create", "-f", "-", stdin=json.dumps(agents))
            after = examine(sandbox, "--no-canary")
        finally:
            kubectl(sandbox, "-n", "deviceshare-system", "delete", "daemonset", "deviceshare-agent")
            kubectl(sandbox, "replace", "--force", "-f", "-", stdin=saved)
    assert before.marks["webhooks"] == OK
    assert after.marks["webhooks"] == PROBLEM
    assert "lacks validate-node-devices.deviceshare.io: an agent may write" in after.texts["webhooks"]


def test_nodes_that_lost_their_label_are_found(sandbox: Sandbox) -> None:
    """And where no node is shared, no device is free, so the canary says that it knows nothing."""
    share = ("label", "node", "node-1", "node-2", "--overwrite")
    with deviceshare(sandbox):
        kubectl(sandbox, *share, "deviceshare.io/mode=Shared")
        try:
            told = examine(sandbox)
        finally:
            kubectl(sandbox, *share, "deviceshare.io/mode=shared")
    texts = marks(told, nodes=PROBLEM, plugin=OK, runtime=OK, canary=UNTESTED)
    assert told.status == 1
    assert "no node is shared" in texts["nodes"] and "these have devices: node-1 and node-2" in texts["nodes"]
    assert "the label deviceshare.io/mode=Shared shares nothing" in texts["nodes"]
    assert "kubectl label node NODE --overwrite deviceshare.io/mode=shared" in texts["nodes"]


def test_nodes_where_shares_are_refused_are_found(sandbox: Sandbox) -> None:
    """By what gpushare's plugin left on one; where memory is unknown, that is said and is no fault."""
    label = ("label", "node", "node-2", "--overwrite")

    def leave(quantity: str | None) -> bool:
        node = json.loads(kubectl(sandbox, "get", "--raw", "/api/v1/nodes/node-1"))
        for field in ("capacity", "allocatable"):
            node["status"][field].pop("aliyun.com/gpu-mem", None)
            if quantity is not None:
                node["status"][field]["aliyun.com/gpu-mem"] = quantity
        command = ("replace", "--raw", "/api/v1/nodes/node-1/status", "-f", "-")
        return sandbox.kubectl(*command, stdin=json.dumps(node)).returncode == 0  # controllers write nodes, too

    with deviceshare(sandbox):
        wait(lambda: leave("0"))
        kubectl(sandbox, *label, f"{GPU}.memory-")
        try:
            wait(lambda: kubectl(sandbox, "get", "ndev", "node-2", "-o", "jsonpath={.status.memoryMib}") in ("", "{}"))
            told = examine(sandbox, "--no-canary")
        finally:
            kubectl(sandbox, *label, f"{GPU}.memory=16384")
            wait(lambda: leave(None))
    assert told.status == 0 and told.marks["shares"] == WARNING
    text = told.texts["shares"]
    assert "aliyun.com/gpu-mem is advertised by node-1" in text and "kubectl patch node NODE" in text
    assert "don't go to node-2: that of nvidia.com/gpu isn't known there" in text
    assert "kubectl label node NODE nvidia.com/gpu.memory=" in text


def test_a_cluster_that_is_full_is_not_called_broken(sandbox: Sandbox) -> None:
    """The canary needs a free device, and takes nobody's."""
    group = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup", "spec": {"resources": {GPU: 1}}}
    names = ("full-1", "full-2")
    items = [{**group, "metadata": {"name": name}} for name in names] + [pod(name, name) for name in names]
    with deviceshare(sandbox):
        kubectl(sandbox, "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        try:
            wait(lambda: kubectl(sandbox, "get", "sdg", "-o", "jsonpath={..phase}") == "Bound Bound")
            told = examine(sandbox)
        finally:
            kubectl(sandbox, "delete", "pods", *names, "--grace-period=0", "--force")
            wait(lambda: sandbox.kubectl("delete", "sdg", *names, "--ignore-not-found").returncode == 0)
            wait(lambda: "full" not in kubectl(sandbox, "get", "ndev", "-o", "json"))
    marks(told, canary=UNTESTED)
    assert told.status == 0 and "no device is free" in told.texts["canary"]


def test_lost_rights_are_found(sandbox: Sandbox) -> None:
    """Before anything comes of it: what was read stays mirrored for a while."""
    role = "deviceshare-controller"
    saved = kubectl(sandbox, "get", "clusterrole", role, "-o", "json")
    rules = json.loads(saved)["rules"]
    kept = [rule for rule in rules if "nodedevices" not in rule["resources"]]
    assert len(kept) < len(rules)
    with deviceshare(sandbox):
        kubectl(sandbox, "patch", "clusterrole", role, "--type=merge", "-p", json.dumps({"rules": kept}))
        ask = ("auth", "can-i", "create", "nodedevices.deviceshare.io", f"--as={IDENTITY}")
        try:
            wait(lambda: sandbox.kubectl(*ask).returncode != 0)  # the authorizer reads roles from a cache
            told = examine(sandbox, "--no-canary")
        finally:
            patch = json.dumps({"rules": rules})
            kubectl(sandbox, "patch", "clusterrole", role, "--type=merge", "-p", patch)
    assert told.status == 1 and told.marks["its rights"] == PROBLEM
    assert "may not create nodedevices.deviceshare.io" in told.texts["its rights"]
    assert "docs/reference/rbac.md" in told.texts["its rights"]


def test_a_crd_of_an_earlier_release_is_found(sandbox: Sandbox) -> None:
    """What the API server would drop is named."""
    saved = json.loads(kubectl(sandbox, "get", "crd", "nodedevices.deviceshare.io", "-o", "json"))
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/hardware"
    status = saved["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    change = ("patch", "crd", "nodedevices.deviceshare.io", "--type=json", "-p")
    kubectl(sandbox, *change, json.dumps([{"op": "remove", "path": path}]))
    try:
        told = examine(sandbox, "--no-canary")
    finally:
        value = status["properties"]["hardware"]
        kubectl(sandbox, *change, json.dumps([{"op": "add", "path": path, "value": value}]))
    assert told.marks["CRDs"] == PROBLEM
    assert "status.hardware" in told.texts["CRDs"] and "kubectl apply -f" in told.texts["CRDs"]


def test_a_deviceshare_that_hangs_is_found(sandbox: Sandbox) -> None:
    """Its lease isn't renewed, and its webhooks don't answer."""
    with deviceshare(sandbox) as process:
        process.send_signal(signal.SIGSTOP)
        told = examine(sandbox)
    texts = marks(told, replicas=PROBLEM, injection=PROBLEM, canary=PROBLEM)
    assert "nobody renews the Lease deviceshare-system/deviceshare" in texts["replicas"]
    assert "context deadline exceeded" in texts["injection"] and "port 9443" in texts["injection"]
    assert "validate-groups.deviceshare.io" in texts["canary"]
    assert told.status == 1 and nothing_left(sandbox)


def test_an_extender_that_is_gone_is_found_by_the_canary(sandbox: Sandbox) -> None:
    """Everything else is well then: nobody but the scheduler asks it."""
    with deviceshare(sandbox, "--roles", "controller,webhook"):
        told = examine(sandbox)
    texts = marks(told, canary=PROBLEM)
    assert "connection refused" in texts["canary"] and "kube-scheduler" in texts["canary"]
    assert told.status == 1 and nothing_left(sandbox)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_a_doctor_that_is_sent_away_takes_its_canary_along(
    sandbox: Sandbox, number: signal.Signals, status: int
) -> None:
    """In the middle of it, while the canary waits for an extender that is gone."""
    command = [sys.executable, "-m", "deviceshare", "doctor", f"--kubeconfig={sandbox.kubeconfig}"]
    with deviceshare(sandbox, "--roles", "controller,webhook"):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wait(lambda: "deviceshare-canary" in kubectl(sandbox, "get", "pods", "-o", "name"))
        process.send_signal(number)
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == status and b"Traceback" not in said
    assert nothing_left(sandbox)


def test_who_may_see_little_is_told_what_was_not_tested(sandbox: Sandbox) -> None:
    """A user of a namespace: no problem is claimed, and none denied."""
    with deviceshare(sandbox):
        told = examine(sandbox, identity="alice")
    assert told.status == 0
    assert {name for name, mark in told.marks.items() if mark == UNTESTED} >= {
        "CRDs",
        "its rights",
        "webhooks",
        "nodes",
    }
    assert told.marks["injection"] == OK and told.marks["your rights"] == WARNING
    assert "run doctor as a user who may: --context NAME" in told.texts["CRDs"]


def test_a_cluster_without_deviceshare_is_told_so(sandbox: Sandbox) -> None:
    """Installed and never started, or in another namespace."""
    told = examine(sandbox, "--release-namespace", "elsewhere", "--no-canary")
    assert told.status == 1
    assert "deviceshare doesn't run in elsewhere" in told.texts["replicas"]
    assert "--release-namespace NAME" in told.texts["replicas"]
