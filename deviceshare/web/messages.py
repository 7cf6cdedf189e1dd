"""Requests and responses of HTTP, and the routes to their handlers."""

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol
from urllib.parse import parse_qsl

from msgspec import Struct

Headers = Mapping[str, str]
NO_HEADERS: Final[Headers] = MappingProxyType({})
JSON: Final[Headers] = MappingProxyType({"Content-Type": "application/json"})
TEXT: Final[Headers] = MappingProxyType({"Content-Type": "text/plain; charset=utf-8"})


class Client(Protocol):
    """The connection of a request."""

    @property
    def address(self) -> str:
        """The client's IP address."""

    @property
    def closing(self) -> bool:
        """Whether nothing more can be sent."""

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
