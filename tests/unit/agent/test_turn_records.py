"""The record of turns on the node's disk."""

import errno
import os
from pathlib import Path

import pytest

from deviceshare.agent.process_table import ProcessTable
from deviceshare.agent.turns import TurnRecords
from deviceshare.domain.turns.program_queue import Program, QueueName, TurnProcess, TurnRecord

PROGRAM = Program("uid", "token", "ns/pod", 3, 60.0, TurnProcess(7, 8, "uid"))
RECORD = TurnRecord(QueueName("group/1", "team"), PROGRAM, 12.5, 3600.0)


def records(directory: Path, boot: str = "boot", namespace: str = "0") -> TurnRecords:
    return TurnRecords(directory, ProcessesOfBoot(boot, namespace))


class ProcessesOfBoot(ProcessTable):
    """The processes of a node in this boot, whose first one started then."""

    def __init__(self, boot: str, namespace: str) -> None:
        self.boot_id, self.namespace = boot, namespace


def test_the_next_agent_reads_what_the_last_one_wrote(tmp_path: Path) -> None:
    """All of it; nothing is left of what was written before."""
    records(tmp_path).save([RECORD, RECORD])
    records(tmp_path).save([RECORD])
    assert records(tmp_path).load() == [RECORD]
    assert [each.name for each in tmp_path.iterdir()] == ["turns.json"]


def test_a_record_of_the_releases_before_is_read(tmp_path: Path) -> None:
    """Their agents wrote these names; to ignore one would be to give a turn twice after an upgrade."""
    written = (
        b'{"boot":"boot","namespace":"0","turns":[{"arena":{"key":"group/1","name":"team","device":null},"player":'
        b'{"pod_uid":"uid","token":"token","pod":"ns/pod","priority":3,"slice":60.0,"witness":'
        b'{"pid":7,"started":8,"pod_uid":"uid"}},"since":12.5,"lease":3600.0}]}'
    )
    (tmp_path / "turns.json").write_bytes(written)
    assert records(tmp_path).load() == [RECORD]
    records(tmp_path).save([RECORD])
    assert (tmp_path / "turns.json").read_bytes() == written, "and they read ours after a downgrade"


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
    assert found.program.process is None
    assert (found.queue, found.lease, found.program.key) == (RECORD.queue, RECORD.lease, PROGRAM.key)


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
    assert (found.program.process, found.lease, found.program.key) == (None, RECORD.lease, PROGRAM.key)


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
    """Until its process ends, as the kernel closes its files then."""
    first, second = records(tmp_path), records(tmp_path)
    assert first.lock() and first.lock()
    assert not second.lock()
    unlock(first)
    assert second.lock()
    unlock(second)


def unlock(held: TurnRecords) -> None:
    assert held._locked is not None
    os.close(held._locked)


def test_nobody_else_can_open_the_directory(tmp_path: Path) -> None:
    """Any user of the node could lock it otherwise, and no turn would be given; kubelets create it open to all."""
    tmp_path.chmod(0o755)
    held = records(tmp_path)
    assert held.lock()
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    unlock(held)


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The agent ends, and says so."""
    with pytest.raises(FileNotFoundError):
        records(tmp_path / "none").lock()
