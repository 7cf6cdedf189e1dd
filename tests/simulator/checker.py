"""Judges a cluster by the API server's raw JSON and by physical cards. It imports nothing of the product.

What a pod's containers open follows from the words in its annotations: a UUID is a card, a number is the card that has
it under the machine's present boot. What was annotated since the last boot may still be open.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.simulator.machines import GPU, SimulatedMachine

Raw = dict[str, Any]
PREFIX = "deviceshare.io/"
WHOLE_WORDS = f"{PREFIX}nvidia-visible-devices"
SHARE_WORDS = f"{PREFIX}nvidia-devices."


class CardUse(NamedTuple):
    """What one live pod may be using of one card."""

    group: str
    """The UID of the group whose card it is for the pod; "" for a share of a card that is nobody's."""
    percent: int
    pod: str


def words(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]


class Checker:
    """Reads `objects`, by plural and key, and `machines`, by the name of their node."""

    def __init__(self, objects: Mapping[str, Mapping[str, Raw]], machines: Mapping[str, SimulatedMachine]) -> None:
        self._objects = objects
        self._machines = machines
        self.stopped: set[str] = set()
        """The UIDs of pods whose containers have ended."""
        self.wiped: set[str] = set()
        """The UIDs of groups whose status somebody wiped, until they have a node again."""
        self.forced: set[str] = set()
        """The nodes whose ledger somebody removed by force. A group without pods is restored there by numbers; after a
        reboot these may mean what another claim names: then no pod joins either, and a person decides."""
        self._open: dict[tuple[str, int], set[tuple[str, str, int]]] = defaultdict(set)
        """By pod and boot: what its containers were told, each as group, word and percent."""
        self._parsed: dict[str, Any] = {}

    # What may never be so.

    def look(self) -> list[str]:
        """What is wrong now."""
        uses: dict[str, set[CardUse]] = defaultdict(set)
        faults = []
        groups = {raw["metadata"]["uid"]: raw for raw in self._table("shareddevicegroups").values()}
        self.wiped -= {uid for uid, raw in groups.items() if _home(raw)}
        for pod in self._living():
            faults += self._misplaced(pod, groups) + self._unclaimed(pod)
            machine = self._machines[pod["spec"]["nodeName"]]
            if machine.up:
                for group, word, percent in self._told(pod, machine):
                    if card := machine.card(word):
                        uses[card].add(CardUse(group, percent, pod["metadata"]["name"]))
        return faults + [fault for card, found in uses.items() for fault in self._shared_wrongly(card, found)]

    @staticmethod
    def _shared_wrongly(card: str, uses: set[CardUse]) -> list[str]:
        owners = {use.group for use in uses}
        shown = ", ".join(f"{u.pod} ({u.group or 'a share'}, {u.percent} %)" for u in sorted(uses))
        if len(owners - {""}) > 1:
            return [f"two groups use {card}: {shown}"]
        if len(owners) > 1:
            return [f"a whole group and a foreign share use {card}: {shown}"]
        by_pod: dict[str, int] = defaultdict(int)
        for use in uses:
            by_pod[use.pod] = max(by_pod[use.pod], use.percent)
        if sum(by_pod.values()) > 100:
            return [f"shares of {sum(by_pod.values())} % use {card}: {shown}"]
        return []

    def _told(self, pod: Raw, machine: SimulatedMachine) -> set[tuple[str, str, int]]:
        """All that the pod's containers may have been told since the machine booted."""
        meta, annotations = pod["metadata"], pod["metadata"].get("annotations", {})
        told = self._open[meta["uid"], machine.boot]
        if meta.get("deletionTimestamp"):
            return told  # A kubelet starts no container of a pod that is being deleted.
        group = annotations.get(f"{PREFIX}group-uid", "") if annotations.get(f"{PREFIX}group") else ""
        shares = self._shares(annotations)
        sharing = {key for key in annotations if key.startswith(SHARE_WORDS)}
        for key in sharing:
            for word in words(annotations[key]):
                told.add((group, word, self._percent(shares, machine, word)))
        if not sharing:
            told |= {(group, word, 0) for word in words(annotations.get(WHOLE_WORDS))}
        return told

    def _percent(self, shares: list[Raw], machine: SimulatedMachine, word: str) -> int:
        card = machine.card(word)
        mine = [s for s in shares if not s.get("former") and self._card(machine, s) in (card, word)]
        return sum(share.get("percent", 0) for share in mine) or sum(s.get("percent", 0) for s in shares)

    def _misplaced(self, pod: Raw, groups: Mapping[str, Raw]) -> list[str]:
        annotations, node = pod["metadata"].get("annotations", {}), pod["spec"]["nodeName"]
        uid = annotations.get(f"{PREFIX}group-uid", "")
        raw = groups.get(uid)
        if raw is None or uid in self.wiped or _home(raw) == node:
            return []
        name = raw["metadata"]["name"]
        return [f"pod {pod['metadata']['name']} lives on {node}, but its group {name} is bound to {_home(raw) or '-'}"]

    def _unclaimed(self, pod: Raw) -> list[str]:
        """What the pod was told, but no claim of an open ledger holds for it."""
        annotations, node = pod["metadata"].get("annotations", {}), pod["spec"]["nodeName"]
        ledger, machine = self._table("nodedevices").get(node), self._machines[node]
        if ledger is None or not ledger.get("status", {}).get("devices"):
            return []
        claims = ledger["spec"].get("claims", {})
        holder = annotations.get(f"{PREFIX}group-uid", "")
        shares = self._shares(annotations)
        uid = pod["metadata"]["uid"] if shares else holder
        if uid not in claims:
            return [f"pod {pod['metadata']['name']} on {node} has no claim"]
        held = {self._card(machine, each) for each in _devices(claims[uid])}
        told = {_meant(machine, word) for word in words(annotations.get(WHOLE_WORDS))} if not shares else set()
        told |= {self._card(machine, share) for share in shares}
        if told <= held:
            return []
        return [f"pod {pod['metadata']['name']} on {node} has {sorted(told)}, its claim {sorted(held)}"]

    # What must be so once things came to rest.

    def at_rest(self) -> list[str]:
        """What is still wrong when nothing happens any more."""
        faults = self.look()
        groups = {raw["metadata"]["uid"]: raw for raw in self._table("shareddevicegroups").values()}
        pods = {raw["metadata"]["uid"]: raw for raw in self._table("pods").values()}
        for node, ledger in self._table("nodedevices").items():
            for uid, claim in ledger["spec"].get("claims", {}).items():
                name = claim.get("group") or claim.get("pod")
                living = self._held_by_pods(uid, node)
                gone = uid not in groups or groups[uid]["metadata"].get("deletionTimestamp")
                if claim.get("releasing") and not (living and gone):
                    faults.append(f"the claim of {name} on {node} is still marked")
                if claim.get("group") and not living and (uid not in groups or _home(groups[uid]) != node):
                    faults.append(f"nobody needs the claim of group {name} on {node}")
                if claim.get("pod") and not living:
                    faults.append(f"nobody needs the claim of pod {name} on {node}")
        for uid, group in groups.items():
            home = _home(group)
            claims = self._table("nodedevices").get(home, {}).get("spec", {}).get("claims", {})
            if home and uid not in claims:
                faults.append(f"group {group['metadata']['name']} is bound to {home} without a claim")
        faults += [fault for node in self._machines for fault in self._lost(node)]
        for node in self._machines.keys() - self.forced:
            faults += [f"two groups have claims of {card} on {node}" for card in self._claimed_twice(node)]
        return faults + [fault for pod in pods.values() if (fault := self._waits_needlessly(pod))]

    def _lost(self, node: str) -> list[str]:
        """Cards of the machine that its ledger doesn't know."""
        ledger, machine = self._table("nodedevices").get(node), self._machines[node]
        if ledger is None:
            return [f"{node} has no ledger"]
        claims = ledger["spec"].get("claims", {})
        blind = not machine.agent and any("uuid" in each for claim in claims.values() for each in _devices(claim))
        known = {self._card(machine, each) for each in ledger.get("status", {}).get("devices", [])}
        if lost := set(machine.order) - known:
            return [] if blind else [f"the ledger of {node} lacks {sorted(lost)}"]
        return []

    def _waits_needlessly(self, pod: Raw) -> str:
        meta, name = pod["metadata"], pod["metadata"]["name"]
        if pod["spec"].get("nodeName") or meta.get("deletionTimestamp"):
            return ""
        group = self._table("shareddevicegroups").get(meta.get("annotations", {}).get(f"{PREFIX}group", ""))
        percent = sum(_asked(each) for each in pod["spec"]["containers"])
        if meta.get("annotations", {}).get(f"{PREFIX}group") and group is None:
            return ""
        if group is not None and group["metadata"].get("deletionTimestamp"):
            return ""
        if group is not None and (home := _home(group)):
            mine = self._of_group(home, group["metadata"]["uid"])
            if self._joinable(home, group["metadata"]["uid"]) and (
                not percent or any(self._room(home, card, group["metadata"]["uid"]) >= percent for card in mine)
            ):
                return f"pod {name} waits, though its group {group['metadata']['name']} is bound to {home}"
            return ""
        if group is not None and not self._quotas_allow(group):
            return ""
        for node, machine in self._machines.items():
            if not self._serves(node):
                continue
            free = [card for card in machine.order if card not in machine.sick and self._room(node, card, "") == 100]
            if group is not None and len(free) >= group["spec"]["resources"][GPU]:
                return f"pod {name} waits, though its group {group['metadata']['name']} fits on {node}: {free}"
            if group is None and any(
                self._room(node, card, "") >= percent for card in machine.order if card not in machine.sick
            ):
                return f"pod {name} waits, though its share of {percent} % fits on {node}"
        return ""

    def _joinable(self, node: str, uid: str) -> bool:
        """Whether all that the group has is there and healthy."""
        machine, claim = self._machines[node], self._claims(node).get(uid, {})
        current = {self._card(machine, each) for each in claim.get("devices", [])}
        if node in self.forced and self._claimed_twice(node):
            return False
        return self._serves(node) and bool(current) and current <= set(machine.order) - machine.sick

    def _claimed_twice(self, node: str) -> list[str]:
        """Cards that claims of two groups mean."""
        machine = self._machines[node]
        groups = [claim for claim in self._claims(node).values() if claim.get("group")]
        cards = [{self._card(machine, each) for each in claim.get("devices", [])} for claim in groups]
        return sorted(card for card in machine.order if sum(card in mine for mine in cards) > 1)

    def _serves(self, node: str) -> bool:
        """Whether devices can be had there.

        Not where claims name UUIDs that nobody reports, or numbers that no card has any more: what these mean is known
        to nobody. Nor where a claim was restored by numbers that an agent's report can't be matched with.
        """
        machine = self._machines[node]
        held = [each for claim in self._claims(node).values() for each in _devices(claim)]
        if any("uuid" not in each and each["index"] >= len(machine.order) for each in held):
            return False
        if node in self.forced and machine.agent and any("uuid" not in each for each in held):
            return False
        return machine.up and (machine.agent or not any("uuid" in each for each in held))

    def _of_group(self, node: str, uid: str) -> set[str]:
        machine = self._machines[node]
        return {self._card(machine, each) for each in self._claims(node).get(uid, {}).get("devices", [])}

    def _room(self, node: str, card: str, within: str) -> int:
        """Percent of the card that shares may have; of a group's card only those `within` it."""
        machine, room = self._machines[node], 100
        for uid, claim in self._claims(node).items():
            if claim.get("group") and uid != within:
                room -= 100 * any(self._card(machine, each) == card for each in _devices(claim))
            room -= sum(s.get("percent", 0) for s in _shares_of(claim) if self._card(machine, s) == card)
        return room

    def _quotas_allow(self, group: Raw) -> bool:
        labels = group["metadata"].get("labels", {})
        claimed = {uid for node in self._machines for uid in self._claims(node)}
        for quota in self._table("devicequotas").values():
            wanted = quota["spec"].get("groupSelector", {}).get("matchLabels", {})
            if not wanted.items() <= labels.items():
                continue
            used = sum(
                raw["spec"]["resources"][GPU]
                for raw in self._table("shareddevicegroups").values()
                if (_home(raw) or raw["metadata"]["uid"] in claimed)
                and wanted.items() <= raw["metadata"].get("labels", {}).items()
            )
            # Whose pods outlive a deleted group counts on, against which quotas nobody can look up any more.
            used += self._outlived()
            if used + group["spec"]["resources"][GPU] > quota["spec"]["hard"][GPU]:
                return False
        return True

    def _outlived(self) -> int:
        """Devices of groups that are gone."""
        there = {raw["metadata"]["uid"] for raw in self._table("shareddevicegroups").values()}
        claims = [each for node in self._machines for each in self._claims(node).items()]
        return sum(len(claim.get("devices", [])) for uid, claim in claims if claim.get("group") and uid not in there)

    # Small things.

    def _table(self, plural: str) -> Mapping[str, Raw]:
        return self._objects.get(plural, {})

    def _claims(self, node: str) -> Mapping[str, Raw]:
        claims: Mapping[str, Raw] = self._table("nodedevices").get(node, {}).get("spec", {}).get("claims", {})
        return claims

    def _living(self) -> list[Raw]:
        pods = self._table("pods").values()
        return [p for p in pods if p["spec"].get("nodeName") and p["metadata"]["uid"] not in self.stopped]

    def _held_by_pods(self, uid: str, node: str) -> bool:
        for pod in self._living():
            annotations = pod["metadata"].get("annotations", {})
            if pod["spec"]["nodeName"] == node and uid in (
                annotations.get(f"{PREFIX}group-uid"),
                pod["metadata"]["uid"],
            ):
                return True
        return False

    def _shares(self, annotations: Mapping[str, str]) -> list[Raw]:
        text = annotations.get(f"{PREFIX}shares", "")
        if text not in self._parsed:
            self._parsed[text] = json.loads(text) if text else []
        shares: list[Raw] = self._parsed[text]
        return shares

    @staticmethod
    def _card(machine: SimulatedMachine, device: Raw) -> str:
        """The card that an entry of a claim or of `shares` means."""
        return device.get("uuid") or _meant(machine, str(device["index"]))


def _meant(machine: SimulatedMachine, word: str) -> str:
    """The card that the word means, or the word where it means none."""
    return machine.card(word) or word.rpartition("=")[2]


def _home(group: Raw) -> str:
    home: str = group.get("status", {}).get("nodeName", "")
    return home


def _devices(claim: Raw) -> list[Raw]:
    """All that the claim reserves."""
    return [*claim.get("devices", []), *claim.get("former", []), *_shares_of(claim)]


def _shares_of(claim: Raw) -> list[Raw]:
    """Its shares, those in lines like `main 30% nvidia.com/gpu 0=GPU-a,1=GPU-b` included."""
    found: list[Raw] = list(claim.get("shares", []))
    for line in claim.get("parts", []):
        _, size, _, devices, *_ = line.split(" ")
        for index, _, uuid in (device.partition("=") for device in devices.split(",")):
            found.append({"index": int(index), "percent": int(size.rstrip("%"))} | ({"uuid": uuid} if uuid else {}))
    return found


def _asked(container: Raw) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(f"{PREFIX}gpu-percent", 0))
