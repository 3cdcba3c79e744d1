"""What the readers beside Megatron and DeepSpeed make of single lines."""

from __future__ import annotations

import json

import pytest

from parlab.formats import Document, Record, format_of, read_document, records
from parlab.formats.schema import Segment
from parlab.formats.tools import all_reduce_bench
from parlab.formats.tools.nvidia_smi import MAX_ROWS


def read(text: str, format: str | None = None) -> Document:
    return read_document(text.splitlines(keepends=True), file="test", format=format)


def steps(text: str, format: str | None = None) -> list[Record]:
    return [record for record in records(text.splitlines(keepends=True), format) if record.kind == "step"]


def only(text: str, format: str | None = None) -> Segment:
    (segment,) = read(text, format).segments
    return segment


TITAN = (
    "[rank{rank}]:[titan] 2026-01-01 10:00:0{step},000 - root - INFO - step: {step}  loss: 2.5"
    "  memory: 10.00GiB(12.5%)  tps: {tps}  tflops: 100.00  mfu: N/A\n"
)


def test_torchtitan_counts_tokens_per_device() -> None:
    mesh = "[titan] 2026-01-01 10:00:00,000 - root - INFO - Building device mesh with parallelism: "
    mesh += "pp=2, dp_shard=4, cp=1, tp=1, ep=2\n"
    log = mesh + "".join(TITAN.format(rank=r, step=s, tps="1,000") for s in (1, 2) for r in range(8))
    segment = only(log)
    assert (segment.records, segment.launch.world_size) == (2, 8)
    assert segment.tokens_per_s == 8000.0


def test_torchtitan_says_nothing_of_an_mfu_without_peak() -> None:
    document = read(TITAN.format(rank=0, step=1, tps="1,000"))
    assert document.unread.lines == 0
    assert "mfu" not in document.segments[0].metrics


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory", "NVIDIA H100 80GB HBM3"),
        ("GPU capacity: NVIDIA A100-SXM4-80GB (0) with 79.15GiB memory", "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_torchtitan_names_its_gpu(message: str, name: str) -> None:
    line = f"[rank0]:[titan] 2026-01-01 10:00:00,000 - root - INFO - {message}\n"
    assert only(line + TITAN.format(rank=0, step=1, tps="1,000")).launch.arguments["gpu_name"] == name


def test_torchtitan_without_a_mesh_leaves_the_total_open() -> None:
    assert only(TITAN.format(rank=0, step=1, tps="1,000")).tokens_per_s is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("4.71K", 4710.0), ("2.13T", 2.13e12), ("1.87e-05", 1.87e-5), ("45", 45.0), ("nan", None), ("K", None)],
)
def test_nanotron_suffixes_are_decimal(text: str, value: float | None) -> None:
    line = f"[INFO|DP=0|PP=0|TP=0]: iteration: 3 / 9 | lm_loss: 2.5 | tokens_per_sec: {text} | grad_norm: 1.5\n"
    assert [step.values.get("tokens_per_s") for step in steps(line, "nanotron")] == [value]


def test_nanotron_reads_milliseconds_and_skips_the_time_left() -> None:
    cells = "time_per_iteration_ms: 1.5K | fwd_ms: 250 | eta: 0:01:02 | lm_loss: 2.5"
    line = f"[INFO|DP=0|PP=0|TP=0]: iteration: 3 / 9 | {cells}\n"
    document = read(line)
    (step,) = steps(line)
    assert step.values["step_time_s"] == 1.5
    assert document.segments[0].timers_s["fwd"].last == 0.25
    assert document.unread.lines == 0


@pytest.mark.parametrize(
    ("position", "printed", "iteration"),
    [(2003, "2e+3", 2003), (1234, "1.23e+3", 1234), (5000, "2e+3", 2000), (17, "16.00", 16), (7, "7.0", 7)],
)
def test_a_rounded_global_step_gives_way_to_the_bar_it_agrees_with(position: int, printed: str, iteration: int) -> None:
    bar = f"Epoch 0: :   1%|  | {position}/9000 [00:01<10:00, reduced_train_loss=2.5, global_step={printed}]\n"
    assert [step.iteration for step in steps(bar, "nemo")] == [iteration]


def test_steps_of_a_bar_that_rounds_stay_apart() -> None:
    bars = [
        f"Epoch 0: : 1%| | {n}/9000 [00:01<10:00, reduced_train_loss=2.5, global_step=1.23e+3]"
        for n in range(1230, 1235)
    ]
    assert only("\r".join(bars) + "\n").records == 5


def test_a_step_of_all_epochs_beside_one_of_the_epoch_counts_in_any_log() -> None:
    line = "epoch {e}, iteration {n}/10 | global_step: {g} | loss: 2.{g} | step time: 0.5 s{val}\n"
    val = " | val_loss: 2.5"
    text = "".join(line.format(e=g // 10, n=g % 10, g=g, val=val if g > 12 else "") for g in range(5, 25))
    segment = only(text, "pairs")
    assert [step.iteration for step in steps(text, "pairs")] == list(range(5, 25))
    assert [figure.iteration for figure in segment.validation] == [13]
    assert segment.end.state == "unknown"


def test_bars_of_one_line_and_bars_without_a_rate_are_steps() -> None:
    bar = "Epoch 0: 1%| | {n}/100 [00:0{n}<10:00, train_loss=2.{n}, global_step={g}.0, step_time={n}.5s, val_loss=3.5]"
    text = "".join(bar.format(n=n, g=n - 1) for n in range(1, 6)) + "\n"
    segment = only(text, "bars")
    assert [step.iteration for step in steps(text, "bars")] == [0, 1, 2, 3, 4]
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 3.5
    assert [figure.iteration for figure in segment.validation] == [0]


def test_the_step_time_that_a_trainer_states_replaces_the_rate_of_its_bar() -> None:
    bar = "Epoch 0: 1%| | {n}/100 [00:05<10:00, 9.00s/it, loss=2.{n}, step_time={n}.5s]\n"
    assert [step.values["step_time_s"] for step in steps(bar.format(n=1) + bar.format(n=2))] == [1.5, 2.5]


def test_nemo_says_finished_only_after_the_last_iteration_of_the_only_epoch() -> None:
    line = "Training epoch {e}, iteration {n}/9 | global_step: {g} | train_step_timing in s: 1.0\n"
    assert only(line.format(e=0, n=9, g=9)).end.state == "finished"
    assert only(line.format(e=1, n=9, g=19)).end.state == "unknown"
    assert only(line.format(e=0, n=8, g=8)).end.state == "unknown"


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 24, 64, 128])
def test_ranks_follow_from_an_all_reduce_where_the_digits_suffice(ranks: int) -> None:
    busbw = 40.0 * 2 * (ranks - 1) / ranks
    row = f" 1073741824 268435456 float sum -1 26843.5 40.00 {busbw:.2f} 0 26843.5 1.00 1.00 0\n"
    figures = read(row, "nccl-tests").figures
    derived = figures["derived_ranks"][0].value if "derived_ranks" in figures else None
    # With two ranks busbw = algbw, as for a broadcast of any size; large numbers need more digits than are printed.
    assert derived == (None if ranks in (2, 64, 128) else ranks)


def test_trials_beyond_the_rows_of_a_table_count_in_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduce_bench, "MAX_ROWS", 2)
    block = "{}:\n duration: 0.5 sec\n algo throughput: 8000000000.0 bps, 8.0 Gbps\n busbw: {}.0  Gbps\n"
    document = read("".join(block.format(rank, rank + 1) for rank in range(5)), "all-reduce-bench")
    (segment,) = document.segments
    assert len(document.tables[0].rows) == 2
    assert segment.metrics["busbw_bytes_per_s"].count == 5
    assert [(line.line, line.reason) for line in document.unread.examples] == [
        (9, "a table is limited to 2 rows; the figures include all 5 trials")
    ]


def test_bandwidths_of_an_empty_message_derive_nothing() -> None:
    row = " 0 0 float sum -1 15.51 0.00 0.00 0 15.52 0.00 0.00 0\n"
    document = read(row, "nccl-tests")
    assert len(document.tables[0].rows) == 1
    assert "derived_ranks" not in document.figures


def test_trainer_keeps_a_loss_beside_a_gradient_that_is_nan() -> None:
    document = read("{'loss': 2.5, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.1}\n")
    assert document.format == "huggingface"
    assert document.segments[0].loss is not None
    assert document.unread.lines == 1


def test_dictionaries_that_trainer_has_not_logged_are_no_steps_and_their_numbers_are_unread() -> None:
    log = "{'loss': 2.5, 'epoch': 0.1}\n{'lr': 3, 'betas': [0.9, 0.99]}\n{'epoch': 3}\n"
    assert [example.line for example in read(log, "huggingface").unread.examples] == [2]
    assert only(log, "huggingface").records == 1


def test_trainer_state_counts_its_batch_per_device() -> None:
    log = '{"log_history": [{"loss": 2.5, "step": 10, "epoch": 0.5}], "max_steps": 20, "train_batch_size": 4}\n'
    segment = only(log)
    assert (segment.launch.micro_batch_size, segment.launch.global_batch_size) == (4, None)
    assert segment.end.state == "unknown"


def test_mlperf_score_is_the_last_run_stop() -> None:
    event = ':::MLLOG {{"time_ms": {}, "key": "{}", "value": null, "metadata": {{"status": "success"}}}}\n'
    log = event.format(1000, "run_start") + event.format(5000, "run_stop") + event.format(9000, "run_stop")
    segment = only(log)
    assert segment.metrics["time_to_train_s"].last == 8.0
    assert segment.end.state == "finished"


def test_mlperf_positions_in_tokens_become_iterations() -> None:
    event = ':::MLLOG {{"time_ms": 1, "event_type": "X", "key": "{}", "value": {}, "metadata": {{"step": {}}}}}\n'
    log = event.format("global_batch_size", 16, 0) + event.format("max_sequence_length", 512, 0)
    log += event.format("tracked_stats", '{"train_step_timing": 2.0}', 3 * 16 * 512)
    segment = only(log)
    assert segment.first is not None
    assert segment.first.iteration == 3
    assert segment.samples_per_s == 8.0


def test_dmon_dash_is_missing_and_not_zero() -> None:
    log = "# gpu pwr mtemp sm fb\n# Idx W C % MB\n 0 100 - 50 1024\n 1 200 40 - 2048\n"
    segment = only(log)
    assert segment.metrics["memory_temperature_celsius"].count == 1
    assert (segment.gpu_util_pct, segment.gpu_mem_max_bytes) == (50.0, 2048 * 2**20)
    assert segment.metrics["power_watts"].by_rank == {"0": 100.0, "1": 200.0}


def test_query_gpu_reads_units_from_cells_or_header() -> None:
    log = "index, memory.used [MiB], power.draw [W]\n0, 1024 MiB, 100.5 W\n1, 2048, 99.5\n0, [N/A], 100\n"
    segment = only(log)
    assert segment.metrics["gpu_mem_bytes"].by_rank == {"0": 1024 * 2**20, "1": 2048 * 2**20}


def test_epochs_that_start_batches_again_go_on_counting() -> None:
    log = "".join(f"[Epoch {e}, Batch {b}] Forward: 1.5ms | Total: 2.5ms |\n" for e in (0, 1) for b in (1, 2, 3))
    segment = only(log)
    assert segment.records == 6
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 0.0025


@pytest.mark.parametrize(
    ("line", "format"),
    [
        ("iteration 3 of the story: Epoch 3 was good\n", "unknown"),
        ("# GPU notes: the size and count of things\n", "markdown"),
        ("name, utilization, memory\na, 1, 2\n", "tables"),
        ("completed step: 3, seconds: 5.5, loss: 2.5\n", "maxtext"),
        ("# gpu pwr gtemp sm\n# Idx W C %\n 0 1 2 3\n", "nvidia-smi"),
    ],
)
def test_formats_are_told_by_their_content(line: str, format: str) -> None:
    assert format_of(line.splitlines(keepends=True)) == format


@pytest.mark.parametrize(
    ("format", "line"),
    [
        ("torchtitan", "step: 1  loss: 2.0  memory: 1e308GiB(1%)  tps: 1e308  tflops: 1e308\n"),
        ("nanotron", "iteration: 1 / 2 | model_tflops_per_gpu: 1e308 | lm_loss: 9e99T\n"),
        ("nccl-tests", " 1 1 float sum -1 1 1 1e308 0 1 1 1e308 0\n# Avg bus bandwidth    : 1e308\n"),
        ("all-reduce-bench", "1:\n duration: 1e-99 sec\n algo throughput: 1e99 bps, 1e99 Gbps\n busbw: 1e99  Gbps\n"),
        ("nvidia-smi", "# gpu fb pclk\n# Idx MB MHz\n 0 1e308 1e308\n"),
        ("mlperf", ':::MLLOG {"key": "tracked_stats", "value": {"throughput": 1e308, "train_step_timing": 1e-308}}\n'),
        ("huggingface", "{'loss': 1e308, 'epoch': 1e309}\n{'train_runtime': 1" + "0" * 5000 + ", 'epoch': 1}\n"),
        ("ranklines", "[Epoch 0, Batch 1] Total: 1e308h | A: 1e308 GB |\n"),
    ],
)
def test_numbers_that_no_unit_can_hold_never_reach_the_output(format: str, line: str) -> None:
    for copies in (1, 3):
        json.dumps(read(line * copies, format).model_dump(), allow_nan=False)


def test_a_long_monitor_log_keeps_figures_of_all_rows_and_a_table_of_the_first() -> None:
    head = "# gpu pwr sm fb\n# Idx W % MB\n"
    document = read(head + "".join(f" 0 {100 + n % 7} 50 {n}\n" for n in range(3_000)))
    assert document.figures["rows"][0].value == 3_000
    assert len(document.tables[0].rows) == MAX_ROWS
    assert document.segments[0].metrics["gpu_mem_bytes"].count == 3_000
    assert document.segments[0].gpu_mem_max_bytes == 2_999 * 2**20


def test_blocks_that_are_never_completed_do_not_slow_the_rest_down() -> None:
    block = "1:\n duration: 0.5000 sec\n"
    whole = block + " algo throughput: 128000000000.0 bps, 128.0 Gbps\n busbw: 64.0  Gbps\n"
    document = read(block * 2_000 + whole * 10, "all-reduce-bench")
    assert len(document.tables[0].rows) == 10
    assert document.unread.lines == 2_000


def _mllog(key: str, value: object, at: int = 0, **metadata: object) -> str:
    event = {"time_ms": 1_000 * at, "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(event)}\n"


def test_mlperf_counts_the_summary_of_a_block_neither_as_a_step_nor_as_a_restart() -> None:
    text = _mllog("global_batch_size", 8) + _mllog("run_start", None, at=1)
    for block in range(3):
        for step in range(1, 5):
            stats = {"train_step_time": 2.0, "reduced_train_loss": 5.0}
            text += _mllog("tracked_stats", stats, step=8 * (4 * block + step))
        text += _mllog("tracked_stats", {"throughput": 4.0, "train_step_time": 2.1}, step=32 * block)
    segment = only(text)
    assert (segment.records, segment.step_time_s.median if segment.step_time_s else None) == (12, 2.0)
    assert segment.metrics["block_step_time_s"].count == 3


def test_nemo_counts_steps_once_that_a_list_repeats() -> None:
    line = "Training epoch 0, iteration {n}/2 | global_step: {n} | train_step_timing in s: {s} |\n"
    segment = only("".join(line.format(n=n, s=2.0 + n) for n in range(3)) + "train_step_timing in s: [2.0, 3.0, 4.0]\n")
    assert segment.records == 3
    assert segment.metrics["repeated_step_time_s"].count == 3


def test_a_line_without_a_rank_is_not_another_rank() -> None:
    line = "[Rank {rank}] (after 10 iterations) memory (MB) | allocated: 10.0 | max allocated: 20.0\n"
    text = "".join(line.format(rank=rank) for rank in range(4)) + line.format(rank=0).removeprefix("[Rank 0] ")
    memory = only(text, "megatron").memory
    assert memory is not None
    assert memory.ranks == 4
