"""deviceshare, and a record of what it asks of the API server: `python recorder.py FILE run …`."""

import json
import sys
from pathlib import Path
from typing import Any

from deviceshare.cli.main import main
from deviceshare.kube.connection import Connection


def record(file: Path) -> None:
    """Has every request from now on written down before it is sent, those that will be refused, too."""
    send, log = Connection.request, file.open("a", buffering=1)

    def recorded(self: Connection, method: str, path: str, **options: Any) -> Any:
        log.write(json.dumps([method, path, dict(options.get("query") or {})]) + "\n")
        return send(self, method, path, **options)

    Connection.request = recorded  # type: ignore[method-assign]


if __name__ == "__main__":
    record(Path(sys.argv.pop(1)))
    main()
