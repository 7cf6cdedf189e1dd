"""Turns by the script and by `deviceshare turn`, with real processes that are killed: no cluster, no container."""
