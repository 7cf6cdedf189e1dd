"""A release with agents, whose NVML is the one of the tests, and the agent of the cluster's node.

The script of NVML lies in a volume of the agent's container, so that a GPU can break under an agent that runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from charts.helm import NAMESPACE
from deviceshare.domain.contract import AGENT
from deviceshare_sandbox.nvml import VARIABLE, Script, build
from tests.node import image
from tests.node.cluster import Cluster, Json
from tests.node.release import Parts, Release

IMAGE: Final = "localhost/deviceshare:nvml"
_LIBRARY: Final = "/usr/lib/libnvidia-ml.so.1"
"""Where the dynamic linker looks in any case."""
_VOLUME: Final = "/nvml"
LIMITS: Final = Path(_VOLUME) / "limits"
"""Where that NVML keeps the limits of control groups."""


@contextmanager
def release_with_agents(
    cluster: Cluster, parts: Parts, script: Script, scratch: Path, *, agent: Json | None = None, **values: Json
) -> Iterator[Release]:
    """The chart with agents, all ready; `agent` and others are values."""
    archive, place = scratch / "image.tar", f"{_VOLUME}/{script.path.name}"
    files = {_LIBRARY: build(scratch), place: script.path}
    image.derive(parts.image, IMAGE, archive, files=files, environment={VARIABLE: place}, volume=_VOLUME)
    cluster.sandbox.import_image(archive)
    with Release(cluster, parts.chart) as installed:
        tag = IMAGE.rpartition(":")[2]
        agents = {"enabled": True, **(agent or {})}
        installed.install(agent=agents, image={"tag": tag, "pullPolicy": "Never"}, **values)
        yield installed


class Agent:
    """The one on the cluster's node."""

    def __init__(self, cluster: Cluster, script: Script) -> None:
        self._cluster = cluster
        self._script = script

    @property
    def pod(self) -> Json:
        """Its pod."""
        [found] = self._cluster.get("pods", "-n", NAMESPACE, "-l", f"app.kubernetes.io/name={AGENT}")
        document: Json = found
        return document

    def exec(self, *command: str, stdin: str | None = None) -> str:
        """What a command in its container says."""
        flags = ["-i"] if stdin else []
        name = self.pod["metadata"]["name"]
        return self._cluster.kubectl("exec", *flags, "-n", NAMESPACE, name, "--", *command, stdin=stdin)

    def follow(self) -> None:
        """Gives it the script as it is now, in one step."""
        place = f"{_VOLUME}/{self._script.path.name}"
        self.exec("sh", "-c", f"cat > {place}.new && mv {place}.new {place}", stdin=self._script.path.read_text())

    def hardware(self) -> Json:
        """What it has reported."""
        found: Json = self._cluster.get("nodedevices", "node-1").get("status", {}).get("hardware", {})
        return found
