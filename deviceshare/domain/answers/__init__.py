"""Answers for people and monitoring: statuses, reasons, explanations, the picture, plans and counts."""
