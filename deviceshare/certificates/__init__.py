"""X.509 certificates: the authority of the webhooks, its rotation, its bundles and Secret, and what servers show."""
