"""API objects as deviceshare reads them, decoded to values, and the words that they are written in."""
