"""X.509 certificates: the authority of the webhooks, its rotation, its bundles and Secret, servers' TLS contexts."""
