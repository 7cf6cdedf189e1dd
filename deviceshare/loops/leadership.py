"""The election of the replica that reconciles, on a Lease.

https://kubernetes.io/docs/concepts/architecture/leases/; the rules and times are client-go's (tools/leaderelection).

Safety does not depend on it: the claim protocol holds with two leaders. It only keeps replicas from doing the same work
twice. So what counts is that a leader is elected soon, and that a leader that lost the lease stops. It may be elected
again in the same process, so an outage of the API server ends no process.

No clock is compared with another machine's. A follower judges by how long it has itself seen the lease unchanged; a
leader by when it began its last renewal that succeeded. The times in the Lease are for people.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from msgspec import Struct

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.loops.kinds import LEASES, Lease, find
from deviceshare.loops.ports import ApiError, Cluster, Conflict, NotFound

log = structlog.get_logger(__name__)

LEASE_NAME = "deviceshare"
JITTER = 1.2
"""The lease may be read later than after `retry` by this factor, so that followers don't all read it at once."""
RELEASE_SECONDS = 5.0
"""The bound on releasing the lease, which only saves time: it would expire."""


class StillWorking(Exception):
    """The work did not stop in time. The process must end: whatever it still does, another leader may be doing too."""


class _Lost(Exception):
    """The lease could not be kept."""


class Timing(Struct, frozen=True):
    """Seconds; named and chosen as in client-go, where they are LeaseDuration, RenewDeadline and RetryPeriod."""

    duration: float = 15.0
    """A lease unchanged for this long may be taken."""
    renew_within: float = 10.0
    """A leader that has not renewed for this long stops; what is left of `duration` is for stopping."""
    retry: float = 2.0
    """Between two reads of the lease; also the bound on one request."""

    @property
    def stop(self) -> float:
        """The bound on stopping the work: what is left when the lease was lost, before another leader may begin."""
        return self.duration - self.renew_within


class Elector:
    """Leads or waits to lead, one `run` at a time."""

    def __init__(
        self,
        cluster: Cluster,
        identity: str,
        *,
        namespace: str = contract.NAMESPACE,
        timing: Timing = Timing(),  # noqa: B008 it is frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`identity` is this process's alone, not even its successor's: a random part belongs in it."""
        self.leading = False
        self._cluster = cluster
        self._identity = identity
        self._namespace = namespace
        self._timing = timing
        self._clock = clock
        self._lease: Lease | None = None
        self._renewed = 0.0

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `lead` whenever the lease is held: when it is lost, `lead` is stopped and the lease awaited again.

        When cancelled, or when `lead` ends unasked, `lead` is stopped first and the lease released last. Raises
        `StillWorking` when `lead` doesn't stop, and whatever `lead` raises.
        """
        lost = True
        try:
            while lost:
                await self._acquire()
                lost = await self._hold(lead)
        except StillWorking:
            raise
        except BaseException:
            await self._release()
            raise
        await self._release()

    async def _hold(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Leads; returns True when the lease was lost, False when `lead` ended unasked."""
        self.leading = True
        working = asyncio.create_task(lead(), name="leading")
        renewing = asyncio.create_task(self._renew(), name="lease-renewal")
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading = False
            # While the work stops the lease is still renewed, so that no other leader begins before it has ended.
            stopped = await _stop(working, self._timing.stop)
            await _stop(renewing, self._timing.stop)
            if not stopped:
                raise StillWorking(f"the leader's work did not stop within {self._timing.stop:g} s")
        try:
            for task in (working, renewing):
                if not task.cancelled():
                    task.result()
        except _Lost as error:
            log.warning("Lost the lease", error=str(error))
            return True
        return False

    async def _acquire(self) -> None:
        seen: object = None
        seen_at, holder = 0.0, None
        while True:
            try:
                async with asyncio.timeout(self._timing.retry):
                    lease = await find(self._cluster, LEASES, LEASE_NAME, self._namespace)
                    state = lease and (lease.spec.holder_identity, lease.spec.renew_time, lease.spec.lease_transitions)
                    if state != seen:
                        seen, seen_at = state, self._clock()
                    if lease and lease.spec.holder_identity != holder:
                        holder = lease.spec.holder_identity
                        log.info("Observed a leader", holder=holder)
                    if self._free(lease, self._clock() - seen_at):
                        await self._take(lease)
                        log.info("Took the lease", identity=self._identity)
                        return
            except (ApiError, TimeoutError) as error:
                log.warning("Failed to get the lease", error=str(error) or "no answer in time")
            await asyncio.sleep(self._timing.retry * random.uniform(1.0, JITTER))

    def _free(self, lease: Lease | None, unchanged: float) -> bool:
        """Whether the lease may be taken. Its holder has written how long it is good for without a change."""
        if lease is None or lease.spec.holder_identity in ("", self._identity):
            return True
        return unchanged >= (lease.spec.lease_duration_seconds or self._timing.duration)

    async def _renew(self) -> None:
        """Keeps the lease; raises `_Lost` as soon as that is no longer sure."""
        while True:
            await asyncio.sleep(min(self._timing.retry, max(self._left(), 0.0)))
            left = self._left()
            if left <= 0:
                raise _Lost(f"the lease was not renewed within {self._timing.renew_within:g} s")
            try:
                async with asyncio.timeout(min(left, self._timing.retry)):
                    if self._lease is None:
                        self._lease = await find(self._cluster, LEASES, LEASE_NAME, self._namespace)
                        if self._lease is not None and self._lease.spec.holder_identity != self._identity:
                            raise _Lost(f"{self._lease.spec.holder_identity or 'no one'} holds the lease")
                    await self._take(self._lease)
            except (Conflict, NotFound):
                # It was written meanwhile, perhaps by an earlier request of ours: read it before going on.
                self._lease = None
            except (ApiError, TimeoutError) as error:
                self._lease = None
                log.warning("Failed to renew the lease", error=str(error) or "no answer in time")

    def _left(self) -> float:
        return self._renewed + self._timing.renew_within - self._clock()

    async def _take(self, lease: Lease | None) -> None:
        """Writes the lease as ours, if it is still as it was read. The time before the request counts, not after."""
        begun = self._clock()
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._timing.duration),
            "renewTime": timestamps.micro_now(),
        }
        if lease is None or lease.spec.holder_identity != self._identity:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = lease.spec.lease_transitions + 1 if lease else 0
        if lease is None:
            body = {"metadata": {"name": LEASE_NAME}, "spec": spec}
            self._lease = await self._cluster.create(LEASES, body, self._namespace)
        else:
            self._lease = await self._write(lease, spec)
        self._renewed = begun

    async def _write(self, lease: Lease, spec: dict[str, Any]) -> Lease:
        body = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec}
        return await self._cluster.patch(LEASES, LEASE_NAME, body, namespace=self._namespace)

    async def _release(self) -> None:
        """Releases the lease if it is ours, so that the next leader doesn't wait until it expires."""
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": timestamps.micro_now()}
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                # Read first: a request that was cut off may have written it, and then the version we hold is old.
                lease = await find(self._cluster, LEASES, LEASE_NAME, self._namespace)
                if lease is not None and lease.spec.holder_identity == self._identity:
                    await self._write(lease, spec)
                    log.info("Released the lease", identity=self._identity)
        except (ApiError, TimeoutError) as error:
            log.warning("Failed to release the lease", error=str(error) or "no answer in time")


async def _stop(task: asyncio.Task[None], patience: float) -> bool:
    """Whether it stopped within `patience` seconds."""
    task.cancel()
    _, pending = await asyncio.wait({task}, timeout=patience)
    return not pending
