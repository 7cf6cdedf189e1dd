"""A mirror of a kind that not every API server serves, or not in the same version.

Discovery says which version to mirror. Where none is served, or its objects may not be read, the mirror is empty and
counts as synced, and asks again every ten minutes: an upgrade of the cluster or of the chart may bring the kind. Where
one takes the version away that is mirrored, the mirror goes on at once with another that is served. What was mirrored
once is kept when the kind disappears, since of several API servers only one may be of an older version, and soon asked
for again.

An API server that starts refuses requests until it has read the roles, and serves no custom resources until it has read
their definitions. So a refusal is believed only when it lasts, and a missing right never of what was mirrored before.
https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from deviceshare.kube.api import Api
from deviceshare.kube.cache import T
from deviceshare.kube.mirror import ApiMirror, MirrorPace
from deviceshare.kube.refusals import Unserved
from deviceshare.loops.ports import ApiError, Forbidden, Kind

log = structlog.get_logger(__name__)

RARELY_SECONDS = 600.0
REFUSED_SECONDS = 15.0
"""How long the kind can't be read before that is believed: longer than an API server takes to read roles and CRDs."""

LOST_SECONDS = 15.0
"""Between two questions where it was served before: what is kept may be outdated, as an older API server answered."""


class OptionalMirror(ApiMirror[T]):
    """The mirror's kind is in the newest of `versions` that the API server serves of the group."""

    def __init__(
        self,
        api: Api,
        kind_of: Callable[[str], Kind[T]],
        group: str,
        versions: Sequence[str],
        *,
        field_selector: str = "",
        keep: Callable[[T], bool] | None = None,
        see: Callable[[T], T] | None = None,
        pace: MirrorPace = MirrorPace(),  # noqa: B008 it is frozen
        rarely: float = RARELY_SECONDS,
        refused: float = REFUSED_SECONDS,
    ) -> None:
        """`rarely`: seconds between two questions whether the kind is served. The core `group`, "", always is."""
        super().__init__(api, kind_of(versions[0]), field_selector=field_selector, keep=keep, see=see, pace=pace)
        self._kind_of = kind_of
        self._group, self._versions = group, versions
        self._rarely, self._refused = rarely, refused
        self._gone = False
        """Whether the kind was last not served, in the version to mirror, and is looked for at once."""
        self._refused_since: float | None = None
        self.known = False
        """Whether what the mirror holds was listed; where it is empty without, there may be objects all the same."""

    async def run(self) -> None:
        """Keeps the copy until cancelled, while the kind is served."""
        while True:
            await self._keep_while_served()
            if not self._listed.is_set():
                self._listed.set()
                log.info("Found a kind not served, or not readable", kind=self.kind, group=self._group)
            self._lost_at = self._refused_since = None  # There is no watch to be had, so none is missing.
            await asyncio.sleep(min(self._rarely, LOST_SECONDS) if self.known else self._rarely)

    async def list(self) -> None:
        """As a mirror of any kind. Refusals of before don't count any more, however long ago the first one was."""
        await super().list()
        self.known, self._refused_since = True, None

    def start_over(self) -> None:
        """Where nothing was listed there is nothing to forget, and nobody asks again for minutes."""
        if self.known:
            super().start_over()

    async def _keep_while_served(self) -> None:
        pauses = self._pauses()
        while version := await self._served():
            self._kind = self._kind_of(version)
            self._relist = True
            await super().run()
            if not self._gone:
                return
            # An upgrade of the cluster took this version away; or one of several API servers is older, or starts.
            self._lost_at = self._lost_at or time.monotonic()
            await asyncio.sleep(next(pauses))

    def _ends(self, error: ApiError) -> bool:
        self._gone = isinstance(error, Unserved)
        readable_once = self.lists > 0 and isinstance(error, Forbidden)
        if readable_once or not isinstance(error, Forbidden | Unserved):
            self._refused_since = None
            return self._gone
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since < self._refused:
            return self._gone
        if self._gone:
            self.replace((), self.version)  # Somebody deleted the definition, and with it the objects.
            self.known = False
        else:
            log.warning("Mirror is not allowed to read a kind", kind=self.kind, error=str(error))
        self._gone = False  # Its version is served, the kind is not: nobody waits for it any longer.
        return True

    async def list_if_served(self) -> None:
        """Lists once; stays empty where the kind isn't served, or may not be read. Raises any other ApiError."""
        with suppress(Forbidden, Unserved):
            await self.list()

    async def _served(self) -> str:
        """The version to mirror, or "". Asked until the API server answers."""
        if not self._group:
            return self._versions[0]
        pauses = self._pauses()
        while True:
            try:
                served = await self._api.versions_of(self._group)
            except ApiError as error:
                log.info("Discovery failed", group=self._group, error=str(error))
                await asyncio.sleep(max(next(pauses), error.retry_after or 0.0))
            else:
                return next((version for version in self._versions if version in served), "")
