"""Which node and which devices: the fleet, what each node offers, what fits, and what replaces what is unhealthy."""
