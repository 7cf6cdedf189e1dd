"""deviceshare in a hurry: `python hurried.py DIRECTORY run …` has minutes where a real one has hours.

Watches end after half a minute and certificates after three, so that a soak sees as many ends as a cluster in weeks.
SIGUSR1 has it write, to `DIRECTORY/PID.json`, how many objects of each class live on after a collection of garbage.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from deviceshare.certificates.keeper import RenewalPace
from deviceshare.certificates.rotation import Lifetimes
from deviceshare.cli.main import main
from deviceshare.domain.placement import device_states
from deviceshare.kube.mirror import ApiMirror, MirrorPace
from deviceshare.kube.mirrors import OptionalMirror
from deviceshare.run.process import Process

WATCHES: Final = MirrorPace(shortest=20, longest=40)
CERTIFICATES: Final = RenewalPace(
    look=2,
    settle=6,
    standby=6,
    lifetimes=Lifetimes(authority=timedelta(minutes=12), certificate=timedelta(minutes=3), skew=timedelta(seconds=20)),
)


def hurry() -> None:
    """Replaces the times that the program's own parts are built with."""
    for part, name, value in (
        (ApiMirror, "pace", WATCHES),
        (OptionalMirror, "pace", WATCHES),
        (Process, "trust_pace", CERTIFICATES),
    ):
        defaults: dict[str, Any] = vars(part)["__init__"].__kwdefaults__
        assert name in defaults, f"{part.__name__} takes no {name} any more"
        defaults[name] = value


def count_objects(directory: Path) -> None:
    """Writes the number of objects by class, and of tasks by name.

    Structs of API objects are not among them, but their lists and maps are. What a cache of bounded size holds is left
    out: in a short run it is still filling.
    """
    device_states._known.clear()
    gc.collect()
    classes = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    tasks = Counter(task.get_name().split(" ")[0] for task in asyncio.all_tasks())
    draft = directory / f"{os.getpid()}.draft"
    draft.write_text(json.dumps({"classes": classes, "tasks": tasks}))
    draft.replace(directory / f"{os.getpid()}.json")


def on_signal(directory: Path) -> None:
    """Counts on SIGUSR1, in the event loop: between two steps of tasks, never within one."""
    run = Process.run

    async def listening(self: Process, stopping: asyncio.Event) -> int:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, count_objects, directory)
        return await run(self, stopping)

    Process.run = listening  # type: ignore[method-assign]


if __name__ == "__main__":
    hurry()
    on_signal(Path(sys.argv.pop(1)))
    main()
