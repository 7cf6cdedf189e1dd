"""The times of a turn: how long a holder goes on without its agent, and how long an agent waits for a lost holder.

A turn is held by an open connection. Where the connection breaks, neither side knows what became of the other, so both
count, each by its own clock, of which only the rate is relied on:

- Each heartbeat says how long ago, by the agent's clock, the connection was accepted. The client asked before that, by
  its own clock; so what it adds up is never later than the moment at which the agent sent the heartbeat, however long
  that was under way or lay in a buffer. From there it has a lease. Without another heartbeat it ends CMD when the lease
  is over: SIGTERM, and SIGKILL `KILL` later.
- The agent gives a lost turn to nobody until `grace` has passed since its last heartbeat, by when CMD has ended.

That is all there is where an agent doesn't see the processes of the pod: in a sandbox with a kernel of its own (Kata,
gVisor), or without hostPID. Where it sees them, its node's kernel decides: a lost turn ends when the last process of it
has ended, neither earlier nor later. Clients that were stopped (SIGSTOP) or whose shells were all killed are covered by
that alone. The lease is long there, so that a program survives that its agent is upgraded.
"""

from typing import Final

HEARTBEAT: Final = 0.5
"""Seconds between two heartbeats of an agent."""
UNACKNOWLEDGED: Final = 1.0
"""Seconds after which a connection is lost whose peer acknowledges nothing (TCP_USER_TIMEOUT, RFC 5482). With the
heartbeats, an agent notices within 1.5 s that the network to a client is cut."""
SILENCE: Final = 3
"""Seconds without a heartbeat after which a client connects again: six heartbeats."""
RETRY: Final = 1
"""Seconds between two attempts of a client to connect; also how often it looks at its clock."""
LEASE_UNSEEN: Final = 30.0
"""Seconds without a heartbeat for which a holder goes on whose processes its agent can't see: an agent that crashed is
back in a few, unless it crashes again and again."""
LEASE_SEEN: Final = 3600.0
"""The same of a holder whose processes its agent sees, and has on record. It counts only if the agent that comes back
can't read the record or doesn't see the processes."""
KILL: Final = 3
"""Seconds between SIGTERM and SIGKILL."""
MARGIN: Final = 10.0
"""Seconds for what a client may be late: a clock looked at once a second, a loaded node, a watcher that was killed and
replaced (it gives itself 3 s)."""


def grace(lease: float) -> float:
    """Seconds after an agent's last heartbeat by when a client with this lease has ended CMD."""
    return lease + KILL + MARGIN
