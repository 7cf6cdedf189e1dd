"""A command's request of a rebind, by a group or a pod, and the wait for the leader's answer."""

import secrets
from collections.abc import Awaitable, Callable
from typing import Final, Generic, NamedTuple, TypeVar

import click

from deviceshare import timestamps
from deviceshare.cli.retries import poll
from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Devices, described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import replacement

ANSWER_SECONDS: Final = 30.0
"""A leader that died is replaced within this time."""

T = TypeVar("T", Group, Pod)


class Asked(NamedTuple, Generic[T]):
    """Whose devices are to be replaced, and its claim in the ledger of its node."""

    by: T
    ledger: NodeDevices
    claim: Claim

    @property
    def node(self) -> str:
        return f"node {self.ledger.node}"

    @property
    def request(self) -> dict[str, object]:
        """The patch that requests a rebind, if nobody has written the object since it was read."""
        annotations = {contract.REBIND: new_token()}
        return {"metadata": {"resourceVersion": self.by.metadata.resource_version, "annotations": annotations}}


def new_token() -> str:
    """A unique request: the time in RFC 3339, and random digits for requests made in the same second."""
    return f"{timestamps.now()}-{secrets.token_hex(4)}"


async def answered(
    look: Callable[[], Awaitable[Asked[T]]], broken: Devices, *, who: str, keeps: str, outcome: str, seconds: float
) -> Asked[T]:
    """Returns what the leader made of the request; `broken` are the devices that it was to replace.

    Args:
        who: such as `group team`.
        keeps: what remains where nothing could replace it, such as `` or `its share of `.
        outcome: the command that shows what the leader says of it.

    Raises:
        ClickException: nobody answered in time, or nothing could be replaced.
        ApiError: a request failed.
    """

    async def seen() -> Asked[T] | None:
        now = await look()
        return now if now.claim.rebound == now.by.rebind != "" else None

    after = await poll(seen, doing=f"Waiting for other devices for {who}", seconds=seconds)
    if after is None:
        raise click.ClickException(
            f"deviceshare has not answered within {seconds:g} s. It will when it runs; see that with"
            f" kubectl get pods -A -l app.kubernetes.io/name={contract.NAME}, and the outcome with {outcome}"
        )
    if kept := [each for each in broken if any(replacement.same(each, now) for now in after.claim.devices)]:
        subject = f"{who[0].upper()}{who[1:]}"
        raise click.ClickException(
            f"{subject} keeps {keeps}{described(kept)}, as nothing could replace it; see why with {outcome}"
        )
    return after
