"""The machine of a real node: namespaces, mounts, control groups and addresses on this host."""
