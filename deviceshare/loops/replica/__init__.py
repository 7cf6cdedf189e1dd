"""What every replica does: binds pods, feeds its fleet, watches for impostors."""
