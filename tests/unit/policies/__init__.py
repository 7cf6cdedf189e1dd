"""The admission policies, evaluated without an API server, beside the domain and the webhooks."""
