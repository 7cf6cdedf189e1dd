"""The control plane of a sandbox: its processes, certificates, identities and what is installed in it."""
