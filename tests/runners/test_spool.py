"""The spool: what was appended comes out once and in order, whatever was cut, deleted, damaged or full."""

from __future__ import annotations

import errno
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.client import journal
from runners.supervisor import spool
from runners.supervisor.spool import Piece, SpoolWriter, read_batch
from runners.wire.protocol import Report

RUNNING = Report(state="running", at=1.0)
FINISHED = Report(state="finished", at=2.0, exit_code=0)

records = st.lists(st.one_of(st.binary(max_size=300), st.just(RUNNING)), max_size=30)


def append(writer: SpoolWriter, record: bytes | Report) -> None:
    if isinstance(record, Report):
        writer.append_report(record)
    else:
        writer.append_output(record)


def read_all(directory: Path, position: int = 0, limit: int = 1 << 20) -> tuple[list[bytes | Report], int]:
    """Read piece by piece as the daemon does; neighbouring output is joined."""
    items = list[bytes | Report]()
    while (piece := read_batch(directory, position, limit)).next_position != position:
        position = piece.next_position
        items += [piece.output, *piece.reports]
    return joined(items), position


def joined(items: list[bytes | Report]) -> list[bytes | Report]:
    result = list[bytes | Report]()
    for item in items:
        if isinstance(item, bytes) and result and isinstance(result[-1], bytes):
            result[-1] += item
        elif item != b"":
            result.append(item)
    return result


@settings(max_examples=150, deadline=None)
@given(first=records, second=records, cut=st.integers(0, 400), limit=st.integers(0, 1000), segment=st.integers(1, 900))
def test_a_spool_that_was_cut_anywhere_gives_what_was_whole_and_goes_on(
    first: list[bytes | Report], second: list[bytes | Report], cut: int, limit: int, segment: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "spool"
        writer = SpoolWriter(directory)
        writer.segment_bytes = segment
        ends = [0]
        for record in first:
            append(writer, record)
            ends.append(writer.position)
        writer.close()
        # The machine loses power: the last bytes of the last segment never reached the disk.
        last = journal.segment_path(directory, spool.segments(directory)[-1])
        size = max(0, last.stat().st_size - cut)
        with last.open("r+b") as file:
            file.truncate(size)
        position = spool.segments(directory)[-1] + size
        whole = sum(end <= position for end in ends) - 1

        assert read_all(directory, limit=limit) == (joined(first[:whole]), ends[whole])

        writer = SpoolWriter(directory)
        assert writer.position == ends[whole]
        for record in second:
            append(writer, record)
        writer.close()
        assert read_all(directory, limit=limit) == (joined(first[:whole] + second), writer.position)


@settings(max_examples=50, deadline=None)
@given(items=records, read=st.integers(0, 30), segment=st.integers(1, 900))
def test_positions_survive_the_deletion_of_what_was_acknowledged(
    items: list[bytes | Report], read: int, segment: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "spool"
        writer = SpoolWriter(directory)
        writer.segment_bytes = segment
        ends = [0]
        for record in items:
            append(writer, record)
            ends.append(writer.position)
        read = min(read, len(items))
        spool.forget(directory, ends[read])
        assert read_all(directory, ends[read]) == (joined(items[read:]), ends[-1])
        writer.append_output(b"more")
        writer.close()
        assert read_all(directory, ends[-1])[0] == [b"more"]


def test_a_piece_holds_no_more_output_than_asked_for_but_at_least_one_record(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "spool")
    for _ in range(3):
        writer.append_output(b"x" * 100)
    assert [len(read_batch(tmp_path / "spool", 0, limit).output) for limit in (1, 100, 250, 300)] == [
        100,
        100,
        200,
        300,
    ]


def test_output_after_a_report_waits_for_the_next_piece(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "spool")
    writer.append_report(RUNNING)
    writer.append_output(b"later")
    first = read_batch(tmp_path / "spool", 0)
    assert (first.output, first.reports) == (b"", [RUNNING])
    assert read_batch(tmp_path / "spool", first.next_position).output == b"later"


def test_acknowledged_segments_are_deleted_as_a_whole_and_the_last_one_stays(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "spool")
    writer.segment_bytes = 200
    for _ in range(6):
        writer.append_output(b"x" * 80)
    starts = spool.segments(tmp_path / "spool")
    assert len(starts) == 3
    spool.forget(tmp_path / "spool", starts[1] + 10)
    assert spool.segments(tmp_path / "spool") == starts[1:]
    spool.forget(tmp_path / "spool", writer.position)
    assert spool.segments(tmp_path / "spool") == starts[2:]


def test_a_damaged_record_ends_what_is_readable_until_a_later_segment_shows_that_it_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    writer = SpoolWriter(directory)
    writer.append_output(b"good")
    damaged_at = writer.position
    writer.append_output(b"will be damaged")
    path = journal.segment_path(directory, 0)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert read_all(directory) == ([b"good"], damaged_at)

    writer.start_segment()
    later = writer.position
    writer.append_report(FINISHED)
    items, position = read_all(directory)
    assert position == writer.position
    assert items == [
        b"good\n[parlab] %d bytes of the spool are missing here: damaged or deleted on the node's disk\n"
        % (later - damaged_at),
        FINISHED,
    ]


def test_a_server_that_was_set_back_behind_deleted_segments_is_told_how_much_is_missing(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "spool")
    writer.segment_bytes = 10
    writer.append_output(b"old")
    writer.append_output(b"new")
    start = spool.segments(tmp_path / "spool")[1]
    spool.forget(tmp_path / "spool", start)
    piece = read_batch(tmp_path / "spool", 0)
    assert piece.next_position == start
    assert b"bytes of the spool are missing" in piece.output
    assert read_batch(tmp_path / "spool", start).output == b"new"


def test_a_writer_that_must_not_begin_before_a_position_leaves_a_gap(tmp_path: Path) -> None:
    SpoolWriter(tmp_path / "spool").append_output(b"all that the disk kept")
    writer = SpoolWriter(tmp_path / "spool", at_least=1000)
    writer.append_report(FINISHED)
    assert read_batch(tmp_path / "spool", 1000).reports == [FINISHED]


def test_zeros_at_the_tail_are_no_record(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    writer = SpoolWriter(directory)
    writer.append_output(b"whole")
    with journal.segment_path(directory, 0).open("ab") as file:
        file.write(bytes(5000))
    assert read_all(directory) == ([b"whole"], writer.position)
    assert SpoolWriter(directory).position == writer.position


def test_an_absurd_length_is_damage_and_allocates_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    SpoolWriter(directory).close()
    journal.segment_path(directory, 0).write_bytes(journal.HEADER.pack(b"pl", 1, 2**32 - 1, 0))
    assert read_all(directory) == ([], 0)


def test_an_empty_or_missing_spool_has_nothing_to_read(tmp_path: Path) -> None:
    assert read_batch(tmp_path / "nowhere", 5) == Piece(b"", [], 5, [], [], [])
    assert spool.final_report(tmp_path / "nowhere") is None
    assert spool.tail(tmp_path / "nowhere") == 0


def test_a_report_of_a_newer_version_is_read_without_what_is_unknown(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "spool")
    writer.append(journal.encode(journal.Kind.REPORT, b'{"state": "finished", "at": 1, "mood": "good"}'))
    assert read_batch(tmp_path / "spool", 0).reports == [Report(state="finished", at=1)]


def test_only_a_final_report_at_the_end_counts_as_the_end(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "spool")
    writer.append_report(RUNNING)
    assert spool.final_report(tmp_path / "spool") is None
    writer.append_report(FINISHED)
    assert spool.final_report(tmp_path / "spool") == FINISHED


def test_the_limit_counts_what_is_kept_and_deleting_makes_room(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    writer = SpoolWriter(directory, limit_bytes=1 << 20)

    def fill() -> None:
        for _ in range(100):
            writer.append_output(bytes(50_000))

    with pytest.raises(OSError, match="PARLAB_SPOOL_LIMIT_MIB") as raised:
        fill()
    assert raised.value.errno == errno.EDQUOT
    full_at = writer.position
    assert full_at > (1 << 20) * 0.9
    spool.forget(directory, full_at)
    writer.append_output(bytes(50_000))
    assert writer.position > full_at


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size: writes fail with EFBIG as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_record_that_does_not_fit_is_not_there_at_all_and_can_be_appended_later(tmp_path: Path) -> None:
    directory = tmp_path / "spool"
    writer = SpoolWriter(directory)
    writer.append_output(b"a" * 600)
    with largest_file(1000), pytest.raises(OSError) as raised:
        writer.append_output(b"b" * 600)
    assert raised.value.errno == errno.EFBIG
    assert spool.tail(directory) == writer.position
    writer.append_output(b"c" * 10)
    assert read_all(directory)[0] == [b"a" * 600 + b"c" * 10]


def mount_full(path: Path) -> None:
    """Fill a file system to its last byte."""
    with (path / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_final_report_fits_on_a_full_disk(small_disk: Path) -> None:
    directory = small_disk / "spool"
    writer = SpoolWriter(directory)
    writer.reserve()
    writer.append_output(b"before\n")
    mount_full(small_disk)
    with pytest.raises(OSError, match="No space left"):
        writer.append_output(bytes(1 << 16))
    report = Report(state="failed", at=1.0, reason="disk full", traceback="x" * 100_000)
    writer.append_report(report)
    writer.close()
    items, position = read_all(directory)
    assert items[0] == b"before\n"
    assert items[1] == report.model_copy(update={"traceback": "x" * spool.MAX_TRACEBACK_CHARS})
    assert spool.final_report(directory) is not None
    assert position == spool.tail(directory)


def test_a_report_full_of_characters_that_need_escapes_still_fits_the_reserve(tmp_path: Path) -> None:
    report = Report(state="failed", at=1.0, reason="\x00" * 90_000, traceback="\x00" * 90_000)
    assert len(spool._encode_report(report)) < spool.RESERVE_BYTES


WRITE_FOREVER = """
import sys
from pathlib import Path
from runners.supervisor.spool import SpoolWriter
writer = SpoolWriter(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    writer.append_output(b"%d\\n" % number * 50)
    if number == 200:
        print("go", flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_records_only(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOREVER, str(tmp_path / "spool")], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"go\n"
    finally:
        writer.kill()
        writer.communicate()
    items, _ = read_all(tmp_path / "spool", limit=1000)
    assert len(items) == 1
    assert isinstance(items[0], bytes)
    lines = items[0].splitlines()
    assert lines == [b"%d" % (1 + index // 50) for index in range(len(lines))]
    assert len(lines) >= 200 * 50
