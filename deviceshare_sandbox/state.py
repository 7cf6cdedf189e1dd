"""Options, files and recorded state of one sandbox.

One directory is one sandbox. The supervising process holds a lock in it for as long as it lives, so whether a sandbox
runs is never guessed from a process id, which another process may have by now.
"""

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO, Any

import msgspec

from deviceshare.domain import vendors
from deviceshare.domain.admission import settings
from deviceshare.domain.admission.dialects import OPT_IN
from deviceshare.domain.admission.settings import EXTENDER
from deviceshare.domain.objects.shares import SYSTEMS
from deviceshare_sandbox.binaries import Binaries, Programs
from deviceshare_sandbox.reports import SandboxError


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. The defaults are what a person wants first."""

    nodes: int = 2
    devices: int = 4
    """On each node."""
    memory_mib: int = 16384
    """Of each NVIDIA GPU, as GPU feature discovery's label has it; 0 for no label."""
    resource: str = vendors.NVIDIA.resource
    admission: str = settings.AUTO
    """Whether pods are admitted by webhooks or by policies; by default as the chart chooses, by Kubernetes' version."""
    deviceshare: bool = True
    """Whether deviceshare runs and its webhooks or policies are there. The CRDs and its rights are in any case."""
    kubelet: bool = True
    """Whether the pods of the simulated nodes turn Running. Off, they stay as the scheduler leaves them."""
    real_node: bool = False
    """Whether the node is one real node, with a kubelet, containers and a network, in place of the simulated ones."""
    durable: bool = False
    """Whether etcd waits for the disk at each write, as in a real cluster. Nothing here must survive a power cut."""
    bare: bool = False
    """Whether the cluster has nothing of deviceshare at all, no CRDs, rights or scheduler, for its chart to bring."""
    dialects: tuple[str, ...] = SYSTEMS
    """The other systems in whose words pods may ask for shares."""
    placement: str = EXTENDER
    """Who chooses pods' nodes: `extender`, or `gates` (Kubernetes 1.27 and later), where no scheduler of ours runs."""
    scaling_pods: bool = False
    """Whether autoscalers are shown pods for those that wait."""
    dra_holds: bool = False
    """Whether devices that DRA publishes are held, and groups may hand theirs over by a ResourceClaim."""
    agents: bool = False
    """Whether each simulated node has an agent, over scripted GPUs; pods' annotations say what they do with them."""
    program: str = ""
    """A Python file to run as deviceshare, with its command line; "" for the installed one."""
    extender: dict[str, Any] | None = None
    """The extender entry of deviceshare-scheduler's configuration, where it shall not be deviceshare's own."""


class SandboxPlan(msgspec.Struct, frozen=True):
    """What the supervising process is asked to start, and with which programs."""

    options: Options
    binaries: Binaries
    programs: Programs | None = None
    """Those of the real node, where there is one."""

    @property
    def admission(self) -> str:
        """One of modes.MODES."""
        auto = settings.WEBHOOKS if {*self.options.dialects} & {*OPT_IN} else settings.AUTO  # as the chart chooses
        wanted = self.options.admission
        return settings.chosen(auto if wanted == settings.AUTO else wanted, self.binaries.minor)


class Ports(msgspec.Struct, frozen=True):
    """One loopback port per listener."""

    etcd: int = 0
    etcd_peer: int = 0
    apiserver: int = 0
    controller_manager: int = 0
    scheduler: int = 0
    deviceshare_scheduler: int = 0
    scheduler_plain: int = 0
    deviceshare_scheduler_plain: int = 0
    extender: int = 0
    webhook: int = 0
    probe: int = 0
    ui: int = 0
    kubelet: int = 0


class ProcessState(msgspec.Struct, kw_only=True):
    """One process as `sandbox status` shows it."""

    name: str
    pid: int
    healthy: bool
    restarts: int = 0
    """How often it died and was restarted."""
    message: str = ""
    """What is wrong, for people."""
    probe: str = ""
    """The URL that answers 200 while the process is healthy."""


class SandboxState(msgspec.Struct, kw_only=True):
    """What the supervising process last wrote about its sandbox."""

    pid: int
    ready: bool = False
    stage: str = ""
    error: str = ""
    server: str = ""
    version: str = ""
    processes: list[ProcessState] = []
    ports: Ports = Ports()
    deviceshare_command: list[str] = []


class Layout:
    """The files of one sandbox."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser().absolute()
        self.kubeconfig = self.directory / "kubeconfig"
        """For people: the cluster's admin."""
        self.kubeconfigs = self.directory / "kubeconfigs"
        """One per other identity, `deviceshare.yaml` among them."""
        self.logs = self.directory / "logs"
        self.pki = self.directory / "pki"
        self.config = self.directory / "config"
        self.data = self.directory / "data"
        self.agents = self.config / "agents.json"
        """Where the simulated nodes' agents listen."""
        self.egress = self.data / "egress.sock"
        """Of the proxy by which the API server reaches simulated pods."""
        self._plan = self.directory / "plan.json"
        self._state = self.directory / "state.json"
        self._lock = self.directory / "lock"

    def kubeconfig_of(self, identity: str) -> Path:
        """Of `deviceshare`, `kube-scheduler` and the like (credentials.py)."""
        return self.kubeconfigs / f"{identity}.yaml"

    def admission(self, mode: str) -> Path:
        """The manifest of webhooks or policies, to be applied for a deviceshare that is started by hand."""
        return self.config / f"{mode}.yaml"

    def prepare(self, plan: SandboxPlan) -> None:
        """Empties the locked directory of what an earlier sandbox left, and writes the plan."""
        if not self._plan.exists() and set(self.directory.iterdir()) - {self._lock}:
            raise SandboxError(f"{self.directory} holds files of something else.", "Name an empty directory: --dir DIR")
        for part in (self.kubeconfigs, self.logs, self.pki, self.config, self.data):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o700)
        for file in (self._state, self.kubeconfig):
            file.unlink(missing_ok=True)
        self._plan.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))

    def plan(self) -> SandboxPlan:
        """What this sandbox was asked to be."""
        return msgspec.json.decode(self._plan.read_bytes(), type=SandboxPlan)

    def state(self) -> SandboxState | None:
        """What was last written, or None when nothing was."""
        try:
            return msgspec.json.decode(self._state.read_bytes(), type=SandboxState)
        except FileNotFoundError:
            return None

    def write_state(self, state: SandboxState) -> None:
        """Replaces the state as a whole: a reader sees the old one or the new one."""
        draft = self._state.with_suffix(".new")
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        draft.replace(self._state)

    def lock(self) -> IO[str]:
        """Takes the directory until every copy of the returned file is closed; raises SandboxError when it is taken."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._lock.open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise SandboxError(
                f"A sandbox is running in {self.directory}.",
                f"End it: deviceshare sandbox down --dir {self.directory}, or name another directory: --dir DIR",
            ) from None
        return file

    def running(self) -> bool:
        """Whether a supervising process holds this directory."""
        if not self._lock.exists():
            return False
        try:
            self.lock().close()
        except SandboxError:
            return True
        return False


def default_directory() -> Path:
    """`$XDG_STATE_HOME/deviceshare/sandbox`: the same from every working directory, so `down` finds what `up` began."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "deviceshare" / "sandbox"
