"""Start, stop and status of sandboxes, for the command line, the tests and the benchmarks.

Each sandbox has a supervising process of its own; one that is tied ends with the process that started it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from deviceshare.domain.admission import settings
from deviceshare.domain.admission.settings import GATES
from deviceshare_sandbox import binaries, credentials, machine, network, real_node
from deviceshare_sandbox.processes import Prober
from deviceshare_sandbox.reports import Progress, SandboxError, tail
from deviceshare_sandbox.state import Layout, Options, ProcessState, SandboxPlan, SandboxState

_START_SECONDS = 240.0
_STOP_SECONDS = 90.0
_POLL_SECONDS = 0.1

T = TypeVar("T")


class SandboxStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """The state of a sandbox, and the health of its processes as probed just now."""

    ready: bool
    directory: str
    kubeconfig: str
    server: str = ""
    version: str = ""
    message: str = ""
    processes: list[ProcessState] = []


class Sandbox:
    """A sandbox that runs."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        state = layout.state()
        if state is None:
            raise SandboxError(f"No sandbox has run in {layout.directory}.")
        self.plan = layout.plan()
        self.kubeconfig = layout.kubeconfig
        """The admin's."""
        self.server = state.server
        """The API server's URL."""
        self.extender_url = f"http://127.0.0.1:{state.ports.extender}"
        self.webhook_url = f"https://127.0.0.1:{state.ports.webhook}"
        self.probe_url = f"http://127.0.0.1:{state.ports.probe}"
        """deviceshare's `/livez`, `/readyz` and `/metrics`."""
        self.ui_url = f"http://127.0.0.1:{state.ports.ui}/ui"
        self.admission_manifest = layout.admission(self.plan.admission)
        """The webhooks or policies; applied unless the sandbox is without deviceshare."""
        self.deviceshare_command = state.deviceshare_command
        """How this sandbox runs deviceshare, or would."""

    def kubeconfig_of(self, identity: str) -> Path:
        """Of `alice`, who has the rights of `edit`, or of `deviceshare`, `kube-scheduler`, `kubelet` and the like."""
        return self.layout.kubeconfig_of(identity)

    def agent_kubeconfig(self, node: str) -> Path:
        """Of the agent on a node."""
        return credentials.agent_kubeconfig(self.layout, self.plan.binaries, node)

    def status(self) -> SandboxStatus:
        """The health of every process, probed now."""
        return status(self.layout.directory)

    def pid(self, name: str) -> int:
        """The process id that the named process has now; raises KeyError when there is none of that name."""
        state = self.layout.state()
        return {process.name: process.pid for process in state.processes if process.pid}[name] if state else 0

    def kubectl(
        self, *arguments: str, stdin: str | None = None, identity: str = "", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs the set's own kubectl, as the admin or another identity; the caller looks at the exit status.

        Raises subprocess.TimeoutExpired after `timeout` seconds.
        """
        kubeconfig = self.kubeconfig_of(identity) if identity else self.kubeconfig
        cache = self.layout.data / "kubectl-people"
        command = [self.plan.binaries.kubectl, f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}", *arguments]
        return subprocess.run(command, input=stdin or "", capture_output=True, text=True, timeout=timeout, check=False)

    def import_image(self, archive: Path) -> None:
        """Gives the real node the images of an archive, as `docker save` writes it; raises SandboxError."""
        if self.plan.programs is None:
            raise SandboxError(
                "This sandbox has no real node, so there is nothing to run an image.",
                "Start one: deviceshare sandbox up --real-node",
            )
        real_node.import_image(self.layout, self.plan.programs, archive)


@contextlib.contextmanager
def running(
    options: Options | None = None, directory: Path | None = None, *, progress: Progress | None = None
) -> Iterator[Sandbox]:
    """A sandbox for the length of a block, in a temporary directory unless one is named. It dies with this process.

    Enter it from a thread that lives as long as the sandbox shall: the kernel counts a thread as a parent. Raises
    SandboxError when it can't be had.
    """
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deviceshare-sandbox-")))
        layout, progress = Layout(directory), progress or Progress()
        process = _launch(options or Options(), layout, progress, tied=True)
        stack.callback(process.wait)
        stack.callback(stop, directory)
        _await_ready(layout, progress)
        yield Sandbox(layout)


def start(options: Options, directory: Path, progress: Progress) -> Sandbox:
    """Starts a sandbox that stays when this process ends; returns when it is ready, or raises SandboxError."""
    layout = Layout(directory)
    _launch(options, layout, progress, tied=False).wait()
    try:
        _await_ready(layout, progress)
    except BaseException:  # Ctrl-C too: what isn't ready must not stay behind.
        stop(directory)
        raise
    return Sandbox(layout)


def _launch(options: Options, layout: Layout, progress: Progress, *, tied: bool) -> subprocess.Popen[bytes]:
    """Finds the binaries and starts the supervising process; returns at once. Raises SandboxError.

    A tied one ends when this process has died. One that isn't leaves the process that is returned, which ends at once.
    """
    if options.real_node:
        binaries.require_root()
        network.require_free()
    found = binaries.find(progress, node=options.real_node)
    if options.admission == settings.POLICIES and not settings.serves_policies(found.minor):
        raise SandboxError(
            f"Kubernetes {found.version} has no policies that inject pods; 1.36 and later do.",
            "Leave --admission=policies out, or set KUBEBUILDER_ASSETS to the binaries of a newer release.",
        )
    if options.placement == GATES and found.minor < 27:
        raise SandboxError(
            f"Kubernetes {found.version} drops scheduling gates, which placement gates needs.",
            "Name binaries of 1.27 or later: KUBEBUILDER_ASSETS=DIR",
        )
    node_programs = binaries.find_programs(progress) if options.real_node else None
    command = [sys.executable, "-m", "deviceshare_sandbox.supervisor", str(layout.directory)]
    command += [str(os.getpid())] if tied else []
    with layout.lock() as lock:
        machine.clean(layout)
        layout.prepare(SandboxPlan(options, found, node_programs))
        with (layout.logs / "sandbox.log").open("wb") as log:
            # The child inherits the lock, and with it the directory: there is no moment in which nobody holds it.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )


def _await_ready(layout: Layout, progress: Progress) -> None:
    """Shows the stages of a start until it is done; raises SandboxError when it fails or takes four minutes."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        state = layout.state()
        if state is not None and state.ready:
            return
        if not layout.running():
            raise SandboxError(f"The sandbox didn't start: {_why(layout)}")
        if time.monotonic() > deadline:
            raise SandboxError(f"The sandbox wasn't ready after {_START_SECONDS:.0f} s; see {layout.logs}")
        if state is None:
            time.sleep(_POLL_SECONDS)
        else:
            with progress.stage(state.stage.capitalize()):
                _await(partial(_left, layout, state.stage), deadline - time.monotonic())


def _left(layout: Layout, stage: str) -> bool:
    """Whether the start isn't at this stage any more."""
    state = layout.state()
    return not layout.running() or (state is not None and state.stage != stage)


def _why(layout: Layout) -> str:
    state = layout.state()
    return state.error if state is not None and state.error else "\n" + tail(layout.logs / "sandbox.log")


def stop(directory: Path) -> bool:
    """Ends the sandbox of this directory and returns when nothing of it runs; False when none ran.

    Raises SandboxError when it can't be ended.
    """
    layout = Layout(directory)
    if not layout.running():
        machine.clean(layout)
        return False
    state = _await(layout.state, 5.0)
    if state is None:
        raise SandboxError(f"{layout.directory} is locked by a process that isn't a sandbox.")
    for signal_number, patience in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.pid, signal_number)
        if _await(lambda: not layout.running(), patience):
            machine.clean(layout)
            return True
    raise SandboxError(f"The sandbox in {layout.directory} (process {state.pid}) can't be ended.")


def _await(question: Callable[[], T], patience: float) -> T:
    deadline = time.monotonic() + patience
    while not (answer := question()) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return answer


def status(directory: Path) -> SandboxStatus:
    """How the sandbox of this directory is; not ready, and without processes, where none runs."""
    layout = Layout(directory)
    answer = SandboxStatus(ready=False, directory=str(layout.directory), kubeconfig=str(layout.kubeconfig))
    state = layout.state()
    if not layout.running() or state is None:
        answer.message = (
            f"No sandbox runs in {layout.directory}; start one: deviceshare sandbox up --dir {layout.directory}"
        )
        return answer
    answer.server, answer.version = state.server, state.version
    answer.processes = asyncio.run(_probe(layout, state))
    answer.ready = state.ready and all(process.healthy for process in answer.processes)
    answer.message = "" if answer.ready else state.error or ("unhealthy" if state.ready else state.stage)
    return answer


async def _probe(layout: Layout, state: SandboxState) -> list[ProcessState]:
    prober = Prober(layout.pki / "ca.crt")
    health = await asyncio.gather(*(prober.healthy(process.probe) for process in state.processes))
    for process, healthy in zip(state.processes, health, strict=True):
        process.healthy = healthy and _alive(process.pid)
    return state.processes


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
