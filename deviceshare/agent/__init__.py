"""`deviceshare agent`, on each node: reads its devices, judges and reports them, gives turns, answers its pods."""
