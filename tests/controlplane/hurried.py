"""deviceshare that waits out binds in 6 s, `python hurried.py run …`; a real one takes 13, on Kubernetes 1.20 28.

A new node's devices are free, and what a pending pod may hold is released, only after that time. Binds are bounded in
proportion, so that the claim protocol is the same.
"""

from deviceshare.loops.protocol import bind

bind.BIND_SECONDS = 4.0
bind.BINDING_SECONDS = 1.0
bind.BINDS_OVER_SECONDS = 6.0
bind.QUEUE_SECONDS = 0.0
"""Nobody floods the API server of the tests, so that no request waits for its turn."""

if __name__ == "__main__":
    # After that: its modules take the times as they are when they are imported.
    from deviceshare.cli.main import main

    main()
