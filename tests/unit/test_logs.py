"""Logs as what reads them sees them: one line an event, for people or for machines."""

import io
import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from deviceshare import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_off_a_terminal_an_event_is_one_line_of_json() -> None:
    """Collectors of logs need no configuration for ours."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    structlog.get_logger("deviceshare.loops.replica.binder").info("Bound pod", pod="default/a", node="n1")
    (line,) = lines(stream)
    stamp = line.pop("timestamp")
    assert line == {
        "message": "Bound pod",
        "level": "info",
        "logger": "deviceshare.loops.replica.binder",
        "pod": "default/a",
        "node": "n1",
    }
    assert stamp.endswith("Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()) < 60


def test_on_a_terminal_an_event_is_for_people() -> None:
    """`auto` looks at the stream, not at the environment."""
    stream = Terminal()
    logs.configure(stream=stream)
    structlog.get_logger("deviceshare").info("Bound pod", pod="default/a")
    assert "Bound pod" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_the_format_can_be_forced_either_way() -> None:
    """A person may want JSON on a terminal, and columns in a file."""
    json_on_terminal, console_in_file = Terminal(), io.StringIO()
    logs.configure("json", stream=json_on_terminal)
    structlog.get_logger("deviceshare").info("Started")
    logs.configure("console", stream=console_in_file)
    structlog.get_logger("deviceshare").info("Started")
    assert lines(json_on_terminal)[0]["message"] == "Started"
    assert "Started" in console_in_file.getvalue()
    assert "\x1b" not in console_in_file.getvalue()


def test_libraries_speak_in_the_same_shape() -> None:
    """aiohttp and the Kubernetes client log through the standard library."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    logging.getLogger("aiohttp.server").warning("Slow %s", "client", extra={"peer": "10.0.0.1"})
    (line,) = lines(stream)
    assert (line["message"], line["level"], line["logger"], line["peer"]) == (
        "Slow client",
        "warning",
        "aiohttp.server",
        "10.0.0.1",
    )


def test_debug_is_ours_alone() -> None:
    """The Kubernetes client's debug log holds whole responses, Secrets included."""
    stream = io.StringIO()
    logs.configure(level="debug", stream=stream)
    logging.getLogger("kubernetes.aio.client.rest").debug("response body: secret")
    logging.getLogger("aiohttp.access").info("GET /readyz")
    structlog.get_logger("deviceshare.kube").debug("Listed pods")
    assert [line["message"] for line in lines(stream)] == ["Listed pods"]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_an_exception_is_logged_with_its_traceback(log_format: logs.LogFormat) -> None:
    """A traceback in JSON stays inside its one line."""
    stream = io.StringIO()
    logs.configure(log_format, stream=stream)
    try:
        raise OSError("disk full")
    except OSError:
        structlog.get_logger("deviceshare").exception("Failed to write file")
    text = lines(stream)[0]["exception"] if log_format == "json" else stream.getvalue()
    assert "Traceback" in text
    assert "OSError: disk full" in text


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_others_named_commands_no_terminal(log_format: logs.LogFormat) -> None:
    """In fields, in messages of libraries, and in the errors of a traceback."""
    stream = io.StringIO()
    logs.configure(log_format, stream=stream)
    hostile = "a\x1b]0;t\x07\x9b2J\u202e"
    structlog.get_logger("deviceshare").info("Found", pod=hostile, pods=[hostile])
    logging.getLogger("aiohttp.server").warning("Slow %s", hostile)
    try:
        raise OSError(hostile)
    except OSError:
        structlog.get_logger("deviceshare").exception("Failed")
    text = stream.getvalue()

    assert text.count("u202e") >= 4
    assert all(line.isprintable() for line in text.split("\n"))


def test_configuring_again_replaces_the_former_output() -> None:
    """No event is written twice."""
    first, second = io.StringIO(), io.StringIO()
    logs.configure(stream=first)
    logs.configure(stream=second)
    structlog.get_logger("deviceshare").warning("Lost lease")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    """A pod whose Binding was written is bound, whether or not the line about it finds room."""
    stream = io.StringIO()
    logs.configure(stream=stream)
    stream.close()
    structlog.get_logger("deviceshare").info("Bound pod", pod="default/a")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_process_whose_log_cannot_be_written_ends_as_it_would_otherwise(unbuffered: str) -> None:
    """Python ends with 120 where it can't flush; a full disk is no failure of deviceshare."""
    program = "import structlog; from deviceshare import logs; logs.configure(); structlog.get_logger().info('Started')"
    with Path("/dev/full").open("wb") as full:
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        ended = subprocess.run([sys.executable, "-c", program], stderr=full, env=environment, check=False)
    assert ended.returncode == 0
