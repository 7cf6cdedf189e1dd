"""Faults of processes, the network, the store, clocks and people; the API server's objects are judged."""
