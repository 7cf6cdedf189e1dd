"""Containers of simulated pods: real processes in control groups that are named as the kubelet names them."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

Json = dict[str, Any]
_REPOSITORY = Path(__file__).parents[2]


class ContainerProgram:
    """A process of a container; with pipes, so that a test ends it by its input."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], control_group: Path) -> None:
        enter = ("sh", "-c", 'echo $$ >"$0" && exec "$@"', str(control_group / "cgroup.procs"))
        self._process = subprocess.Popen(
            [*enter, *command],
            cwd=_REPOSITORY,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def seen(self) -> list[str]:
        """The UUIDs of the GPUs that it sees, once it has its memory."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.end()
        uuids: list[str] = json.loads(line)
        return uuids

    def end(self) -> tuple[int, str]:
        """Closes its input; its exit status, and what it wrote to standard error."""
        _, errors = self._process.communicate(timeout=120)
        return self._process.returncode, errors.decode()

    def output(self) -> str:
        """What it wrote to standard output, once it has ended."""
        output, _ = self._process.communicate(timeout=60)
        return output.decode()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=30)


class Container:
    """The container of a pod on this machine. `address` is the pod's, of the machine's loopback network."""

    def __init__(self, pod: Json, variables: Mapping[str, str], directory: Path, address: str = "127.0.0.1") -> None:
        self._group = _hierarchy() / "kubepods/burstable" / f"pod{pod['metadata']['uid']}" / (uuid4().hex * 2)
        self._group.mkdir(parents=True)
        self._environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
        # NVIDIA's runtime gives a container these devices only; without it, CUDA itself shows only these.
        self._environment["CUDA_VISIBLE_DEVICES"] = variables["NVIDIA_VISIBLE_DEVICES"]
        self._use_address(directory, address)
        self._programs: list[ContainerProgram] = []

    def run(self, *command: str) -> ContainerProgram:
        """Starts a program in it."""
        program = ContainerProgram(command, self._environment, self._group)
        self._programs.append(program)
        return program

    def use(self, mib: int) -> ContainerProgram:
        """Starts a program that allocates so much memory of each of its GPUs."""
        return self.run(*cuda_program(mib))

    def end(self) -> None:
        """Kills what still runs, and removes the control group, for which its processes have to be gone."""
        for program in self._programs:
            program.kill()
        deadline = time.monotonic() + 30
        while pids := (self._group / "cgroup.procs").read_text().split():
            assert time.monotonic() < deadline, f"these still run: {pids}"
            time.sleep(0.1)
        self._group.rmdir()
        self._group.parent.rmdir()

    def _use_address(self, directory: Path, address: str) -> None:
        # Not by a network namespace: the address by which the agent knows the pod is enough.
        curl = directory / f"bin-{address}" / "curl"
        curl.parent.mkdir(exist_ok=True)
        curl.write_text(f'#!/bin/sh\nexec {shutil.which("curl")} "$@" --interface {address}\n')
        curl.chmod(0o755)
        self._environment["PATH"] = os.pathsep.join([str(curl.parent), self._environment["PATH"]])


def cuda_program(mib: int, *seconds: int) -> list[str]:
    """The command of a program that allocates so much memory of each GPU that it sees."""
    return [sys.executable, "-m", "tests.gpu.cuda_program", *map(str, (mib, *seconds))]


def _hierarchy() -> Path:
    """Where the machine's control groups of version 2 are mounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
    assert found, "no control groups of version 2 are mounted on this machine"
    return found[0]
