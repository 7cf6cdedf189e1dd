"""Decisions of the webhooks on a pod, a group or a report: injection, reviews, ways around the hand-over."""
