"""Machines with physical cards: what a number means on them, and what their kubelet and agent say."""

from dataclasses import dataclass, field
from typing import Any

GPU = "nvidia.com/gpu"


@dataclass
class SimulatedMachine:
    """One machine. Its cards are known by their UUIDs; a boot gives those that are present their numbers."""

    name: str
    cards: list[str]
    agent: bool
    """Whether deviceshare's agent runs on it."""
    order: list[str] = field(default_factory=list)
    """The cards that are present, by their number under this boot."""
    boot: int = 1
    up: bool = True
    sick: set[str] = field(default_factory=set)
    reported: dict[str, int] = field(default_factory=dict)
    """The cards that the agent has ever seen, with the last number of each."""

    def __post_init__(self) -> None:
        self.order = self.order or list(self.cards)

    def card(self, word: str) -> str:
        """The physical card that a container opens by this word of its environment, or ""."""
        name = word.rpartition("=")[2]
        if name.isdecimal():
            return self.order[int(name)] if int(name) < len(self.order) else ""
        return name if name in self.order else ""

    def node_status(self, *, plugin: bool = True) -> dict[str, Any]:
        """What the kubelet says; the device plugin registers a moment after it."""
        count = str(len(self.order) if plugin else 0)
        return {
            "allocatable": {GPU: count, "cpu": "64", "pods": "110"},
            "capacity": {GPU: count},
            "conditions": [{"type": "Ready", "status": "True" if self.up else "False"}],
            "nodeInfo": {"bootID": f"boot-{self.boot}"},
        }

    def hardware(self) -> dict[str, Any]:
        """What the agent reports."""
        self.reported |= {card: number for number, card in enumerate(self.order)}
        devices: list[dict[str, Any]] = [
            {"resource": GPU, "index": number, "uuid": card, "memoryMib": 16384}
            | ({"unhealthy": "Xid 79", "since": "2026-01-01T00:00:00Z"} if card in self.sick else {})
            for number, card in enumerate(self.order)
        ]
        devices += [
            {"resource": GPU, "index": number, "uuid": card, "memoryMib": 16384, "lost": True}
            | {"unhealthy": "the driver no longer shows it", "since": "2026-01-01T00:00:00Z"}
            for card, number in self.reported.items()
            if card not in self.order
        ]
        return {"bootId": f"boot-{self.boot}", "devices": devices}
