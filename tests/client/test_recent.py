"""The memory of what a process has written last agrees with its journal, from wherever it is read."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from parlab.client import journal
from parlab.client import recent as module
from parlab.client.recent import Recent


def test_what_is_remembered_is_what_the_journal_holds_from_any_record_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 400)
    recent, choices = Recent(threading.Lock()), random.Random(3)
    starts, position = [0], 0
    with journal.Writer(tmp_path / "records") as writer:
        for number in range(300):
            at = writer.position
            if choices.random() < 0.1:
                writer.append(journal.encode(journal.Kind.REPORT, b"{}"))
            else:
                data = f"line {number}\n".encode() * choices.randint(1, 4)
                writer.append(journal.encode(journal.Kind.OUTPUT, data))
                recent.add(at, data)
            starts.append(writer.position)
            if choices.random() < 0.3:
                # The reader is behind by any distance, but never goes back.
                position = choices.choice([start for start in starts if start >= position])
                content = recent.read(position, 1_000)
                if content is not None:
                    pieces, end = content
                    assert sum(map(len, pieces)) <= 1_000
                    stretch = journal.read_stretch(tmp_path / "records", position, 1 << 20)
                    assert stretch.output.startswith(b"".join(pieces))
                    assert end in starts
                    position = end
        at = writer.position
        writer.append(journal.encode(journal.Kind.OUTPUT, b"last\n"))
        recent.add(at, b"last\n")
    assert recent.read(at, 1_000) == ([b"last\n"], journal.tail(tmp_path / "records"))


def test_only_the_last_blocks_are_remembered() -> None:
    recent, piece, position = Recent(threading.Lock()), b"x" * (module.BLOCK_BYTES // 2), 0
    for _ in range(4 * module.BLOCKS):
        recent.add(position, piece)
        position += journal.HEADER.size + len(piece)
    assert recent.read(0, 1 << 30) is None, "the journal has it"
    first = position - 2 * module.BLOCKS * (journal.HEADER.size + len(piece))
    content = recent.read(first, 1 << 30)
    assert content is not None
    assert (sum(map(len, content[0])), content[1]) == (2 * module.BLOCKS * len(piece), position)
