"""Strangers: a deviceshare of its own process, and what it is sent by those who mean no good or don't know better."""
