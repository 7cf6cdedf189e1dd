"""Checks of Host, Origin and Content-Type against requests that web sites forge through a person's browser.

They reach servers on loopback and behind a port-forward. A site can point its own name at 127.0.0.1 (DNS rebinding) and
would then share our origin, but the browser still sends that name in the header Host: only addresses, localhost and our
own name are served, as an address can't be rebound. A page of another origin is named in the header Origin. And without
a preflight request a page may only send what a form could, which is never JSON
(https://fetch.spec.whatwg.org/#cors-safelisted-request-header).
"""

import ipaddress
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from deviceshare.web.messages import HttpRequest, Refusal
from deviceshare.web.quoting import quoted


class OwnNames(NamedTuple):
    """The names of a server besides addresses and localhost."""

    host: str = ""

    def answers_to(self, asked: str) -> bool:
        """Whether a request with this header Host is for this server."""
        return _names(self.host, asked)


LOOPBACK: Final = OwnNames()


@lru_cache(maxsize=64)
def _names(host: str, asked: str) -> bool:
    # kube-scheduler sends the same header with each request.
    try:
        parts = urlsplit(f"//{asked}")
        name = (parts.hostname or "").rstrip(".")
        if parts.netloc != asked or "@" in asked or parts.port == 0:  # reading the port checks it
            return False
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or (name and name == host.lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin(request: HttpRequest, own: OwnNames | None) -> None:
    """Raises Refusal: 421 or 403.

    `own` is None where client and server have verified each other's certificates, and with them the name.
    """
    asked = request.headers.get("host", "")
    if own is not None and not own.answers_to(asked):
        text = f"deviceshare does not serve the name {quoted(asked)}: use an IP address or localhost\n"
        raise Refusal(421, text)
    origin = request.headers.get("origin")
    if origin is not None and origin not in (f"http://{asked}", f"https://{asked}"):
        raise Refusal(403, f"deviceshare does not serve pages of the origin {quoted(origin)}\n")


def check_json(request: HttpRequest) -> None:
    """Raises Refusal: 415."""
    sent = request.headers.get("content-type", "")
    if sent.partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, f"Content-Type {quoted(sent)} is not accepted: send application/json\n")
