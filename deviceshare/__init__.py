"""deviceshare: several Kubernetes pods share the same GPUs, on purpose and safely."""

try:
    # release/wheel_hook.py puts it into each wheel, as git gives it.
    from deviceshare._version import __version__  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError:
    __version__ = "0.0.0+checkout"

__all__ = ["__version__"]
