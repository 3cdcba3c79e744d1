"""Logs as other trainers and collectors hand them over: packed, wrapped, with rates in sentences."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from parlab.formats import Document, format_of, read_document, records
from parlab.formats.completion import timed
from parlab.formats.files import read_file
from parlab.formats.grammar.metric_fields import metric_field
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.steplines import UNNAMED

LINE = " iteration {n:8d}/ 100 | elapsed time per iteration (ms): 5{n:02d}.0 | lm loss: 8.{n}E+00 |\n"
LOG = "".join(LINE.format(n=n) for n in range(1, 51))


def read(text: str) -> Document:
    return read_document(text.splitlines(keepends=True), file="test")


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, lzma.compress, zstandard.compress],
    ids=["gzip", "bzip2", "xz", "zstd"],
)
def test_a_packed_log_reads_as_the_log(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "packed"
    path.write_bytes(pack(LOG.encode("utf-16")))
    document = read_file(path)
    assert (document.segments[0].records, document.unread.lines) == (50, 0)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_told_by_its_zeros(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOG.encode(encoding))
    assert read_file(path).segments[0].records == 50


def test_the_logs_of_a_zip_archive_are_read_and_other_archives_are_not(tmp_path: Path) -> None:
    path = tmp_path / "logs.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run/stdout.log", LOG)
    assert read_file(path).segments[0].records == 50
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("run/weights.bin", b"\0" * 100)
    assert read_file(path).format == "unknown"
    path.write_bytes(path.read_bytes()[:200])
    assert read_file(path).segments == []


def test_a_command_behind_the_prefix_of_a_pod_states_the_launch() -> None:
    pod = "[pod/train-0/pytorch] "
    lines = "".join(f"{pod}step {n} | loss: 2.{n} | step time: 0.5 s\n" for n in (1, 2, 3))
    document = read(f"{pod}+ torchrun --nproc_per_node=8 --nnodes=2 train.py --bf16\n{lines}")
    assert document.segments[0].launch.world_size == 16


def test_a_truncated_packed_log_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    lines = "".join(LINE.format(n=n) for n in range(1, 3_000))
    path.write_bytes(gzip.compress(lines.encode())[:-200])
    document = read_file(path)
    assert 1 <= document.segments[0].records < 2_999
    assert document.unread.examples[-1].reason == "the compressed file is truncated or damaged after this line"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: {"log": line, "stream": "stdout", "time": "2026-01-02T10:00:00.123456789Z"},
        lambda line: {"textPayload": line, "timestamp": "2026-01-02T10:00:00Z", "resource": {"labels": {"pod": "a"}}},
        lambda line: {"MESSAGE": line, "_PID": "7"},
    ],
)
def test_a_line_in_an_object_of_a_collector_is_read(wrap: Callable[[str], dict[str, object]]) -> None:
    document = read("".join(json.dumps(wrap(line)) + "\n" for line in LOG.splitlines(keepends=True)))
    assert (document.format, document.segments[0].records, document.unread.lines) == ("megatron", 50, 0)


def test_an_object_with_numbers_of_its_own_is_no_wrapper() -> None:
    lines = [json.dumps({"step": n, "msg": "trained", "loss": 2.5 - n / 10, "step_time_s": 0.5}) for n in range(1, 6)]
    document = read("\n".join(lines) + "\n")
    assert (document.format, document.segments[0].records) == ("jsonl", 5)


@pytest.mark.parametrize(
    ("key", "unit", "name", "scale"),
    [
        ("throughput", "img/s", "samples_per_s", 1.0),
        ("speed", "k tok/s", "tokens_per_s", 1e3),
        ("tok/s", "", "tokens_per_s", 1.0),
        ("tok/s", "K", "tokens_per_s", 1e3),
        ("Avg prompt throughput", "tokens/s", "prompt_tokens_per_s", 1.0),
        ("images per second", "", "samples_per_s", 1.0),
        ("img/sec per GPU", "img/sec per GPU", "samples_per_s_per_gpu", 1.0),
        ("ms/step", "ms/step", "step_time_s", 1e-3),
        ("apples/s", "", "apples_per_s", 1.0),
        ("max_mem", "M", "max_allocated_bytes", 2.0**20),
        ("mem", "%", "mem_pct", 1.0),
    ],
)
def test_a_rate_is_named_by_its_unit_or_key(key: str, unit: str, name: str, scale: float) -> None:
    field = metric_field(key, unit)
    assert (field.name, field.scale) == (name, scale)


@pytest.mark.parametrize(
    "line", ["[{n}/9] loss 2.5 acc 0.5 img/s 1234", "step {n}: loss 2.5 tok/s 86,557 mem 9GiB (avg) 7"]
)
def test_a_unit_with_its_own_number_behind_it_is_a_name(line: str) -> None:
    document = read_document([line.format(n=n) + "\n" for n in range(1, 5)], file="x", format="pairs")
    assert not any(name.endswith("_per_s") for segment in document.segments for name in segment.metrics)
    assert document.unread.lines == 4


def test_a_number_with_a_unit_that_no_cell_claims_is_unread() -> None:
    document = read("".join(f"step {n} loss: 2.{n} after 4.5 ms of waiting, lr: 0.1\n" for n in range(1, 5)))
    assert {example.reason for example in document.unread.examples} == {UNNAMED}


def test_memory_without_a_unit_is_no_number_of_bytes() -> None:
    document = read("".join(f"step: {n}, loss: 2.5, step time: 0.5 s, max_memory: 41.12\n" for n in range(1, 5)))
    assert document.segments[0].gpu_mem_max_bytes is None


@pytest.mark.parametrize(
    "text",
    [
        "Speed was about 45 samples per second on 2 nodes. Step 3 of the plan: call at 10:30.\n",
        "           Step           Time\n          50000      100.00000\nPerformance:      123.456        0.194\n",
        "Step 1/12 : RUN pip install torch\n#2 DONE 0.2s\nStep 2/12 : COPY . .\n",
        "64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 time=0.145 ms\n" * 4,
    ],
)
def test_what_is_no_training_has_no_steps(text: str) -> None:
    assert all(segment.records == 0 for segment in read(text).segments)


def test_items_behind_a_time_stamp_are_no_markdown() -> None:
    assert format_of(["2026-01-02 10:00:00 - app - INFO - ready\n"] * 5) == "unknown"


def test_a_bar_of_other_work_counts_no_steps_of_the_trainer() -> None:
    lines = ["Map: 100%|██████████| 5200/5200 [00:21<00:00, 2412.12 examples/s]\n"]
    lines += [f"{{'loss': 1.{n}, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.{n}}}\n" for n in range(1, 4)]
    (segment,) = read("".join(lines)).segments
    assert (segment.records, segment.end.state) == (3, "unknown")


def test_the_value_before_a_key_is_no_part_of_it() -> None:
    document = read("".join(f"step={n} loss=2.5 unit=tok/s gpu_mem_peak_mb=41234\n" for n in range(1, 4)))
    assert set(document.segments[0].metrics) == {"loss", "max_allocated_bytes"}


def test_a_framed_block_of_results_is_no_restructured_text() -> None:
    frame = "=" * 40 + "\n"
    lines = "Throughput: 1234.5 samples/s\nStep time: 103.7 ms\nPeak memory: 31.25 GiB\n"
    document = read(f"{frame}Benchmark results\n{frame}{lines}{frame}")
    (segment,) = document.segments
    assert (document.format, segment.samples_per_s, segment.gpu_mem_max_bytes) == ("pairs", 1234.5, 31.25 * 2**30)
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 0.1037


def test_a_time_that_grows_is_the_clock_of_the_run_and_any_other_one_the_step() -> None:
    def median(*seconds: float) -> float | None:
        lines = [f"step {n} | Time: {time}s | loss: 3.{n}\n" for n, time in enumerate(seconds, 1)]
        (segment,) = read("".join(lines)).segments
        return segment.step_time_s.median if segment.step_time_s else None

    assert median(9.5, 4.5, 4.25) == 4.5
    assert median(4.5, 9.0, 13.5) == 4.5
    assert median(4.5, 4.6, 4.7) is None


def test_times_of_other_lines_stay_beside_a_time_that_is_a_clock() -> None:
    steps = [Record("step", n, {"loss": 2.5}, n) for n in (1, 3, 5)]
    own = [Record("timers", n, {"time": 10.0 * n}, n) for n in (1, 3, 5)]
    other = Record("timers", 6, {"time": 7.5}, 5)
    pairs = [record for pair in zip(steps, own, strict=True) for record in pair]
    assert list(timed([*pairs, other])) == [*steps, other]
    assert [step.values["train_time_s"] for step in steps] == [10.0, 30.0, 50.0]


@pytest.mark.parametrize("cut", ["{\n", '{\n  "loss": 9.5,\n'])
def test_an_object_that_does_not_end_hides_no_lines_behind_it(cut: str) -> None:
    before, behind = ("".join(f'{{"step": {n}, "loss": 2.{n}}}\n' for n in steps) for steps in ((1, 2), (3, 4)))
    document = read(before + cut + behind)
    assert [example.reason for example in document.unread.examples] == ["a JSON object that does not end"]
    assert document.segments[0].records == 4


def test_a_lone_number_in_the_type_of_numpy_is_a_number() -> None:
    document = read(
        "".join(f"step:{n} - perf/mfu/actor:np.float64(0.31) - timing_s/step:np.float64({n}.5)\n" for n in (1, 2))
    )
    assert document.format == "verl"
    assert document.segments[0].metrics["mfu"].mean == 0.31


@pytest.mark.parametrize(
    ("lines", "iterations", "last"),
    [
        (  # XLM: a number alone in front of a rate counts the steps
            [
                f"INFO - 10/04/19 14:41:2{n} - 0:11:1{n} -    113{n} -   56.1{n} sent/s -  2143.80 words/s - MLM-en:"
                f"  7.7{n} -  - model LR: 3.8e-06\n"
                for n in (5, 6)
            ],
            [1135, 1136],
            {"samples_per_s": 56.16, "words_per_s": 2143.8, "mlm_en": 7.76, "model_lr": 3.8e-06},
        ),
        (  # Darknet: its step is no label of srun, the time in seconds is that of the step
            [
                f" {n}: 12.345678, 13.45678{n} avg loss, 0.001000 rate, 3.45678{n} seconds, 6400 images, 2.5 hours"
                " left\n"
                for n in (1, 2)
            ],
            [1, 2],
            {"avg_loss": 13.456782, "rate": 0.001, "step_time_s": 3.456782, "images": 6400.0},
        ),
        (  # Flair: names without a sign between dashes
            [
                f"2023-03-27 15:20:1{n},612 epoch 1 - iter 8{n}/853 - loss 0.543{n} - time (sec): 12.3{n}"
                f" - samples/sec: 1042.27 - lr: 0.000050\n"
                for n in (5, 6)
            ],
            [85, 86],
            {"loss": 0.5436, "samples_per_s": 1042.27, "learning_rate": 5e-05},
        ),
        (  # the word language model of PyTorch's examples
            [
                f"| epoch   1 |   {n}00/ 2983 batches | lr 20.00 | ms/batch  8.00 | loss  7.{n} | ppl  2058.31\n"
                for n in (2, 4)
            ],
            [200, 400],
            {"learning_rate": 20.0, "step_time_s": 0.008, "loss": 7.4, "ppl": 2058.31, "epoch": 1.0},
        ),
        (  # DCGAN: epoch and batch in brackets, losses of parts
            [f"[0/25][{n}0/1583] Loss_D: 1.98{n} Loss_G: 5.5914 D(x): 0.6004\n" for n in (5, 6)],
            [50, 60],
            {"loss_d": 1.986, "loss_g": 5.5914, "d": 0.6004, "epoch": 0.0},
        ),
        (  # Swin: cells between tabs, with averages in brackets
            [
                f"[2021-05-01 10:00:1{n} swin](main.py 209): INFO Train: [0/300][1{n}/1251]\teta 1:02:03 lr 0.00{n}\t"
                "time 0.7123 (0.8123)\tloss 6.9012 (6.9123)\tmem 12345MB\n"
                for n in (5, 6)
            ],
            [15, 16],
            {
                "learning_rate": 0.006,
                "time": 0.7123,
                "average_time": 0.8123,
                "loss": 6.9012,
                "average_loss": 6.9123,
                "memory_bytes": 12345.0 * 2**20,
                "epoch": 0.0,
            },
        ),
        (  # OpenNMT-tf: two rates of words
            [
                f"INFO:tensorflow:Step = {n} ; steps/s = 1.23, source words/s = 12345, target words/s = 23456\n"
                for n in (5, 6)
            ],
            [5, 6],
            {"steps_per_s": 1.23, "words_per_s": 12345.0, "target_words_per_s": 23456.0},
        ),
        (  # a name with a sign in it
            [f"Epoch: [0][{n}0/5004]\tTime 0.110 (0.234)\tLoss 6.9{n} (6.95)\tPrec@1 0.10 (0.12)\n" for n in (1, 2)],
            [10, 20],
            {
                "step_time_s": 0.11,
                "average_step_time_s": 0.234,
                "loss": 6.92,
                "average_loss": 6.95,
                "prec_1": 0.1,
                "average_prec_1": 0.12,
                "epoch": 0.0,
            },
        ),
    ],
    ids=["xlm", "darknet", "flair", "wordlm", "dcgan", "swin", "onmt-tf", "dali"],
)
def test_cells_between_dashes_and_values_in_front_of_names_are_steps(
    lines: list[str], iterations: list[int], last: dict[str, float]
) -> None:
    (segment,) = read_document(lines, file="run.log").segments
    assert [record.iteration for record in records(lines) if record.kind == "step"] == iterations
    assert segment.last is not None
    assert segment.last.values == last


def test_a_rate_of_the_whole_run_is_no_rate_of_a_step() -> None:
    assert metric_field("train_speed", "iter/s")[:2] == ("average_steps_per_s", "train_speed")
    assert metric_field("train_speed", "iter/s").kind == "average"


def step_values(text: str) -> list[tuple[int | None, dict[str, float]]]:
    return [
        (record.iteration, record.values)
        for record in records(text.splitlines(keepends=True))
        if record.kind == "step" and record.values
    ]


def test_epochs_are_the_steps_of_a_log_that_states_no_others() -> None:
    text = "Run: 0, Epoch: 4, Loss: 2.5, Valid: 92.5%\nRun: 0, Epoch: 5, Loss: 2.25, Valid: 93.5%\n"
    assert [(step, values["loss"]) for step, values in step_values(text)] == [(4, 2.5), (5, 2.25)]


def test_an_epoch_between_steps_states_figures_of_the_launch() -> None:
    text = "".join(f"step {n} | loss: {9 - n}.5 | dt: 350 ms\n" for n in range(1, 4))
    found = list(records([*text.splitlines(keepends=True), "Epoch 1, Loss: 3.25, Time 12.5 s\n"]))
    assert [record.values["loss"] for record in found if record.kind == "metrics"] == [3.25]
    assert [record.iteration for record in found if record.kind == "step"] == [1, 2, 3]


def test_a_dictionary_behind_words_is_read_with_all_of_its_lines() -> None:
    lines = ["training - { 'time/step_time': 0.75,\n", "  'train/loss': 2.5,\n", "  'train/step': 40}\n"]
    more = ["training - { 'time/step_time': 0.5,\n", "  'train/loss': 2.25,\n", "  'train/step': 50}\n"]
    assert [(step, values["loss"]) for step, values in step_values("".join(lines + more))] == [(40, 2.5), (50, 2.25)]


def test_cells_behind_a_bar_have_the_names_of_their_trainer() -> None:
    text = "".join(
        f"| epoch 001:   1%|#| {n}/100 [00:0{n}<01:00,  1.0s/it, loss=9.5, ups=0.25, num_updates={n}, lr=1e-05]\n"
        for n in range(1, 4)
    )
    values = [record.values for record in records(text.splitlines(keepends=True), "fairseq") if record.kind == "step"]
    assert [each["steps_per_s"] for each in values] == [0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("step 3 | acc=42.5±0.25% | loss: 2.5", "acc_pct", 42.5),
        ("step 3 | acc=42.5±0.25% | loss: 2.5", "acc_error_pct", 0.25),
        ("step 3 | loss: 2.5 | runtime: 0:02:05", "runtime_s", 125.0),
    ],
)
def test_errors_and_clocks_behind_a_name_are_numbers(line: str, name: str, value: float) -> None:
    text = "".join(f"{line.replace('step 3', f'step {n}')}\n" for n in range(1, 4))
    found = [record for record in records(text.splitlines(keepends=True)) if record.kind in ("step", "timers")]
    assert {name: value}.items() <= {key: number for record in found for key, number in record.values.items()}.items()


def test_scores_on_held_out_data_are_no_scores_of_the_training() -> None:
    text = "".join(f"Epoch[0] Batch [{n}00]\tSpeed: 512.5 samples/sec\tTrain-loss=2.5\n" for n in range(1, 4))
    text += "Epoch[0] Validation-accuracy=0.75\nDEV  : loss 0.25 - acc 0.875\n"
    found = [record.values for record in records(text.splitlines(keepends=True)) if record.kind == "validation"]
    assert [value for values in found for value in values.values()] == [0.75, 0.25, 0.875]
