"""Which arena a pod is in: who must not run side by side, by the ledger alone."""

from collections.abc import Mapping

from msgspec import Struct

from deviceshare.domain.objects.ledger import Claim


class ArenaName(Struct, frozen=True):
    """`key` is unique on the node, also among recreated groups; `name` is for people."""

    key: str
    name: str


def arena_of(claims: Mapping[str, Claim], holder_uid: str) -> ArenaName | None:
    """The arena of the pods of this holder, by the node's claims; None without a claim.

    The pods of a group take turns with each other: they have the same devices, which nobody else has.
    """
    claim = claims.get(holder_uid)
    return ArenaName(f"group/{holder_uid}", claim.holder_name) if claim else None
