"""What the webhooks decide about a pod, a group or a report: injection, reviews, ways around the hand-over."""
