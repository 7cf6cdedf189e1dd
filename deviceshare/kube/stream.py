"""The stream of a watch: lines, decoded to events.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from collections.abc import AsyncIterator

import aiohttp
import msgspec
from msgspec import Raw, Struct

from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.kube.refusals import ApiStatus, refusal_of_status
from deviceshare.loops.ports import ApiError, Expired

LONGEST_LINE = 32 * 2**20
"""Bytes. etcd takes objects of 1.5 MiB, as JSON they are larger; a stream without line ends must not fill memory."""


class WatchEvent(Struct, frozen=True):
    """One change. The object is decoded by who knows its kind, so one bad object costs one event and not the stream."""

    type: str
    object: Raw


async def events(content: aiohttp.StreamReader) -> AsyncIterator[WatchEvent]:
    """The events of a watch, until it ends.

    Raises the `ApiError` of an ERROR event, and Expired for a line that is no event: what it should have said can
    only be learnt from a new list.
    """
    decoder = decoder_of(WatchEvent)
    async for line in lines(content):
        try:
            event = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise Expired(f"the watch sent a line that is no event: {error}") from error
        if event.type == "ERROR":
            raise _error(event.object)
        yield event


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The whole lines of a stream, empty ones left out. A last line that was cut off is left out.

    aiohttp's own `readline` refuses lines longer than its buffer; here nothing is scanned twice, however long the line.
    """
    pending: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        head, *rest = chunk.split(b"\n")
        pending.append(head)
        size += len(head)
        if size > LONGEST_LINE:
            raise Expired(f"the watch sent a line of more than {LONGEST_LINE} bytes")
        if not rest:
            continue
        for line in (b"".join(pending), *rest[:-1]):
            if line:
                yield line
        pending, size = [rest[-1]], len(rest[-1])


def _error(raw: Raw) -> ApiError:
    try:
        status = decoder_of(ApiStatus).decode(raw)
    except msgspec.DecodeError:
        return Expired("the watch ended with an error that can't be read")
    return refusal_of_status("watch", status, status.code or 500)
