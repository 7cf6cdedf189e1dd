"""The token of a rebind request: the value of the annotation by which a pod's user asks for another device.

The leader writes it into the node's ledger, which all pods of the node share, so a long one is none.
"""

import re
from typing import Final

MOST_CHARACTERS: Final = 63
_TOKEN: Final = re.compile(r"[A-Za-z0-9._:+-]+")


def token_fault(value: str) -> str:
    """What is wrong with the token and what to do, or ""."""
    if len(value) <= MOST_CHARACTERS and _TOKEN.fullmatch(value):
        return ""
    return (
        f"set it to 1 to {MOST_CHARACTERS} letters, digits or characters of ._:+-, other ones for each request,"
        " such as the time"
    )
