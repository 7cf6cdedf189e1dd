"""What a story has of the stage: nodes of its own, and names for its groups and pods."""

from typing import Any

from tests.faults.checker import State, claims_of, is_closed, node_of
from tests.faults.raw_api import GROUPS, PODS, Json
from tests.faults.stage import Goal, Stage

GPU = "nvidia.com/gpu"
SCHEDULER = "deviceshare-scheduler"


class Scene:
    """One run of one story. Its nodes stay for the next run, empty."""

    def __init__(self, stage: Stage, story: str, number: int) -> None:
        self.stage, self.api = stage, stage.api
        self.pool = f"f-{story}"
        self.prefix = f"r{number}-{story}"
        self.nodes: list[str] = []

    async def node(self, devices: int = 4, suffix: str = "a") -> str:
        """A node of the story."""
        name = f"{self.pool}-{suffix}"
        await self.stage.node(name, devices)
        self.nodes.append(name)
        return name

    async def group(self, suffix: str, count: int, **spec: Any) -> str:
        """Creates a group that stays on the story's nodes."""
        name = f"{self.prefix}-{suffix}"
        spec = {"resources": {GPU: count}, "nodeSelector": {"pool": self.pool}, **spec}
        metadata = {"name": name, "labels": {"run": self.prefix}}
        kind = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup"}
        await self.api.insist("POST", GROUPS, {**kind, "metadata": metadata, "spec": spec})
        return name

    async def pod(self, suffix: str, group: str = "", percent: int = 0, pool: str = "", **spec: str) -> str:
        """Creates a pod of a group, or with a share, or both; of another pool, it fits nowhere."""
        name = f"{self.prefix}-{suffix}"
        container: Json = {"name": "main", "image": "busybox"}
        if percent:
            container["resources"] = {"limits": {"deviceshare.io/gpu-percent": str(percent)}}
        place = {"pool": pool or self.pool}
        body: Json = {"schedulerName": SCHEDULER, "containers": [container], "nodeSelector": place, **spec}
        annotations = {"deviceshare.io/group": group} if group else {}
        await self.stage.create_pod(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {**body, "terminationGracePeriodSeconds": 1},
            }
        )
        return name

    async def change(self, path: str, **body: Any) -> None:
        """Patches an object."""
        await self.api.insist("PATCH", path, body)

    async def delete(self, *names: str) -> None:
        """Pods and groups, by their names, pods first; a group goes once its pods have gone."""
        for name in names:
            if name in self.stage.wanted:
                await self.stage.delete_pod(name)
            else:
                await self.api.insist("DELETE", f"{GROUPS}/{name}")

    def bound(self, *pods: str) -> Goal:
        """These pods have nodes."""
        return lambda state: [f"{name} isn't bound" for name in pods if not self._placed(state, name)]

    def waiting(self, *pods: str) -> Goal:
        """These pods have no node, and a reason."""
        return lambda state: [f"{name} isn't explained" for name in pods if not self._explained(state, name)]

    def unbound(self, group: str) -> Goal:
        """The group is on no node, and nobody has a claim of its name."""

        def missing(state: State) -> list[str]:
            node = state.groups[group].get("status", {}).get("nodeName")
            return [f"{group} is still on {node}"] * bool(node) + self._claims(state, group)

        return missing

    def gone(self, state: State) -> list[str]:
        """Nothing of this run is left, and the story's nodes are free and open."""
        texts = [f"{name} is still there" for name in (*state.groups, *state.pods) if self.prefix in name]
        for node in self.nodes:
            closed = is_closed(state.ledgers.get(node, {}))
            texts += [f"the ledger of {node} is missing or closed"] * closed
        return texts + self._claims(state, self.prefix)

    def _claims(self, state: State, name: str) -> list[str]:
        return [
            f"{node} has a claim of {holder}"
            for node, ledger in state.ledgers.items()
            for claim in claims_of(ledger).values()
            if name in (holder := claim.get("group") or claim.get("pod", ""))
        ]

    def _placed(self, state: State, name: str) -> bool:
        pod = state.pods.get(f"default/{name}")
        return pod is not None and bool(node_of(pod)) and not pod["metadata"].get("deletionTimestamp")

    def _explained(self, state: State, name: str) -> bool:
        conditions = state.pods.get(f"default/{name}", {}).get("status", {}).get("conditions") or []
        refused = [each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False"]
        return bool(refused and refused[0].get("message"))

    def path(self, name: str) -> str:
        """Of a pod or group."""
        return f"{PODS if name in self.stage.wanted else GROUPS}/{name}"


def both(*goals: Goal) -> Goal:
    """All of them."""
    return lambda state: [text for goal in goals for text in goal(state)]
