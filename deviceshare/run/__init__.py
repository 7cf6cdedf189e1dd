"""`deviceshare run`: its settings, and the composition root that starts and stops its parts."""
