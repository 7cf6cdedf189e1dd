"""`deviceshare agent`, which runs on each node: reads its devices, judges and reports them, gives turns, answers pods."""
