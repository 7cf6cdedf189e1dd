"""Simulated nodes and their kubelet."""
