"""The node's CDI specifications: which kinds name which devices.

A kind such as `k8s.device-plugin.nvidia.com/gpu` qualifies a device's name where a runtime injects devices by CDI.
A container whose device no specification names doesn't start, so only kinds that name every device are reported.

https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
import yaml

log = structlog.get_logger(__name__)

MAX_FILES: Final = 128
"""Of one directory; vendors write one or two."""
MAX_BYTES: Final = 1 << 20
"""Of one file; eight GPUs take 60 kB."""
MAX_KINDS: Final = 64
"""Reported at most."""
_SUFFIXES: Final = (".json", ".yaml")

Fingerprint = tuple[tuple[str, int, int, int], ...]


class CdiSpecs:
    """The specifications of some directories; a name in several directories is taken from the last."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._fingerprint: Fingerprint | None = None
        self._names: Mapping[str, frozenset[str]] = {}

    def kinds(self, uuids: Collection[str]) -> list[str] | None:
        """The kinds that name every one of these devices, sorted; None where no directory can be read."""
        names = self._read()
        if names is None:
            return None
        return sorted(kind for kind, devices in names.items() if devices.issuperset(uuids))[:MAX_KINDS]

    def injected(self, variable: str | None) -> str:
        """How this process got its devices, `cdi` or `variable`, by the value of its own variable; "" if unset.

        A runtime that injects devices by CDI sets `void`. So does one that generates specifications in memory (NVIDIA's
        in mode `auto`), which accepts numbers and UUIDs too, and needs no specification on the node.
        """
        if variable is None:
            return ""
        if variable != "void" and "=" not in variable:
            return "variable"
        names = self._read()
        known = names is None or any(kind.partition("/")[0].endswith("nvidia.com") for kind in names)
        return "cdi" if known else "variable"

    def _read(self) -> Mapping[str, frozenset[str]] | None:
        """Kind → devices' names; read again only when a directory's listing has changed."""
        found = [files for directory in self._directories if (files := _listing(directory)) is not None]
        if not found:
            return None
        fingerprint = tuple(entry for files in found for entry in files)
        if fingerprint != self._fingerprint:
            self._names = _names([[Path(path) for path, *_ in files] for files in found])
            self._fingerprint = fingerprint
            log.info("Read CDI specifications", files=len(fingerprint), kinds=sorted(self._names))
        return self._names


def _listing(directory: Path) -> Fingerprint | None:
    """A directory's specifications, by path, with inode, time and size; None where it can't be read."""
    entries = []
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
    except OSError:
        return None
    for path in paths[:MAX_FILES]:
        try:
            state = path.stat()
        except OSError:
            continue  # It has gone meanwhile.
        if stat.S_ISREG(state.st_mode):
            entries.append((str(path), state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(entries)


def _names(directories: Iterable[Iterable[Path]]) -> dict[str, frozenset[str]]:
    """Resolved as runtimes do: a device named by two specifications of one directory is unknown."""
    sound: dict[tuple[str, str], bool] = {}
    for paths in directories:
        here: dict[tuple[str, str], bool] = {}
        for path in paths:
            for name in _devices_of(path):
                here[name] = name not in here
        sound |= here
    kinds: dict[str, set[str]] = {}
    for (kind, device), alone in sound.items():
        if alone:
            kinds.setdefault(kind, set()).add(device)
    return {kind: frozenset(devices) for kind, devices in kinds.items()}


def _devices_of(path: Path) -> set[tuple[str, str]]:
    """Kind and name of each device of one specification; empty where the file isn't one."""
    try:
        spec = _load(path)
        kind, devices = spec["kind"], spec["devices"]
        return {(kind, name) for each in devices if isinstance(name := each["name"], str)} if "/" in kind else set()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        log.warning("Skipped an unreadable CDI specification", file=str(path), error=str(error)[:200])
        return set()


def _load(path: Path) -> Any:
    # Non-blocking, in case the file has been replaced by a pipe.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    # Not by libyaml: it overflows the stack of the process on deeply nested lists.
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
