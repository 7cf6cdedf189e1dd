"""Images that have more in them than deviceshare's own."""

from collections.abc import Mapping
from pathlib import Path

from deviceshare_sandbox.cache import locked
from deviceshare_sandbox.reports import Progress
from release.image import buildah, container


def derive(
    base: Path, tag: str, archive: Path, *, files: Mapping[str, Path], environment: Mapping[str, str], volume: str
) -> None:
    """Writes an image of more than the one in the archive `base`: `files` are path in it → file here.

    `volume` is a directory that can be written to, whatever the rest of the file system is.
    """
    with locked(Progress()), container(f"oci-archive:{base}") as working:
        origin = buildah("inspect", "--format", "{{.FromImageID}}", working).strip()
        for path, source in files.items():
            buildah("add", "--quiet", working, str(source), path)
        variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        buildah("config", *variables, "--volume", volume, working)
        buildah("commit", "--quiet", working, f"docker-archive:{archive}:{tag}")
    buildah("rmi", origin)
