"""The directories of the manifests and examples that are installed with the program.

In a checkout they stand at the top, where people look for them; a wheel carries copies as package data (force-include
in pyproject.toml). Whoever applies or quotes them finds them through this module, in both kinds of install.
"""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def manifests() -> Path:
    """The directory of what a cluster needs: `crds/`, `webhooks.yaml`, `policies.yaml`, `rights.yaml`."""
    return _find("manifests")


def examples() -> Path:
    """The directory of groups and workloads to try."""
    return _find("examples")


def _find(name: str) -> Path:
    packaged, checkout = _PACKAGE / "_assets" / name, _PACKAGE.parent / name
    for directory in (packaged, checkout):
        if directory.is_dir():
            return directory
    raise FileNotFoundError(
        f"no {name}/ in {packaged.parent} nor in {checkout.parent}: the installation is incomplete; "
        "install deviceshare again, from a wheel or from a checkout"
    )
