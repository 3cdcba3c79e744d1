"""Streams of ranks: a killed rank loses nothing, and no rank waits for a supervisor that has gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from parlab.client.journal import NODE
from runners.supervisor.recorder import Recorder
from runners.supervisor.spool import SpoolWriter, read_batch
from runners.supervisor.streams import VARIABLE, Outputs, Piece
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import ROOT
from tests.runners.supervised import Prepare, Supervise, supervise

__all__ = ["supervise"]


def start_rank(script: Path, rank: int, directory: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "RANK": str(rank), VARIABLE: directory, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "runners.supervisor.streams", str(script)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def read_all(outputs: Outputs) -> dict[int, bytes]:
    read: dict[int, bytes] = defaultdict(bytes)
    while pieces := outputs.read(0.05):
        for rank, data in pieces:
            read[rank] += data
    return dict(read)


def test_a_killed_rank_loses_nothing_that_it_has_written(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path, range(4, 6))
    script = tmp_path / "rank.py"
    script.write_text("import os\nos.write(1, b'out ' * 10_000)\nos.write(2, b'no end')\nos.kill(os.getpid(), 9)\n")
    rank = start_rank(script, 5, outputs.environment[VARIABLE])
    assert rank.communicate(timeout=PATIENCE_S) == (b"", b"")
    assert rank.returncode == -signal.SIGKILL
    assert read_all(outputs) == {5: b"out " * 10_000 + b"no end"}
    os.close(outputs.writer)
    assert outputs.read(PATIENCE_S) == [Piece(NODE, b"")]
    assert outputs.close() == [4, 5]
    assert list(outputs.directory.iterdir()) == []


def test_a_rank_whose_supervisor_is_gone_fails_instead_of_waiting(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path, range(2))
    script = tmp_path / "rank.py"
    script.write_text("print('ready', flush=True)\nwhile True:\n    print('x' * 10_000)\n")
    rank = start_rank(script, 1, outputs.environment[VARIABLE])
    try:
        wait_for(outputs.has_data, "the rank prints")
        outputs.close()
        assert rank.wait(PATIENCE_S) != 0
    finally:
        rank.kill()
        rank.communicate()


def test_a_rank_without_a_stream_keeps_its_output(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text("print('hello')\n")
    directory = tmp_path / "nobody-reads"
    directory.mkdir()
    os.mkfifo(directory / "1")
    for rank in (0, 1):
        assert start_rank(script, rank, str(directory)).communicate(timeout=PATIENCE_S) == (b"hello\n", b"")


def test_one_rank_and_very_many_ranks_share_the_pipe_of_the_node(tmp_path: Path) -> None:
    for ranks in (range(0), range(1), range(300)):
        outputs = Outputs(tmp_path, ranks)
        assert (outputs.has_ranks, outputs.environment) == (False, {})
        os.close(outputs.writer)
        outputs.close()


def test_the_only_rank_of_a_node_has_a_stream_if_other_nodes_have_ranks_too(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path, range(2, 3), has_others=True)
    assert outputs.has_ranks
    assert (outputs.directory / "2").exists()
    os.close(outputs.writer)
    assert outputs.close() == [NODE, 2]


def test_lines_longer_than_a_record_are_marked_as_continued(tmp_path: Path) -> None:
    recorder = Recorder(SpoolWriter(tmp_path / "spool"), has_streams=True)
    recorder.take(b"x" * 300_000, rank=0)
    recorder.take(b"between\n", rank=1)
    recorder.insert(b"not into the long line\n", rank=0)
    recorder.insert(b"of the supervisor\n")
    recorder.take(b"y\nnext\n", rank=0)
    recorder.take(b"", rank=0, is_last=True)
    piece = read_batch(tmp_path / "spool", 0)
    starts = [offset for offset, _, _ in piece.streams]
    assert [piece.output[at : at + 8] for at in starts] == [b"x" * 8, b"between\n", b"of the s", b"x" * 8]
    assert [(rank, is_continued) for _, rank, is_continued in piece.streams] == [
        (0, False), (1, False), (NODE, False), (0, True),
    ]  # fmt: skip


LAUNCHER = """
    import os, subprocess, sys
    print("starting", flush=True)
    ranks = [
        subprocess.Popen([sys.executable, "-m", "runners.supervisor.streams", __file__.replace("script", "rank")],
                         env={**os.environ, "RANK": str(rank)})
        for rank in range(6, 9)
    ]
    codes = [rank.wait() for rank in ranks]
    print("codes", codes, flush=True)
    sys.exit(0 if codes == [0, -9, 0] else 1)
"""
RANK = """
import os, sys
rank = os.environ["RANK"]
for number in range(400):
    os.write(1, f"rank {rank} ".encode())
    os.write(2, f"line {number}\\n".encode())
if rank == "7":
    os.kill(os.getpid(), 9)
"""


def test_lines_of_ranks_that_print_at_the_same_time_never_mix(prepared: Prepare, supervise: Supervise) -> None:
    directory = prepared(LAUNCHER, first_rank=6, ranks=3)
    (directory.path.parent / "rank.py").write_text(RANK)
    run = supervise(directory)
    assert run.ends().state == "finished", run.output()
    printed = run.streams()
    assert b"starting\n" in printed[NODE]
    for rank in (6, 7, 8):
        assert printed[rank] == b"".join(b"rank %d line %d\n" % (rank, number) for number in range(400))
