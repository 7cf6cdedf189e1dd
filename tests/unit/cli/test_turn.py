"""`deviceshare turn`: its flags, and what it makes of an agent's words. tests/controlplane runs it for real."""

import asyncio
import os
import signal
import time

import pytest
from click.testing import CliRunner, Result

from deviceshare.cli import turn_client
from deviceshare.cli.main import main
from deviceshare.cli.turn_client import TurnClient, TurnWish


def run(*words: str, agent: str = "http://127.0.0.1:9") -> Result:
    """The command, in a container that was told this address."""
    return CliRunner().invoke(main, ["turn", *words], env={"DEVICESHARE_AGENT": agent})


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--", "no-such-program"], 127, "no-such-program: not found"),
        ([], 2, "Missing argument"),
        (["--timeout", "1y", "--", "sh"], 2, "90, 90s, 10m, 2h or 1d"),
        (["--slice", "8d", "--", "sh"], 2, "604800 s at most"),
        (["--signal", "NONE", "--", "sh"], 2, "there is no signal"),
        (["--priority", "1001", "--", "sh"], 2, "1001"),
        (["--timeout", "0", "--", "sh", "-c", "exit 3"], 124, "gave up after waiting 0 s"),
    ],
)
def test_a_mistake_is_named(words: list[str], code: int, text: str) -> None:
    """And nothing runs."""
    result = run(*words)
    assert (result.exit_code, text in result.output) == (code, True), result.output


def test_outside_of_a_container_it_says_what_is_missing() -> None:
    """The variable comes with the pod."""
    result = run("--", "sh", agent="")
    assert result.exit_code == 125
    assert "DEVICESHARE_AGENT is not set" in result.output


def test_help_has_examples() -> None:
    """Also for images without deviceshare."""
    result = run("--help")
    assert result.exit_code == 0
    assert "deviceshare turn --slice 1h" in result.output
    assert "turn.sh | sh -s" in result.output


class Pipe:
    """Where the word to begin would arrive."""

    def __init__(self, client: TurnClient) -> None:
        self.reading, client._go = os.pipe()

    def close(self, client: TurnClient) -> None:
        os.close(self.reading)
        os.close(client._go)


def test_a_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    """By the client's own clock, however late the line is read; a late one takes nothing back."""
    client = TurnClient("http://agent", TurnWish(0, None, 0, signal.SIGTERM), ["sh"])
    pipe = Pipe(client)
    asked = time.clock_gettime(time.CLOCK_BOOTTIME) - 60

    client._hear(asked, "turn", "60000 30000")
    assert client._held and os.read(pipe.reading, 9) == b"go"
    assert client._deadline == asked + 90
    client._hear(asked, "turn", "59500 30000")
    assert client._deadline == asked + 90
    client._hear(asked, "turn", "60500 30000 more")
    assert client._deadline == asked + 90.5
    client._hear(asked, "gone", "the turn was lost")
    assert client._deadline == 0
    pipe.close(client)


def test_a_heartbeat_that_is_heard_after_its_lease_begins_nothing() -> None:
    """The client was stopped meanwhile, and another may have the turn by now."""
    client = TurnClient("http://agent", TurnWish(0, None, 0, signal.SIGTERM), ["sh"])
    pipe = Pipe(client)
    asked = time.clock_gettime(time.CLOCK_BOOTTIME) - 60
    begun = []
    for age in (20000, 50000):
        client._hear(asked, "turn", f"{age} 30000")
        begun.append(client._held)
    assert begun == [False, True]
    pipe.close(client)


def test_words_that_it_does_not_know_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A newer agent may use some; control characters don't reach the terminal."""
    client = TurnClient("agent:9412/", TurnWish(0, None, 0, signal.SIGTERM), ["sh"])
    client._hear(0.0, "news", "of \x1b[31mlate")
    assert not client._held and "\x1b" not in capsys.readouterr().err
    assert client._url == "http://agent:9412/turn"


async def test_what_is_no_agent_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy on the way may answer anything, of any length; while nobody asks any more, a turn runs out."""
    monkeypatch.setattr(turn_client, "RETRY", 0)
    client = TurnClient("http://agent", TurnWish(0, None, 0, signal.SIGTERM), ["sh"])
    asked, again = 0, asyncio.Event()

    async def listen(_: object) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            again.set()
            await asyncio.Event().wait()
        client._hear(0.0, "turn", "to page 7")

    monkeypatch.setattr(client, "_listen", listen)
    keeping = asyncio.create_task(client._keep(None))  # type: ignore[arg-type]
    await asyncio.wait_for(again.wait(), 10)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
