"""The start of the single-file CLI: unpacks what belongs to this Python at the first run, then runs the command line.

It is __main__.py of the archive (single_file.py). A Python that is too old reads it, too, and must get an answer: no
syntax and no module that Python 3.6 doesn't have.
"""

import json
import os
import platform
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

_TARGETS = "targets/"


def key() -> str:
    """This Python and platform, as release/wheels.py names them; a free-threaded Python and musl's have their own."""
    abi = getattr(sys, "abiflags", "")
    libc = "-musl" if sys.platform == "linux" and platform.libc_ver()[0] != "glibc" else ""
    return f"{sys.platform}-{platform.machine()}-{sys.implementation.cache_tag}{abi}{libc}"


def home() -> Path:
    """Where it is unpacked: below DEVICESHARE_CACHE, else below `deviceshare` in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 # as the shell says it
    return Path(os.environ.get("DEVICESHARE_CACHE") or Path(cache, "deviceshare"), "cli")


def unpacked(file: Path) -> Path:
    """The directory with this Python's files, which are unpacked if need be; exits where the archive has none."""
    here = key()
    with zipfile.ZipFile(file) as archive:
        listing = f"{_TARGETS}{here}.json"
        if listing not in archive.namelist():
            sys.exit(_unfit(file, here, archive.namelist()))
        tree = home() / f"{archive.read('identity').decode()}-{here}"
        if not tree.is_dir():
            tree.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=tree.parent))
            for path, blob in json.loads(archive.read(listing).decode()).items():
                target = scratch / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(f"blobs/{blob}"))
            _settle(scratch, tree)
    return tree


def _settle(scratch: Path, tree: Path) -> None:
    try:
        scratch.rename(tree)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        # Another process was faster: its files are the same.
        if not tree.is_dir():
            raise


def _unfit(file: Path, here: str, names: "list[str]") -> str:
    known = ", ".join(sorted(name[len(_TARGETS) : -len(".json")] for name in names if name.startswith(_TARGETS)))
    return (
        f"{file.name} has nothing for this Python and platform, {here}. It is for: {known}.\n"
        f"Run it by another Python, as in: python3.12 {file}; or install deviceshare's wheel with pip or pipx."
    )


def main(file: Path) -> None:
    """Runs the command line, as kubectl's plugin where the file is named like one."""
    sys.path.insert(0, str(unpacked(file)))
    from deviceshare.cli import main as cli  # noqa: PLC0415 # it was just unpacked

    if file.name.startswith("kubectl-"):
        cli.plugin()
    else:
        cli.main(prog_name="deviceshare")


if __name__ == "__main__":
    main(Path(sys.argv[0]))
