"""Lines of the DeepSpeed engine that a terminal wrapped read as the lines that the engine printed."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.formats import read_document

TAG = "[2026-02-03 10:00:{n:02d},123] [INFO] "
LOG = "".join(
    (TAG + line).format(n=n, ms=500.25 + n) + "\n"
    for n in range(1, 5)
    for line in (
        "[logging.py:128:log_dist] [Rank 0] step={n}, skipped=0, lr=[1.5e-05, 1.5e-05], mom=[(0.9, 0.95), (0.9, 0.95)]",
        "[timer.py:264:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=61.25,"
        " CurrSamplesPerSec=62.5, MemAllocated=12.4GB, MaxMemAllocated=38.9GB",
        "[logging.py:128:log_dist] [Rank 0] rank=0 time (ms) | forward: {ms:.2f} | backward: 1021.22"
        " | backward_inner: 843.13 | backward_allreduce: 178.02 | step: 88.32",
    )
)
MEGATRON = "".join(
    f" iteration {n:8d}/ 9 | elapsed time per iteration (ms): 1700.0 | lm loss: 8.5 |\n" for n in range(5, 9)
)
TRAINER = "".join(f"{{'loss': 2.{n}, 'learning_rate': 1e-05, 'epoch': 0.{n}}}\n" for n in range(1, 5))


def wrapped(text: str, width: int, *, keep: bool) -> str:
    """Wrap lines as a terminal does; without `keep`, copying took the spaces at the ends."""
    lines = [line[at : at + width] for line in text.splitlines() for at in range(0, len(line), width)]
    return "\n".join(line if keep else line.rstrip() for line in lines) + "\n"


def numbers(text: str, format: str | None = None) -> dict[str, Any]:
    """Return what a document states, without its line numbers."""
    document = read_document(text.splitlines(keepends=True), file="x", format=format)
    (segment,) = document.segments
    step = {"steps": segment.step_time_s, "rate": segment.samples_per_s, "memory": segment.gpu_mem_max_bytes}
    return {**step, "metrics": segment.metrics, "timers": segment.timers_s, "unread": document.unread.lines}


@pytest.mark.parametrize("width", [60, 72, 80, 100, 132])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("format", ["deepspeed", "megatron", "huggingface"])
def test_a_wrapped_log_states_what_the_log_states(width: int, keep: bool, format: str) -> None:
    more = {"megatron": MEGATRON, "huggingface": TRAINER}.get(format, "")
    states = numbers(LOG + more, format)
    assert states["unread"] == 0
    assert "forward" in states["timers"]
    assert numbers(wrapped(LOG, width, keep=keep) + more, format) == states


def test_the_records_of_a_wrapped_line_reach_to_its_end() -> None:
    lines = wrapped(LOG, 80, keep=True).splitlines(keepends=True)
    (segment,) = read_document(lines, file="x").segments
    assert segment.first is not None
    assert segment.first.line == 1
    assert segment.lines is not None
    assert segment.lines.last > len(lines) - 4


@pytest.mark.parametrize("below", ["5\n", "17 | shuffle\n", "loss: 2.5\n", "(12.5, 3)\n", "\n"])
def test_what_a_program_prints_below_a_whole_line_is_no_part_of_it(below: str) -> None:
    lines = [part for line in LOG.splitlines(keepends=True) for part in (line, below)]
    assert numbers("".join(lines))["timers"] == numbers(LOG)["timers"]


def test_parts_that_are_no_whole_line_together_are_unread() -> None:
    lines = wrapped(LOG, 80, keep=True).splitlines(keepends=True)
    lost = next(n for n, line in enumerate(lines) if "rank=0" in line)
    document = read_document([line for n, line in enumerate(lines) if n != lost], file="x")
    assert document.unread.lines > 0
