"""Every number that is read has its place in the text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from parlab.formats.source import open_text
from parlab.formats.spans import Span, spans
from tests.formats.golden import cases

LOGS = [path for path in cases() if path.suffix in (".log", ".txt", ".csv", ".jsonl", ".md")]


def read(text: str) -> list[tuple[int, str, str, str]]:
    return [(span.line, span.text, span.use, span.name) for span in spans(text.splitlines(keepends=True))]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: "/".join(path.parts[-2:]))
def test_spans_of_a_sample_are_in_its_text_and_do_not_overlap(path: Path) -> None:
    with open_text(path) as stream:
        lines = stream.read().splitlines()
    found = spans([f"{line}\n" for line in lines], file=path.name)
    assert found
    assert [span.text for span in found] == [lines[span.line - 1][span.start : span.end] for span in found]
    assert all(before.end <= after.start for before, after in pairwise(found) if before.line == after.line)


def test_each_number_of_a_step_has_its_name_its_value_and_its_kind() -> None:
    line = "step:1900/20000 train_loss:2.2477 train_time:82462ms step_avg:43.40ms\n"
    assert spans([line])[2:] == [
        Span(1, 27, 33, "2.2477", "value", "loss", "train_loss", "", 2.2477),
        Span(1, 45, 50, "82462", "value", "train_time_s", "train_time", "ms", 82.462, "cumulative"),
        Span(1, 62, 67, "43.40", "value", "average_step_time_s", "step_avg", "ms", 0.0434, "average"),
    ]


def test_the_total_of_an_object_has_its_place() -> None:
    line = '{"current_steps": 3200, "total_steps": 3235, "loss": 4.4671, "epoch": 0.99, "elapsed_time": "5:13:22"}\n'
    assert (1, "3235", "total", "total_iterations") in read(line)


def test_counters_timers_settings_and_unread_numbers_have_places_as_well() -> None:
    found = read(
        "cmd = deepspeed --num_gpus 8 train.py --gradient_accumulation_steps 2\n"
        "[2024-03-01 10:00:05,000] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 10.00 | bwd: 20.00\n"
        "[2024-03-01 10:00:10,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=1, lr=[9e-06], mom=[0.9]\n"
    )
    assert (1, "8", "setting", "num_gpus") in found
    assert (2, "10.00", "value", "fwd") in found
    assert (3, "10", "step", "step") in found
    assert read("step 1 | loss: nan | dt: 350 ms\n")[1:] == [
        (1, "nan", "unread", "not a finite number"),
        (1, "350", "value", "step_time_s"),
    ]
