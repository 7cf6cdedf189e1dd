"""Processes on devices that their pods have no part in: reported, and their pods evicted where that is enabled.

A process seen once may be about to end, or belong to a pod that the watch hasn't reported yet: it counts when it is
seen again within a minute. Its identity is what the kernel and the API server say (trespasses.py): neither another
name, nor a new process, nor a pause between two looks hides a trespasser.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog
from msgspec.structs import replace

from deviceshare.domain.device_health.trespasses import Occupant, Suspect, as_trespass, trespassers
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Trespass
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.printable import quoted
from deviceshare.domain.wording import listed
from deviceshare.loops.agent.evictions import SPARED, Intruder
from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.api_objects import node_subject
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import Subject

log = structlog.get_logger(__name__)

MEMORY: Final = 12
"""Looks for which a trespasser is remembered: a minute."""

Finding = tuple[Device, Suspect]


class IntruderGuard:
    """Compares each look with those before."""

    def __init__(self, node: OwnNode, evict: Callable[[Intruder], object] | None = None) -> None:
        """`evict` is called with each pod to evict, at each look; None where no pod is to be evicted."""
        self._node = node
        self._evict = evict
        self._looks = 0
        self._seen: dict[Suspect, int] = {}
        """The look at which each trespassed last."""
        self._names: dict[Finding, tuple[int, str]] = {}
        """The process found first, and the last look at which it was seen: a new name is no new finding."""
        self._warned: set[Finding] = set()
        self._reported: list[Trespass] = []

    def remember(self, reported: Iterable[Trespass]) -> None:
        """Resumes from the report of the agent before this one, so that nothing in it is withdrawn."""
        self._reported = list(reported)

    def look(self, ledger: NodeDevices, occupants: Iterable[Occupant]) -> Mapping[Finding, Trespass]:
        """The trespassers that were seen before, too: a row for each pod, and for each process outside of any."""
        self._looks += 1
        found: dict[Finding, Occupant] = {}
        for each in sorted(trespassers(ledger, occupants), key=lambda each: (each.started, each.pid)):
            found.setdefault((each.device, each.suspect), each)  # of a pod the process that has run for longest
        stayed: dict[Finding, Trespass] = {}
        for finding, occupant in found.items():
            seen, reported = finding[1] in self._seen, self._known(occupant)
            _, name = self._names.get(finding, (0, reported.process if reported else occupant.name))
            self._names[finding] = (self._looks, name)
            if not seen and not reported:
                continue
            stayed[finding] = replace(as_trespass(occupant), process=name)
            if finding not in self._warned and not reported:
                self._warn(ledger, occupant, name)
            if seen:  # by this agent itself: one before it may have seen another pod of this name
                self._request_eviction(occupant)
        self._forget(found, stayed)
        return stayed

    def _forget(self, found: Iterable[Finding], stayed: Iterable[Finding]) -> None:
        """Remembers this look, and forgets those that are older than `MEMORY`."""
        oldest = self._looks - MEMORY
        self._seen.update((suspect, self._looks) for _, suspect in found)
        self._seen = {suspect: look for suspect, look in self._seen.items() if look > oldest}
        self._names = {finding: named for finding, named in self._names.items() if named[0] > oldest}
        self._warned = (self._warned | set(stayed)) & self._names.keys()
        self._reported = []

    def _known(self, occupant: Occupant) -> Trespass | None:
        """The row of an earlier agent's report that may mean this one. Rows hold names only."""
        row = as_trespass(occupant)
        alike = (each for each in self._reported if replace(each, process=row.process) == row)
        return next((each for each in alike if row.pod or each.process == row.process), None)

    def _request_eviction(self, occupant: Occupant) -> None:
        if self._evict and occupant.pod_uid and not occupant.pod.startswith(f"{SPARED}/"):
            namespace, _, name = occupant.pod.partition("/")
            self._evict(Intruder(namespace, name, occupant.pod_uid))

    def _warn(self, ledger: NodeDevices, occupant: Occupant, process: str) -> None:
        claims = [claim for claim in ledger.claims.values() if occupant.device in ledger.reserved(claim)]
        groups = listed(sorted(claim.group for claim in claims if claim.group))
        device, pod, pid = str(occupant.device), occupant.pod, occupant.pid
        log.warning("Found a trespasser", device=device, groups=groups, pod=pod, process=process, pid=pid)
        # Of pods with shares no names: who reads a pod's events may not see those of other namespaces.
        whose = (
            f"SharedDeviceGroup {groups} holds, but belongs to no pod of it"
            if groups
            else "pods with shares have, but belongs to none of them"
        )
        message = (
            f"process {quoted(process)} (PID {occupant.pid}) uses {occupant.device} of node {self._node.name}, which"
            f" {whose}"
        )
        namespace, _, name = pod.rpartition("/")
        intruder = Subject(PODS, name, namespace, occupant.pod_uid)
        self._node.recorder.warn(intruder if occupant.pod_uid else node_subject(self._node.name), "Trespass", message)
