"""Builds deviceshare's image from the Containerfile, on a base of Debian's packages, without asking any registry.

The base and buildah's storage are kept in the cache: they are the same for every test run. What pip needs is fetched
beforehand, so that the build needs no network and none of this machine's settings for one.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deviceshare_sandbox import debian
from deviceshare_sandbox.cache import cache_root, locked
from deviceshare_sandbox.reports import Progress

CHECKOUT: Final = Path(__file__).parents[2]
_PACKAGES = ("python3", "python3-venv")
_TOOLS = {"debootstrap": "debootstrap", "buildah": "buildah"}
_PIP = "[global]\nno-index = true\nfind-links = /wheels\n"


def build(tag: str, archive: Path, scratch: Path) -> None:
    """Builds the image and writes it as `docker save` would; `scratch` is an empty directory."""
    progress = Progress()
    if packages := [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]:
        debian.install(packages, progress)
    with locked(progress):
        base, python = _base(progress)
        with progress.stage("Fetching deviceshare's dependencies"):
            _fetch_wheels(scratch / "wheels", python)
        (scratch / "pip.conf").write_text(_PIP)
        with progress.stage("Building the image"):
            volume, secret = f"{scratch / 'wheels'}:/wheels:ro", f"id=pip,src={scratch / 'pip.conf'}"
            build = ("--isolation", "chroot", "--build-arg", f"BASE={base}", "--volume", volume, "--secret", secret)
            _buildah("bud", *build, "--tag", tag, str(CHECKOUT))
            _buildah("push", tag, f"docker-archive:{archive}:{tag}")
            _buildah("rmi", tag)


def derive(
    base: Path, tag: str, archive: Path, *, files: Mapping[str, Path], environment: Mapping[str, str], volume: str
) -> None:
    """Writes an image that has more in it than the one in the archive `base`: `files` are path in it → file here.

    `volume` is a directory that can be written to, whatever the rest of the file system is.
    """
    with locked(Progress()), _container(f"docker-archive:{base}") as container:
        origin = _buildah("inspect", "--format", "{{.FromImageID}}", container).strip()
        for path, source in files.items():
            _buildah("add", "--quiet", container, str(source), path)
        variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        _buildah("config", *variables, "--volume", volume, container)
        _buildah("commit", "--quiet", container, f"docker-archive:{archive}:{tag}")
    _buildah("rmi", origin)


def _base(progress: Progress) -> tuple[str, str]:
    """The base image's name and its Python's version; makes it where this machine has none for its release."""
    release = _release()
    recipe = "-".join((release, *_PACKAGES))
    tag, made = f"localhost/deviceshare-base:{recipe}", cache_root() / f"base-{recipe}"
    if not made.exists():
        with progress.stage(f"Making a base image of {release} (once per machine)"):
            made.write_text(_make_base(release, tag))
    return tag, made.read_text()


def _make_base(release: str, tag: str) -> str:
    with tempfile.TemporaryDirectory(dir=cache_root(), prefix="base-") as scratch:
        tree = Path(scratch) / "tree"
        include = f"--include={','.join(_PACKAGES)}"
        _run("debootstrap", "--variant=minbase", include, release, str(tree), _mirror(release))
        with _container() as container:
            _buildah("add", "--quiet", container, str(tree), "/")
            _buildah("commit", "--quiet", container, tag)
        (python,) = (each.name.removeprefix("python") for each in (tree / "usr/lib").glob("python3.*"))
    return python


@contextmanager
def _container(base: str = "scratch") -> Iterator[str]:
    container = _buildah("from", "--quiet", base).strip()
    try:
        yield container
    finally:
        _buildah("rm", container)


def _fetch_wheels(target: Path, python: str) -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    how = ["--quiet", "--only-binary=:all:", f"--python-version={python}", f"--dest={target}"]
    _run(sys.executable, "-m", "pip", "download", *how, f"--constraint={CHECKOUT / 'constraints.txt'}", *needed)


def _release() -> str:
    """This machine's own, since that is what its mirror surely has: `bookworm`."""
    names = re.findall(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    assert names, "the base image is made of Debian's packages, and this is no Debian"
    return str(names[0])


def _mirror(release: str) -> str:
    """The archive that this machine's apt uses."""
    targets = _run("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages")
    return next(line.split()[1] for line in targets.splitlines() if line.split()[0] == release)


def _buildah(command: str, *arguments: str) -> str:
    storage = cache_root() / "buildah"
    # vfs needs nothing of the kernel; it copies, but there is little to copy.
    where = ("--storage-driver", "vfs", "--root", str(storage / "root"), "--runroot", str(storage / "run"))
    return _run("buildah", *where, command, *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
