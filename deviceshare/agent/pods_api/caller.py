"""Who asks: the pod whose address a connection comes from, and the holder whose devices it has.

Nothing that a request says of itself is believed, so there is nothing to steal: no token, no name, no X-Forwarded-For.
A pod that has just started is known to its node before it is known here; it is waited for, for a moment.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import structlog
from aiohttp import web
from msgspec import Struct

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.requests import Holder
from deviceshare.domain.objects.shares import GPU_MEM
from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.agent.pod_addresses import NODES_OWN, SHARED, Whose, whose
from deviceshare.loops.agent.ports import NodePod
from deviceshare.web.quoting import Repeats

log = structlog.get_logger(__name__)

PATIENCE_SECONDS: Final = 5.0
"""For a pod or its claim that isn't known here yet: kubelets report an address about a second after they gave it."""
AGAIN_SECONDS: Final = 1.0
"""Between two attempts, where no watch reports a change: processes start and end without one."""
MAX_WAITING: Final = 64
"""Requests that wait so at once; further ones are refused without a wait, and may ask again."""
MAX_WAITING_OF_ADDRESS: Final = 4
ENDED: Final = "the address of a pod that has no process any more"
"""So that the next pod has it, which isn't known here yet."""
_DOCS: Final = "see docs/inside.md"


class Caller(Struct, frozen=True):
    """A pod that asks, with what the API server says of it and the node's ledger of its devices."""

    pod: NodePod
    holder: Holder
    ledger: NodeDevices
    """As it was when the caller was recognized."""

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def name(self) -> str:
        return self.pod.metadata.name

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def key(self) -> str:
        """`namespace/name`"""
        return self.pod.metadata.key

    @property
    def claim(self) -> Claim:
        return self.ledger.claims[self.holder.uid]


class Unrecognized(Exception):
    """It isn't known, so far, which pod asks or what it holds; the text says why and what to do."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final
        """Whether waiting can't help."""


class Callers:
    """Recognizes callers. Subscribes to the node's mirrors; their owner runs them."""

    def __init__(self, node: OwnNode, may_run: Callable[[str], Awaitable[bool]]) -> None:
        """`may_run` says whether a process of the pod with this UID may run on the node (pod_processes.py)."""
        self._node = node
        self._may_run = may_run
        self._changed = asyncio.Event()
        self._waiting = Counter[str]()
        self._repeats = Repeats()
        node.pods.subscribe(lambda _: self._wake())
        node.ledgers.subscribe(lambda _: self._wake())

    async def caller(self, request: web.Request) -> Caller:
        """The pod that asks, which has devices of a holder; returns within `PATIENCE_SECONDS`.

        Raises:
            web.HTTPForbidden: it isn't known which pod asks, or it has no devices; the text says why and what to do.
            web.HTTPServiceUnavailable: the agent doesn't know the node's pods at the moment.
        """
        address = peer(request)
        try:
            return await self._patiently(address)
        except Unrecognized as unknown:
            if (omitted := self._repeats.passes("refused")) is not None:
                log.info("Refused a caller", peer=address, reason=str(unknown), **omitted)
            if not self._node.pods.synced or not self._node.ledgers.synced:
                text = "the agent is out of touch with the API server, so it may not know this pod: ask again\n"
                raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "5"}) from unknown
            raise web.HTTPForbidden(text=f"{unknown}\n") from unknown

    async def _patiently(self, address: str) -> Caller:
        changed = self._changed
        try:
            return await self._recognize(address)
        except Unrecognized as unknown:
            crowded = self._waiting.total() >= MAX_WAITING or self._waiting[address] >= MAX_WAITING_OF_ADDRESS
            if unknown.final or crowded:
                raise
        self._waiting[address] += 1
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(AGAIN_SECONDS):
                            await changed.wait()
                    changed = self._changed
                    try:
                        return await self._recognize(address)
                    except Unrecognized as unknown:
                        if unknown.final:
                            raise
        except TimeoutError:
            return await self._recognize(address)
        finally:
            self._waiting[address] -= 1
            self._waiting += Counter()  # drops the addresses that don't wait any more

    async def _recognize(self, address: str) -> Caller:
        found = whose(self._node, address)
        if found.pod:
            runs, first = await self._may_run(found.pod.metadata.uid), found.pod
            found = whose(self._node, address)  # as it is by now
            if not runs or (found.pod and found.pod.metadata.uid != first.metadata.uid):
                found = Whose(None, ENDED)
        if found.pod is None:
            raise _nobody(address, found.instead, self._node.name)
        pod, ledger = found.pod, self._node.ledger
        # A static pod was never bound, so it has nothing, whatever its mirror pod says.
        uid = "" if pod.mirrored else self._node.holder_uid(pod)
        if not uid:  # No binding follows for a pod that has an address.
            text = _NO_DEVICES.format(pod=pod.metadata.key, group=contract.GROUP, share=GPU_MEM)
            raise Unrecognized(text, final=True)
        claim = ledger.claims.get(uid) if ledger else None
        if claim and claim.shares and uid != pod.metadata.uid:
            claim = None  # Shares are of one pod, and never another's, whatever that one says.
        if ledger is None or claim is None:
            text = _NO_SHARE if uid == pod.metadata.uid else _NO_CLAIM
            raise Unrecognized(text.format(pod=pod.metadata.key, node=self._node.name))
        return Caller(pod, claim.holder(uid), ledger)

    def _wake(self) -> None:
        # Those that wait now go on; those that come later wait for the next change.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def peer(request: web.Request) -> str:
    """The address from which the request's connection comes, "" where it has ended."""
    name = request.transport.get_extra_info("peername") if request.transport else None
    return str(name[0]) if name else ""


_NO_DEVICES: Final = (
    "pod {pod} has no devices of deviceshare. A pod joins a SharedDeviceGroup by the annotation {group}, set when it is"
    " created (kubectl get sdg), and has a part of a device by a limit such as {share}"
)
_NO_CLAIM: Final = (
    "pod {pod} has devices by its annotations, but its group holds none on node {node}. See why: kubectl describe ndev"
    " {node}"
)
_NO_SHARE: Final = (
    "pod {pod} has a share by its annotations, but none on node {node}. See why: kubectl describe ndev {node}"
)


def _nobody(address: str, instead: str, node: str) -> Unrecognized:
    what = f"the request comes from {address}, {instead} on node {node}"
    if instead == NODES_OWN:
        cure = "programs of the node and pods with hostNetwork can't be told apart: ask from a pod without hostNetwork"
        return Unrecognized(f"{what}; {cure}, or from elsewhere: deviceshare inspect", final=True)
    if instead in (SHARED, ENDED):
        return Unrecognized(f"{what}; ask again in a moment, or {_DOCS}")
    return Unrecognized(f"{what}; ask the agent of the pod's own node, at $DEVICESHARE_AGENT ({_DOCS})")
