"""API objects as deviceshare reads them, decoded to values, and the formats of their fields."""
