"""The record of turns on the node's disk."""

import errno
from pathlib import Path

import pytest

from deviceshare.agent.turn_records import TurnRecords
from deviceshare.domain.turns.arena_name import ArenaName
from deviceshare.domain.turns.standing import Player, Witness
from deviceshare.domain.turns.turn_record import TurnRecord

PLAYER = Player("uid", "token", "ns/pod", 3, 60.0, Witness(7, 8, "uid"))
RECORD = TurnRecord(ArenaName("group/1", "team"), PLAYER, 12.5, 3600.0)


def records(directory: Path, boot: str = "boot", namespace: str = "0") -> TurnRecords:
    return TurnRecords(directory, boot, namespace)


def test_the_next_agent_reads_what_the_last_one_wrote(tmp_path: Path) -> None:
    """All of it; nothing is left of what was written before."""
    records(tmp_path).save([RECORD, RECORD])
    records(tmp_path).save([RECORD])
    assert records(tmp_path).load() == [RECORD]
    assert [each.name for each in tmp_path.iterdir()] == ["turns.json"]


def test_a_node_that_has_none_never_had_a_turn(tmp_path: Path) -> None:
    """Since its boot."""
    assert records(tmp_path).load() == []


def test_a_reboot_ends_all_turns(tmp_path: Path) -> None:
    """Also where the directory survives it."""
    records(tmp_path).save([RECORD])
    assert records(tmp_path, boot="another").load() == []


def test_processes_of_another_namespace_prove_nothing(tmp_path: Path) -> None:
    """As after hostPID was taken from the agent: a PID that isn't there may be there all the same."""
    records(tmp_path).save([RECORD])
    [found] = records(tmp_path, namespace="99").load() or []
    assert found.player.witness is None
    assert (found.arena, found.lease, found.player.key) == (RECORD.arena, RECORD.lease, PLAYER.key)


@pytest.mark.parametrize(
    ("before", "after"),
    [(("boot", "0"), ("", "")), (("", ""), ("boot", "0")), (("boot", ""), ("boot", "")), (("", "0"), ("", "0"))],
)
def test_what_an_agent_cannot_read_of_the_node_ends_no_turn(
    tmp_path: Path, before: tuple[str, str], after: tuple[str, str]
) -> None:
    """Be it this one or the one before: the turn's lease decides."""
    records(tmp_path, *before).save([RECORD])
    [found] = records(tmp_path, *after).load() or []
    assert (found.player.witness, found.lease, found.player.key) == (None, RECORD.lease, PLAYER.key)


@pytest.mark.parametrize("content", [b"", b"{", b'{"turns": 3}', b"[]"])
def test_what_is_unreadable_is_unknown(tmp_path: Path, content: bytes) -> None:
    """And not nothing."""
    (tmp_path / "turns.json").write_bytes(content)
    assert records(tmp_path).load() is None


def test_a_record_that_is_a_directory_is_unknown(tmp_path: Path) -> None:
    """Nor can it be replaced."""
    (tmp_path / "turns.json").mkdir()
    assert records(tmp_path).load() is None
    with pytest.raises(OSError) as failed:
        records(tmp_path).save([])
    assert failed.value.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)


def test_one_agent_locks_the_directory(tmp_path: Path) -> None:
    """Until it ends."""
    first, second = records(tmp_path), records(tmp_path)
    assert first.lock() and first.lock()
    assert not second.lock()
    first.unlock()
    assert second.lock()
    second.unlock()


def test_nobody_else_can_open_the_directory(tmp_path: Path) -> None:
    """Any user of the node could lock it otherwise, and no turn would be given; kubelets create it open to all."""
    tmp_path.chmod(0o755)
    held = records(tmp_path)
    assert held.lock()
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    held.unlock()


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The agent ends, and says so."""
    with pytest.raises(FileNotFoundError):
        records(tmp_path / "none").lock()
