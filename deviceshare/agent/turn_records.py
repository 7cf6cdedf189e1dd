"""The record of turns: a small file in a directory of the node's that is emptied at a reboot (/run), as turns are.

Whoever has locked the directory is the node's referee: two agents at once, as where one was deleted by force, never
are. The kernel unlocks it when the process ends.
"""

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain.turns.turn_record import TurnRecord

log = structlog.get_logger(__name__)

_NAME: Final = "turns.json"


class TurnsFile(Struct, frozen=True):
    """The file's content."""

    boot: str
    """ "" where the agent couldn't read it, as the namespace."""
    namespace: str
    """Which PID namespace the processes in it are numbered in."""
    turns: list[TurnRecord] = field(default_factory=list)


class TurnRecords:
    """Implements the port of `loops/agent/referee.py`."""

    def __init__(self, directory: Path, boot: str, namespace: str) -> None:
        self._directory = directory
        self._boot = boot
        self._namespace = namespace
        self._locked: int | None = None

    def lock(self) -> bool:
        """Becomes the node's referee, unless another process is; raises OSError where the directory isn't there."""
        if self._locked is None:
            opened = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with suppress(OSError):
                    os.fchmod(opened, 0o700)  # Who can open the directory can lock it, and read the names of pods.
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(opened)
                return False
            except BaseException:
                os.close(opened)
                raise
            self._locked = opened
        return True

    def unlock(self) -> None:
        """Lets another process be it."""
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None

    def load(self) -> list[TurnRecord] | None:
        """What the last agent recorded; None where that can't be read. Without a file of this boot there was none."""
        try:
            content = (self._directory / _NAME).read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.error("Failed to read the record of turns", error=str(error))
            return None
        try:
            found = msgspec.json.decode(content, type=TurnsFile)
        except msgspec.MsgspecError as error:
            log.error("Failed to decode the record of turns", error=str(error))
            return None
        known = found.boot and self._boot
        if known and found.boot != self._boot:
            return []
        if known and found.namespace and found.namespace == self._namespace:
            return found.turns
        # Processes that can't be found here prove nothing: their grace has to pass.
        return [replace(each, player=replace(each.player, witness=None)) for each in found.turns]

    def save(self, records: Iterable[TurnRecord]) -> None:
        """Replaces the file in one step: a crash leaves the old or the new one. Not synced: see the first line."""
        path = self._directory / f"{_NAME}.new"
        path.write_bytes(msgspec.json.encode(TurnsFile(self._boot, self._namespace, list(records))))
        path.replace(self._directory / _NAME)
