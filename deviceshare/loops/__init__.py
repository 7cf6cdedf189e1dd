"""What deviceshare does over time: the claim protocol, the reconcilers and the leader election, over ports."""
