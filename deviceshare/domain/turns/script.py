"""The client of turns: a shell script, which agents give to containers and `deviceshare turn` runs."""

from functools import cache
from pathlib import Path
from typing import Final

from deviceshare.domain.turns import lease

_SCRIPT: Final = Path(__file__).with_name("turn.sh")


@cache
def script() -> str:
    """`turn.sh` with the times of `lease.py`."""
    text = _SCRIPT.read_text()
    kills = " ".join(map(str, range(1, lease.KILL + 1)))
    for name, value in {"SILENCE": lease.SILENCE, "RETRY": lease.RETRY, "KILLS": kills, "KILL": lease.KILL}.items():
        text = text.replace(f"@{name}@", str(value))
    return text
