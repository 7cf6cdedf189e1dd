"""deviceshare: several Kubernetes pods share the same GPUs, on purpose and safely."""

__version__ = "0.1.0"
