"""Streams of ranks within the log of a node: lines never mix, and each rank reads as if it had printed alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlab.ingest.batches.events import Limits, parse
from parlab.lab.models import Attempt
from parlab.series import log
from parlab.series.log_search import log_find, text_pattern
from parlab.series.streams import NODE, Mark, joined, marks_of, pack, unpack

EVENT = b'{"parlab":1,"t":1.0,"rank":0,"event":"step","step":1,"step_time_s":1.0}\n'
Printed = list[tuple[int, bytes]]
"""What streams print, in order: rank and output."""


@pytest.fixture
def attempt_id(make_attempt: Callable[..., Attempt]) -> int:
    return make_attempt().pk


def batch_of(printed: Printed, inside: set[int]) -> tuple[bytes, list[tuple[int, int, bool]]]:
    """Return output and streams as a node sends them; `inside` are the ranks in the middle of a line."""
    output, streams = b"", list[tuple[int, int, bool]]()
    for rank, data in printed:
        streams.append((len(output), rank, rank in inside))
        output += data
        (inside.discard if data.endswith(b"\n") else inside.add)(rank)
    return output, streams


def store(attempt_id: int, *batches: Printed, node_rank: int = 0, at: float = 0.0) -> None:
    inside = set[int]()
    for number, printed in enumerate(batches):
        output, streams = batch_of(printed, inside)
        stamps = [(offset, at + number + place / 1000) for place, (offset, _, _) in enumerate(streams)]
        log.append_log(attempt_id, output, node_rank=node_rank, stamps=stamps, streams=streams)


def whole(attempt_id: int, **choice: int) -> bytes:
    return b"".join(log.read_log(attempt_id, **choice))


def test_each_rank_reads_as_if_it_had_printed_alone(attempt_id: int) -> None:
    store(attempt_id, [(NODE, b"start\n"), (0, b"a0\n"), (1, b"b0\nb1\n")], [(0, b"a1\n"), (1, b"b2\n")])
    assert whole(attempt_id) == b"start\na0\nb0\nb1\na1\nb2\n"
    assert whole(attempt_id, rank=1) == b"b0\nb1\nb2\n"
    assert whole(attempt_id, rank=NODE) == b"start\n"
    assert whole(attempt_id, rank=7) == b""
    assert log.log_tail(attempt_id, 3) == ["[rank 1] b1", "[rank 0] a1", "[rank 1] b2"]
    assert log.log_tail(attempt_id, 2, rank=0) == ["a0", "a1"]
    assert log.has_rank_streams(attempt_id)


def test_a_line_that_another_rank_interrupts_is_divided_and_its_rest_is_no_event(attempt_id: int) -> None:
    store(attempt_id, [(0, b"x" * 300_000), (1, b"between\n"), (0, EVENT), (1, b"last")])
    first, between, rest, last = whole(attempt_id).split(b"\n")
    assert (first, between, last) == (b"x" * 300_000, b"between", b"last")
    assert rest == b"[...] " + EVENT.strip()
    assert whole(attempt_id, rank=0) == b"x" * 300_000 + EVENT
    tail = log.log_tail(attempt_id)
    assert tail[1:] == ["[rank 1] between", "[rank 0] [...] " + EVENT.decode().strip(), "[rank 1] last"]


def test_the_parser_takes_no_event_from_the_middle_of_a_line() -> None:
    output = b"between\n" + EVENT + EVENT
    marks = marks_of([(0, 1, False), (8, 0, True), (8 + len(EVENT), 1, False)], len(output))
    assert parse(joined(output, marks), limits=Limits(2)).steps == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 5), st.booleans()), max_size=20), st.integers(0, 60))
def test_marks_survive_packing_and_bad_ones_are_ignored(marks: list[tuple[int, int, bool]], size: int) -> None:
    valid = marks_of(marks, size)
    assert [mark.offset for mark in valid] == sorted({mark.offset for mark in valid})
    assert all(mark.rank >= NODE and mark.offset < size for mark in valid)
    begin = [] if not valid or valid[0].offset == 0 else [Mark(0, NODE)]
    assert unpack(pack([*begin, *valid], 0, size)) == [*begin, *valid]


def test_random_output_of_ranks_over_many_chunks_is_complete_and_unmixed(attempt_id: int) -> None:
    rng = random.Random(7)
    lines = {
        rank: [b"rank %d line %d %s\n" % (rank, n, b"." * rng.randrange(300)) for n in range(900)] for rank in range(5)
    }
    queues = {rank: list(texts) for rank, texts in lines.items()}
    while any(queues.values()):
        printed: Printed = []
        for _ in range(rng.randrange(1, 60)):
            rank = rng.choice([rank for rank, queue in queues.items() if queue] or [0])
            count = rng.randrange(1, 4)
            printed.append((rank, b"".join(queues[rank][:count])))
            del queues[rank][:count]
        store(attempt_id, [piece for piece in printed if piece[1]])
    for rank, texts in lines.items():
        assert whole(attempt_id, rank=rank) == b"".join(texts)
        assert log.log_tail(attempt_id, 50, rank=rank) == [text.decode().rstrip("\n") for text in texts[-50:]]
    assert sorted(whole(attempt_id).splitlines(True)) == sorted(text for texts in lines.values() for text in texts)
    everything = log.log_tail(attempt_id, 10_000)
    assert len(everything) == 4500
    assert all(line.startswith(f"[rank {line.split()[3]}]") for line in everything)


def test_ranks_of_several_nodes_are_interleaved_by_time(attempt_id: int) -> None:
    store(attempt_id, [(0, b"a\n"), (1, b"b\n")], [(0, b"e\n")], node_rank=0, at=10.0)
    store(attempt_id, [(NODE, b"c\n"), (2, b"d\n")], node_rank=1, at=10.5)
    assert whole(attempt_id) == b"a\nb\nc\nd\ne\n"
    assert log.log_tail(attempt_id) == ["[rank 0] a", "[rank 1] b", "[node 1] c", "[rank 2] d", "[rank 0] e"]
    assert whole(attempt_id, node_rank=1) == b"c\nd\n"
    assert [found.text for found in log_find(attempt_id, text_pattern("d"), rank=2, node_rank=1).lines] == ["d"]


def test_output_without_streams_stays_that_of_the_node(attempt_id: int) -> None:
    """As nodes sent it before ranks had streams, also in the middle of a run."""
    log.append_log(attempt_id, b"old\n")
    assert not log.has_rank_streams(attempt_id)
    store(attempt_id, [(3, b"new\n")])
    log.append_log(attempt_id, b"[parlab] 5 bytes of the spool are missing here\n")
    assert log.log_tail(attempt_id) == ["old", "[rank 3] new", "[parlab] 5 bytes of the spool are missing here"]
    assert whole(attempt_id, rank=3) == b"new\n"
