"""`deviceshare agent`, which runs on each node, reads its devices and reports them."""
