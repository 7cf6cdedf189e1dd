"""Requests as bytes: sound ones, and the games that can be played with lines, headers, lengths and chunks."""

import gzip
import random
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.fuzz.documents import bend, document, encode

PATHS: Final = {
    "webhook": ("/mutate-pods", "/mutate-groups", "/validate-pods", "/validate-groups", "/validate-node-devices"),
    "extender": ("/filter", "/filter-best", "/prioritize", "/preempt", "/bind"),
    "probe": ("/livez", "/readyz", "/metrics"),
    "ui": ("/", "/ui", "/ui/state", "/ui/style.css"),
    "agent": ("/livez", "/readyz", "/metrics", "/usage"),
    "pods": ("/", "/smi", "/turn", "/turn.sh", "/turn/over", "/nothing"),
}
"""What each server serves."""
POSTED: Final = ("webhook", "extender")


class Sent(NamedTuple):
    """One input."""

    data: bytes
    kept: bool
    """Whether it is whole, and its connection goes on after the answer."""


def generate(server: str, random_: random.Random) -> Sent:
    """The next input for this server."""
    path = random_.choice(PATHS[server])
    if server in POSTED:
        whole = document(path, random_)
        body = encode(bend(whole, random_) if random_.random() < 0.9 else whole, random_)
    else:
        body = random_.randbytes(random_.choice([0, 0, 0, 10, 100_000]))
    if random_.random() < 0.8:
        method = b"POST" if server in POSTED else b"GET"
        return Sent(_request(method, path.encode(), body, _headers(random_)), kept=True)
    return Sent(_game(server, path, body, random_), kept=False)


def _request(method: bytes, path: bytes, body: bytes, headers: list[bytes]) -> bytes:
    if method == b"POST" or body:
        headers = [*headers, b"Content-Length: %d" % len(body)]
    return method + b" " + path + b" HTTP/1.1\r\n" + b"".join(line + b"\r\n" for line in headers) + b"\r\n" + body


def _headers(random_: random.Random) -> list[bytes]:
    lines = [b"Host: localhost", b"Content-Type: application/json"]
    odd = [
        b"Accept: application/openmetrics-text; version="
        + random_.choice([b"1.0.0", b"x", b"9.9.9", b"", b"1.0.0; escaping=?"]),
        b"Accept: text/plain; version=1.0." + str(random_.randrange(50)).encode(),
        b"Accept-Encoding: gzip, \xff", b"Origin: http://evil.example", b"Origin: null", b"Cookie: " + b"a=b; " * 500,
        b"Accept: application/json", b"Accept: application/json;q=\xff, text/*;q=nan" + b"," * 500,
        b"Authorization: Bearer x", b"Range: bytes=5-1", b"If-Modified-Since: yesterday", b"Content-Encoding: identity",
        b"X-Forwarded-For: \xf0\x9f", b"Content-Encoding: nonsense", b"Content-Encoding: gzip", b"Traceparent: 00-zz",
    ]  # fmt: skip
    if random_.random() < 0.3:
        lines.append(random_.choice(odd))
    if random_.random() < 0.05:
        lines[0] = b"Host: " + random_.choice([b"evil.example", b"", b"[::1", b"localhost:99999", b"\xff", b"a" * 3000])
    if random_.random() < 0.05:
        lines[1] = b"Content-Type: " + random_.choice(
            [b"text/plain", b"", b"application/json; charset=\xff", b"/", b"x" * 3000]
        )
    return lines


def _game(server: str, path: str, body: bytes, random_: random.Random) -> bytes:
    target, head = (
        path.encode(),
        b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
    )
    if server not in POSTED:
        head = head.replace(b"POST", b"GET", 1)
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    way = random_.randrange(18)
    if way == 0:
        return chunked + _chunks(body[:2000], random_) + b"0\r\n\r\n"
    if way == 1:
        return chunked + random_.choice(
            [b"-1\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"zz\r\n", b"\r\n", b"5\nhello", b"1\r\nab\r\n0\r\n\r\n"]
        )
    if way == 2:
        return chunked + b"3;" + b"x" * random_.choice([10, 9000]) + b"\r\nabc\r\n0\r\n" + b"T: 1\r\n" * 200 + b"\r\n"
    if way == 3:
        return head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + body[:100]
    if way == 4:
        return head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"
    if way == 5:
        return (
            head
            + b"Content-Length: "
            + random_.choice([b"-1", b"1e3", b"+5", b"99999999999999999999", b"0x5", b""])
            + b"\r\n\r\n"
            + body
        )
    if way == 6:
        return head + b"Content-Length: %d\r\n\r\n" % (len(body) + 10) + body  # never whole
    if way == 7:
        packs: list[Callable[[bytes], bytes]] = [gzip.compress, zlib.compress, bytes]
        pack = random_.choice(packs)
        name = random_.choice([b"gzip", b"deflate", b"br", b"zstd", b"compress", b"gzip, gzip", b"x", b"\xff"])
        packed = pack(body)
        return head + b"Content-Encoding: " + name + b"\r\nContent-Length: %d\r\n\r\n" % len(packed) + packed
    if way == 8:
        return (
            head
            + b"Expect: "
            + random_.choice([b"100-continue", b"200-ok"])
            + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
    return _odder(way, head, target, body, random_)


def _odder(way: int, head: bytes, target: bytes, body: bytes, random_: random.Random) -> bytes:
    if way == 9:
        return head + b"Connection: upgrade\r\nUpgrade: " + random_.choice([b"h2c", b"websocket"]) + b"\r\n\r\n" + body
    if way == 10:
        return head + b"X: " + b"y" * random_.choice([8000, 8192, 70_000]) + b"\r\n\r\n"
    if way == 11:
        return head + b"".join(b"H%d: 1\r\n" % number for number in range(random_.choice([120, 130, 3000]))) + b"\r\n"
    if way == 12:
        method = random_.choice(
            [b"PUT", b"DELETE", b"OPTIONS", b"HEAD", b"TRACE", b"CONNECT", b"get", b"X" * 50, b"\x00"]
        )
        return method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    if way == 13:
        odd = random_.choice(
            [b"/%00", b"/%ff", b"//", b"*", b"http://a/", b"/..%2f..", b"/" + b"x" * 9000, b"/?" + b"&" * 5000, b"\xe9"]
        )
        return b"POST " + odd + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    if way == 14:
        version = random_.choice([b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9", b"", b"http/1.1"])
        return b"GET " + target + b" " + version + b"\r\nHost: localhost\r\n\r\n"
    if way == 15:
        return random_.choice(
            [
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01",
                b"\r\n" * 50,
                b"\n",
                random_.randbytes(500),
            ]
        )
    if way == 16:
        return _request(
            b"POST", target, body[:500], [b"Host: localhost", b"Content-Type: application/json"]
        ) * random_.choice([2, 40])
    return head.replace(b"\r\n", random_.choice([b"\n", b"\r", b" \r\n", b"\r\n\t"])) + b"\r\n"


def _chunks(body: bytes, random_: random.Random) -> bytes:
    parts, at = [], 0
    while at < len(body):
        size = random_.choice([1, 1, 2, 7, 400])
        part = body[at : at + size]
        parts.append(b"%x\r\n" % len(part) + part + b"\r\n")
        at += size
    return b"".join(parts)
