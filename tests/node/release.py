"""The chart as a release: installed, upgraded and uninstalled by Helm's own library."""

import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from helm_python import Config

from charts.helm import NAMESPACE
from deviceshare_sandbox import Sandbox, images
from tests.node.cluster import Cluster, Json

NAME: Final = "deviceshare"
SELECTOR: Final = "app.kubernetes.io/name=deviceshare"
_SCHEDULER: Final = "localhost/kube-scheduler"
_TIMEOUT: Final = 180
_WAITING: Final[Json] = {"wait": "watcher", "timeout": _TIMEOUT}
LEASES: Final = {f"lease.coordination.k8s.io/{name}" for name in ("deviceshare", "deviceshare-scheduler")}
"""What who leads makes: it stays when the release is uninstalled."""
_LABEL: Final = "kubernetes.io/metadata.name"


def import_scheduler(sandbox: Sandbox) -> None:
    """Gives the node an image of kube-scheduler, out of the program that the sandbox runs itself."""
    program = sandbox.plan.binaries
    tag = f"{_SCHEDULER}:{program.version}"
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        files = {"usr/local/bin/kube-scheduler": Path(program.kube_scheduler)}
        images.write(Path(archive.name), tag, files, command=["kube-scheduler"])
        sandbox.import_image(Path(archive.name))


class Parts(NamedTuple):
    """What a release has for a cluster, as files."""

    image: Path
    chart: Path
    """Its default image is the other."""


class Release:
    """The release in its namespace."""

    def __init__(self, cluster: Cluster, chart: Path) -> None:
        self.cluster = cluster
        self._chart = chart
        self.before: set[str] = set()
        """What the cluster held before the release."""
        self._helm = Config(kubeconfig_path=cluster.sandbox.kubeconfig, namespace=NAMESPACE)

    def __enter__(self) -> "Release":
        return self

    def __exit__(self, *_: object) -> None:
        self._helm.close()

    def install(self, **values: Any) -> None:
        """`helm install --wait`, in a namespace that is there."""
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self._follow_notes()
        self.before = self.cluster.inventory()
        self._helm.install(
            self._chart, NAME, self._values(values), namespace=NAMESPACE, wait="watcher", timeout=_TIMEOUT
        )

    def upgrade(self, **values: Any) -> None:
        """`helm upgrade --wait`."""
        self._helm.upgrade(
            self._chart, NAME, self._values(values), namespace=NAMESPACE, wait="watcher", timeout=_TIMEOUT
        )

    def uninstall(self) -> None:
        """`helm uninstall --wait`."""
        self._helm.uninstall(NAME, wait="watcher", timeout=_TIMEOUT)

    def pods(self) -> list[Json]:
        """deviceshare's own."""
        pods: list[Json] = self.cluster.get("pods", "-n", NAMESPACE, "-l", SELECTOR)
        return pods

    def leader(self) -> str:
        """The pod that holds the controller's lease, empty while nobody does."""
        leases = {each["metadata"]["name"]: each["spec"] for each in self.cluster.get("leases", "-n", NAMESPACE)}
        return str(leases.get("deviceshare", {}).get("holderIdentity") or "")

    def _values(self, values: Json) -> Json:
        registry, _, repository = _SCHEDULER.partition("/")
        scheduler = {"registry": registry, "repository": repository, "pullPolicy": "Never"}
        return {"image": {"pullPolicy": "Never"}, "scheduler": {"image": scheduler}, **values}

    def _follow_notes(self) -> None:
        """Before 1.21 namespaces have no label with their name; NOTES.txt tells how to put it there."""
        for namespace in ("kube-system", NAMESPACE):
            self.cluster.kubectl("label", "namespace", namespace, f"{_LABEL}={namespace}", "--overwrite")
