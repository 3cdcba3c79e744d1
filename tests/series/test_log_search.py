"""Searching raw output: lines with their numbers, wherever chunks cut them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from parlab.lab.models import Attempt
from parlab.series import log_search
from parlab.series.log import append_log
from parlab.series.log_search import ERROR, log_around, log_find, text_pattern

pytestmark = pytest.mark.django_db

EVENT = b'{"parlab":1,"t":1.0,"rank":0,"event":"step","note":"needle"}\n'


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt]) -> Attempt:
    return make_attempt()


def matches_of(attempt: Attempt, text: str) -> list[tuple[int, str]]:
    return [(line.number, line.text) for line in log_find(attempt.pk, text_pattern(text)).lines]


def test_lines_are_found_with_their_numbers_and_events_are_not_searched(attempt: Attempt) -> None:
    append_log(attempt.pk, b"one\nNeedle here\n" + EVENT + b"needle and needle\nlast needle without end")
    assert matches_of(attempt, "needle") == [
        (2, "Needle here"),
        (4, "needle and needle"),
        (5, "last needle without end"),
    ]
    assert matches_of(attempt, "nothing") == []
    assert matches_of(attempt, "(.*)") == []


@pytest.mark.database
def test_lines_across_chunks_are_whole(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlab.series.log.CHUNK_BYTES", 16)
    for number in range(200):
        append_log(attempt.pk, b"line %d with a nee" % number)
        append_log(attempt.pk, b"dle in it\n" if number % 50 == 7 else b"dles\n")
    assert matches_of(attempt, "needle in") == [(n + 1, f"line {n} with a needle in it") for n in (7, 57, 107, 157)]
    assert [line.number for line in log_around(attempt.pk, 58, around=2)] == [56, 57, 58, 59, 60]


def test_a_line_without_end_is_searched_and_does_not_fill_the_memory(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "_LONGEST", 1000)
    append_log(attempt.pk, b"x" * 300_000 + b"needle" + b"y" * 300_000)
    (line,) = log_find(attempt.pk, text_pattern("needle")).lines
    assert line.number == 1
    assert len(line.text) < 3_000


def test_the_number_of_matches_is_limited_and_marked(attempt: Attempt) -> None:
    append_log(attempt.pk, b"needle\n" * 500)
    search = log_find(attempt.pk, text_pattern("needle"), limit=20)
    assert len(search.lines) == 20
    assert search.is_more
    assert not log_find(attempt.pk, text_pattern("needle"), limit=500).is_more


@pytest.mark.parametrize(
    "line",
    [
        b"Traceback (most recent call last):",
        b"ValueError: no",
        b"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
        b"2026-01-01 ERROR something",
        b"train.py: error: unrecognized arguments",
        b"Killed",
        b"NCCL WARN Connect failed",
    ],
)
def test_common_error_messages_are_found(attempt: Attempt, line: bytes) -> None:
    append_log(attempt.pk, b"all well\n" + line + b"\nan errorless day, no errors\n")
    assert [line_match.number for line_match in log_find(attempt.pk, ERROR).lines] == [2]


def test_terminal_commands_and_long_lines_are_formatted_for_the_page(attempt: Attempt) -> None:
    append_log(attempt.pk, b"\x1b[31mneedle\x1b[0m\x00\n" + b"needle" + b"z" * 100_000 + b"\n")
    first, second = matches_of(attempt, "needle")
    assert first == (1, "needle")
    assert "(line of 100,006 bytes)" in second[1]


def test_a_missing_line_has_no_lines_around_it(attempt: Attempt) -> None:
    append_log(attempt.pk, b"one\n")
    assert log_around(attempt.pk, 500) == []
    assert [(line.text, line.is_meant) for line in log_around(attempt.pk, 1)] == [("one", True)]
