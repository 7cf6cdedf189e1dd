"""The first process of a real node's machine: `python -m deviceshare_sandbox.boot DIR IP COMMAND…`.

The node's processes and containers get process ids, mounts and a network of their own. So nothing of the node can
outlive its first process: when that ends, even by kill -9, the kernel ends all processes that it ever started, and with
the last of them go mounts, interfaces, routes and iptables rules. COMMAND, the container runtime, runs under the first
process; `deviceshare_sandbox.machine` brings in the others.
https://man7.org/linux/man-pages/man7/pid_namespaces.7.html
"""

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from deviceshare_sandbox import machine, network, syscalls
from deviceshare_sandbox.reports import SandboxError
from deviceshare_sandbox.state import Layout


def run(layout: Layout, ip: str, command: list[str]) -> int:
    """Runs the machine until COMMAND ends; returns its exit status. Raises SandboxError and OSError."""
    network.require_free()
    machine.clean(layout)
    machine.create_groups()
    machine.create_mount_points(layout)
    unshared, ready = os.pipe(), os.pipe()
    ours = os.open("/proc/self/ns/pid", os.O_RDONLY)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        os.close(unshared[0])
        os.close(ready[1])
        _first_process(layout, ip, command, unshared[1], ready[0])
    syscalls.setns(ours, syscalls.CLONE_NEWPID)  # Later children shall be this machine's again.
    os.close(ours)
    os.close(unshared[1])
    os.close(ready[0])
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    try:
        _await(unshared[0])
        network.join(ip, pid)
        _notify(ready[1])
        _await(unshared[0])
        network.route(ip)
        running = machine.Machine(pid, Path(f"/proc/{pid}/ns/net").stat().st_ino)
        machine.record(layout).write_bytes(msgspec.json.encode(running))
        _notify(ready[1])
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(pid, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        machine.record(layout).unlink(missing_ok=True)
        network.cut(ip)
        machine.clean(layout)
    return os.waitstatus_to_exitcode(status)


def _first_process(layout: Layout, ip: str, command: list[str], unshared: int, ready: int) -> NoReturn:
    """Process 1: makes the machine its own, starts COMMAND, and reaps every process that ends here."""
    try:
        syscalls.die_with_parent(signal.SIGKILL)
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
        machine.mount(layout)
        _notify(unshared)
        _await(ready)
        network.configure_node(ip)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _notify(unshared)
        _await(ready)
        os.close(unshared)
        os.close(ready)
        os._exit(_reap_until_end(os.posix_spawnp(command[0], command, os.environ)))
    except (SandboxError, OSError, EOFError) as error:
        sys.stderr.write(f"{error}\n")
    finally:  # Nothing may return into the parent's code.
        sys.stderr.flush()
        os._exit(1)


def _reap_until_end(child: int) -> int:
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status) % 256


def _notify(descriptor: int) -> None:
    os.write(descriptor, b".")


def _await(descriptor: int) -> None:
    if not os.read(descriptor, 1):
        raise EOFError("the other half of the machine has ended")


def main() -> int:
    """Runs the machine that the arguments describe."""
    directory, ip, *command = sys.argv[1:]
    try:
        return run(Layout(Path(directory)), ip, command)
    except (SandboxError, OSError, EOFError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
