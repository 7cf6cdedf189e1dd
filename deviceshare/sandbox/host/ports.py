"""Free ports for one sandbox, so that several run on one machine."""

import random
import socket

# Below the range that Linux hands to outgoing connections (ip_local_port_range, 32768 and up): none of those can take a
# port between the moment it was found free and the moment its process listens, nor while that process is restarted.
_FIRST, _LAST = 20000, 30000


def free_ports(count: int) -> list[int]:
    """As many different ports, on which nothing listens on loopback now."""
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST), _LAST - _FIRST):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} ports are free between {_FIRST} and {_LAST}")
