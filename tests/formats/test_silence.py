"""No reader passes over a measurement in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parlab.formats import format_of, head_of, read_document, records
from parlab.formats.grammar.silence import NOISE, PARTS, SILENT, is_measurement
from parlab.formats.logs.registry import LOGS
from parlab.formats.schema import Config, Table
from parlab.formats.source import open_text
from tests.formats.golden import HERE, cases
from tests.formats.test_corpus import CORPUS

FRESH = CORPUS.parent / "fresh_logs"
# What the readers of these samples are known not to define, by a word of the line.
UNDEFINED = ("Theoretical", "That is 211 samples/s", "About 104 samples per second")
# Formats of which one record stands for the whole file.
WHOLE = frozenset({"configuration", "deepspeed-autotuning"})


def samples() -> list[Path]:
    """Return all golden cases, and the logs of the corpus and the fresh logs where they lie beside the checkout."""
    paths = [case for case in cases() if case.suffix != ".json"]
    for folder in (CORPUS, FRESH):
        paths += [
            path
            for path in sorted(folder.rglob("*.*"))
            if path.is_file()
            and "expected" not in path.parts
            and path.suffix != ".json"
            and path.name != "MANIFEST.tsv"
        ]
    return [path for path in paths if path.name != "README.md"] + sorted(HERE.parent.glob("findings/healthy/*.md"))


def read_lines(lines: list[str], name: str) -> set[int]:
    """Return the numbers of the lines that are in a record or a table, or unread."""
    covered: set[int] = set()
    for record in records(lines, name):
        last = record.until
        if isinstance(record.data, Table):
            # The rows have a heading above them, and frames in reStructuredText.
            last += 2 * (len(record.data.header) + len(record.data.rows)) + 3
        elif isinstance(record.data, Config):
            last += len(json.dumps(record.data.data, indent=1).splitlines())
        covered.update(range(record.line, last + 1))
    return covered


@pytest.mark.parametrize("path", samples(), ids=lambda path: path.name)
def test_every_measurement_of_a_sample_is_read(path: Path) -> None:
    with open_text(path) as stream:
        lines = list(stream)
    name = format_of(head_of(iter(lines)))
    silent = [record.data.text for record in records(lines, name) if record.kind == "unread"]
    assert name != "unknown"
    if name in LOGS:
        passed = {
            record.data.text
            for record in records(lines, name)
            if record.kind == "unread" and record.data.reason == SILENT
        }
        assert [text for text in silent if text in passed and not any(word in text for word in UNDEFINED)] == []
    elif name not in WHOLE:
        covered = read_lines(lines, name)
        assert [text for n, text in enumerate(lines, 1) if n not in covered and is_measurement(text)] == []


DOCUMENTS = {
    "markdown": "# Page\n\n{line}\n",
    "a list of Markdown": "# Page\n\n- {line}\n- loss: 3\n",
    "code of Markdown": "# Page\n\n```\n{line}\n```\n",
    "a log in Markdown": "# Page\n\n```\n iteration 5/ 9 | elapsed time per iteration (ms): 5.0 |\n{line}\n```\n",
    "rst": "Page\n====\n\n.. note:: x\n\n{line}\n",
    "a list of rst": "Page\n====\n\n.. note:: x\n\n- {line}\n",
}


@pytest.mark.parametrize("page", DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_a_measurement_of_a_document_that_no_reader_defines_is_unread(page: str) -> None:
    lines = page.format(line="the shuffle took 12.5 ms per rank").splitlines(keepends=True)
    document = read_document(lines, file="x")
    assert document.format in ("markdown", "rst")
    place = next(n for n, text in enumerate(lines, 1) if "shuffle" in text)
    assert [example.line for example in document.unread.examples] == [place]


@pytest.mark.parametrize(
    "lines",
    [
        ["step,step_time_s,loss\n", "1,0.5,2.5\n", "2,0.5 s?,2.4\n", "3,0.5,2.3\n", "4,0.5,2.2\n"],
        ['{"step": 1, "step_time_s": 0.5}\n', '{"step": 2, "step_time_s": 0.5\n', '{"step": 3, "step_time_s": 0.5}\n'],
    ],
    ids=["csv", "jsonl"],
)
def test_a_damaged_row_of_a_table_is_unread(lines: list[str]) -> None:
    document = read_document(lines, file="x")
    assert document.format in ("csv", "jsonl")
    place = next(n for n, text in enumerate(lines, 1) if "?" in text or (text[0] == "{" and "}" not in text))
    assert place in [example.line for example in document.unread.examples]


def test_a_line_that_a_reader_does_not_define_is_unread() -> None:
    line = " iteration {n}/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n"
    document = read_document([line.format(n=1), "optimizer step took 12.5 ms on rank 3\n", line.format(n=2)], file="x")
    assert document.segments[0].records == 2
    assert [(example.line, example.reason) for example in document.unread.examples] == [(2, SILENT)]
    assert document.notes == ["1 of 3 lines could not be read"]


def test_halves_of_a_spliced_line_are_not_lost() -> None:
    line = " iteration {n}/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n"
    lines = [line.format(n=1), "elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n", line.format(n=2)]
    assert read_document(lines, file="x").unread.lines == 1


def test_lines_far_before_the_end_are_reported_in_their_order() -> None:
    line = " iteration {n}/ 9000 | elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n"
    lines = [part for n in range(1, 1_500) for part in (line.format(n=n), f"step {n} took 3.5 ms\n")]
    found = [record.line for record in records(lines, "megatron") if record.kind == "unread"]
    assert found == list(range(2, 2_999, 2))


def test_a_file_of_an_unknown_trainer_is_marked() -> None:
    line = "global step {n} => time/step: 0.5 s, throughput: 1000.0 samples/s, loss=4.0\n"
    document = read_document([line.format(n=n) for n in range(1, 5)], file="x")
    assert document.format == "pairs"
    assert document.notes[0].startswith("no known format")


@pytest.mark.parametrize(
    "text", ["step time 12.5 ms", "throughput = 3.25 samples/s", "peak memory: 20.5 GiB", "took 3 s"]
)
def test_a_number_beside_a_word_of_measurements_is_one(text: str) -> None:
    assert is_measurement(text)


@pytest.mark.parametrize(
    "text", ["hello 5", "elapsed", "--train-iters 500", "WARNING: step 5 is slow", "version 2.5.1"]
)
def test_noise_is_no_measurement(text: str) -> None:
    assert not is_measurement(text)


def test_each_kind_of_noise_has_a_reason() -> None:
    assert all(reason for _, reason in NOISE)
    assert set(PARTS) <= set(LOGS)
    assert HERE.exists()
