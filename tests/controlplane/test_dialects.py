"""Manifests of gpushare, MetaGPU, HAMi and KAI run unchanged, in a cluster where no node advertises their resources.

The manifests are in the shape of these projects' samples (AliyunContainerService/gpushare-scheduler-extender, `samples`
and its user guide; AliyunContainerService/gpushare-device-plugin, `demo`; cnvrg/metagpu, README), but for
`apps/v1beta1`, which no API server has served since 1.16. They name no scheduler, no node and no variable. Those of
HAMi and KAI are in the shape of Project-HAMi/HAMi, `examples/nvidia`, and kai-scheduler/KAI-Scheduler,
`docs/gpu-sharing`.
"""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import msgspec
import pytest
import yaml

from deviceshare import assets
from deviceshare.domain.admission.dialects import OPT_IN
from deviceshare.domain.objects.devices import as_json
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.shares import SYSTEMS
from deviceshare_sandbox import ENV, Options, Sandbox, running

Json = dict[str, Any]
NODES, DEVICES, SIZE = 2, 4, 16384


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Of its own: the manifests may go to any node."""
    with running(Options(nodes=NODES, devices=DEVICES, dialects=(*SYSTEMS, *OPT_IN))) as started:
        yield started


@pytest.fixture(autouse=True)
def _clean(cluster: Sandbox) -> Iterator[None]:
    yield
    kubectl(cluster, "delete", "deployments,statefulsets,jobs,services,pods", "--all", "--now")
    eventually(lambda: claims(cluster), lambda found: not found)


def kubectl(cluster: Sandbox, *arguments: str, stdin: str | None = None) -> str:
    done = cluster.kubectl(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def deviceshare(cluster: Sandbox, *arguments: str) -> str:
    command = [sys.executable, "-m", "deviceshare", *arguments]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stdout


def apply(cluster: Sandbox, text: str) -> None:
    kubectl(cluster, "apply", "-f", "-", stdin=text)


def pods(cluster: Sandbox) -> list[Json]:
    found: list[Json] = json.loads(kubectl(cluster, "get", "pods", "-o", "json"))["items"]
    return found


def claims(cluster: Sandbox) -> list[Json]:
    """Every share: of which node, device and pod, and how much of it."""
    ledgers = json.loads(kubectl(cluster, "get", "ndev", "-o", "json"))["items"]
    return [
        {**share, "node": ledger["metadata"]["name"], "pod": claim["pod"]}
        for ledger in ledgers
        for claim in ledger["spec"].get("claims", {}).values()
        for share in as_json(msgspec.convert(claim, Claim).shares)
    ]


def filled(cluster: Sandbox) -> dict[tuple[str, int], Fraction]:
    """How much of each device is taken, from 0 to 1, added up here from what the API server stores."""
    sums: dict[tuple[str, int], Fraction] = defaultdict(Fraction)
    for share in claims(cluster):
        part = Fraction(share["memoryMib"], SIZE) if "memoryMib" in share else Fraction(share["percent"], 100)
        sums[share["node"], share["index"]] += part
    return sums


def eventually(look: Any, true: Any, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not true(seen := look()):
        assert time.monotonic() < deadline, f"still {seen!r}"
        time.sleep(0.2)
    return seen


def phases(cluster: Sandbox) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in pods(cluster))


def env_of(pod: Json) -> Json:
    """Of its only container."""
    (env,) = json.loads(pod["metadata"]["annotations"][ENV]).values()
    found: Json = env
    return found


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: binpack-1
  labels: {app: binpack-1}
spec:
  replicas: 1
  selector: {matchLabels: {app: binpack-1}}
  template:
    metadata: {labels: {app: binpack-1}}
    spec:
      containers:
      - name: binpack-1
        image: example.com/gpu-player:v2
        resources:
          limits:
            # GiB
            aliyun.com/gpu-mem: 2
"""
STATEFUL_SET = """
apiVersion: v1
kind: Service
metadata: {name: binpack-1, labels: {app: binpack-1}}
spec:
  ports: [{port: 80, name: web}]
  clusterIP: None
  selector: {app: binpack-1}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: binpack-1, labels: {app: binpack-1}}
spec:
  replicas: REPLICAS
  serviceName: binpack-1
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: binpack-1}}
  template:
    metadata: {labels: {app: binpack-1}}
    spec:
      containers:
      - name: binpack-1
        image: example.com/gpu-player:v2
        resources: {limits: {aliyun.com/gpu-mem: 3}}
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: gpu-job}
spec:
  backoffLimit: 0
  template:
    metadata: {annotations: {sandbox.deviceshare.io/run-for: "1"}}
    spec:
      restartPolicy: Never
      containers:
      - name: job
        image: example.com/alpine:3.6
        command: [sleep, 30s]
        resources: {limits: {aliyun.com/gpu-mem: 2}}
"""
METAGPU = """
apiVersion: v1
kind: Pod
metadata: {name: metagpu-test}
spec:
  tolerations: [{operator: Exists}]
  containers:
  - name: gpu-test-with-gpu
    image: example.com/tensorflow:latest-gpu
    command: [/usr/local/bin/python, -c, "print()"]
    resources: {limits: {cnvrg.io/metagpu: "AMOUNT"}}
"""


def test_gpushares_deployment(cluster: Sandbox) -> None:
    """With the variables that its programs read, and the annotations that its tools read."""
    apply(cluster, DEPLOYMENT)
    eventually(lambda: phases(cluster), lambda found: found == ["Running"])
    (pod,) = pods(cluster)
    env, annotations = env_of(pod), pod["metadata"]["annotations"]
    index = str(claims(cluster)[0]["index"])
    assert env["NVIDIA_VISIBLE_DEVICES"] == env["ALIYUN_COM_GPU_MEM_IDX"] == index
    assert (env["ALIYUN_COM_GPU_MEM_CONTAINER"], env["ALIYUN_COM_GPU_MEM_POD"]) == ("2", "2")
    assert env["ALIYUN_COM_GPU_MEM_DEV"] == annotations["ALIYUN_COM_GPU_MEM_DEV"] == "16"
    assert annotations["ALIYUN_COM_GPU_MEM_IDX"] == index
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "2"
    assert json.loads(annotations["scheduler.framework.gpushare.allocation"]) == {"0": {index: 2}}


def test_gpushares_stateful_set_fills_one_device_after_the_other(cluster: Sandbox) -> None:
    """Five of 3 GiB fit on a device of 16 GiB; no device is begun while another has room."""
    # Of nodes that are alike kube-scheduler takes any, and pods that it tries at once may be given different ones.
    apply(cluster, STATEFUL_SET.replace("REPLICAS", "1"))
    eventually(lambda: phases(cluster), lambda found: found == ["Running"])
    apply(cluster, STATEFUL_SET.replace("REPLICAS", "12"))
    eventually(lambda: phases(cluster), lambda found: found == ["Running"] * 12)
    assert sorted(filled(cluster).values()) == [Fraction(6, 16), Fraction(15, 16), Fraction(15, 16)]
    table = deviceshare(cluster, "inspect", "-o", "cgpu").splitlines()
    assert table[0].split()[:3] == ["NAME", "IPADDRESS", "GPU0(Allocated/Total)"]
    assert table[-1].strip() == "36/128 (28%)"
    assert sum(row.count("15/16") for row in table) == 2
    assert "binpack-1-11" in deviceshare(cluster, "inspect", "-o", "cgpu", "-d")


def test_gpushares_job_gives_its_part_back(cluster: Sandbox) -> None:
    """When its pod has succeeded, though the pod stays."""
    apply(cluster, JOB)
    eventually(lambda: phases(cluster), lambda found: found == ["Succeeded"])
    eventually(lambda: claims(cluster), lambda found: not found)


@pytest.mark.parametrize(("amount", "devices"), [("30", 1), ("150", 2)])
def test_metagpus_pod(cluster: Sandbox, amount: str, devices: int) -> None:
    """Hundredths of a device; what exceeds one is on the next, and never scattered."""
    apply(cluster, METAGPU.replace("AMOUNT", amount))
    eventually(lambda: phases(cluster), lambda found: found == ["Running"])
    env = env_of(pods(cluster)[0])
    assert len(set(env["NVIDIA_VISIBLE_DEVICES"].split(","))) == devices
    assert env["METAGPU_MAX_MEM"] == str(sum(SIZE * part // 100 for part in ([30] if amount == "30" else [100, 50])))
    assert sum(share["percent"] for share in claims(cluster)) == int(amount)


HAMI = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: hami, labels: {app: hami}}
spec:
  replicas: 1
  selector: {matchLabels: {app: hami}}
  template:
    metadata: {labels: {app: hami}}
    spec:
      schedulerName: default-scheduler
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
      containers:
      - name: cuda-sample-vector-add
        image: example.com/cuda-sample
        resources: {limits: ASKED}
"""
KAI = """
apiVersion: v1
kind: Pod
metadata:
  name: gpu-sharing
  labels: {kai.scheduler/queue: default-queue}
  annotations: ASKED
spec:
  schedulerName: kai-scheduler
  containers:
  - name: sidecar
    image: example.com/busybox
    args: [sleep, infinity]
  - name: gpu-workload
    image: example.com/cuda
    command: [nvidia-smi]
    args: [-L]
"""
ACK = DEPLOYMENT.replace("metadata: {labels: {app: binpack-1}}", "metadata: {labels: LABELS}").replace(
    "LABELS", "{app: binpack-1, aliyun.com/gpu-count: '2'}"
)


@pytest.mark.parametrize(
    ("manifest", "asked", "size", "devices"),
    [
        (HAMI, "{nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/gpucores: 30}", ("memoryMib", 3000), 1),
        (HAMI, "{nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 50}", ("percent", 50), 2),
        (HAMI, "{nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 100}", ("percent", 100), 2),
        (KAI, "{gpu-fraction: '0.5', gpu-fraction-container-name: gpu-workload}", ("percent", 50), 1),
        (KAI, "{gpu-memory: '2000', gpu-fraction-num-devices: '2'}", ("memoryMib", 2000), 2),
        (ACK, "", ("memoryMib", 1024), 2),
    ],
)
def test_other_systems_parts(cluster: Sandbox, manifest: str, asked: str, size: tuple[str, int], devices: int) -> None:
    """Each of a device of its own; the container that asks sees these devices, and others none."""
    apply(cluster, manifest.replace("ASKED", asked))
    eventually(lambda: phases(cluster), lambda found: found == ["Running"])
    found, (pod,) = claims(cluster), pods(cluster)
    assert [(key, each[key]) for each in found for key in ("memoryMib", "percent") if key in each] == [size] * devices
    assert len({each["node"] for each in found}) == 1
    given = {str(each["index"]) for each in found}
    assert len(given) == devices
    env = json.loads(pod["metadata"]["annotations"][ENV])
    seen = {name: set(each.get("NVIDIA_VISIBLE_DEVICES", "").split(",")) for name, each in env.items()}
    assert seen == {name: given if name == found[0]["container"] else {""} for name in seen}


def test_eight_devices_are_filled_to_the_last_share_that_fits(cluster: Sandbox) -> None:
    """Pods of 3, 5 and 8 GiB and of 30 percent, until full: nothing over a device's size, and the rest says why."""
    sizes = [{"deviceshare.io/gpu-mem": mem} for mem in (3, 5, 8)] + [{"deviceshare.io/gpu-percent": 30}]
    wanted = [sizes[number % len(sizes)] for number in range(40)]
    documents = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"filler-{number}"},
            "spec": {"containers": [{"name": "main", "image": "example.com/image", "resources": {"limits": limits}}]},
        }
        for number, limits in enumerate(wanted)
    ]
    apply(cluster, yaml.safe_dump_all(documents))

    def settled() -> bool:
        assert all(part <= 1 for part in filled(cluster).values())
        return all(pod["status"]["phase"] == "Running" or _refused(pod) for pod in pods(cluster))

    eventually(settled, bool)
    taken = filled(cluster)
    assert len(taken) == NODES * DEVICES
    waiting = [pod for pod in pods(cluster) if pod["status"]["phase"] == "Pending"]
    assert waiting
    for pod in waiting:
        (limits,) = [container["resources"]["limits"] for container in pod["spec"]["containers"]]
        [(resource, amount)] = limits.items()
        part = Fraction(int(amount), 16) if resource.endswith("mem") else Fraction(int(amount), 100)
        assert all(part + used > 1 for used in taken.values()), "it would have fitted"
        explained = deviceshare(cluster, "explain", "pod", f"default/{pod['metadata']['name']}")
        assert "of a GPU" in explained
        assert "free" in explained


def _refused(pod: Json) -> bool:
    said = [c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled" and c["status"] == "False"]
    return bool(said) and "too full" in said[0]["message"]


def test_our_examples_come_and_go_on_tainted_nodes(cluster: Sandbox) -> None:
    """As managed clusters taint their GPU nodes; twice, since what is left behind would keep the next one waiting."""
    taint = "nvidia.com/gpu=present:NoSchedule"
    kubectl(cluster, "taint", "nodes", "--all", taint)
    try:
        for file in sorted(assets.examples().glob("*.yaml")) * 2:
            kubectl(cluster, "apply", "-f", str(file))
            eventually(lambda: phases(cluster), lambda found: found and {*found} <= {"Running", "Succeeded"})
            kubectl(cluster, "delete", "-f", str(file), "--timeout=60s")
            assert not json.loads(kubectl(cluster, "get", "sdg", "-o", "json"))["items"]
            eventually(lambda: claims(cluster) + pods(cluster), lambda found: not found)
    finally:
        kubectl(cluster, "taint", "nodes", "--all", f"{taint.partition('=')[0]}-")
