"""What a test does with the one-node cluster, and the pods that tell what their containers see."""

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

from deviceshare.domain.contract import GROUP
from deviceshare_sandbox import Sandbox
from deviceshare_sandbox.images import BUSYBOX

GPU = "nvidia.com/gpu"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
TELL = f'echo "[${VISIBLE}]"'
"""A shell command that prints what the container may see, in brackets."""

Json = dict[str, Any]
T = TypeVar("T")


def pod(name: str, script: str, group: str = "", *, image: str = BUSYBOX, **spec: Any) -> Json:
    """A pod that runs a shell script; one of a group goes to deviceshare's scheduler."""
    annotations = {"deviceshare.io/group": group} if group else {}
    scheduler = {"schedulerName": "deviceshare-scheduler"} if group else {}
    # A shell that is process 1 ignores SIGTERM, and every deletion would take the whole grace period.
    script = f"trap 'exit 0' TERM; {script}"
    container = {"name": "main", "image": image, "command": ["sh", "-c", script], **spec.pop("container", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {**scheduler, "containers": [container], "terminationGracePeriodSeconds": 2, **spec},
    }


def group(name: str, count: int) -> Json:
    """A group of as many GPUs."""
    kind = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup"}
    return {**kind, "metadata": {"name": name}, "spec": {"resources": {GPU: count}}}


class Cluster:
    """kubectl, with its answers judged."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def kubectl(self, *arguments: str, stdin: str | None = None, identity: str = "", fails: bool = False) -> str:
        """What kubectl said; fails the test unless it succeeds, or, where it `fails` by intent, is refused."""
        done = self.sandbox.kubectl(*arguments, stdin=stdin, identity=identity, timeout=180)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, f"kubectl {' '.join(arguments)}: {said}"
        return said

    def get(self, *what: str) -> Any:
        """`kubectl get -o json`: one object, or the items of a list."""
        answer = json.loads(self.kubectl("get", *what, "-o", "json"))
        return answer["items"] if answer["kind"].endswith("List") else answer

    def apply(self, *documents: Json, **options: Any) -> str:
        """`kubectl apply`."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        return self.kubectl("apply", "-f", "-", stdin=items, **options)

    def joins(self, document: Json) -> bool:
        """Creates a group's pod; whether the webhook met it. One that slipped past is gone again.

        It may slip past while a replica dies: where the API server can't match on annotations, a webhook out of reach
        must not hold up anyone's pods.
        """
        name = document["metadata"]["name"]
        if self.sandbox.kubectl("apply", "-f", "-", stdin=json.dumps(document)).returncode != 0:
            return False
        if GROUP in self.get("pod", name)["metadata"].get("labels", {}):
            return True
        self.kubectl("delete", "pod", name, "--force", "--grace-period=0")
        return False

    def inventory(self) -> set[str]:
        """Everything in the cluster by kind and name, but for events, which are news and no things."""
        kinds = self.kubectl("api-resources", "--verbs=list", "-o", "name").split()
        things = ",".join(kind for kind in kinds if not kind.startswith("events"))
        return set(self.kubectl("get", things, "-A", "-o", "name", "--ignore-not-found").splitlines())

    def tells(self, name: str) -> str:
        """The first line that the pod's container prints, once there is one."""
        return self.eventually(lambda: self.sandbox.kubectl("logs", name, "-c", "main").stdout.partition("\n")[0])

    def eventually(self, look: Callable[[], T], true: Callable[[T], object] = bool, seconds: float = 90.0) -> T:
        """Looks until it is true and returns what was seen; fails after `seconds` with what was seen last.

        A kubelet takes tens of seconds for some things, and restarts what fails after ten, twenty and forty.
        """
        deadline = time.monotonic() + seconds
        while not true(seen := look()):
            assert time.monotonic() < deadline, f"after {seconds:.0f} s still {seen!r}"
            time.sleep(0.2)
        return seen

    def clear(self) -> None:
        """Takes all pods and groups of tests away, and waits until they have gone.

        By force: a kubelet takes ten seconds and more to report that a pod's last container has ended.
        """
        self.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--timeout=60s")
        if "shareddevicegroups" in self.kubectl("api-resources", "--api-group=deviceshare.io", "-o", "name"):
            # Admission policies go by the status, which the leader writes when a group's last pod has ended.
            delete = ("delete", "shareddevicegroups", "--all", "--timeout=60s")
            self.eventually(lambda: self.sandbox.kubectl(*delete, timeout=180).returncode == 0)
