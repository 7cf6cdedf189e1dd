"""Addresses of a real node, and the link between it and this machine.

The node has a network of its own, so its iptables rules, routes and pods' interfaces are none of this machine's, and
end with it. One pair of virtual interfaces joins the two. All addresses are those that RFC 2544 sets aside for
benchmarks: they are routed nowhere, and no office network uses them.
"""

import contextlib
import subprocess
from pathlib import Path
from typing import Final

from deviceshare_sandbox.errors import SandboxError

SERVICES: Final = "198.18.0.0/16"
API_SERVICE: Final = "198.18.0.1"
"""What `kubernetes.default` is to pods: the first address of the services."""
PODS: Final = "198.19.0.0/24"
HOST: Final = "198.19.255.1"
NODE: Final = "198.19.255.2"
INTERFACE: Final = "deviceshare0"

_HOST_SIDE = f"""
link add {INTERFACE} type veth peer name eth0 netns {{pid}}
address add {HOST}/30 dev {INTERFACE}
link set {INTERFACE} up
"""
_NODE_SIDE = f"""
link set lo up
address add {NODE}/30 dev eth0
link set eth0 up
route add {SERVICES} dev eth0
"""
# No default route: what the node tries to reach elsewhere (the kubelet asks for a cloud's metadata) is refused at once;
# with a route it would wait for an answer. Services need some route, though kube-proxy sends their packets elsewhere: a
# pod in the node's network finds the API server by its Service.
# The API server calls webhooks by the address of their Service, which only the node's kube-proxy can forward, and
# proxies requests to pods.
_ROUTES = f"""
route add {SERVICES} via {NODE} dev {INTERFACE}
route add {PODS} via {NODE} dev {INTERFACE}
"""


def taken() -> bool:
    """Whether a real node runs on this machine."""
    return Path(f"/sys/class/net/{INTERFACE}").exists()


def require_free() -> None:
    """Raises SandboxError where another sandbox on this machine has its real node: there is one set of addresses."""
    if taken():
        raise SandboxError(
            f"Another sandbox's real node runs on this machine (interface {INTERFACE}).",
            "End that one first: deviceshare sandbox down --dir DIR",
        )


def join(ip: str, pid: int) -> None:
    """Creates the link to the network of process `pid`; `ip` is iproute2's program. Raises SandboxError."""
    _batch(ip, _HOST_SIDE.format(pid=pid))


def route(ip: str) -> None:
    """Adds the routes to the node's services and pods, once the node's end of the link is up. Raises SandboxError."""
    _batch(ip, _ROUTES)


def cut(ip: str) -> None:
    """Deletes the link if it is still there: the kernel does so too, but some time after the node's end."""
    if taken():
        with contextlib.suppress(SandboxError):  # The kernel was faster.
            _batch(ip, f"link delete {INTERFACE}")


def configure_node(ip: str) -> None:
    """Called in the node's network once the link is there; raises SandboxError."""
    _batch(ip, _NODE_SIDE)


def _batch(ip: str, commands: str) -> None:
    done = subprocess.run([ip, "-batch", "-"], input=commands, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        raise SandboxError(f"ip failed with exit status {done.returncode}: {done.stderr.strip()}")
