"""The agent's loops: they judge the health of a node's devices, report it, and find processes that trespass."""
