"""Free ports for one sandbox, so that several run on one machine."""

import random
import socket

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
