"""What people and monitoring are told: statuses, reasons, explanations, the picture, plans and counts."""
