"""Samples are read as their golden files say, and no reader passes over a measurement in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlab.formats.coverage.events import is_measurement
from parlab.formats.coverage.leftovers import named_numbers
from parlab.formats.logs.registry import LOGS
from parlab.formats.schema import Config, Table
from tests.formats.golden import HERE, Reading, cases, content, golden, read
from tests.formats.test_corpus import CORPUS

FRESH = CORPUS.parent / "fresh_logs"
# Formats of which one record stands for the whole file.
WHOLE = frozenset({"configuration", "deepspeed-autotuning"})

CASES = cases()


def samples() -> list[Path]:
    """Return all golden cases, and the logs of the corpus and the fresh logs where they lie beside the checkout."""
    paths = CASES.copy()
    for folder in (CORPUS, FRESH):
        paths += [
            path
            for path in sorted(folder.rglob("*.*"))
            if path.is_file()
            and "expected" not in path.parts
            and path.suffix != ".json"
            and path.name not in ("MANIFEST.tsv", "README.md")
        ]
    return paths + sorted(HERE.parent.glob("findings/healthy/*.md"))


@pytest.mark.parametrize("path", samples(), ids=lambda path: "/".join(path.parts[-2:]))
def test_a_sample_reads_as_its_golden_file_says_and_none_of_its_measurements_is_passed_over(path: Path) -> None:
    reading = read(path)
    if path in CASES:
        assert golden(path).exists(), (
            f"no {golden(path).name}: run python -m tests.formats.golden and read what it wrote"
        )
        assert content(reading.document, path) == golden(path).read_text()
    if path.suffix != ".json":
        assert passed_over(path, reading) == []


def passed_over(path: Path, reading: Reading) -> list[str]:
    """Return the named numbers of a text, or the measurements of a document, that are in no record."""
    name = reading.document.format
    assert name != "unknown"
    if name in LOGS or name == "pairs":
        return silent_numbers(reading)
    if name in WHOLE:
        return []
    covered = lines_of(reading)
    return [text for n, text in enumerate(reading.text.lines, 1) if n not in covered and is_measurement(text)]


def silent_numbers(reading: Reading) -> list[str]:
    """Return the numbers with a name or a unit that no record holds, no event has and no one reports as unread."""
    silent: list[str] = []
    for number, text in enumerate(reading.text.lines, 1):
        silent += [
            f"{number}: {cell.key}: {cell.text} {cell.unit} in {text[:120]}"
            for cell in named_numbers(text)
            if reading.text.at(number).is_left(cell.key, cell.text)
        ]
    return silent


def lines_of(reading: Reading) -> set[int]:
    """Return the numbers of the lines that are in a record or a table, or unread."""
    covered: set[int] = set()
    for record in reading.records:
        last = record.until
        if isinstance(record.data, Table):
            # The rows have a heading above them, and frames in reStructuredText.
            last += 2 * (len(record.data.header) + len(record.data.rows)) + 3
        elif isinstance(record.data, Config):
            last += len(json.dumps(record.data.data, indent=1).splitlines())
        covered.update(range(record.line, last + 1))
    return covered
