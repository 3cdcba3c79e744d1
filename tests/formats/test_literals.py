"""The texts by which signs are found, against searching each sign in each line."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest

from parlab.formats import FORMATS
from parlab.formats.coverage.events import _PATTERNS, EVENTS
from parlab.formats.grammar.literals import literals_of
from parlab.formats.grammar.sniff import _Index

HERE = Path(__file__).parent
LINES_OF_A_FILE = 150


def sample_lines() -> set[str]:
    lines: set[str] = set()
    for path in HERE.glob("*/*"):
        if path.suffix in (".log", ".txt", ".md", ".rst", ".csv", ".jsonl"):
            with path.open(encoding="utf-8", errors="replace") as stream:
                lines.update(line[:500] for line in islice(stream, LINES_OF_A_FILE))
    return lines


def test_every_sign_that_matches_a_line_is_a_candidate() -> None:
    index = _Index(FORMATS)
    lines = sample_lines()
    assert len(lines) > 1000
    matched = 0
    for line in lines | {line.upper() for line in lines}:
        found = {place for place, (_, search, _) in enumerate(index.signs) if search(line)}
        assert found <= set(index.candidates(line)), line
        matched += len(found)
    assert matched > 500


def test_events_are_found_as_by_searching() -> None:
    for line in sample_lines():
        events = {place for place, (pattern, _) in enumerate(EVENTS) if pattern.search(line)}
        assert events <= set(_PATTERNS.of(line)), line


def test_few_signs_are_candidates_for_a_line_of_prose() -> None:
    index = _Index(FORMATS)
    assert len(index.candidates("With 12 micro batches a step took **3.45 s**, throughput: 4003 samples/s.\n")) < 20


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"^step \d+: loss", {": loss"}),
        (r"(?:iter|step)\s+\d+", {"iter", "step"}),
        (r"(?:iter|step)?\d+", set()),
        (r"(?i)Loss=\d", {"loss="}),
        (r"x(?=[^\n]*tokens)y", {"tokens"}),
        (r"a(?!never)\d", {"a"}),
        (r"(?:ab){2}|cd", {"ab", "cd"}),
        (r"[ab]\d*", set()),
    ],
)
def test_texts_without_which_an_expression_cannot_match(pattern: str, texts: set[str]) -> None:
    assert set(literals_of(re.compile(pattern)).texts) == texts
