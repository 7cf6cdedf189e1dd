"""Requests and responses of HTTP, routes to handlers, checks against forged requests, and clients' texts in logs."""

import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property, lru_cache
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

Headers = Mapping[str, str]
NO_HEADERS: Final[Headers] = MappingProxyType({})
JSON: Final[Headers] = MappingProxyType({"Content-Type": "application/json"})
TEXT: Final[Headers] = MappingProxyType({"Content-Type": "text/plain; charset=utf-8"})


class Client(Protocol):
    """The connection of a request."""

    address: str
    """The client's IP address."""

    def set_option(self, level: int, option: int, value: int) -> None:
        """Sets an option of the socket."""

    def remove_timeout(self) -> None:
        """From now on the answer may take as long as it does: who streams ends it."""

    async def begin_stream(self, headers: Headers) -> None:
        """Begins an answer in parts, which ends with the connection. The handler writes them and returns None."""

    async def write(self, data: bytes) -> None:
        """Sends a part, and waits until the client has read most of what was sent; raises ConnectionResetError."""


class HttpRequest:
    """A request, whose body has arrived whole when a handler sees it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.method = self.path = self.query_string = ""
        """The method is "" until the head is whole."""
        self.headers: dict[str, str] = {}
        """By name in lower case. What was sent twice is joined by commas."""
        self.body = b""

    @cached_property
    def query(self) -> dict[str, str]:
        """The parameters of the query; of equal names the last."""
        return dict(parse_qsl(self.query_string, keep_blank_values=True))


class Response(Struct):
    """The answer to a request."""

    body: bytes = b""
    status: int = 200
    headers: Headers = JSON
    result: str = ""
    """The label of this name in the metrics of requests; by the status unless given."""


def plain(text: str, status: int = 200, headers: Headers = NO_HEADERS) -> Response:
    """A text for people."""
    return Response(text.encode(errors="backslashreplace"), status, {**TEXT, **headers})


class Refusal(Exception):
    """Raised by a handler whose answer is an error: a text for people."""

    def __init__(self, status: int, text: str, headers: Headers = NO_HEADERS) -> None:
        super().__init__(text)
        self.response = plain(text, status, headers)


Handler = Callable[[HttpRequest], Awaitable[Response | None]]


class Route(NamedTuple):
    """Who answers the requests of a method and path. GET includes HEAD; `*` and `*` mean what no other route has."""

    method: str
    path: str
    handler: Handler


# Checks of Host, Origin and Content-Type against requests that web sites forge through a person's browser.
# They reach servers on loopback and behind a port-forward. A site can point its own name at 127.0.0.1 (DNS rebinding)
# and would then share our origin, but the browser still sends that name in the header Host: only addresses, localhost
# and our own name are served, as an address can't be rebound. A page of another origin is named in the header Origin.
# And without a preflight request a page may only send what a form could, which is never JSON
# (https://fetch.spec.whatwg.org/#cors-safelisted-request-header).


def check_origin(request: HttpRequest, own_name: str | None) -> None:
    """Raises Refusal: 421 or 403.

    `own_name` is the server's besides addresses and localhost, "" for none; None where client and server have verified
    each other's certificates, and with them the name.
    """
    asked = request.headers.get("host", "")
    if own_name is not None and not _answers_to(own_name, asked):
        text = f"deviceshare does not serve the name {quoted(asked)}: use an IP address or localhost\n"
        raise Refusal(421, text)
    origin = request.headers.get("origin")
    if origin is not None and origin not in (f"http://{asked}", f"https://{asked}"):
        raise Refusal(403, f"deviceshare does not serve pages of the origin {quoted(origin)}\n")


@lru_cache(maxsize=64)
def _answers_to(own_name: str, asked: str) -> bool:
    # kube-scheduler sends the same header with each request.
    try:
        parts = urlsplit(f"//{asked}")
        name = (parts.hostname or "").rstrip(".")
        if parts.netloc != asked or "@" in asked or parts.port == 0:  # reading the port checks it
            return False
        if name == "localhost" or name.endswith(".localhost") or (name and name == own_name.lower()):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_json(request: HttpRequest) -> None:
    """Raises Refusal: 415."""
    sent = request.headers.get("content-type", "")
    if sent.partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, f"Content-Type {quoted(sent)} is not accepted: send application/json\n")


# Clients' texts, shortened and escaped for logs, answers and events, and a rate limit for log lines about them.

LONGEST: Final = 200
"""Characters."""
PAUSE: Final = 10.0
"""Seconds between two log lines of one text."""


def quoted(text: object) -> str:
    """The beginning of the text, with everything that isn't printable escaped."""
    whole = str(text)
    start = whole[:LONGEST]
    plain = start if start.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in start)[:LONGEST]
    return plain if len(whole) <= LONGEST else f"{plain}… ({len(whole)} characters)"


class Repeats:
    """Writes one log line of each text in `PAUSE` seconds; the next one says how many were omitted."""

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause
        self._last: dict[str, tuple[float, int]] = {}

    def write(self, log: Callable[..., object], text: str, /, **fields: Any) -> None:
        """Logs the text with these fields, unless it was a moment ago. Texts must be few: each is kept."""
        now = monotonic()
        last, omitted = self._last.get(text, (now - self._pause, 0))
        if now - last < self._pause:
            self._last[text] = (last, omitted + 1)
            return
        self._last[text] = (now, 0)
        log(text, **fields, **({"omitted": omitted} if omitted else {}))
