"""Homes: the node that each holder lives on, as far as pods, claims and binds under way tell."""

from collections.abc import Iterable

from deviceshare.domain.objects.requests import POD, Request
from deviceshare.domain.placement.assumptions import Assumption


class Homes:
    """Mutable, but pure."""

    def __init__(self) -> None:
        self._living: dict[str, dict[str, str]] = {}
        self._claims: dict[str, str] = {}

    def set_living(self, uid: str, pod: str, node: str) -> None:
        """Takes in where a pod that received devices of the holder `uid` lives; "" when it no longer does."""
        pods = self._living.setdefault(uid, {})
        if node:
            pods[pod] = node
        else:
            pods.pop(pod, None)
        if not pods:
            del self._living[uid]

    def set_claims(self, node: str, before: Iterable[str], after: Iterable[str]) -> None:
        """Takes in which holders, by UID, have claims on the node, and which had."""
        for uid in before:
            if self._claims.get(uid) == node:
                del self._claims[uid]
        for uid in after:
            self._claims[uid] = node

    def pods(self, uid: str) -> dict[str, str]:
        """The live pods with devices of the holder `uid`: `namespace/name` → node."""
        return self._living.get(uid, {})

    def of(self, request: Request, assumed: Assumption | None) -> str:
        """Where the holder is: by its own word, by its pods, by the bind under way, and by its claim, in this order.

        Pods come before a claim since somebody may have wiped a group's status (claims.md, repair).
        A claim may be of a bind that ended half-way: it is used or, once marked, waited for, so that no group comes to
        live on two nodes.
        """
        uid = request.holder.uid
        if request.node:
            return request.node
        if living := self._living.get(uid):
            return next(iter(living.values()))
        return assumed.node if assumed else self._claims.get(uid, "")

    def pinned(self, request: Request, assumed: Assumption | None) -> str:
        """The node that the holder can't leave, or "".

        A pod may leave its claim behind, unless it was bound by it, or is being bound: its Binding decides where it
        lives, and the claim is collected. A group's claim holds it, since others may have joined by it.
        """
        if request.holder.kind == POD and not assumed and request.holder.uid not in self._living:
            return ""
        return self.of(request, assumed)
