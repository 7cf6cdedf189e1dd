"""Inbound HTTP: the scheduler extender, the admission webhooks, probes and metrics, and the page for people."""
