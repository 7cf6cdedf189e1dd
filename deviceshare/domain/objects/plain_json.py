"""Plain JSON: what Go writes as JSON and msgspec can't read, made readable.

Users write free JSON into some fields, as into a ResourceClaim's `opaque.parameters`, and the API server sends its
bytes as they came: thousands of levels deep, and with halves of surrogate pairs, which Go reads as U+FFFD
(https://pkg.go.dev/encoding/json#Unmarshal). msgspec refuses both, even where it only skips them, so one such object
would hide a whole list.
"""

import re
from typing import Final

DEEPEST: Final = 100
"""Levels that are kept; what Kubernetes defines has a few dozen, and Python takes some hundreds."""

_STRING_OR_BRACKET: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
"""A string that doesn't end goes on to the end, so that nothing is scanned twice."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def plain_json(data: bytes) -> bytes:
    """The same without halves of surrogate pairs, and with null in place of what is nested deeper than DEEPEST.

    Takes some tenths of a second for a MB, so it is for what couldn't be read. What isn't JSON stays so.
    """
    return _shallow(_ESCAPE.sub(_whole, data) if _SURROGATE.search(data) else data)


def _whole(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape["half"] else escape[0]


def _shallow(data: bytes) -> bytes:
    kept: list[bytes] = []
    depth = end = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth == DEEPEST + 1:
                kept += (data[end : match.start()], b"null")
        elif token in (b"]", b"}"):
            depth -= 1
            if depth == DEEPEST:
                end = match.end()
    # What never closes is no JSON, cut or not.
    return b"".join((*kept, data[end:])) if depth == 0 else data
