"""Gzipped tar archives whose bytes follow from their files alone.

No owner, no time but SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/), sorted names.
"""

import gzip
import io
import os
import tarfile
import time
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_EARLIEST: Final = 315532800  # 1980-01-01: zip archives know no earlier time


def epoch() -> int:
    """The time that is written into everything, in seconds: SOURCE_DATE_EPOCH, else 1980-01-01."""
    return max(int(os.environ.get("SOURCE_DATE_EPOCH") or _EARLIEST), _EARLIEST)


def moment() -> datetime:
    """The same as a time in UTC."""
    return datetime.fromtimestamp(epoch(), UTC)


def write_tar(target: Path, files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> None:
    """Writes the files by their names in the archive; those named in `executable` may be run."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch(), 0o755 if name in executable else 0o644
            archive.addfile(entry, io.BytesIO(content))
    with target.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=epoch()) as packed:
        packed.write(buffer.getvalue())


def read_tar(source: Path) -> dict[str, bytes]:
    """The regular files of a gzipped tar archive by name."""
    with tarfile.open(source, "r:gz") as archive:
        return {entry.name: file.read() for entry in archive if entry.isfile() and (file := archive.extractfile(entry))}


def add_to_zip(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Adds one compressed file to a zip archive."""
    entry = zipfile.ZipInfo(name, time.gmtime(epoch())[:6])
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
