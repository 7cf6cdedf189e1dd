"""SHA256SUMS, as `sha256sum --check SHA256SUMS` reads it."""

import hashlib
from pathlib import Path
from typing import Final

NAME: Final = "SHA256SUMS"


def write(folder: Path) -> Path:
    """Writes the sums of all files that lie in the folder, but of no folder in it."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != NAME)
    target = folder / NAME
    target.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files))
    return target
