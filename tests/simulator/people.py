"""What people, workloads and machines do in a history, each kind of event with a switch of its own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from deviceshare.domain import contract
from deviceshare.domain.objects.shares import GPU_PERCENT
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NODE_DEVICES, NODES, PODS
from tests.simulator.cluster import NAMESPACE, SimulatedCluster
from tests.simulator.machines import GPU, SimulatedMachine
from tests.unit.domain.objects import INJECTED, a_sharing_container

TEAMS: Final = ("red", "blue")
MOST_PODS, MOST_GROUPS = 10, 4
IMPORTANT = 5
"""Each fifth pod has a higher priority than the others, which may have to go for it."""


class People:
    """Does one event at a time. An event that can't be now does nothing."""

    def __init__(self, cluster: SimulatedCluster, wipe: Callable[[str], None], lose: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._server = cluster.server
        self._rng = cluster.rng
        self._wipe, self._lose = wipe, lose
        self._numbers: dict[str, int] = {}
        self.busy: set[str] = set()
        """Machines that are being rebooted, lost or brought back."""
        self.events: dict[str, tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = {
            "groups": (6, self.group_comes),
            "pods": (14, self.pod_comes),
            "ends": (8, self.pod_ends),
            "deletions": (2, self.group_goes),
            "shares": (8, self.share_comes),
            "shares-in-groups": (4, self.share_in_group_comes),
            "quotas": (2, self.quota_changes),
            "rebinds": (3, self.device_fails),
            "reboots": (2, self.machine_reboots),
            "lost-nodes": (2, self.node_goes),
            "out-of-service": (1, self.node_out_of_service),
            "cordons": (2, self.node_cordoned),
            "agents": (2, self.agent_comes),
            "lost-ledgers": (1, self.ledger_is_removed),
            "deleted-ledgers": (1, self.ledger_is_deleted),
            "wiped-statuses": (1, self.status_is_wiped),
            "leaders": (2, self.leader_changes),
            "crashes": (2, self.process_dies),
        }

    def _name(self, prefix: str) -> str:
        self._numbers[prefix] = self._numbers.get(prefix, 0) + 1
        return f"{prefix}{self._numbers[prefix]}"

    def _all(self, plural: str) -> list[dict[str, Any]]:
        return list(self._server.objects.get(plural, {}).values())

    # Users.

    async def group_comes(self) -> None:
        groups = self._all(GROUPS.plural)
        if len(groups) >= MOST_GROUPS:
            return
        spec: dict[str, Any] = {"resources": {GPU: self._rng.choice((1, 1, 2))}}
        if self._rng.random() < 0.3:
            spec["releaseAfter"] = self._rng.choice(("5s", "15s"))
        if self._rng.random() < 0.4:
            spec["deletionPolicy"] = "AfterLastPod"
        if self._rng.random() < 0.5:
            spec["nodeLossPolicy"] = "Move"
        name, team = self._name("g"), self._rng.choice(TEAMS)
        self._cluster.say(f"group {name} of team {team} is created: {spec}")
        self._server.put(GROUPS, {"metadata": {"name": name, "labels": {"team": team}}, "spec": spec})

    async def group_goes(self) -> None:
        if groups := self._all(GROUPS.plural):
            name = self._rng.choice(groups)["metadata"]["name"]
            self._cluster.say(f"group {name} is deleted")
            self._server.delete_now(GROUPS, name)

    def _pod(self, prefix: str, group: str, container: dict[str, Any]) -> None:
        if len(self._all(PODS.plural)) >= MOST_PODS:
            return
        name = self._name(prefix)
        named = {contract.GROUP: group} if group else {}
        self._cluster.say(f"pod {name} is created: {group or 'no group'}, {container.get('resources', {})}")
        meta = {"name": name, "labels": {contract.GROUP: group}, "annotations": named}
        # Without a draw, so that a seed goes on meaning the same history otherwise.
        spec = {"containers": [container], "priority": 10 if self._numbers[prefix] % IMPORTANT == 0 else 0}
        self._server.put(PODS, {"metadata": meta, "spec": spec, "status": {}}, NAMESPACE)

    def _some_group(self) -> str:
        groups = self._all(GROUPS.plural)
        return self._rng.choice(groups)["metadata"]["name"] if groups else ""

    async def pod_comes(self) -> None:
        if group := self._some_group():
            self._pod("p", group, {"name": "main", "env": INJECTED})

    async def share_comes(self) -> None:
        percent = self._rng.choice((30, 40, 60))
        self._pod("s", "", a_sharing_container("main", {GPU_PERCENT: percent}))

    async def share_in_group_comes(self) -> None:
        if group := self._some_group():
            self._pod("q", group, a_sharing_container("main", {GPU_PERCENT: self._rng.choice((40, 60))}))

    async def pod_ends(self) -> None:
        pods = self._all(PODS.plural)
        if not pods:
            return
        raw = self._rng.choice(pods)
        name, node = raw["metadata"]["name"], raw["spec"].get("nodeName")
        if node and self._rng.random() < 0.4 and self._cluster.machines[node].up:
            self._cluster.say(f"pod {name} finishes")
            self._cluster.on_stopped(raw["metadata"]["uid"])
            ended = {"name": "main", "state": {"terminated": {}}}
            self._server.edit(PODS, name, {"status": {"phase": "Succeeded", "containerStatuses": [ended]}}, NAMESPACE)
            return
        self._cluster.say(f"pod {name} is deleted")
        if raw.get("status", {}).get("phase") == "Succeeded":
            self._server.remove(PODS, name, NAMESPACE)
        else:
            self._server.delete_now(PODS, name, NAMESPACE)

    async def quota_changes(self) -> None:
        team, hard = self._rng.choice(TEAMS), self._rng.choice((1, 2, 3, 8))
        spec = {"groupSelector": {"matchLabels": {"team": team}}, "hard": {GPU: hard}}
        self._cluster.say(f"the quota of team {team} is {hard}")
        if f"quota-{team}" in self._server.objects.get(DEVICE_QUOTAS.plural, {}):
            self._server.edit(DEVICE_QUOTAS, f"quota-{team}", {"spec": spec})
        else:
            self._server.put(DEVICE_QUOTAS, {"metadata": {"name": f"quota-{team}"}, "spec": spec})

    # Devices and machines.

    def _machine(self) -> SimulatedMachine | None:
        idle = [m for m in self._cluster.machines.values() if m.up and m.name not in self.busy]
        return self._rng.choice(idle) if idle else None

    def _machine_to_stop(self) -> SimulatedMachine | None:
        """Not one whose claims are being named by UUID: a reboot within that is a limit (docs/claims.md)."""
        machine = self._machine()
        if machine is None:
            return None
        ledger = self._server.objects.get(NODE_DEVICES.plural, {}).get(machine.name, {})
        claims = ledger.get("spec", {}).get("claims", {}).values()
        numbers = [each for claim in claims for each in claim.get("former", []) if "uuid" not in each]
        return machine if not numbers else None

    async def device_fails(self) -> None:
        """Its holders ask for another one."""
        machine = self._machine()
        if machine is None or not machine.agent or len(machine.sick) > 1:
            return
        card = self._rng.choice(machine.order) if machine.order else ""
        machine.sick.add(card)
        token = self._name("request-")
        self._cluster.say(f"{card} on {machine.name} fails; rebinds are asked for: {token}")
        await asyncio.sleep(self._rng.uniform(0.5, 6))
        annotated = {"metadata": {"annotations": {contract.REBIND: token}}}
        for raw in self._all(GROUPS.plural):
            if raw.get("status", {}).get("nodeName") == machine.name:
                self._server.edit(GROUPS, raw["metadata"]["name"], annotated)
        for raw in self._all(PODS.plural):
            if raw["spec"].get("nodeName") == machine.name and raw["metadata"]["name"].startswith(("s", "q")):
                self._server.edit(PODS, raw["metadata"]["name"], annotated, NAMESPACE)

    def _new_order(self, machine: SimulatedMachine) -> list[str]:
        """Another order of the cards, now and then without one of them."""
        order = list(machine.cards)
        self._rng.shuffle(order)
        if self._rng.random() < 0.5:
            order = order[1:]
        machine.sick &= set(order)
        return order

    async def machine_reboots(self) -> None:
        machine = self._machine_to_stop()
        if machine is None:
            return
        self.busy.add(machine.name)
        self._cluster.say(f"{machine.name} goes down")
        self._cluster.go_down(machine)
        await asyncio.sleep(self._rng.uniform(5, 30))
        await self._cluster.boot(machine, self._new_order(machine))
        self.busy.discard(machine.name)

    async def node_goes(self) -> None:
        """A cloud's machine is stopped, its Node deleted; later it is started again."""
        machine = self._machine_to_stop()
        if machine is None:
            return
        self.busy.add(machine.name)
        self._cluster.say(f"{machine.name} is stopped, and its Node deleted")
        self._cluster.go_down(machine)
        self._server.remove(NODES, machine.name)
        await asyncio.sleep(self._rng.uniform(2, 40))
        await self._cluster.boot(machine, self._new_order(machine))
        self.busy.discard(machine.name)

    async def node_out_of_service(self) -> None:
        machine = self._machine_to_stop()
        if machine is None:
            return
        self.busy.add(machine.name)
        self._cluster.say(f"{machine.name} fails and is tainted out-of-service")
        self._cluster.go_down(machine)
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        self._server.edit(NODES, machine.name, {"spec": {"taints": [taint]}})
        await asyncio.sleep(self._rng.uniform(25, 60))
        await self._cluster.boot(machine, self._new_order(machine))
        self.busy.discard(machine.name)

    async def node_cordoned(self) -> None:
        """For a while, as for an upgrade; its pods may be evicted."""
        machine = self._machine()
        if machine is None:
            return
        self._cluster.say(f"{machine.name} is cordoned")
        self._server.edit(NODES, machine.name, {"spec": {"unschedulable": True}})
        if self._rng.random() < 0.7:
            for pod in self._server.all(PODS):
                if pod.node == machine.name and pod.status.phase != "Succeeded":
                    self._server.delete_now(PODS, pod.metadata.name, NAMESPACE)
        await asyncio.sleep(self._rng.uniform(20, 90))
        self._server.edit(NODES, machine.name, {"spec": {"unschedulable": None}})

    async def agent_comes(self) -> None:
        """It is installed on a machine that had none."""
        without = [m for m in self._cluster.machines.values() if not m.agent and m.up]
        if without:
            machine = self._rng.choice(without)
            self._cluster.say(f"an agent is installed on {machine.name}")
            machine.agent = True

    # People who do what they should not.

    async def ledger_is_removed(self) -> None:
        """By force: its finalizers are taken away."""
        if ledgers := self._all(NODE_DEVICES.plural):
            name = self._rng.choice(ledgers)["metadata"]["name"]
            self._cluster.say(f"the ledger of {name} is removed by force")
            self._lose(name)
            self._server.remove(NODE_DEVICES, name)

    async def ledger_is_deleted(self) -> None:
        if ledgers := self._all(NODE_DEVICES.plural):
            name = self._rng.choice(ledgers)["metadata"]["name"]
            self._cluster.say(f"the ledger of {name} is deleted")
            self._server.delete_now(NODE_DEVICES, name)

    async def status_is_wiped(self) -> None:
        bound = [raw for raw in self._all(GROUPS.plural) if raw.get("status", {}).get("nodeName")]
        if bound:
            raw = self._rng.choice(bound)
            self._cluster.say(f"the status of group {raw['metadata']['name']} is wiped")
            self._wipe(raw["metadata"]["uid"])
            self._server.edit(GROUPS, raw["metadata"]["name"], {"status": None})

    # deviceshare's own processes.

    async def leader_changes(self) -> None:
        """Another process leads; the old one may not know for a while."""
        old = [p for p in self._cluster.processes if p.leading]
        new = [p for p in self._cluster.processes if not p.leading]
        if len(old) == 1 and new:
            self._cluster.say(f"{new[0].name} leads, and {old[0].name} goes on for a while")
            new[0].lead()
            await asyncio.sleep(self._rng.uniform(0, 15))
            await old[0].resign()

    async def process_dies(self) -> None:
        process = self._rng.choice(self._cluster.processes)
        led = process.leading
        self._cluster.processes.remove(process)
        self._cluster.say(f"{process.name} dies" + (", which led" if led else ""))
        await process.die()
        self._cluster.processes.append(self._cluster.new_process())
