"""Nothing that a file holds makes a reader raise, hang or grow: damaged texts, and texts made up.

4,000 damaged files, a fifth of them in the fast tests; `make fuzz` tries 20,000. Every reader, the learner and event
files have their share.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlab.formats import FORMATS, read_document
from parlab.formats.documents.documents import MAX_EXAMPLES
from parlab.formats.documents.prose import figures
from parlab.formats.files import read_file
from parlab.formats.learnt import learnt
from tests.formats.golden import HERE, cases
from tests.formats.mutations import damaged, damaged_event_file
from tests.formats.test_corpus import CORPUS

CHUNKS, FAST_CHUNKS = 20, 4
PER_CHUNK = int(os.environ.get("FUZZ_CASES", "2000")) // CHUNKS
MADE_UP = 400
WINDOW = 2_500
# Of these damaged texts, one each is read by a named reader (all in turn), learnt from, and an event file.
NAMED, LEARNT, EVENTS = 3, 4, 16
NAMES = sorted(FORMATS)
# A text of some kilobytes takes milliseconds of a processor; only a pattern gone wrong takes this many seconds.
SECONDS = 20.0


def samples() -> list[str]:
    """Every golden case, and every log of the corpus where there is one."""
    files = [case for case in cases() if case.suffix != ".bin"]
    if CORPUS.exists():
        files += [path for path in sorted(CORPUS.rglob("*.*")) if path.is_file() and "expected" not in path.parts]
    return [text for path in files if (text := path.read_text(errors="replace"))]


SAMPLES = samples()


def check(text: str, format: str | None, *, keep: bool = True) -> None:
    """Read a text; what comes out is plain JSON of bounded size, and soon."""
    lines = text.splitlines(keepends=True) if keep else text.split("\n")
    begin = time.process_time()
    document = read_document(lines, file="damaged", format=format)
    seconds = time.process_time() - begin
    data = document.model_dump()
    json.dumps(data, allow_nan=False)
    orjson.dumps(data)
    assert document.lines == len(lines)
    assert len(document.unread.examples) <= MAX_EXAMPLES + 1
    assert seconds < SECONDS


class Case(NamedTuple):
    """What one damaged file is given to."""

    seed: int
    format: str | None
    is_learnt: bool
    is_event_file: bool


def plan(chunk: int) -> list[Case]:
    """Return the cases of a chunk."""
    cases: list[Case] = []
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        format = NAMES[seed // NAMED % len(NAMES)] if seed % NAMED == 0 else None
        cases.append(Case(seed, format, seed % LEARNT == 1, seed % EVENTS == 2))
    return cases


def test_every_reader_the_learner_and_event_files_have_their_share() -> None:
    every = [case for chunk in range(CHUNKS) for case in plan(chunk)]
    tried = Counter(case.format for case in every if not case.is_event_file)
    assert set(tried) == {None, *FORMATS}
    assert min(tried.values()) >= len(every) // (2 * NAMED * len(FORMATS))
    assert sum(case.is_learnt for case in every if not case.is_event_file) > len(every) // 8
    assert sum(case.is_event_file for case in every) > len(every) // (2 * EVENTS)


@pytest.mark.parametrize(
    "chunk", [*range(FAST_CHUNKS), *(pytest.param(n, marks=pytest.mark.slow) for n in range(FAST_CHUNKS, CHUNKS))]
)
def test_nothing_raises_or_hangs_on_a_damaged_file(chunk: int, tmp_path: Path) -> None:
    for case in plan(chunk):
        rng = random.Random(case.seed)
        sample = rng.choice(SAMPLES)
        begin = rng.randrange(max(1, len(sample) - WINDOW))
        text = damaged(rng, sample[begin : begin + WINDOW])
        if case.is_event_file:
            check_event_file(tmp_path / "events.out.tfevents.1700000000.node.1.0", rng, text)
            continue
        check(text, case.format, keep=rng.random() < 0.7)
        if case.is_learnt:
            learn(text)


def check_event_file(path: Path, rng: random.Random, text: str) -> None:
    """Read an event file whose tags, texts and numbers are pieces of a text, with or without further damage."""
    path.write_bytes(damaged_event_file(rng, text))
    begin = time.process_time()
    document = read_file(path)
    assert document.format == "tensorboard"
    assert time.process_time() - begin < SECONDS
    json.dumps(document.model_dump(), allow_nan=False)
    assert len(document.unread.examples) <= MAX_EXAMPLES + 1


def learn(text: str) -> None:
    """Guess a format from a text and read the text with it, if its lines repeat."""
    lines = text.splitlines(keepends=True)
    try:
        guess = learnt.learn(lines, "guess")
    except ValueError:
        return
    json.dumps([record.values for record in learnt.read(lines, guess)], allow_nan=False)


def calls(lines: Iterator[str], format: str | None) -> int:
    """Count the calls of Python functions while lines are read: a measure of work that no load changes."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        read_document(lines, file="large", format=format)
    finally:
        sys.setprofile(None)
    return count


def monitor_rows(size: int) -> Iterator[str]:
    yield from ("# gpu pwr sm fb\n", "# Idx W % MB\n")
    yield from (f" {n % 8} 100 50 {n}\n" for n in range(size))


def wide_rows(size: int) -> Iterator[str]:
    yield ",".join(["step", *(f"metric_{n}" for n in range(size))]) + "\n"
    yield from (",".join([str(n), *["1.5"] * size]) + "\n" for n in range(3))


def wide_markdown(size: int) -> Iterator[str]:
    yield from ("# Table\n", "\n", "|" + "a|" * size + "\n", "|" + "-|" * size + "\n", "|" + "1|" * size + "\n")


def open_fences(size: int) -> Iterator[str]:
    return (f"```step {n}\n\n" for n in range(size))


def mixed_page(size: int) -> Iterator[str]:
    page = "# Step\n\nText of **5 ms**.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- item\n  - more\n\n```\n5 ms\n```\n\n"
    return (page for _ in range(size))


def mixed_rst(size: int) -> Iterator[str]:
    page = "Step\n----\n\nText of **5 ms**.\n\n=== ===\na   b\n=== ===\n1   2\n=== ===\n\n- item\n\n"
    return (page for _ in range(size))


def empty_lines(size: int) -> Iterator[str]:
    return ("\n" for _ in range(size))


@pytest.mark.parametrize(
    ("content", "size", "format"),
    [
        pytest.param(monitor_rows, 5_000, None, marks=pytest.mark.slow),
        (wide_rows, 500, None),
        (wide_markdown, 500, None),
        pytest.param(empty_lines, 20_000, None, marks=pytest.mark.slow),
        pytest.param(empty_lines, 20_000, "megatron", marks=pytest.mark.slow),
        (empty_lines, 20_000, "markdown"),
        (open_fences, 500, "markdown"),
        (mixed_page, 100, "markdown"),
        pytest.param(mixed_rst, 50, "rst", marks=pytest.mark.slow),
    ],
)
def test_large_inputs_take_work_in_proportion(
    content: Callable[[int], Iterator[str]], size: int, format: str | None
) -> None:
    once, twice = calls(content(size), format), calls(content(2 * size), format)
    assert twice < 2.3 * once + 10_000


WORDS = st.sampled_from([
    *("iteration", "10/ 100 |", "|", ":", "time (ms) |", "lm loss:", "1e400", "nan", "-1", "step:", "loss", "[Rank 0]"),
    *("{", "}", '"a":', "#", "##", "| --- |", "```", "====", ".. image::", "::", "\x00", "\x1b[0m", "\r", "0:", "...."),
    *("(ms):", "SamplesPerSec=", "epoch: 0|step:", "steps: 1 loss:", "= 5 GB", "(1.0, 2.0)", "tps:", ":::MLLOG"),
    *("# gpu", "\n", "\n", "\n"),
])  # fmt: skip
TEXTS = st.lists(st.one_of(WORDS, WORDS, st.text(max_size=12)), max_size=60).map(" ".join)


@pytest.mark.slow
@settings(max_examples=MADE_UP, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(text=TEXTS, format=st.one_of(st.none(), st.sampled_from(sorted(FORMATS))))
def test_no_reader_raises_on_a_text_made_up(text: str, format: str | None) -> None:
    check(text, format, keep=False)


UNITS = ("1", "a=1, ")
OTHER_UNITS = (
    *(" ", "[", "a", "|", "`", "iteration 1/ 2 |"),
    *("(", "{", "*", "#", "1,", "a: 1 |", "[Rank 1] ", "\r", "'", "\x1b[", "x ", "=", "> ", "- ", "_", "a_", "1."),
    *("--a ", "<", "![", ". ", ": ", "\t", "time (ms) |"),
)


@pytest.mark.parametrize("unit", [*UNITS, *(pytest.param(unit, marks=pytest.mark.slow) for unit in OTHER_UNITS)])
def test_a_long_line_of_anything_is_read_in_linear_time(unit: str) -> None:
    for format in sorted(FORMATS):
        begin = time.process_time()
        read_document([unit * (30_000 // len(unit)) + "\n"], file="long", format=format)
        assert time.process_time() - begin < SECONDS, format


def test_prose_patterns_are_bounded() -> None:
    for unit in ("1" * 2_000, "a" * 2_000, " " * 2_000, "a " * 1_000, "(" * 2_000, "1 " * 1_000):
        begin = time.process_time()
        list(figures(1, unit))
        assert time.process_time() - begin < SECONDS


def test_what_cannot_be_read_is_counted_with_line_reason_and_text() -> None:
    cell = " | lm loss: 1e400 | grad norm: nan | loss scale: 1.0 |\n"
    lines = [f" iteration {n}/ 9 | elapsed time per iteration (ms): 5.0{cell}" for n in range(1, 4)]
    unread = read_document(lines, file="x").unread
    assert unread.lines == 6
    assert unread.examples[0].line == 1
    assert unread.examples[0].reason == "not a finite number"
    assert unread.examples[0].text == "lm loss: 1e400"


@pytest.mark.parametrize(
    ("text", "format"),
    [
        ("Training epoch 0, iteration 1/9 | global_step: 1e40 | reduced_train_loss: 2.5 |\n", "nemo"),
        ("avg_duration: 1.0, world size: 1e40, avg_throughput: 2.0\n", "colossalai"),
        ("[[1700000000.5, 18446744073709551615, 2.5], [1700000000.5, true, 2.5]]\n", "tensorboard-json"),
        ('"Name","State","Runtime","gpus"\n"a","finished","1","99999999999999999999999"\n', "wandb-runs"),
    ],
)
def test_numbers_of_other_formats_beyond_64_bits_are_left_out(text: str, format: str) -> None:
    check(text, format, keep=True)


def test_counts_beyond_64_bits_are_left_out() -> None:
    cells = f" | global batch size: {'9' * 40} | number of skipped iterations: {'9' * 40} | lm loss: 8.0 |\n"
    lines = [f" iteration {n}/ 9 | elapsed time per iteration (ms): 5.0{cells}" for n in range(1, 4)]
    bar = [f"Epoch 0:  50%|###| {n}/999999999999999G [00:01<00:01, 1.00it/s]\n" for n in range(1, 4)]
    for text in (lines, bar):
        orjson.dumps(read_document(text, file="x").model_dump())


def test_a_text_that_no_reader_knows_is_unknown_and_counted() -> None:
    document = read_document(["hello\n", "\n", "world\n"], file="x")
    assert document.format == "unknown"
    assert document.unread.lines == 2
    assert document.lines == 3


def test_the_samples_are_there() -> None:
    goldens = [path for path in HERE.glob("*/*.json") if not path.name.endswith(".case.json")]
    assert len(SAMPLES) >= len(goldens) > 20
    assert all(Path(case).exists() for case in cases())
