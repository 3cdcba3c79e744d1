"""Formats that are learnt from a file."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from parlab.formats import read_document
from parlab.formats.grammar.records import Record
from parlab.formats.learnt.learn_command import main
from parlab.formats.learnt.learnt import Learnt, _sampled, fit, learn, read
from parlab.formats.learnt.slots import Slots
from parlab.formats.segments import Segments

LINE = "[fit] tick={n} lossy=4.{n} dt: {ms} ms tok/sec: {rate}\n"
LINES = [LINE.format(n=n, ms=100 + n, rate=20_000 - n) for n in range(1, 6)]


def steps(lines: list[str], format: Learnt) -> list[Record]:
    return [record for record in read(lines, format) if record.kind == "step"]


def test_names_and_units_of_a_line_are_learnt() -> None:
    format = learn(["hello\n", *LINES], "fit")
    assert format.counter == "tick"
    assert {(c.key, c.name, c.scale) for c in format.columns} >= {
        ("dt", "step_time_s", 1e-3),
        ("tok/sec", "tokens_per_s", 1.0),
    }
    assert len(format.samples) == 3


def test_a_learnt_format_reads_other_files_of_its_shape() -> None:
    format = learn(LINES, "fit")
    other = [LINE.format(n=n, ms=250, rate=8_000) for n in (7, 8)]
    assert [(r.iteration, r.values["step_time_s"], r.values["tokens_per_s"]) for r in steps(other, format)] == [
        (7, 0.25, 8000.0),
        (8, 0.25, 8000.0),
    ]


def test_a_guess_can_be_changed() -> None:
    format = learn(LINES, "fit")
    column = next(column for column in format.columns if column.key == "lossy")
    column.name = "loss"
    assert [record.values["loss"] for record in steps(LINES, format)][:2] == [4.1, 4.2]


def test_a_text_without_repeating_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="choose a file with at least two steps"):
        learn(["hello\n", "x: 5\n"], "fit")


def test_the_command_learns_and_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "fit.log", tmp_path / "fit.json"
    log.write_text("".join(LINES))
    assert main([str(log), "--learn", str(out)]) == 0
    assert "step_time_s" in capsys.readouterr().out
    assert main([str(log), "--with", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "learnt:fit"
    assert document["notes"] == ["numbers of the learnt format fit"]
    assert document["segments"][0]["records"] == 5


def test_the_package_runs_the_command(tmp_path: Path) -> None:
    log, out = tmp_path / "fit.log", tmp_path / "fit.json"
    log.write_text("".join(LINES))
    command = [sys.executable, "-m", "parlab.formats", str(log), "--learn", str(out)]
    assert "step_time_s" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "tick" in out.read_text()


def test_a_damaged_definition_is_refused_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, out = tmp_path / "fit.log", tmp_path / "fit.json"
    log.write_text("".join(LINES))
    out.write_text('{"name": "fit", "columns": [{"key": "dt"}]}')
    assert main([str(log), "--with", str(out)]) == 2
    assert "columns.0.name" in capsys.readouterr().err


def test_numbers_without_keys_are_named_by_the_words_before_them() -> None:
    lines = [f"worker {n % 2}: finished update {17 + n // 2} in 0.5{n} seconds (1200{n} tokens/s)\n" for n in range(8)]
    format = learn(lines, "prose")
    assert {column.key: column.role for column in format.columns} == {
        "worker": "rank",
        "finished update": "step",
        "value": "quantity",
        "tokens/s": "quantity",
    }
    first = steps(lines, format)[1]
    assert (first.rank, first.iteration) == (1, 17)
    assert first.values == {"step_time_s": 0.51, "tokens_per_s": 12001.0}


def test_columns_of_a_table_are_named_by_their_headings() -> None:
    lines = ["  it  objective  sec/it  mem_GiB\n", *(f"  {n}  4.{n}  0.5{n}  12.5\n" for n in range(1, 6))]
    values = steps(lines, learn(lines, "table"))[0]
    assert (values.iteration, values.values["step_time_s"]) == (1, 0.51)
    assert values.values["allocated_bytes"] == 12.5 * 2**30


def test_a_format_fits_files_of_its_shape_only() -> None:
    format = learn(LINES, "fit")
    assert fit(learn([LINE.format(n=n, ms=9, rate=9) for n in (1, 2)], "other"), format) == 1.0
    assert fit(learn(["loss: 4 | lr: 3\n"] * 3, "other"), format) == 0.0


@pytest.mark.parametrize("text", ["", "\x00\n", ",,,\n", "a,,b\n1,,2\n", "| a | b |\n| 1 | 2 |\n" * 3, "e" * 9_000])
def test_any_text_is_learnt_or_refused_with_a_reason(text: str) -> None:
    with suppress(ValueError):
        assert learn(text.splitlines(keepends=True), "any").columns


def test_two_counters_are_refused() -> None:
    columns = [{"key": key, "name": key, "role": "step"} for key in ("a", "b")]
    with pytest.raises(ValueError, match="columns a and b have the role step"):
        Learnt.model_validate({"name": "x", "columns": columns})


@pytest.mark.parametrize(
    "template",
    [
        "a {x} b={x} took {y} ms",
        "step {x}/100 | loss {y}.5 (+1.2z) | {x} tok/s",
        "[10:05:{x}] layer1_loss=0.{y} time (100 iters): {x}",
        "x: {y},000 v1.2.{x} e=1.{y}e-4",
    ],
)
def test_lines_with_the_same_words_are_read_like_the_first_one(template: str) -> None:
    slots = Slots()
    for x, y in ((5, 5), (17, 230), (5, 5), (900, 17)):
        text = template.format(x=x, y=y)
        assert slots.of(text) == Slots().of(text)


def test_of_a_large_file_with_wide_lines_a_small_part_is_looked_at() -> None:
    wide = " ".join(f"m{place}={place}.5" for place in range(200))
    lines = [f"tick={n} {wide}\n" for n in range(20_000)]
    size = sum(map(len, lines))
    sampled = list(_sampled(lines))
    assert sum(map(len, sampled)) < size / 6
    assert sampled[:100] == lines[:100]
    # Twice as many lines are not twice as much work.
    more = list(_sampled(lines + lines))
    assert len(more) - len(sampled) < len(sampled) / 4


def test_lines_in_every_part_of_a_long_file_are_looked_at() -> None:
    sampled = list(_sampled(f"{n}\n" for n in range(200_000)))
    assert sampled[:10_000] == [f"{n}\n" for n in range(10_000)]
    assert {int(line) // 10_000 for line in sampled} == set(range(20))


@pytest.mark.parametrize("tag", ["worker-{rank}", "@{rank}", "[gpu#{rank}]", "rank_{rank}"])
def test_processes_that_take_turns_are_ranks_of_one_launch(tag: str) -> None:
    lines = [
        f"{tag.format(rank=rank)} finished minibatch {n} after {80 + n + rank}.5 milliseconds\n"
        for n in range(1, 20)
        for rank in (0, 1)
    ]
    segments = Segments()
    for record in read(lines, learn(lines, "turns")):
        segments.add(record)
    segments.close()
    assert [(segment.records, segment.step_time_s and segment.step_time_s.median) for segment in segments.done] == [
        (19, 0.0915)
    ]


def test_the_counter_is_that_of_most_lines_and_other_lines_are_no_steps() -> None:
    lines = []
    for n in range(1, 31):
        lines.append(f"[trn] upd {n} nll {5 - n / 100:.2f} took 1.{n:02d}s\n")
        if n % 10 == 0:
            lines.append(f"[val] upd {n} nll 4.9 took 12.{n}s\n")
    format = learn(lines, "upd")
    assert format.counter == "trn upd"
    assert [record.iteration for record in steps(lines, format)] == list(range(1, 31))
    unread = [record.data.text for record in read(lines, format) if record.kind == "unread"]
    assert [text.split()[2] for text in unread] == ["10", "20", "30"]


def test_a_learnt_format_keeps_thousands_whole_and_names_behind_their_values() -> None:
    slots = Slots()
    (pushed,) = [cell for cell in slots.of("update 12 took 2.5 s, pushed 86,557 tok") if cell.key == "pushed"]
    assert pushed.value == 86557.0
    cells = slots.of("    3 7.34 s run, 11.875 loss, 0.0001 LR, 45.5 GB used, 236258.78 GFLOPS")
    assert [(cell.key, cell.value) for cell in cells] == [
        ("step time", 7.34), ("loss", 11.875), ("LR", 0.0001), ("used", 45.5), ("GFLOPS", 236258.78),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (
            "[trainer] 7.34 s run, 11.875 loss, 0.0001 LR, 45.5 GB used",
            {"step time": 7.34, "loss": 11.875, "LR": 1e-4, "used": 45.5},
        ),
        (
            "worker 3 done: 86,557 tokens, 2.5 s step, 1.25 loss",
            {"tokens": 86557.0, "step time": 2.5, "loss": 1.25, "worker": 3.0},
        ),
        (
            "upd 12 | 845.1 ms step | 3.21 loss | 86,557 tok/s",
            {"upd": 12.0, "step": 845.1, "loss": 3.21, "tok/s": 86557.0},
        ),
        (
            "step 12: 845.1 ms/step, 3.21 loss, 1.2 grad norm",
            {"ms/step": 845.1, "loss": 3.21, "grad norm": 1.2},
        ),
        (
            "iter 5 - 2.13 loss - 0.0003 lr - 532 ms - 3,851 tok/s",
            {"loss": 2.13, "lr": 3e-4, "step time": 532.0, "tok/s": 3851.0},
        ),
        ("loss: 2.5 avg, 1.25 max, 3 min", {"loss": 2.5}),
    ],
)
def test_a_value_has_the_name_behind_it_only_where_all_values_of_a_line_do(line: str, values: dict[str, float]) -> None:
    read = {cell.key: cell.value for cell in Slots().of(line)}
    assert {name: read.get(name) for name in values} == values
    if "loss" not in line[:5]:
        assert len(read) == len(values)


def test_values_in_front_of_their_names_are_read_without_learning_too() -> None:
    lines = [f"step {n}: 845.{n} ms/step, 3.{n} loss, 1.2 grad norm, 86.5k tok/s\n" for n in (1, 2, 3)]
    (segment,) = read_document(lines, file="run.log").segments
    assert segment.first is not None
    assert segment.first.values == {
        "step_time_s": 845.1 / 1000, "loss": 3.1, "grad_norm": 1.2, "tokens_per_s": 86500.0,
    }  # fmt: skip
