"""Nodes of a test's own in the session's cluster, and manifests that stay on them.

Groups are cluster-scoped and devices are counted, so tests on the same nodes would stand in each other's way. Each
node of a pool carries the label `pool=NAME`, each group of it that nodeSelector, and what a pool makes goes with it.
"""

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import PODS
from deviceshare_sandbox import ENV, Options, Sandbox
from deviceshare_sandbox.simulated_nodes import node
from tests.controlplane.admin_api import DEVICESHARE, AdminApi

GPU = "nvidia.com/gpu"
AMD = "amd.com/gpu"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
SCHEDULER = "deviceshare-scheduler"
PATIENCE_SECONDS = 45.0
"""For whatever takes seconds on a quiet machine. Shorter than the minute after which the kube-scheduler of 1.20 retries
waiting pods by itself: a pod that nobody woke must be noticed."""

Json = dict[str, Any]
T = TypeVar("T")

_APPS = ("apis/apps/v1", "deployments"), ("apis/apps/v1", "replicasets")
_BACKGROUND = {"propagationPolicy": "Background"}
_GOING = (200, 202, 404)
"""The answers to a deletion after which nothing is left to do."""


def template(group: str = "", *, scheduler: str = SCHEDULER, **spec: Any) -> Json:
    """A pod's metadata and spec: one container, unless `spec` says more."""
    annotations = {"deviceshare.io/group": group} if group else {}
    containers = [{"name": "main", "image": "busybox"}]
    return {
        "metadata": {"annotations": annotations},
        "spec": {"schedulerName": scheduler, "containers": containers, **spec},
    }


def pod(name: str, group: str = "", **spec: Any) -> Json:
    """A pod."""
    body = template(group, **spec)
    return {"apiVersion": "v1", "kind": "Pod", **body, "metadata": {"name": name, **body["metadata"]}}


def deployment(name: str, group: str, replicas: int, **spec: Any) -> Json:
    """A Deployment, whose pods have the label `app=NAME`."""
    body = template(group, **spec)
    body["metadata"]["labels"] = {"app": name}
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": selector, "template": body},
    }


def job(name: str, group: str, **spec: Any) -> Json:
    """A Job of one pod."""
    body = template(group, restartPolicy="Never", **spec)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": body}}


def refers(message: str) -> Callable[[str], bool]:
    """For `eventually`: whether a text contains the message."""
    return lambda text: message in text


class Pool:
    """One test's part of the cluster. `name` is its namespace, too."""

    def __init__(self, sandbox: Sandbox, name: str) -> None:
        self.sandbox = sandbox
        self.name = name
        self._namespaces = [name]
        self._api = AdminApi(sandbox.kubeconfig)
        self._create_namespace(name)

    def kubectl(self, *arguments: str, stdin: str | None = None, identity: str = "", fails: bool = False) -> str:
        """What kubectl said; fails the test unless it succeeds, or, where it `fails` by intent, is refused."""
        done = self.sandbox.kubectl(*arguments, stdin=stdin, identity=identity)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"kubectl {' '.join(arguments)}: {said}"
        return said

    def get(self, what: str, *names: str, namespace: str = "") -> Any:
        """`kubectl get -o json`: one object, or the items of a list."""
        if AdminApi.knows(what) and len(names) < 2 and not any(name.startswith("-") for name in names):
            return self._api.get(what, "".join(names), namespace or self.name)
        answer = json.loads(self.kubectl("get", what, *names, "-n", namespace or self.name, "-o", "json"))
        return answer["items"] if answer["kind"].endswith("List") else answer

    def apply(self, *documents: Json, namespace: str = "", **options: Any) -> str:
        """`kubectl apply`, warnings included."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        return self.kubectl("apply", "-n", namespace or self.name, "-f", "-", stdin=items, **options)

    def another_namespace(self) -> str:
        """A second namespace, which ends with the first."""
        self._namespaces.append(f"{self.name}-{len(self._namespaces)}")
        self._create_namespace(self._namespaces[-1])
        return self._namespaces[-1]

    def _create_namespace(self, name: str) -> None:
        self._api.create("/api/v1/namespaces", {"metadata": {"name": name}})

    def node(self, devices: int = 4, *, inventory: str = "", **labels: str) -> str:
        """Adds a shared node, known to deviceshare when this returns; `inventory` is its annotation of devices."""
        count = sum(each["metadata"]["name"].startswith(f"{self.name}-node-") for each in self.get("nodes"))
        name = f"{self.name}-node-{count + 1}"
        document = node(name, Options(devices=devices), self.sandbox.plan.binaries.version)
        document["metadata"]["labels"] |= {"pool": self.name, **labels}
        if inventory:
            document["metadata"]["annotations"] = {"deviceshare.io/devices": inventory}
        self._api.create("/api/v1/nodes", document)
        self.eventually(lambda: self._api.send("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}})[0] == 200)
        ledger = partial(self._api.send, "GET", f"{DEVICESHARE}/nodedevices/{name}")
        self.eventually(lambda: json.loads(ledger()[1]).get("spec", {}).get("summary", {}).get("total"))
        return name

    def group(self, suffix: str = "group", count: int = 2, **spec: Any) -> str:
        """Creates a group that stays on the pool's nodes, by default of GPUs; returns its name."""
        name = f"{self.name}-{suffix}"
        selector = {"pool": self.name} | spec.pop("nodeSelector", {})
        self.apply(
            {
                "apiVersion": "deviceshare.io/v1alpha1",
                "kind": "SharedDeviceGroup",
                "metadata": {"name": name, "labels": {"pool": self.name}},
                "spec": {"resources": {GPU: count}, **spec, "nodeSelector": selector},
            }
        )
        return name

    def status(self, group: str) -> Json:
        """A group's status, empty before there is one."""
        status: Json = self.get("sdg", group).get("status", {})
        return status

    def condition(self, group: str, type_: str = "Bound") -> Json:
        """One of a group's conditions."""
        return next((each for each in self.status(group).get("conditions", []) if each["type"] == type_), {})

    def reason(self, name: str) -> str:
        """What the pod's FailedScheduling events say."""
        return self.events("FailedScheduling", name, self.name)

    def events(self, reason: str, about: str, namespace: str) -> str:
        """What the Events of this reason say about an object."""
        chosen = quote(f"reason={reason},involvedObject.name={about}")
        status, answer = self._api.send("GET", f"/api/v1/namespaces/{namespace}/events?fieldSelector={chosen}")
        assert status == 200, answer
        return " ".join(event["message"] for event in json.loads(answer)["items"])

    def placed(self, name: str) -> str:
        """The node of a pod, or ""."""
        return str(self.get("pod", name)["spec"].get("nodeName", ""))

    def environments(self, pods: list[Json]) -> list[Json]:
        """What each container of these pods sees; empty unless all pods have started."""
        recorded = [each["metadata"].get("annotations", {}).get(ENV) for each in pods]
        return [env for text in recorded for env in json.loads(text).values()] if all(recorded) else []

    def running(self, *names: str, namespace: str = "", seconds: float = PATIENCE_SECONDS) -> list[Json]:
        """The pods of these names, or all of the namespace, once all have started; finished ones count."""
        started = ("Running", "Succeeded")

        def look() -> list[Json]:
            pods = self.get("pods", namespace=namespace)
            return [each for each in pods if not names or each["metadata"]["name"] in names]

        def all_started(pods: list[Json]) -> bool:
            return len(pods) >= max(len(names), 1) and all(each["status"]["phase"] in started for each in pods)

        return self.eventually(look, all_started, seconds)

    def give_address(self, name: str, address: str) -> None:
        """Has the pod's status say that this is its address, as that of a simulated pod can't be used."""
        asyncio.run(self._give_address(name, address))

    async def _give_address(self, name: str, address: str) -> None:
        async with connect(str(self.sandbox.kubeconfig)) as connection:
            body = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
            await Api(connection).patch(PODS, name, body, namespace=self.name, subresource="status")

    def eventually(
        self, look: Callable[[], T], true: Callable[[T], object] = bool, seconds: float = PATIENCE_SECONDS
    ) -> T:
        """Looks until it is true and returns what was seen; fails after `seconds` with what was seen last."""
        deadline = time.monotonic() + seconds
        while not true(seen := look()):
            assert time.monotonic() < deadline, f"after {seconds:.0f} s still {seen!r}"
            time.sleep(0.1)
        return seen

    def end(self) -> None:
        """Takes everything of the pool away. Groups go when their pods have gone, so that goes by itself."""
        # A namespace lingers for seconds before it takes its pods along; tests shouldn't.
        paths = [
            f"/{api}/namespaces/{namespace}/{plural}"
            for namespace in self._namespaces
            for api, plural in (*_APPS, ("apis/batch/v1", "jobs"), ("api/v1", "pods"))
        ]
        paths += [f"/api/v1/namespaces/{namespace}" for namespace in self._namespaces]
        mine = f"labelSelector=pool%3D{self.name}"
        for path in (*paths, f"{DEVICESHARE}/shareddevicegroups?{mine}", f"/api/v1/nodes?{mine}"):
            self.eventually(partial(self._api.send, "DELETE", path, _BACKGROUND), lambda seen: seen[0] in _GOING)
        self._api.close()
