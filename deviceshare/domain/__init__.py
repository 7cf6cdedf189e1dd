"""The rules of sharing as plain values and functions.

Nothing here awaits, reads a clock, logs or knows an API server: the same code answers the extender, the webhooks, the
conditions on a group, the CLI and the benchmarks, and property tests can drive all of it.
"""
