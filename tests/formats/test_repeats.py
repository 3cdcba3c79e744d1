"""Lines that repeat a layout are read as the reader itself reads them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from parlab.formats import records
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.repeats import Repeats, same
from parlab.formats.grammar.rows import Columns
from parlab.formats.grammar.stepblocks import StepBlocks
from parlab.formats.learnt import learnt
from parlab.formats.logs.registry import LOGS
from tests.bench.readers import LINES, reader, sample
from tests.formats.mutations import damaged
from tests.formats.test_fuzz import SAMPLES


def read_lines(lines: list[str], format: str | None) -> list[Record]:
    return list(reader(format)(lines) if format else records(lines))


def slowly(lines: list[str], format: str | None, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    with monkeypatch.context() as patch:
        patch.setattr(Repeats, "fast", lambda *_: None)
        patch.setattr(StepBlocks, "again", lambda *_: None)
        patch.setattr(Columns, "read", lambda *_: None)
        return read_lines(lines, format)


def differences(lines: list[str], format: str | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[object, ...]]:
    fast, slow = read_lines(lines, format), slowly(lines, format, monkeypatch)
    if len(fast) != len(slow):
        yield "count", len(fast), len(slow)
    yield from ((one, other) for one, other in zip(fast, slow, strict=False) if not alike(one, other))


def alike(fast: Record, slow: Record) -> bool:
    """Compare two records; a dictionary that Python printed has no printed digits, so its raw texts may differ."""
    if [float(text) for text in fast.raw if is_number(text)] == [float(text) for text in slow.raw if is_number(text)]:
        slow.raw = fast.raw
    return same(fast, slow)


def is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def test_every_format_of_logs_has_lines_to_repeat() -> None:
    assert {*LOGS, "pairs"} - {*LINES, "megatron"} == set(), "add lines of a step to tests/bench/readers.py"


@pytest.mark.slow
@pytest.mark.parametrize("format", [*sorted(LINES), "learnt"])
def test_steps_of_every_format_are_read_alike(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(differences(list(sample(format, 1, 100)), format, monkeypatch)) == []


ODD_CELLS = ("1", "-2.5", "", "", " 3 ", "1e5", "1_000", "nan", "-inf", "1e999", "text", "4,5", "\u0661", '"6"')


@pytest.mark.parametrize(
    ("format", "head", "separator"),
    [
        ("csv", "_step,train/loss,val/loss,timing_s/gen,perf/tokens_per_sec\n", ","),
        ("nvidia-smi", "# gpu pwr sm fb mclk\n# Idx W % MB MHz\n", " "),
    ],
)
def test_rows_with_odd_cells_are_read_alike(
    format: str, head: str, separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(7)
    rows = [separator.join(rng.choice(ODD_CELLS) for _ in range(5)) + "\n" for _ in range(400)]
    assert list(differences([head, *rows], format, monkeypatch)) == []


def test_rows_that_fill_other_columns_are_read_with_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["_step,train/loss,val/loss\n", *(f"{n},{2 - n / 100},{3 if n % 10 == 0 else ''}\n" for n in range(50))]
    assert list(differences(lines, "csv", monkeypatch)) == []
    assert [record.iteration for record in records(lines) if record.kind == "validation"] == [0, 10, 20, 30, 40]


def test_a_learnt_format_reads_tables_by_their_own_headings() -> None:
    lines = [
        *("step seconds loss\n", "1 0.5 9\n", "2 0.5 8\n", "3 0.5 7\n"),
        *("step loss seconds\n", "4 6 0.5\n", "5 5 0.5\n", "6 4 0.5\n"),
    ]
    columns = learnt.learn(lines, "tables")
    steps = [record for record in learnt.read(lines, columns) if record.kind == "step"]
    assert [record.values["loss"] for record in steps] == [9, 8, 7, 6, 5, 4]


BOX = ("{at}", "-0.5", "{at}{at}00000", "0.{at}25", "1e-{at}", "1_000", "nan", "4,5", "text", "")


def boxes(rng: random.Random, step: int) -> Iterator[str]:
    """Yield a block whose rows are padded by chance, with other keys or odd cells now and then."""
    yield rng.choice(["Step {0}\n", "Step {0}/900\n", "=== Step {0} ===\n"]).format(step)
    for key in ("time/total", "train/tokens_per_sec", "peak memory", "steps/s", "test/nll", "note 5"):
        cell = rng.choice(BOX if rng.random() < 0.1 else BOX[:4]).format(at=step)
        if rng.random() > 0.05:
            yield f"│ {key:<{rng.choice((20, 20, 20, 24))}} │ {cell:<{rng.choice((8, 8, 12))}} │\n"
    yield from rng.choices(["loss: 2.5, time: 3.25 s\n", "a message\n", "\n"], k=rng.choice((0, 0, 0, 2)))


def test_blocks_of_rows_that_vary_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    lines = [line for step in range(1, 300) for line in boxes(rng, step)]
    for format in ("tinker", "pairs"):
        assert list(differences(lines, format, monkeypatch)) == []


def test_blocks_of_the_same_rows_have_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[bool] = []
    read = StepBlocks._planned

    def counted(self: StepBlocks, *arguments: Any) -> list[Record] | None:
        records = read(self, *arguments)
        planned.append(records is not None)
        return records

    monkeypatch.setattr(StepBlocks, "_planned", counted)
    assert sum(record.kind == "step" for record in reader("tinker")(list(sample("tinker", 1, 100)))) == 100
    assert planned.count(False) <= 2


@pytest.mark.parametrize("part", [slice(0, None, 5), pytest.param(slice(None), marks=pytest.mark.slow)], ids=str)
def test_samples_and_damaged_samples_are_read_alike(part: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in SAMPLES[part]:
        rng = random.Random(text[:4_000])
        for content in (text[:20_000], damaged(rng, text[:4_000]) * 2):
            assert list(differences(content.splitlines(keepends=True), None, monkeypatch)) == []


def test_a_layout_of_three_lines_is_not_read_by_its_reader_again() -> None:
    calls = 0

    def read(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        nonlocal calls
        calls += 1
        step, seconds = text.split()
        return [Record("step", line, {"step_time_s": float(seconds)}, int(step), rank, time)]

    repeats = Repeats(read)
    steps = [repeats.read(n, 3, None, f"{n} {n}.25\n")[0] for n in range(1, 1_001)]
    assert [step.iteration for step in steps] == list(range(1, 1_001))
    assert [step.values["step_time_s"] for step in steps] == [n + 0.25 for n in range(1, 1_001)]
    assert calls == 3 + 2 + 2


def test_a_value_that_follows_from_several_numbers_always_goes_to_the_reader() -> None:
    def read(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        first, second = map(float, text.split())
        return [Record("metrics", line, {"sum": first + second})]

    repeats = Repeats(read)
    assert [repeats.read(n, None, None, f"{n} 3")[0].values["sum"] for n in range(9)] == [n + 3.0 for n in range(9)]
