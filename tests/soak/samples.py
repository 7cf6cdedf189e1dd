"""What a process holds at a moment: memory, descriptors, tasks, connections to the API server, mirrored objects."""

import asyncio
import contextlib
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import aiohttp

_TASKS = re.compile(r"^deviceshare_tasks (\S+)$", re.MULTILINE)
_MIRRORED = re.compile(r"^deviceshare_mirrored_objects\{.*\} (\S+)$", re.MULTILINE)
_ESTABLISHED = "01"
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
COUNT_SECONDS = 60.0
ATTEMPTS = 5


class Sample(NamedTuple):
    """One process at one moment."""

    process: str
    hours: float
    """Since the soak began."""
    pods: int
    """That had come and gone by then."""
    rss_mib: float
    descriptors: int
    tasks: int
    connections: int
    """To the API server, open ones: a watch has one each, and some are kept for the next request."""
    mirrored: int


class Subject(NamedTuple):
    """A process to look at, and the port at which it tells its metrics."""

    name: str
    pid: int
    port: int


async def take(subjects: Iterable[Subject], server_port: int, *, hours: float, pods: int) -> list[Sample]:
    """A sample of each; raises OSError where one has ended."""
    to_server = _sockets_to(server_port)
    samples = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        for name, pid, port in subjects:
            metrics = await _metrics(session, port)
            [tasks] = _TASKS.findall(metrics)
            files = _files(pid)
            samples.append(
                Sample(
                    name,
                    hours,
                    pods,
                    _rss_mib(pid),
                    len(files),
                    int(float(tasks)),
                    len(to_server & files),
                    sum(int(float(number)) for number in _MIRRORED.findall(metrics)),
                )
            )
    return samples


async def _metrics(session: aiohttp.ClientSession, port: int) -> str:
    """Asked again where a busy machine made the process answer 503; raises OSError in the end."""
    said: object = None
    for _ in range(ATTEMPTS):
        try:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                if answer.status == 200:
                    return await answer.text()
                said = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            said = repr(error)
        await asyncio.sleep(2)
    raise OSError(f"no metrics at port {port}: {said}")


async def count(directory: Path, pid: int) -> tuple[Counter[str], Counter[str]]:
    """How many objects of each class, and tasks of each name, a hurried process has (hurried.py)."""
    file = directory / f"{pid}.json"
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    async with asyncio.timeout(COUNT_SECONDS):
        while not file.exists():  # noqa: ASYNC110 another process writes it
            await asyncio.sleep(0.05)
    said = json.loads(file.read_text())
    return Counter(said["classes"]), Counter(said["tasks"])


def _rss_mib(pid: int) -> float:
    """https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html"""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MIB


def _files(pid: int) -> set[str]:
    """What the descriptors of a process are, each for itself: `socket:[123]`."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = str(link.readlink())
            found.add(target if target.startswith("socket:") else f"{link.name} {target}")
    return found


def _sockets_to(port: int) -> set[str]:
    """The sockets of this machine that are connected to the port on loopback.

    https://www.kernel.org/doc/html/latest/networking/proc_net_tcp.html
    """
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{each[9]}]" for each in lines if each[2].endswith(f":{port:04X}") and each[3] == _ESTABLISHED}
