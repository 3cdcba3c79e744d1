from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlab.lab.models import Attempt
from parlab.series import log
from parlab.series.following import Follower
from parlab.series.models import LogChunk
from runners.wire.protocol import EVENT_LINE_LIMIT

EVENT = b'{"parlab":1,"t":1.0,"rank":0,"event":"step","step":1}\n'


@pytest.fixture
def attempt_id(make_attempt: Callable[..., Attempt]) -> int:
    return make_attempt().pk


@pytest.mark.slow
@pytest.mark.database
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=50), st.integers(0, 600_000)), max_size=5))
def test_any_appends_read_back_as_their_concatenation(attempt_id: int, appends: list[bytes | int]) -> None:
    LogChunk.objects.all().delete()
    pieces = [piece if isinstance(piece, bytes) else b"0123456789\n" * (piece // 11) for piece in appends]
    for piece in pieces:
        log.append_log(attempt_id, piece)
    expected = b"".join(pieces)
    assert b"".join(log.read_log(attempt_id)) == expected
    assert log.log_size(attempt_id) == len(expected)
    sizes = list(LogChunk.objects.order_by("position").values_list("size", flat=True))
    assert all(log.GROW_BYTES <= size <= log.CHUNK_BYTES for size in sizes[:-1])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([b"a", b"\n", b"b\nc", b"x" * 5_000, b"y" * 262_142]), max_size=8))
def test_each_append_returns_the_unfinished_line_before_it(attempt_id: int, pieces: list[bytes]) -> None:
    LogChunk.objects.all().delete()
    whole = b""
    for piece in pieces:
        line = whole.rpartition(b"\n")[2]
        assert log.append_log(attempt_id, piece) == (line if len(line) < EVENT_LINE_LIMIT else b"\0")
        whole += piece


def test_small_appends_share_a_chunk(attempt_id: int) -> None:
    for _ in range(30):
        log.append_log(attempt_id, b"step\n")
    assert LogChunk.objects.count() == 1


def test_a_point_leaves_few_dead_bytes_behind(attempt_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = log._write

    def noted(rows: list[tuple[Any, ...]]) -> None:
        written.extend(len(row[4]) for row in rows)
        write(rows)

    monkeypatch.setattr(log, "_write", noted)
    points, batch = 0, 100
    for begin in range(0, 12_000, batch):
        lines = (
            b'{"parlab":1,"t":%.3f,"rank":0,"event":"step","step":%d,"loss":%.6f,"step_time_s":%.6f}\n'
            % (1.7e9 + step * 0.137, step, 3 / (1 + step % 977), 0.137 + step % 13 * 1e-4)
            for step in range(begin, begin + batch)
        )
        log.append_log(attempt_id, b"".join(lines), stamps=[(0, begin * 0.137)])
        points += batch
    kept = sum(len(data) for data in LogChunk.objects.values_list("data", flat=True))
    dead = (sum(written) - kept) / points
    assert dead < 20


def test_a_log_of_before_the_rows_became_smaller_goes_on(attempt_id: int) -> None:
    old = b"line\n" * 40_000  # an open row of 200 KB
    log.store_log(attempt_id, [(0, len(old), zstandard.compress(old))])
    follower = Follower(attempt_id, 0)
    assert b"".join(follower.more()) == old
    for _ in range(3):
        log.append_log(attempt_id, b"new\n")
    assert b"".join(follower.more()) == b"new\n" * 3
    assert b"".join(log.read_log(attempt_id)) == old + b"new\n" * 3
    assert log.read_from(attempt_id, len(old) - 5, 9) == b"line\nnew\n"


def test_the_tail_shows_the_last_lines_without_events(attempt_id: int) -> None:
    log.append_log(attempt_id, b"first\n" + EVENT + b"second\n" + EVENT + b"\nlast")
    assert log.log_tail(attempt_id) == ["first", "second", "", "last"]
    assert log.log_tail(attempt_id, lines=2) == ["", "last"]


def test_the_tail_of_an_empty_log_is_empty(attempt_id: int) -> None:
    assert log.log_tail(attempt_id) == []


def test_the_tail_joins_a_line_that_lies_in_two_chunks(attempt_id: int) -> None:
    log.append_log(attempt_id, b"x" * (log.CHUNK_BYTES - 10) + b"\nhello ")
    log.append_log(attempt_id, b"wonderful world\n")
    assert LogChunk.objects.count() == 2
    assert log.log_tail(attempt_id, lines=1) == ["hello wonderful world"]


def test_a_line_of_ten_megabytes_is_cut_with_a_note(attempt_id: int) -> None:
    log.append_log(attempt_id, b"before\n" + b"z" * (10 << 20) + b"\nafter\n")
    before, long, after = log.log_tail(attempt_id)
    assert (before, after) == ("before", "after")
    assert long == "z" * 2_000 + " … (line of 10,485,760 bytes)"


def test_a_line_longer_than_the_scan_is_marked(attempt_id: int) -> None:
    log.append_log(attempt_id, b"before\n" + b"z" * (log.TAIL_SCAN_BYTES + log.CHUNK_BYTES) + b"\n")
    [line] = log.log_tail(attempt_id)
    assert line.startswith("zzz")
    assert line.endswith("beginning not shown)")


def test_a_log_of_nothing_but_events_is_scanned_to_a_limit(attempt_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append_log(attempt_id, b"long ago\n" + EVENT * 20_000)
    assert log.log_tail(attempt_id) == ["long ago"]
    monkeypatch.setattr(log, "TAIL_SCAN_BYTES", log.CHUNK_BYTES)
    assert log.log_tail(attempt_id) == []


def test_colours_controls_and_broken_characters_do_not_reach_a_page(attempt_id: int) -> None:
    log.append_log(
        attempt_id,
        b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07bell\x07\x00\tt\xc3\xa9\n"
        b"\xff\xfe broken\n"
        b"\xe2\x80\xaeturned\n"
        b" 10%|#\r 50%|##\r100%|###\r\n",
    )
    assert log.log_tail(attempt_id) == [
        "red bell\tté",
        "\N{REPLACEMENT CHARACTER}" * 2 + " broken",
        "turned",
        "100%|###",
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=3_000))
def test_the_tail_is_printable_for_any_bytes(attempt_id: int, data: bytes) -> None:
    LogChunk.objects.all().delete()
    log.append_log(attempt_id, data)
    for line in log.log_tail(attempt_id, lines=10_000):
        assert not [c for c in line if c != "\t" and unicodedata.category(c) == "Cc"]
        line.encode()


@pytest.mark.database
def test_chunks_come_in_order_and_one_batch_of_rows_at_a_time(attempt_id: int) -> None:
    data = b"".join(b"%08d\n" % number for number in range(400_000))
    log.append_log(attempt_id, data)
    chunks = list(log.read_log(attempt_id))
    assert len(chunks) > 8
    assert b"".join(chunks) == data
    assert all(left != right for left, right in pairwise(chunks))


def test_output_of_several_nodes_is_read_by_time_or_of_one_node(attempt_id: int) -> None:
    log.append_log(attempt_id, b"a1\na2\n", node_rank=0, stamps=[(0, 10.0), (3, 30.0)])
    log.append_log(attempt_id, b"b1\nb2\nb3", node_rank=1, stamps=[(0, 20.0), (3, 40.0)])
    log.append_log(attempt_id, EVENT + b"a3\n", node_rank=0, stamps=[(0, 50.0)])
    assert b"".join(log.read_log(attempt_id)) == b"a1\nb1\na2\nb2\nb3\n" + EVENT + b"a3\n"
    assert b"".join(log.read_log(attempt_id, node_rank=1)) == b"b1\nb2\nb3"
    assert log.log_tail(attempt_id, 4) == ["[node 0] a2", "[node 1] b2", "[node 1] b3", "[node 0] a3"]
    assert log.log_tail(attempt_id, 2, node_rank=1) == ["b2", "b3"]


def test_a_line_in_two_batches_keeps_the_time_of_its_beginning(attempt_id: int) -> None:
    log.append_log(attempt_id, b"slow", node_rank=0, stamps=[(0, 10.0)])
    log.append_log(attempt_id, b"other\n", node_rank=1, stamps=[(0, 20.0)])
    log.append_log(attempt_id, b" line\nlast\n", node_rank=0, stamps=[(0, 30.0)])
    assert b"".join(log.read_log(attempt_id)) == b"slow line\nother\nlast\n"


def test_runs_over_hundreds_of_nodes_grow_together(make_attempt: Callable[..., Attempt]) -> None:
    attempts = [make_attempt() for _ in range(3)]
    log.append_logs([log.Output(attempt.pk, b"a", node) for attempt in attempts for node in range(400)])
    before = log.append_logs([log.Output(attempt.pk, b"b\n", 7) for attempt in attempts])
    assert before == [b"a"] * 3
    assert b"".join(log.read_log(attempts[2].pk, node_rank=7)) == b"ab\n"
