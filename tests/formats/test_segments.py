"""How records add up to launches."""

from __future__ import annotations

import re

import pytest

from parlab.formats import read_document
from parlab.formats.schema import Segment
from parlab.formats.statistics import Stream


def step(iteration: int, ms: float = 100.0, *, prefix: str = "", extra: str = "") -> str:
    return f"{prefix} iteration {iteration:8d}/ 1000 | elapsed time per iteration (ms): {ms} | {extra}\n"


def segments(*lines: str) -> list[Segment]:
    return read_document(lines, file="x", format="megatron").segments


def test_the_same_iteration_from_many_ranks_is_one_step_as_slow_as_the_slowest() -> None:
    lines = [step(n, 100.0 + rank, prefix=f"{rank}: ") for n in (1, 2, 3) for rank in range(4)]
    (segment,) = segments(*lines)
    assert segment.records == 3
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 0.103


def test_a_rank_that_lags_behind_opens_no_segment() -> None:
    (segment,) = segments(step(1, prefix="0: "), step(2, prefix="0: "), step(1, prefix="1: "), step(2, prefix="1: "))
    assert segment.records == 2


def test_a_restart_at_an_earlier_iteration_opens_a_segment_with_the_same_arguments() -> None:
    first, second = segments("using world size: 8 and model-parallel size: 2\n", step(10), step(20), step(11))
    assert [first.records, second.records] == [2, 1]
    assert second.launch.world_size == 8


def test_launches_that_print_the_same_iteration_are_separate() -> None:
    rates = ((1000.0, 400.0), (2000.0, 200.0), (4000.0, 100.0))
    lines = [step(100, ms, extra=f"throughput per GPU (TFLOP/s/GPU): {rate} | ") for ms, rate in rates]
    launches = segments(*lines)
    assert [(s.step_time_s.median, s.tflops_per_gpu) for s in launches if s.step_time_s] == [
        (1.0, 400.0), (2.0, 200.0), (4.0, 100.0),
    ]  # fmt: skip


def test_launches_with_the_same_loss_are_separate_by_their_speed() -> None:
    rates = (
        (1002.5, "throughput per GPU (TFLOP/s/GPU): 201.4 | "),
        (1200.1, "throughput per GPU (TFLOP/s/GPU): 168.2 | "),
    )
    launches = segments(*(step(5, ms, extra=f"{rate}lm loss: 7.1E+00 | ") for ms, rate in rates))
    assert [(s.step_time_s.median, s.tflops_per_gpu) for s in launches if s.step_time_s] == [
        (1.0025, 201.4), (1.2001, 168.2),
    ]  # fmt: skip
    assert len(segments(*(step(5, ms, extra="lm loss: 7.1E+00 | ") for ms in (1000.0, 2000.0)))) == 2


def test_a_command_with_other_settings_after_a_step_opens_a_segment() -> None:
    command = "$ torchrun --nproc_per_node 8 train.py --tensor-model-parallel-size {}\n".format
    launches = segments(command(1), step(5), command(2), step(10), command(2), step(20))
    assert [(s.launch.tensor_parallel_size, s.records) for s in launches] == [(1, 1), (2, 2)]


def test_a_launch_that_resumes_at_the_last_printed_iteration_is_separate() -> None:
    assert [s.records for s in segments(step(40), step(50), step(50, 150.0), step(60, 150.0))] == [2, 2]


def test_ranks_without_a_tag_that_print_the_same_loss_share_a_step() -> None:
    (segment,) = segments(*(step(n, 100.0 * rank, extra="lm loss: 5.0 | ") for n in (1, 2) for rank in (1, 2)))
    assert segment.records == 2


def test_a_step_printed_twice_in_other_units_is_not_another_launch() -> None:
    assert len(segments(step(1, 4103.1), step(1, 4103.0), step(2, 4103.1))) == 1


def test_a_clock_that_runs_backwards_opens_a_segment() -> None:
    found = segments(
        step(1, prefix="[2026-01-05 10:00:00]"),
        step(2, prefix="[2026-01-05 10:01:00]"),
        step(3, prefix="[2026-01-04 10:00:00]"),
    )
    assert [segment.records for segment in found] == [2, 1]


def test_placeholders_are_no_measurements() -> None:
    lines = [step(n, 0.0 if n == 2 else 100.0, extra="lm loss: -1 | loss scale: -1.0 | ") for n in (1, 2, 3)]
    (segment,) = segments(*lines, "time (ms) | forward: 0.00 | backward: 5.00\n")
    assert segment.loss is None
    assert "loss_scale" not in segment.metrics
    assert segment.metrics["step_time_s"].count == 2
    assert list(segment.timers_s) == ["backward"]


def test_training_that_goes_on_after_an_error_did_not_end_there() -> None:
    (segment,) = segments(step(1), "ValueError: a worker died\n", step(2))
    assert segment.end.state == "unknown"


def test_an_error_at_the_end_is_why_it_crashed() -> None:
    lines = ("Traceback (most recent call last):\n", "RuntimeError: NCCL error\n", "ValueError: a later one\n")
    (segment,) = segments(step(1), *lines)
    assert segment.end.state == "crashed"
    assert segment.end.reason == "RuntimeError: NCCL error"


def test_quantiles_of_a_long_stream_come_from_a_fair_sample_of_bounded_size() -> None:
    stream = Stream(limit=1_000)
    for value in range(200_000):
        stream.append(float(value))
        if value % 1_000 == 0:
            stream.flush()
    assert len(stream.kept) + len(stream.pending) <= 2_000
    p10, median, p90 = stream.quantiles(0.1, 0.5, 0.9)
    assert abs(p10 - 20_000) < 8_000
    assert abs(median - 100_000) < 10_000
    assert abs(p90 - 180_000) < 8_000
    assert (stream.first, stream.last, stream.minimum, stream.maximum) == (0.0, 199_999.0, 0.0, 199_999.0)
    assert stream.mean == 99_999.5


def test_both_ways_to_read_a_line_give_the_same_record() -> None:
    line = step(7, 123.4, extra="lm loss: 8.5E+00 | grad norm: 1.25 | learning rate: 1.0E-04 | ")
    slow, _, fast = segments(line, "using world size: 4\n", line, "using world size: 4\n", line)
    assert slow.first is not None
    assert fast.first is not None
    assert slow.first.values == fast.first.values
    assert slow.first.printed == fast.first.printed


def test_timers_of_a_wall_clock_give_the_step_time_if_nothing_else_does() -> None:
    line = "[2021-10-08 20:03:15,649] [INFO] [logging.py:68:log_dist] [Rank 0] rank=0 time (ms) | forward: 400.0"
    (segment,) = read_document([f"{line} | backward: 700.0 | step: 100.0\n"] * 2, file="x", format="deepspeed").segments
    assert segment.step_time_s is not None
    assert round(segment.step_time_s.median, 6) == 1.2
    assert "forward, backward, step" in segment.basis["step_time_s"]


def launches(*texts: str) -> list[tuple[int, float | None]]:
    """Return steps and median step time of each launch in texts one after the other."""
    lines = "".join(texts).splitlines(keepends=True)
    found = read_document(lines, file="x").segments
    return [(s.records, s.step_time_s.median if s.step_time_s else None) for s in found]


def later(text: str) -> str:
    """Return the log of a launch of the next day in which everything took twice as long and the loss is another."""
    text = re.sub(r"(2026-01-)(\d\d)", lambda day: f"{day[1]}{int(day[2]) + 1:02d}", text)
    text = re.sub(r"(loss'?[:=]? ?)(\d)\.", lambda loss: f"{loss[1]}{int(loss[2]) + 1}.", text)
    return re.sub(r"\d+(?=\.\d+@)", lambda number: str(2 * int(number[0])), text)


# Output of one launch, in which @ marks the times.
CONCATENATED = {
    "Megatron-LM, one step": " iteration 100/ 100 | elapsed time per iteration (ms): 500.0@ | lm loss: 2.5E+00 |\n",
    "GPT-NeoX": "[2026-01-05 10:00:00,000] [INFO] [timer.py:215:stop] epoch=0/micro_step=34/global_step=34,"
    " RunningAvgSamplesPerSec=7.86, CurrSamplesPerSec=8.01, MemAllocated=59.65GB, MaxMemAllocated=63.31GB\n"
    " samples/sec: 7.799 | iteration 34/ 100 | elapsed time per iteration (ms): 4100.0@ | lm_loss: 1.5E+01 |\n"
    "[2026-01-05 10:00:04,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=35, skipped=0, lr=[2e-06], mom=[0.9]\n",
    "nanoGPT": "".join(f"iter {n}: loss 4.{n}, time 250.0@ms, mfu 40.0%\n" for n in range(3)),
    "llm.c, one step": "step   10/74 | loss 3.5 | norm 1.0 | lr 3.00e-04 | 36.0@ ms | 9.2% bf16 MFU | 112241 tok/s\n",
    "nanochat with other totals": "step 00039/00040 (97.50%) | loss: 4.0 | dt: 100.0@ms | tok/sec: 327,680\n",
    "a dictionary without a bar": "".join(
        f"{{'loss': 2.{n}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'step_time': 26.0@, 'epoch': 0.{n}}}\n"
        for n in range(1, 4)
    ),
    "a dictionary before its bar": "".join(
        f"{{'loss': 2.{n}, 'learning_rate': 1e-05, 'step_time': 26.0@, 'epoch': 0.{n}}}\n"
        f" {n}%|#| {n}/100 [00:2{n}<10:00, 26.00s/it]\n"
        for n in range(1, 4)
    ),
    "OpenRLHF": "(Actor pid=7) [2026-01-05 11:20:10] INFO trainer.py:311: Global step 2: {'policy_loss': -0.01,"
    " 'reward': 0.5@, 'timing/ppo_train': 30.0@, 'timing/step_total': 72.0@}\n",
    "OpenCLIP": "".join(
        f"2026-01-05,10:05:0{n} | INFO | Train Epoch: 0 [ {n}048000/10968539 (20%)] Data (t): 0.012"
        " Batch (t): 4.0@, 11855.4/s, 185.2/s/gpu LR: 0.000050\n"
        for n in range(1, 4)
    ),
    "pipeline runner": "Rank 0 node forward pass takes 2.0@s\nRank 0 node whole iteration takes 8.0@s\n"
    "Rank 0 node forward pass takes 2.0@s\nRank 0 node whole iteration takes 8.0@s\n"
    "Finished running  10  iterations, averaged (exclude the first iter) run time: 8.0\n",
    "NeMo's list": "[NeMo I 2026-01-05 10:00:00 nemo_logging:393] Rank 0 has data parallel rank: 0\n"
    "train_step_timing in s: [6.0@, 6.0@, 6.0@]\n",
}


@pytest.mark.parametrize("log", CONCATENATED.values(), ids=list(CONCATENATED))
def test_concatenated_logs_of_a_sweep_are_one_launch_each(log: str) -> None:
    logs = [log, later(log), later(later(log))]
    if "/00040" in log:
        logs = [log, log.replace("00040", "00080").replace("00039", "00079")]
    logs = [text.replace("@", "") for text in logs]
    separate = [launch for text in logs for launch in launches(text)]
    assert len(separate) == len(logs)
    assert launches(*logs) == separate


def test_a_bar_of_another_launch_at_the_same_position_is_another_step() -> None:
    bars = [f"100%|#| 30/30 [0{minutes}:12<00:00, {rate}s/it]\n" for minutes, rate in ((3, 6.4), (2, 4.4), (2, 4.5))]
    assert launches(*bars) == [(1, 6.4), (1, 4.5)]


def test_blocks_of_metrics_of_several_launches_are_not_averaged() -> None:
    block = "***** train metrics *****\n  epoch = 3.0\n  train_runtime = 0:36:58.55\n  train_samples_per_second = {} \n"
    found = read_document("".join(map(block.format, (1.5, 2.5, 3.5))).splitlines(keepends=True), file="x").segments
    assert [segment.samples_per_s for segment in found] == [1.5, 2.5, 3.5]


def test_a_bar_beside_lines_with_the_time_of_each_step_is_no_launch_of_its_own() -> None:
    lines = [
        f"(TaskRunner pid=7) step:{n} - actor/pg_loss:0.00{n} - timing_s/gen:30.2 - timing_s/step:8{n}.44\n"
        f"Training Progress:   0%|          | {n}/435 [0{n}:2{n}<9:58:01, 82.68s/it]\n"
        for n in (1, 2, 3)
    ]
    assert launches(*lines) == [(3, 82.44)]
