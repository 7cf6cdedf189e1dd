"""The image as an OCI archive, by the Containerfile, on a base of Debian's packages and without asking any registry.

https://github.com/opencontainers/image-spec/blob/main/image-layout.md

The base and buildah's storage are kept in the cache, for tests; a release makes its base anew. What pip needs is
fetched beforehand, so that the build needs no network and none of this machine's settings for one. Needs root, and a
Debian.
"""

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from deviceshare_sandbox import debian
from deviceshare_sandbox.cache import architecture, cache_root, locked
from deviceshare_sandbox.reports import Progress
from release import hashed_requirements, wheels
from release.closure import closure
from release.version import tag

REPOSITORY: Final = "localhost/deviceshare"
"""The chart's own default."""
_PACKAGES: Final = ("python3", "python3-venv")
_TOOLS: Final = {"debootstrap": "debootstrap", "buildah": "buildah"}
_PIP: Final = "[global]\nno-index = true\nfind-links = /wheels\n"
_BILL: Final = "opt/deviceshare/share/sbom/deviceshare.cdx.json"
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
"""As images call machines, and as Linux does."""


class Image(NamedTuple):
    """A built image."""

    archive: Path
    """`ctr`, `k3s ctr`, `kind load image-archive`, `podman load` and `skopeo` read it."""
    name: str
    """Under which a node that loads it has it."""
    digest: str
    """Of its manifest: `sha256:…`, by which it is signed, and which a copy in a registry keeps."""


def emulated(machine: str) -> bool:
    """Whether programs of this machine run here: its own, or by the kernel's binfmt_misc (Debian: qemu-user-static)."""
    handler = Path("/proc/sys/fs/binfmt_misc") / f"qemu-{MACHINES[machine]}"
    return machine == architecture() or handler.exists()


def build(folder: Path, version: str, machine: str, *, fresh: bool = False) -> Image:
    """Writes the archive, and the bill of materials of all that is in it, into the folder.

    With `fresh`, the base gets Debian's packages of today, and not those of the day on which it was first made here.
    """
    progress = Progress()
    if packages := [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]:
        debian.install(packages, progress)
    archive, name = folder / f"deviceshare-image-{machine}.tar", f"{REPOSITORY}:{tag(version)}"
    with locked(progress), tempfile.TemporaryDirectory() as scratch:
        base, python = _base(machine, progress, fresh=fresh)
        with progress.stage(f"Fetching the image's wheels ({machine})"):
            secrets = _prepare(Path(scratch), machine, python)
        with progress.stage(f"Building the image ({machine})"):
            build = ("--isolation", "chroot", "--arch", machine, "--volume", f"{scratch}:/wheels:ro", *secrets)
            given = ("--build-arg", f"BASE={base}", "--build-arg", f"VERSION={version}")
            buildah("bud", *build, *given, "--tag", name, str(wheels.ROOT))
            with container(name) as built:
                mounted = Path(buildah("mount", built).strip())
                shutil.copy(mounted / _BILL, folder / f"deviceshare-image-{machine}.cdx.json")
            buildah("push", name, f"oci-archive:{archive}:{name}")
            buildah("rmi", name)
    return Image(archive, name, digest(archive))


def digest(archive: Path) -> str:
    """Of the one manifest in an OCI archive."""
    with tarfile.open(archive) as opened:
        index = opened.extractfile("index.json")
        assert index is not None
        [manifest] = json.load(index)["manifests"]
    return str(manifest["digest"])


def buildah(command: str, *arguments: str) -> str:
    """What buildah answers, with a storage of our own; raises RuntimeError with its words."""
    storage = cache_root() / "buildah"
    # vfs needs nothing of the kernel; it copies, but there is little to copy.
    where = ("--storage-driver", "vfs", "--root", str(storage / "root"), "--runroot", str(storage / "run"))
    return _run("buildah", *where, command, *arguments)


@contextmanager
def container(base: str = "scratch", *options: str) -> Iterator[str]:
    """A working container of buildah's, by its name."""
    name = buildah("from", "--quiet", *options, base).strip()
    try:
        yield name
    finally:
        buildah("rm", name)


def _prepare(scratch: Path, machine: str, python: str) -> list[str]:
    """Fetches wheels; the secrets of the build that make pip install them and nothing else."""
    needed, building = closure("deviceshare"), closure("hatchling", "hatch-vcs")
    needed = [each for each in needed if each.name != "deviceshare"]
    # Of an old glibc, so that they run on that of any base.
    target = wheels.WheelTarget("linux", MACHINES[machine], python)
    wheels.fetch(scratch, wheels.pins([*needed, *building]), target)
    (scratch / "pip.conf").write_text(_PIP)
    files = {"pip": "pip.conf"}
    for name, parts in (("requirements", needed), ("build-requirements", building)):
        files[name] = f"{name}.txt"
        (scratch / files[name]).write_text(hashed_requirements.requirements(parts, scratch.glob("*.whl")))
    return [word for name, file in files.items() for word in ("--secret", f"id={name},src={scratch / file}")]


def _base(machine: str, progress: Progress, *, fresh: bool) -> tuple[str, str]:
    """The base image's name and its Python's version; makes it where this machine has none for its release."""
    release = _release()
    recipe = "-".join((release, machine, *_PACKAGES))
    name, made = f"localhost/deviceshare-base:{recipe}", cache_root() / f"base-{recipe}"
    if fresh or not made.exists():
        with progress.stage(f"Making a base image of {release}"):
            made.write_text(_make_base(release, machine, name))
    return name, made.read_text()


def _make_base(release: str, machine: str, name: str) -> str:
    with tempfile.TemporaryDirectory(dir=cache_root(), prefix="base-") as scratch:
        tree = Path(scratch) / "tree"
        what = (f"--arch={machine}", "--variant=minbase", f"--include={','.join(_PACKAGES)}")
        _run("debootstrap", *what, release, str(tree), _mirror(release))
        with container("scratch", "--arch", machine) as base:
            buildah("add", "--quiet", base, str(tree), "/")
            buildah("commit", "--quiet", base, name)
        (python,) = (each.name.removeprefix("python") for each in (tree / "usr/lib").glob("python3.*"))
    return python


def _release() -> str:
    """This machine's own, since that is what its mirror surely has: `bookworm`."""
    names = re.findall(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    if not names:
        raise RuntimeError("the base image is made of Debian's packages, and this is no Debian")
    return str(names[0])


def _mirror(release: str) -> str:
    """The archive that this machine's apt uses."""
    targets = _run("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages")
    return next(line.split()[1] for line in targets.splitlines() if line.split()[0] == release)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout
