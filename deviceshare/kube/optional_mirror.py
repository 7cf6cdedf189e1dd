"""A mirror of a kind that not every API server serves, or not in the same version.

Discovery says which version to mirror. Where none is served, or its objects may not be read, the mirror is empty and
counts as synced, and asks again every ten minutes: an upgrade of the cluster or of the chart may bring the kind. Where
one takes the version away that is mirrored, the mirror goes on at once with another that is served. What was mirrored
once is kept when the kind disappears, since of several API servers only one may be of an older version.
https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from deviceshare.kube.api import Api
from deviceshare.kube.cache import T
from deviceshare.kube.mirror import ApiMirror, MirrorPace
from deviceshare.kube.refusals import Unserved
from deviceshare.loops.ports import ApiError, Forbidden, Kind

log = structlog.get_logger(__name__)

RARELY_SECONDS = 600.0


class OptionalMirror(ApiMirror[T]):
    """The mirror's kind is in the newest of `versions` that the API server serves of the group."""

    def __init__(
        self,
        api: Api,
        kind_of: Callable[[str], Kind[T]],
        group: str,
        versions: Sequence[str],
        *,
        keep: Callable[[T], bool] | None = None,
        pace: MirrorPace = MirrorPace(),  # noqa: B008 it is frozen
        rarely: float = RARELY_SECONDS,
    ) -> None:
        """`rarely`: seconds between two questions whether the kind is served."""
        super().__init__(api, kind_of(versions[0]), keep=keep, pace=pace)
        self._kind_of = kind_of
        self._group, self._versions = group, versions
        self._rarely = rarely
        self._gone = False
        """Whether the kind was last not served, in the version that was mirrored."""

    async def run(self) -> None:
        """Keeps the copy until cancelled, while the kind is served."""
        while True:
            version, pauses = await self._served(), self._pauses()
            while version:
                self._kind = self._kind_of(version)
                self._relist = True
                await super().run()
                now = await self._served() if self._gone else version
                if now == version:
                    break
                # An upgrade of the cluster took this version away; of several API servers one may still be older.
                version = now
                await asyncio.sleep(next(pauses))
            if not self._listed.is_set():
                self._listed.set()
                log.info("Found a kind not served, or not readable", kind=self.kind, group=self._group)
            await asyncio.sleep(self._rarely)

    def _ends(self, error: ApiError) -> bool:
        self._gone = isinstance(error, Unserved)
        if isinstance(error, Forbidden):
            log.warning("Mirror is not allowed to read a kind", kind=self.kind, error=str(error))
            return True
        return self._gone

    async def _served(self) -> str:
        """The version to mirror, or "". Asked until the API server answers."""
        pauses = self._pauses()
        while True:
            try:
                served = await self._api.versions_of(self._group)
            except ApiError as error:
                log.info("Discovery failed", group=self._group, error=str(error))
                await asyncio.sleep(max(next(pauses), error.retry_after or 0.0))
            else:
                return next((version for version in self._versions if version in served), "")
