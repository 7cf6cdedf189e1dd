"""The agent's reconciler: from each reading of the node's devices to its report and its usage."""

from typing import Final

from msgspec.structs import replace

from deviceshare.domain.device_health.trespasses import Occupant, written
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part, ReportedTurns, Trespass
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage, ShareMemory, Usage
from deviceshare.loops.agent.allocations import Allocations
from deviceshare.loops.agent.guard import Finding, IntruderGuard
from deviceshare.loops.agent.judge import Judge
from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.agent.ports import ReadUse, Running, Sight
from deviceshare.loops.agent.reporter import Reporter
from deviceshare.loops.agent.share_watch import ShareWatch
from deviceshare.loops.agent.tenants import Tenant, Tenants

BLIND_SECONDS: Final = 60.0
"""Without a look for so long, the agent doesn't do its work. A driver that hangs is reported earlier."""


class Lookout:
    """Judges sights, and has their results reported."""

    def __init__(
        self,
        node: OwnNode,
        *,
        judge: Judge,
        guard: IntruderGuard,
        shares: ShareWatch,
        allocations: Allocations,
        reporter: Reporter,
    ) -> None:
        self.usage = Usage(node.name)
        """The last look's."""
        self.hardware: Hardware | None = None
        """What is to be reported; None until that is known."""
        self.turns: ReportedTurns | None = None
        """The part of it that is about turns."""
        self._node = node
        self._judge = judge
        self._guard = guard
        self._shares = shares
        self._allocations = allocations
        self._reporter = reporter
        self._looked = node.clock()
        self._trespasses: list[Trespass] = []
        self._accused: set[Finding] = set()

    def fault(self) -> str:
        """Why the agent doesn't do its work, or ""."""
        blind = self._node.clock() - self._looked
        return f"the last look at the devices was {blind:.0f} s ago" if blind > BLIND_SECONDS else ""

    def take(self, sight: Sight) -> None:
        """Judges what was seen. Called on the event loop; never blocks."""
        ledger = self._node.ledger
        if self._judge.known is None and ledger and not ledger.metadata.hides("status.hardware"):
            self._remember(ledger.status.hardware)
        judged = self._judge.judge(sight)
        known = self._judge.known
        parts = {part.uuid: part for part in (known.devices if known else sight.parts or ())}
        self._look_at_processes(sight, parts)
        if judged is not None:
            self.hardware = judged
        self.report()
        # At the end: an agent that fails to judge what it sees doesn't do its work either.
        self._looked = self._node.clock()

    def _remember(self, reported: Hardware) -> None:
        """Resumes from the report of the agent before this one."""
        self._judge.remember(reported)
        self._guard.remember(reported.trespasses)
        self._allocations.remember(reported.allocations)
        self._trespasses = reported.trespasses
        self._shares.report.remember(reported.overuses)
        self.turns = reported.turns

    def take_turns(self, turns: ReportedTurns | None) -> None:
        """Reports who has turns and which programs wait, once it is known what an earlier agent reported."""
        if self._judge.known is not None and turns != self.turns:
            self.turns = turns
            self.report()

    def report(self) -> None:
        """Reports what is known by now. To be called when a part of it has changed."""
        if self.hardware is None or not self._allocations.asked:
            return
        self.hardware = replace(
            self.hardware,
            allocations=self._allocations.known,
            placeholders=self._allocations.placeholders,
            trespasses=self._trespasses,
            overuses=self._shares.report.rows,
            turns=self.turns,
        )
        self._reporter.want(self.hardware)

    def _look_at_processes(self, sight: Sight, parts: dict[str, Part]) -> None:
        tenants = Tenants(self._node)
        seen = [
            (part, use, [(process, tenants.of(process.owner)) for process in use.processes])
            for use in sight.uses
            if (part := parts.get(use.uuid))
        ]
        ledger = self._node.ledger or NodeDevices()
        on = [(part, use, [(_occupant(ledger, part, *each), *each) for each in who]) for part, use, who in seen]
        shares: dict[Device, list[ShareMemory]] = {}
        # While pods or claims aren't known, their processes would all look like strangers.
        if self._node.pods.synced and ledger.node and not ledger.metadata.unreadable:
            occupants = [occupant for _, _, who in on for occupant, *_ in who]
            stayed = self._guard.look(ledger, occupants)
            self._trespasses, self._accused = written(stayed.values()), set(stayed)
            read_at = self._node.clock() if sight.read_at is None else sight.read_at
            for use, exceeded in self._shares.look(ledger, occupants, read_at):
                row = ShareMemory(use.pod, use.container, use.used_mib, use.limit_mib, exceeded)
                shares.setdefault(use.device, []).append(row)
        devices = [
            _device(part, use, [self._process(*each) for each in who], shares.get(_named(ledger, part), []))
            for part, use, who in on
        ]
        self.usage = Usage(self._node.name, self._node.now(), devices)

    def _process(self, occupant: Occupant, process: Running, tenant: Tenant) -> DeviceProcess:
        accused = (occupant.device, occupant.suspect) in self._accused
        known = process.pid, process.name, process.memory_mib, tenant.pod, tenant.container
        return DeviceProcess(*known, trespass=accused)


def _named(ledger: NodeDevices, part: Part) -> Device:
    """The device as the ledger calls it at present."""
    return ledger.present(part.device)


def _occupant(ledger: NodeDevices, part: Part, process: Running, tenant: Tenant) -> Occupant:
    return Occupant(
        _named(ledger, part),
        process.pid,
        process.name,
        tenant.pod,
        tenant.uid,
        tenant.holder_uid,
        cgroup_uid=process.owner.pod_uid if process.owner else "",
        started=process.started,
        container=tenant.container,
        memory_mib=process.memory_mib,
    )


def _device(part: Part, use: ReadUse, processes: list[DeviceProcess], shares: list[ShareMemory]) -> DeviceUsage:
    return DeviceUsage(
        part.resource,
        part.index,
        part.uuid,
        part.model,
        memory_used_mib=use.memory_used_mib or 0,
        memory_total_mib=use.memory_total_mib or part.memory_mib,
        utilization=use.utilization,
        processes=processes,
        shares=shares,
    )
