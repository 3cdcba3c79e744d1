"""Files of ranks: in pieces to the spool, beside the output, before the final report."""

from __future__ import annotations

import base64
import errno
from pathlib import Path

import pytest

from runners.supervisor.files import DIRECTORY, PIECE_BYTES, FileFeed, rank_of, trace_name
from runners.supervisor.spool import SpoolWriter, read_batch
from runners.wire.protocol import Batch, FilePiece, Report

FINISHED = Report(state="finished", at=2.0, exit_code=0)


def shipped(directory: Path) -> tuple[bytes, bytes, list[Report]]:
    """Read a spool as the daemon does; return output, the bytes of its files and reports."""
    output, files, reports, position = b"", b"", list[Report](), 0
    while (piece := read_batch(directory, position)).next_position != position:
        assert not reports
        output, position, reports = output + piece.output, piece.next_position, piece.reports
        for part in piece.files:
            assert (part.name, part.rank, part.offset) == (trace_name(3), 3, len(files))
            files += base64.b64decode(part.data)
    return output, files, reports


def test_a_file_is_shipped_in_pieces_between_the_output(tmp_path: Path) -> None:
    content = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"end"
    with SpoolWriter(tmp_path / "spool") as spool:
        feed = FileFeed(tmp_path, spool)
        (tmp_path / DIRECTORY / f".{trace_name(3)}").write_bytes(b"not complete")
        (tmp_path / DIRECTORY / "notes.txt").write_bytes(b"no trace")
        (tmp_path / DIRECTORY / trace_name(0)).symlink_to("/etc/passwd")
        assert not feed.turn()
        (tmp_path / DIRECTORY / trace_name(3)).write_bytes(content)
        while feed.turn():
            spool.append_output(b"line\n")
        spool.append_report(FINISHED)
    output, files, reports = shipped(tmp_path / "spool")
    assert files == content
    assert output == b"line\n" * 4
    assert reports == [FINISHED]
    assert not (tmp_path / DIRECTORY / trace_name(3)).exists()
    assert rank_of("trace-rank12.json.gz") == 12
    assert rank_of("trace-rank12.json") is None


def test_a_file_beyond_the_limit_of_the_spool_is_given_up(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path / "spool", limit_bytes=PIECE_BYTES + 100) as spool:
        feed = FileFeed(tmp_path, spool)
        (tmp_path / DIRECTORY / trace_name(0)).write_bytes(bytes(3 * PIECE_BYTES))
        assert feed.turn()
        with pytest.raises(OSError, match="PARLAB_SPOOL_LIMIT_MIB") as raised:
            feed.turn()
        assert raised.value.errno == errno.EDQUOT
        assert feed.drop() == trace_name(0)
        assert not feed.turn()


def test_a_batch_without_files_is_one_that_older_servers_accept() -> None:
    batch = Batch(run=1, attempt=1, node="n1", sequence=0, next_sequence=9, output=b"x\n")
    assert "files" not in batch.to_wire()
    piece = FilePiece(name=trace_name(0), rank=0, offset=0, size=1, data="eA==")
    with_files = batch.model_copy(update={"files": [piece]})
    assert Batch.from_wire(with_files.to_wire()) == with_files
