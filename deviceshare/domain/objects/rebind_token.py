"""The token of a rebind request: the value of the annotation by which a pod's user asks for another device.

The leader writes it into the node's ledger, which all pods of the node share, so a long one is none.
"""

import re
from typing import Final

PATTERN: Final = "[A-Za-z0-9._:+-]{1,63}"
CURE: Final = "set it to 1 to 63 letters, digits or characters of ._:+-, other ones for each request, such as the time"


def token_fault(value: str) -> str:
    """What is wrong with the token and what to do, or ""."""
    return "" if re.fullmatch(PATTERN, value) else CURE
