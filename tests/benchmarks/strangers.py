"""The attacks of `availability`: what one stranger does who reaches the ports, with no more than sockets."""

import contextlib
import json
import select
import socket
import ssl
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.fuzz.target import TRUSTING, Victim

Socket = socket.socket
_HEAD: Final = b"POST /mutate-pods HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_EIGHT_MIB: Final = 8 << 20


class Strangers:
    """The connections of a stranger."""

    def __init__(self) -> None:
        self.sockets: list[Socket] = []

    def still_open(self) -> int:
        """Those that the other side hasn't ended."""
        return sum(not _ended(each) for each in self.sockets)

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def review(pod: Any, **request: Any) -> bytes:
    """An AdmissionReview of a new pod."""
    asked = {"uid": "1", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": pod, **request}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()


def _tls(port: int, *, shake: bool = True) -> Socket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=15)
    if not shake:
        return plain
    return TRUSTING.wrap_socket(plain)


def _ended(connection: Socket) -> bool:
    try:
        connection.settimeout(0.01)
        while select.select([connection], [], [], 0)[0]:
            if not connection.recv(1 << 16):
                return True
    except (TimeoutError, ssl.SSLWantReadError):
        return False
    except (OSError, ValueError):
        return True
    return False


@contextlib.contextmanager
def _crowd() -> Iterator[Strangers]:
    crowd = Strangers()
    try:
        yield crowd
    finally:
        crowd.close()


def _send_all(crowd: Strangers, payloads: list[bytes], port: int) -> None:
    """All at once, each on a connection of its own."""

    def send(payload: bytes) -> None:
        with contextlib.suppress(OSError):
            connection = _tls(port)
            crowd.sockets.append(connection)
            connection.sendall(payload)

    threads = [threading.Thread(target=send, args=(payload,)) for payload in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _posted(body: bytes, extra: bytes = b"", length: int | None = None) -> bytes:
    return _HEAD + extra + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


@contextlib.contextmanager
def gzip_bombs(victim: Victim) -> Iterator[Strangers]:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(512)) + packer.flush()
    with _crowd() as crowd:
        _send_all(crowd, [_posted(bomb, b"Content-Encoding: gzip\r\n")] * 8, victim.ports["webhook"])
        time.sleep(3)
        yield crowd


@contextlib.contextmanager
def unfinished_bodies(victim: Victim) -> Iterator[Strangers]:
    body = b" " * (_EIGHT_MIB - 1)
    with _crowd() as crowd:
        _send_all(crowd, [_posted(body, length=_EIGHT_MIB)] * 100, victim.ports["webhook"])
        time.sleep(4)
        yield crowd


@contextlib.contextmanager
def malformed_requests(victim: Victim) -> Iterator[Strangers]:
    """A line without an end, and a kind of an object that is none."""
    line = b"GET /" + b"\x01" * (4 << 20) + b"\r\n\r\n"
    kind = json.dumps({"apiVersion": "v1", "kind": "x" * (7 << 20)}).encode()
    with _crowd() as crowd:
        _send_all(crowd, [line] * 5 + [_posted(kind)] * 5, victim.ports["webhook"])
        time.sleep(1)
        yield crowd


@contextlib.contextmanager
def costly_reviews(victim: Victim) -> Iterator[Strangers]:
    """Empty containers are three bytes each, and were a patch of two kilobytes."""
    labels = {"deviceshare.io/group": "team"}
    pod = {"metadata": {"labels": labels, "annotations": labels}, "spec": {"containers": [{}] * 50_000}}
    body = review(pod).replace(b" ", b"")
    with _crowd() as crowd:
        _send_all(crowd, [_posted(body)] * 8, victim.ports["webhook"])
        time.sleep(3)
        yield crowd


@contextlib.contextmanager
def scrapers(victim: Victim) -> Iterator[Strangers]:
    """Fifty that ask again as soon as they are answered."""
    over = threading.Event()
    url = f"http://127.0.0.1:{victim.ports['probe']}/metrics"

    def scrape() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30) as answer:
                answer.read()

    threads = [threading.Thread(target=scrape) for _ in range(50)]
    for thread in threads:
        thread.start()
    time.sleep(5)
    over.set()
    for thread in threads:
        thread.join()
    with _crowd() as crowd:
        yield crowd


@contextlib.contextmanager
def idle_connections(victim: Victim) -> Iterator[Strangers]:
    with _crowd() as crowd:
        for number in range(2000):
            with contextlib.suppress(OSError):
                crowd.sockets.append(_tls(victim.ports["webhook"], shake=number % 2 == 0))
        time.sleep(4)
        yield crowd


@contextlib.contextmanager
def slow_headers(victim: Victim) -> Iterator[Strangers]:
    """A byte a second on each of 400 connections."""
    with _crowd() as crowd:
        for _ in range(400):
            crowd.sockets.append(_tls(victim.ports["webhook"]))
        for byte in _HEAD[:6]:
            for each in crowd.sockets:
                with contextlib.suppress(OSError):
                    each.sendall(bytes([byte]))
            time.sleep(1)
        yield crowd


ATTACKS: Final[dict[str, Callable[[Victim], contextlib.AbstractContextManager[Strangers]]]] = {
    "8 gzip bodies of 0.5 MB": gzip_bombs,
    "100 unfinished bodies of 8 MiB": unfinished_bodies,
    "10 huge malformed requests": malformed_requests,
    "8 reviews of 50,000 empty containers": costly_reviews,
    "50 scrapers of /metrics": scrapers,
    "2,000 idle connections, half of them without a handshake": idle_connections,
    "400 connections of a header byte a second": slow_headers,
}
"""Each entered when the attack is at its height, and left when it ends."""
