"""Addresses of a real node, the link between it and this machine, and free ports for several sandboxes on one machine.

The node has a network of its own, so its iptables rules, routes and pods' interfaces are none of this machine's, and
end with it. One pair of virtual interfaces joins the two. All addresses are those that RFC 2544 sets aside for
benchmarks: they are routed nowhere, and no office network uses them.
"""

import contextlib
import random
import socket
import subprocess
from pathlib import Path
from typing import Final

from deviceshare_sandbox.reports import SandboxError

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


# Below the range that Linux hands to outgoing connections (ip_local_port_range, 32768 and up): none of those can take a
# port between the moment it was found free and the moment its process listens, nor while that process is restarted.
_FIRST, _LAST = 20000, 30000


def free_ports(count: int) -> list[int]:
    """As many different ports, on which nothing listens on loopback now. No other caller gets them.

    They are the caller's until its process ends: a sandbox listens on some of them seconds after they were chosen, or
    never, and another may be started meanwhile.
    """
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST), _LAST - _FIRST):
        # Reserved first: another's port may be free for a moment, while what listens there is restarted.
        if _is_reserved(port) and _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} ports are free between {_FIRST} and {_LAST}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _is_reserved(port: int) -> bool:
    """Whether this process has reserved the port, which no other has: by a name that the kernel frees with its owner.

    https://man7.org/linux/man-pages/man7/unix.7.html, abstract addresses
    """
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0deviceshare-port-{port}")
    except OSError:
        name.close()
        return False
    name.detach()  # open for as long as the process lives
    return True
