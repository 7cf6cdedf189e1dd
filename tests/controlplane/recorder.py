"""deviceshare, and a record of what it asks of the API server: `python recorder.py FILE run …`."""

import json
import sys
from pathlib import Path
from typing import Any

from deviceshare.cli.main import main
from deviceshare.kube.connection import Connection


def record(file: Path) -> None:
    """Has every request from now on written down before it is sent, those that will be refused, too."""
    send, stream, log = Connection.call, Connection.stream, file.open("a", buffering=1)

    def note(method: str, path: str, options: dict[str, Any]) -> None:
        log.write(json.dumps([method, path, dict(options.get("query") or {})]) + "\n")

    def called(self: Connection, method: str, path: str, **options: Any) -> Any:
        note(method, path, options)
        return send(self, method, path, **options)

    def streamed(self: Connection, path: str, **options: Any) -> Any:
        note("GET", path, options)
        return stream(self, path, **options)

    Connection.call, Connection.stream = called, streamed  # type: ignore[method-assign]


if __name__ == "__main__":
    record(Path(sys.argv.pop(1)))
    main()
