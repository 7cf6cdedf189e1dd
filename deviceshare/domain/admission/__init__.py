"""Decisions at the admission of a pod, a group or a report: injection, reviews, ways around the hand-over."""
