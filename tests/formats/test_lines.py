"""Lines that lost a line feed, and lines that a terminal wrapped."""

from __future__ import annotations

import pytest

from parlab.formats import read_document, records
from parlab.formats.grammar.rates import rate_of
from parlab.formats.schema import Segment

ITERATION = (
    " iteration {n:8d}/      90 | consumed samples: {n:12d} | elapsed time per iteration (ms): {t} |"
    " learning rate: 1.500E-04 | global batch size:     8 | lm loss: 8.125000E+00 | loss scale: 1.0 |"
    " grad norm: 1.500 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
TIMERS = (
    "time (ms) | forward-compute: 175.10 | forward-recv: 126.22 | backward-compute: 513.00 | backward-send: 0.64 |"
    " backward-send-forward-recv: 4.74 | backward-params-all-reduce: 23.19 | optimizer: 115.99 | batch-generator: 3.30"
)
TITAN = "step: {n}  loss: 2.5  memory: 10.00GiB(12.5%)  tps: {t}  tflops: 100.00  mfu: 3.5%"


def only(*lines: str) -> tuple[Segment, int]:
    document = read_document([f"{line}\n" for line in lines], file="x")
    (segment,) = document.segments
    return segment, document.unread.lines


@pytest.mark.parametrize(
    "line",
    [
        ITERATION,
        "[default{r}]:" + ITERATION,
        "[INFO|DP=0|PP=0|TP={r}]: iteration: {n} / 9 | time_per_iteration_ms: {t} | lm_loss: 2.5",
        "Training epoch 0, iteration {n}/9 | lr: 2.7e-06 | global_step: {n} | train_step_timing in s: {t}",
        "[2026-01-02 10:00:00] [INFO] [a.py:1:f] [Rank {r}] steps: {n} loss: 8.0 iter time (s): {t} samples/sec: 9.5",
        "[Epoch 0, Batch {n}] Forward: {t}ms | Total: {t}ms |",
        "completed step: {n}, seconds: {t}, TFLOP/s/device: 1.0, loss: 2.0",
        "step {n}/9 | loss 2.5 | dt: {t}ms | tok/sec: 1,000",
        "(WorkerDict pid=1) step:{n} - timing_s/step:{t} - perf/mfu/actor:0.3 ",
        "global step {n} => time/step: {t} s, throughput: 1000.0 samples/s, loss=4.0 ",
    ],
)  # fmt: skip
def test_records_of_two_ranks_on_one_line_are_both_read(line: str) -> None:
    both = [line.format(n=n, t=2.5, r=0) + line.format(n=n, t=3.5, r=1) for n in (1, 2, 3)]
    segment, unread = only(*both)
    alone, _ = only(*(line.format(n=n, t=3.5, r=0) for n in (1, 2, 3)))
    assert (segment.records, unread) == (3, 0)
    assert segment.step_time_s is not None
    assert alone.step_time_s is not None
    assert segment.step_time_s.median == alone.step_time_s.median


@pytest.mark.parametrize("tag", ["", "[rank{r}]:[titan] 2026-01-01 10:00:00,000 - root - INFO - "])
def test_a_rate_keeps_its_name_beside_the_line_of_another_rank(tag: str) -> None:
    line = tag + TITAN
    segment, unread = only(*(line.format(n=n, t=10, r=0) + line.format(n=n, t=20, r=1) for n in (1, 2)))
    assert (segment.records, unread) == (2, 0)
    assert set(segment.metrics) == {
        "loss", "memory_bytes", "memory_share_pct", "tokens_per_s_per_gpu", "flops_per_gpu", "mfu_pct",
    }  # fmt: skip


@pytest.mark.parametrize("width", [60, 70, 80, 100, 132, 160, 200])
def test_iterations_and_timers_that_a_terminal_wrapped_are_whole(width: int) -> None:
    lines = [line for n in (1, 2, 3) for line in (ITERATION.format(n=n, t=5000.5 + n), TIMERS)]
    wrapped = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    (segment, unread), (whole, _) = only(*wrapped), only(*lines)
    assert unread == 0
    assert segment.step_time_s == whole.step_time_s
    assert segment.timers_s == whole.timers_s
    assert segment.metrics == whole.metrics


def test_a_line_behind_timers_does_not_belong_to_them() -> None:
    segment, unread = only(ITERATION.format(n=1, t=5.5), TIMERS, "saving | took: 3.5 s | to disk", TIMERS)
    assert len(segment.timers_s) == 8
    assert unread == 0 or segment.timers_s["batch-generator"].count == 2


def test_a_rank_that_lags_many_steps_behind_is_not_dropped() -> None:
    lines = [f"{rank}: {ITERATION.format(n=n, t=1000.5 + 1000 * rank)}" for rank in (0, 1) for n in range(1, 101)]
    segment, unread = only(*lines)
    assert (segment.records, unread) == (100, 0)
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 2.0005


def test_records_behind_the_open_steps_are_counted() -> None:
    lines = [f"{rank}: {ITERATION.format(n=n, t=1000.5)}" for rank in (0, 1) for n in range(1, 1_101)]
    document = read_document([f"{line}\n" for line in lines], file="x")
    assert document.segments[0].records == 1_100
    assert document.unread.lines == 76
    assert "1024 steps behind" in document.unread.examples[-1].reason


def test_a_line_of_which_a_part_was_read_does_not_make_a_file_unreadable() -> None:
    lines = [f"step {n}/9 | loss nan | dt: 2.5ms | tok/sec: 1,000\n" for n in (1, 2, 3)]
    document = read_document(lines, file="x")
    assert (document.unread.lines, document.notes) == (3, [])


def test_the_prefix_of_pythons_logging_hides_no_counter() -> None:
    lines = [f"INFO:train.loop:it={n} fwd=12.5ms wall/it=41.{n}ms hbm=61.2GB loss=2.5" for n in (1, 2, 3)]
    segment, unread = only(*lines)
    assert (segment.records, unread) == (3, 0)
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == pytest.approx(0.0412)
    assert "loss" in segment.metrics


def test_rates_may_be_of_a_day_and_a_time_of_many_steps_is_not_lost_in_silence() -> None:
    segment, unread = only(*(f"update {n} | 864.0 Gtok/day | 1.93 min/1k steps | ce 2.5" for n in (1, 2, 3)))
    assert segment.metrics["tokens_per_s"].median == pytest.approx(1e7)
    assert unread == 3


@pytest.mark.parametrize(
    ("unit", "name", "scale"),
    [
        ("samples/min", "samples_per_s", 1 / 60),
        ("k tok/h", "tokens_per_s", 1 / 3.6),
        ("Ttokens/day", "tokens_per_s", 1e12 / 86_400),
        ("tok/s", "tokens_per_s", 1.0),
        ("min/it", "step_time_s", 60.0),
        ("ms/step", "step_time_s", 1e-3),
    ],
)
def test_a_rate_counts_in_seconds(unit: str, name: str, scale: float) -> None:
    rate = rate_of(unit)
    assert rate is not None
    assert rate[0] == name
    assert rate[1] == pytest.approx(scale)


def test_a_bar_behind_the_entries_of_the_trainer_gives_the_step_time_once() -> None:
    entry = "{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': 0.1}"
    bar = " 5%|#   | 10/200 [00:41<12:10,  4.15s/it]"
    end = "{'train_runtime': 830.0, 'train_samples_per_second': 3.5, 'train_loss': 1.5, 'epoch': 1.0}"
    for lines in ([entry, bar, end], [entry, bar], [bar, entry, bar, end]):
        segment, unread = only(*lines)
        assert unread == 0
        times = segment.metrics["step_time_s"]
        assert (times.count, times.median) == (1, 4.15)


def test_a_number_within_which_another_record_begins_is_no_value() -> None:
    line = "step {n}/9 | loss 10.5 | lr 2.1e-06 | 290{n}.5 ms | 45.1% bf16 MFU | 180712 tok/s"
    half, rest = line.format(n=2).split("e-06")
    segment, unread = only(line.format(n=1), half + line.format(n=3), f"e-06{rest}", line.format(n=4))
    assert (segment.records, unread) == (4, 1)
    assert segment.metrics["learning_rate"].max == 2.1e-06
    assert segment.metrics["loss"].count == 4


def test_fields_of_a_block_do_not_follow_the_digits_of_an_earlier_block() -> None:
    numbers = [("12.5", "41250000000"), ("12", "40"), ("7", "5.25"), ("1200", "41260000000"), ("11.5", "41270000000")]
    blocks = [
        [
            f"[batch={n}/100]:\n",
            f"\t Train throughput/batches_per_sec: {rate}\n",
            f"\t Train memory/peak_allocated_mem: {memory}\n",
            "\t Train loss/train/total: 2.5\n",
        ]
        for n, (rate, memory) in enumerate(numbers, 1)
    ]
    alone = [[(r.kind, r.values, r.fields) for r in records(block, "composer")] for block in blocks]
    together = [(r.kind, r.values, r.fields) for r in records([line for block in blocks for line in block], "composer")]
    assert together == [record for block in alone for record in block]
    assert len({tuple(sorted(values)) for _, values, _ in together}) > 1
