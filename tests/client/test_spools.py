"""Directories of streams, with several processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from parlab.client import journal
from parlab.client.spools import Stream, leftovers
from tests.client.conftest import ROOT
from tests.runners.test_spool import mount_full, small_disk

__all__ = ["small_disk"]

# Creates streams, and takes what others left, as scripts that start at the same moment do.
CREATE_AND_TAKE = """
from parlab.client.spools import Stream, leftovers
for number in range(40):
    stream = Stream.create({"run": number})
    for left in leftovers():
        raise SystemExit(f"took {left.path}, which a living process has")
    if stream.opening() != {"run": number}:
        raise SystemExit(f"{stream.path} is gone")
print("created", flush=True)
input()  # what a process leaves when it ends is for the others
"""


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARLAB_HOME", str(tmp_path))
    return tmp_path / "spool"


def test_processes_that_start_at_once_leave_the_streams_of_each_other_alone() -> None:
    command = [sys.executable, "-c", CREATE_AND_TAKE]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    processes: list[Any] = [subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for _ in range(4)]
    created = [process.stdout.readline() for process in processes]
    assert [process.communicate("\n")[1] for process in processes] == [""] * 4
    assert created == ["created\n"] * 4


def test_a_stream_without_a_description_is_removed_once_its_process_must_have_died(spool: Path) -> None:
    spool.mkdir()
    for name in (".begun", "emptied"):
        (spool / name).mkdir()
    assert list(leftovers()) == []
    assert len(list(spool.iterdir())) == 2, "they may be in the making"
    for path in spool.iterdir():
        os.utime(path, (time.time() - 7200,) * 2)
    assert list(leftovers()) == []
    assert list(spool.iterdir()) == []


def test_a_stream_of_an_ended_process_is_left_over_until_it_is_removed(spool: Path) -> None:
    stream = Stream.create({"run": "first"})
    assert list(leftovers()) == []
    stream.unlock()
    (left,) = leftovers()
    assert left.opening() == {"run": "first"}
    assert (left.id, left.path) == (stream.id, spool / stream.id)
    left.remove()
    assert list(spool.iterdir()) == []


def test_an_answer_makes_room_on_a_disk_that_is_full_of_a_stream(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLAB_HOME", str(small_disk))
    stream = Stream.create({"run": 1})
    writer = journal.Writer(stream.records)
    writer.segment_bytes = 100_000
    record = journal.encode(journal.Kind.OUTPUT, b"x" * 10_000)
    for _ in range(20):
        writer.append(record)
    mount_full(small_disk)
    with pytest.raises(OSError, match="No space left"):
        writer.append(record)
    stream.acknowledge(writer.position)
    writer.append(record)
    writer.close()
    stream.unlock()
