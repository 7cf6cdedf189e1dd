"""Sends inputs to every endpoint of running processes and to the decoders, and judges what comes back."""

import asyncio
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Kind
from deviceshare.web.admission import BadReview, decode
from deviceshare.web.extender import ARGUMENTS, BINDING, PREEMPTION, named_nodes
from tests.fuzz import documents, target, wire
from tests.fuzz.target import Victim

DECODERS: Final = "decoders"
_WORKERS: Final = 6
"""Connections at once, to each server."""
_SHARES: Final = {
    "webhook": 0.4,
    "extender": 0.25,
    "probe": 0.04,
    "ui": 0.04,
    "agent": 0.04,
    "pods": 0.04,
    DECODERS: 0.19,
}
_UNDECIDED: Final = 0.15
"""Seconds in which an answer to something that isn't whole may come; who sent it goes then."""
_PATIENCE: Final = 30.0
"""Seconds in which connections are closed whose callers have gone."""
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_CHECK_FAILED: Final = b"check failed"
"""What Kubernetes' components answer 500 to a probe with, by custom."""

_declared = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, BadReview)


class Report(msgspec.Struct):
    """What a campaign found; `faults` is empty where nothing is wrong."""

    seed: int
    inputs: dict[str, int]
    statuses: dict[str, dict[str, int]]
    """Server → status → answers; `none` where the connection was ended without one, or nobody waited."""
    seconds: float
    memory_mib: dict[str, list[float]]
    """Of each process: after the first tenth, at the end, at most."""
    log_bytes: dict[str, int]
    faults: list[str]


def run(inputs: int, seed: int) -> Report:
    """A whole campaign, over two processes."""
    begun = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        target.deviceshare(Path(one), level="debug") as main,
        target.agent(Path(other), level="debug") as agent,
    ):
        campaign = _Campaign({**dict.fromkeys(target.SERVERS, main), "agent": agent, "pods": agent}, seed)
        asyncio.run(campaign.run(inputs))
        return campaign.report(time.perf_counter() - begun)


class _Campaign:
    def __init__(self, targets: dict[str, Victim], seed: int) -> None:
        self._targets = targets
        self._seed = seed
        self._sent: Counter[str] = Counter()
        self._statuses: dict[str, Counter[str]] = {server: Counter() for server in targets}
        self._faults: list[str] = []
        self._memory: dict[str, list[float]] = {"run": [], "agent": []}
        self._descriptors: dict[str, int] = {}

    async def run(self, inputs: int) -> None:
        for part in (0.1, 0.9):
            shares = {name: int(inputs * share * part) + 1 for name, share in _SHARES.items()}
            await asyncio.gather(
                *(self._send(name, number, part) for name, number in shares.items() if name != DECODERS)
            )
            self._decode(shares[DECODERS], part)
            await asyncio.sleep(1)
            for name, process in self._processes():
                self._memory[name].append(process.memory_mib() if process.running else 0.0)
                self._descriptors.setdefault(name, process.descriptors())

    def report(self, seconds: float) -> Report:
        for name, process in self._processes():
            self._judge(name, process)
        statuses = {server: dict(sorted(counted.items())) for server, counted in self._statuses.items()}
        log = {name: process.log_bytes() for name, process in self._processes()}
        return Report(self._seed, dict(self._sent), statuses, seconds, self._memory, log, self._faults)

    def _processes(self) -> Iterable[tuple[str, Victim]]:
        return (("run", self._targets["webhook"]), ("agent", self._targets["agent"]))

    def _judge(self, name: str, process: Victim) -> None:
        if not process.running:
            self._faults.append(f"{name} ended with {process.process.poll()}: {process.log()[-2000:]}")
            return
        log = process.log()
        for word in ("Traceback", '"exception"', "never retrieved", "was destroyed"):
            if word in log:
                at = log.index(word)
                self._faults.append(f"{name} logged: {log[max(0, at - 500) : at + 3000]}")
        warm, end = self._memory[name][:2]
        self._memory[name].append(process.memory_mib("VmHWM"))
        if end > warm + 48:
            self._faults.append(f"{name}'s memory grew from {warm:.0f} to {end:.0f} MiB")
        before = self._descriptors[name]
        if (kept := _least(process.descriptors, before + 16)) > before + 16:
            self._faults.append(f"{name} keeps {kept} files open, {before} before")
        if (longest := max((len(line) for line in log.splitlines()), default=0)) > 4000:
            self._faults.append(f"{name} logged a line of {longest} characters")

    # Servers.

    async def _send(self, server: str, number: int, part: float) -> None:
        works = (
            self._work(server, number // _WORKERS + 1, f"{self._seed}/{server}/{part}/{n}") for n in range(_WORKERS)
        )
        await asyncio.gather(*works)

    async def _work(self, server: str, number: int, seed: str) -> None:
        random_ = random.Random(seed)
        process = self._targets[server]
        connection: _Caller | None = None
        for _ in range(number):
            if not process.running:
                return
            sent = wire.generate(server, random_)
            self._sent[server] += 1
            source = target.STRANGER if server == "pods" and random_.random() < 0.2 else target.POD
            connection = connection or await _Caller.open(process.ports[server], source, tls=server == "webhook")
            if connection is None:
                self._statuses[server]["none"] += 1
                continue
            status, body, again = await (connection.ask(sent.data) if sent.kept else connection.throw(sent.data))
            self._statuses[server][status] += 1
            # A probe that is asked by HEAD answers without the words.
            said = _CHECK_FAILED in body or sent.data.startswith((b"HEAD /readyz", b"HEAD /livez"))
            if status.startswith("5") and status != "503" and not (status == "500" and said):
                self._faults.append(f"{server} answered {status} to (seed {seed}) {sent.data[:2000]!r}: {body[:500]!r}")
            if not again:
                await connection.close()
                connection = None
        if connection is not None:
            await connection.close()

    # Decoders.

    def _decode(self, number: int, part: float) -> None:
        random_ = random.Random(f"{self._seed}/decoders/{part}")
        kinds: dict[str, Kind[Any]] = {"POD": PODS, "GROUP": GROUPS, "NODE_DEVICES": NODE_DEVICES, "NODE": NODES}
        decoders = {name: decoder_of(kind.type) for name, kind in kinds.items()}
        for _ in range(number):
            self._sent[DECODERS] += 1
            name = random_.choice([*decoders, "/filter", "/preempt", "/bind", "/mutate-pods"])
            whole = getattr(documents, name) if name in decoders else documents.document(name, random_)
            body = documents.encode(documents.bend(whole, random_), random_)
            try:
                self._decode_one(name, body, decoders)
            except _declared:
                continue
            except Exception as error:  # noqa: BLE001  that is what is looked for
                self._faults.append(f"decoding {name} {body[:2000]!r}: {error!r}")

    def _decode_one(self, name: str, body: bytes, decoders: dict[str, Any]) -> None:
        if name == "/filter":
            named_nodes(ARGUMENTS.decode(body))
        elif name == "/bind":
            BINDING.decode(body)
        elif name == "/preempt":
            PREEMPTION.decode(body)
        elif name == "/mutate-pods":
            decode(body, "Pod")
        else:
            decoded = decoders[name].decode(body)
            # What is read of it later must not fail on what was taken in.
            for key, member in vars(type(decoded)).items():
                if isinstance(member, property):
                    getattr(decoded, key)


def _least(count: Callable[[], int], enough: int) -> int:
    """What is counted, as soon as it is no more than `enough`: a busy process learns late that callers have gone."""
    deadline = time.monotonic() + _PATIENCE
    while (counted := count()) > enough and time.monotonic() < deadline:
        time.sleep(0.1)
    return counted


class _Caller:
    """A connection of the stranger's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, source: str, *, tls: bool) -> "_Caller | None":
        context = target.TRUSTING if tls else None
        with suppress(OSError):
            return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=(source, 0)))
        return None

    async def ask(self, data: bytes) -> tuple[str, bytes, bool]:
        """The status and body of the answer; whether the connection goes on."""
        try:
            async with asyncio.timeout(30):
                self._writer.write(data)
                head = await self._reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                body = await self._reader.readexactly(int(length[1])) if length else b""
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return "none", b"", False
        found = _STATUS.match(head)
        again = length is not None and b"Connection: close" not in head
        return (found[1].decode() if found else "none"), body, again

    async def throw(self, data: bytes) -> tuple[str, bytes, bool]:
        """Whatever is answered at once: the worst status of it."""
        said = b""
        with suppress(OSError):
            self._writer.write(data)
            async with asyncio.timeout(_UNDECIDED):
                while more := await self._reader.read(1 << 16):
                    said += more
        statuses = [status.decode() for status in _STATUS.findall(said)]
        return max(statuses, default="none"), said, False

    async def close(self) -> None:
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()
