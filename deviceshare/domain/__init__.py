"""The rules of sharing as plain values and functions.

Nothing here awaits, reads a clock, logs or knows an API server: the extender, the webhooks, the conditions on a group,
the CLI and the benchmarks call the same code, and property tests can drive all of it.
"""
