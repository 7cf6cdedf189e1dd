"""Structured logs, an event a line on stderr, configured once for the process.

The rest of the program uses `structlog.get_logger(__name__)`.
"""

import atexit
import logging
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from deviceshare.domain.wording import printable_lines

LogFormat = Literal["json", "console", "auto"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure(format: LogFormat = "auto", level: LogLevel = "info", stream: TextIO | None = None) -> None:
    """Sends every log of the process to `stream` (stderr unless given), an event a line.

    `auto` means coloured columns on a terminal and JSON elsewhere. Timestamps are RFC 3339 in UTC. What aiohttp,
    asyncio and the Kubernetes client log through the standard library gets the same format.
    """
    stream = stream or sys.stderr
    atexit.register(_discard_unwritten, stream)
    console = format == "console" or (format == "auto" and stream.isatty())
    stamp: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    # Rich's boxes around tracebacks take a screen each; Python's own are shorter.
    columns = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_plain_traceback)
    render = [_printable, columns] if console else _JSON
    # Not through the standard library, which takes three times as long: a line is logged for each pod.
    structlog.configure(
        processors=[*stamp, *render],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=partial(LineLogger, stream),
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*stamp, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # At debug the Kubernetes client logs whole responses, Secrets included: libraries never log below info.
    root.setLevel(max(threshold, logging.INFO))
    logging.getLogger("deviceshare").setLevel(threshold)
    # A line for every request would drown the rest; the request metrics count them.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


@dataclass(eq=False)
class LineLogger:
    """Writes what the processors rendered, a line each; a stream that can't be written to stops nobody's work."""

    stream: TextIO
    name: str = ""

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError):  # no space, or closed
            self.stream.write(f"{line}\n")
            self.stream.flush()

    debug = info = warning = error = critical = exception = _write


def _discard_unwritten(stream: TextIO) -> None:
    """Empties a buffer that can't be written, for which Python would end the process with exit code 120.

    After https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    try:
        stream.flush()
    except (OSError, ValueError):
        with Path(os.devnull).open("wb") as nowhere, suppress(OSError, ValueError):
            os.dup2(nowhere.fileno(), stream.fileno())


_JSON: list[Processor] = [
    structlog.processors.format_exc_info,
    structlog.processors.EventRenamer("message"),
    structlog.processors.JSONRenderer(),
]


def _printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escapes control characters: logs quote names and errors from outside. JSON has escapes of its own."""
    return {key: printable_lines(value) if isinstance(value, str) else value for key, value in event.items()}


def _plain_traceback(stream: TextIO, exc_info: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    stream.write(printable_lines(text.getvalue()))
