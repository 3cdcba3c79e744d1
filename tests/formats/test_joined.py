"""Files that hold the lines of several formats."""

from __future__ import annotations

from itertools import chain

import pytest

from parlab.findings import document_findings
from parlab.formats import Document, Record, format_of, others, read_document, records

MEGATRON = (
    " iteration {n:8d}/     100 | elapsed time per iteration (ms): 50{n}.0 | lm loss: {loss}E+00 | grad norm: 1.2 |\n"
)
TITAN = (
    "[titan] 2026-01-02 10:00:0{n},000 - root - INFO - step: {n}  loss: {loss}  memory: 40.25GiB(50.91%)  tps: 5,000\n"
)
TUNE = "Step {n} | loss:{loss} lr:2e-05 tokens_per_second_per_gpu:3100.5 peak_memory_alloc:20.5\n"
GPT = "iter {n}: loss {loss}, time 25{n}.00ms, mfu 41.50%\n"
BOX = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.10.10              Driver Version: 550.10.10      CUDA Version: 12.4     |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1A:00.0 Off |                    0 |
| N/A   61C    P0             655W / 700W |   70000MiB /  81559MiB |     99%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
"""
SCORES = """\
|  Tasks  |n-shot|Metric|Value |   |Stderr|
|---------|-----:|------|-----:|---|-----:|
|easy     |     0|acc   |0.6125|±  |0.0100|
|hard     |     0|acc   |0.4125|±  |0.0050|
"""


def lines(*forms: str, count: int = 4) -> list[str]:
    """Return the lines of each step."""
    return [form.format(n=n, loss=f"{9 - n}.25") for n in range(1, count + 1) for form in forms]


def steps(text: list[str]) -> list[Record]:
    return [record for record in records(text) if record.kind == "step"]


def launches(document: Document) -> list[tuple[int, int]]:
    """Return the first line and the steps of each launch."""
    return [(segment.lines.first if segment.lines else 0, segment.records) for segment in document.segments]


def read(*texts: str | list[str]) -> Document:
    parts = [text.splitlines(keepends=True) if isinstance(text, str) else text for text in texts]
    return read_document(list(chain(*parts)), file="x")


def test_numbers_of_a_wrapper_belong_to_the_step_of_the_engine() -> None:
    text = lines(MEGATRON, "[wrapper] step {n} gpu_power_w 60{n} tokens_per_joule 1.{n}5\n")
    (segment,) = read(text).segments
    assert (segment.records, segment.steps.count if segment.steps else 0) == (4, 4)
    assert (segment.metrics["gpu_power_w"].last, segment.metrics["tokens_per_joule"].last) == (604.0, 1.45)
    assert read(text).unread.lines == 0


def test_a_wrapper_that_counts_from_zero_begins_no_launch() -> None:
    text = [
        part
        for n in range(1, 5)
        for part in (MEGATRON.format(n=n, loss="8.25"), f"step {n - 1} | power: 60{n} W | queue: 3\n")
    ]
    (segment,) = read(text).segments
    assert (segment.records, segment.metrics["power_watts"].count) == (4, 4)


def test_an_entry_without_a_number_has_that_of_the_step_above_it() -> None:
    text = lines(MEGATRON, "{{'loss': {loss}, 'grad_norm': 1.2, 'reward': 0.{n}5, 'epoch': 0.{n}}}\n")
    assert [(step.iteration, step.values["reward"]) for step in steps(text) if "reward" in step.values] == [
        (1, 0.15), (2, 0.25), (3, 0.35), (4, 0.45)
    ]  # fmt: skip
    (segment,) = read(text).segments
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 0.5025


def test_two_engines_in_turn_are_two_launches() -> None:
    document = read(lines(MEGATRON), lines(TITAN))
    assert launches(document) == [(1, 4), (5, 4)]
    assert document.segments[1].metrics["tokens_per_s_per_gpu"].last == 5000.0
    assert document.unread.lines == 0


def test_each_of_two_dialects_reads_its_own_names() -> None:
    document = read(lines(GPT), lines(TUNE))
    assert [segment.records for segment in document.segments] == [4, 4]
    assert [step.values["max_allocated_bytes"] for step in steps(lines(GPT) + lines(TUNE))[4:]] == [20.5 * 2**30] * 4


def test_a_table_behind_the_steps_is_a_table() -> None:
    document = read(lines(GPT), "evaluation of the last checkpoint\n", SCORES)
    (table,) = document.tables
    assert (table.line, table.columns[3], [row[3].value for row in table.rows]) == (6, "Value", [0.6125, 0.4125])


def test_the_box_of_nvidia_smi_is_read_alone_and_between_steps() -> None:
    for document in (read(BOX), read(lines(TITAN), BOX, lines(TITAN, count=1))):
        figures = document.segments[0].metrics
        assert (figures["power_watts"].last, figures["gpu_mem_bytes"].last) == (655.0, 70_000 * 2**20)
        assert document.unread.lines == 0


def test_a_sentence_about_a_step_states_no_step_time() -> None:
    text = lines(MEGATRON, "step {n} took 3.5 ms\n")
    document = read(text)
    assert document.segments[0].step_time_s is not None
    assert document.segments[0].step_time_s.median == 0.5025
    assert document.unread.lines == 4


def test_gpus_before_the_first_step_say_nothing_of_the_training() -> None:
    document = read("world size: 8\n", BOX, lines(MEGATRON))
    (segment,) = document.segments
    assert (segment.launch.world_size, "gpu_util_pct" in segment.metrics, segment.figures) == (8, False, {})
    assert [table.line for table in document.tables] == [6]


def test_steps_of_another_program_are_no_restart_of_the_one_before() -> None:
    text = lines(GPT) + [TUNE.format(n=n, loss="2.25") for n in range(2, 6)]
    assert [finding.rule for finding in document_findings(read(text))] == []


def test_after_a_long_run_the_reader_of_its_format_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "MAX_RUN", 700)
    text = lines(MEGATRON) + [TITAN.format(n=n, loss="2.25") for n in range(1, 2_001)] + lines(MEGATRON)
    document = read_document(text, file="x", format="megatron")
    assert launches(document) == [(1, 4), (5, 2_000), (2_005, 4)]
    assert document.unread.lines == 0


ENGINE = "[2026-01-15 14:48:0{n},446] [INFO] [logging.py:107:log_dist] [Rank 0] "
CONFIG = """\
[2026-01-15 14:48:00,446] [INFO] [config.py:752:print]   flops_profiler_config ........ {
    "enabled": false,
    "profile_step": 12
}
[2026-01-15 14:48:00,446] [INFO] [config.py:752:print]   gradient_accumulation_steps .. 4
"""


@pytest.mark.parametrize("trainer", [TITAN, TUNE, GPT])
def test_steps_of_the_engine_are_figures_beside_those_of_the_trainer(trainer: str) -> None:
    engine = ENGINE + "step={n}00, skipped=3, lr=[2e-05], mom=[0.9]\n", ENGINE + "time (ms) | fwd: 40.25\n"
    document = read(CONFIG, lines(*engine, trainer))
    (segment,) = document.segments
    assert (segment.records, document.unread.lines) == (4, 0)
    assert (segment.timers_s["fwd"].count, segment.metrics["momentum"].count) == (4, 4)
    assert segment.launch.arguments["gradient_accumulation_steps"] == 4
    assert segment.launch.arguments["flops_profiler_config.profile_step"] == 12


def test_a_line_of_the_engine_behind_a_bar_is_read_as_the_bar_is() -> None:
    bar = " {n}%|#  | {n}/100 [00:0{n}<16:30,  5.00s/it]" + ENGINE + "time (ms) | fwd: 40.25 | bwd: 80.5\n"
    document = read(lines(bar, "{{'loss': {loss}, 'grad_norm': 1.2, 'epoch': 0.{n}}}\n"))
    (segment,) = document.segments
    assert (segment.records, segment.timers_s["bwd"].count, document.unread.lines) == (4, 4, 0)


@pytest.mark.parametrize("is_trained", [False, True])
def test_the_engine_begins_another_launch_once_it_has_printed_its_configuration(is_trained: bool) -> None:
    begin = "[2026-01-15 14:48:00,446] [INFO] [comm.py:652:init_distributed] Initializing TorchBackend in DeepSpeed\n"
    memory = ENGINE.format(n=0) + "MA 2.34 GB         Max_MA 3.81 GB         CA 5.4 GB         Max_CA 5 GB\n"
    steps = lines("{{'loss': {loss}, 'grad_norm': 1.2, 'epoch': 0.{n}}}\n")
    end = "{'train_runtime': 3.4, 'train_loss': 7.5, 'epoch': 1.0}\n"
    first = [*(step.replace(".25", ".75") for step in steps), end] if is_trained else []
    document = read(begin, begin, memory, CONFIG, first, begin, begin, memory, CONFIG.replace(".. 4", ".. 8"), steps)
    states = [(segment.launch.gradient_accumulation_steps, segment.records) for segment in document.segments]
    assert states == [(4, len(first) and 4), (8, 4)]


@pytest.mark.parametrize("trainer", [MEGATRON, TITAN, "{{'loss': {loss}, 'grad_norm': 1.2, 'epoch': 0.{n}}}\n"])
def test_a_configuration_that_is_cut_off_takes_no_line_of_the_trainer(trainer: str) -> None:
    (segment,) = read(CONFIG.splitlines(keepends=True)[:2], lines(trainer)).segments
    assert segment.records == 4


@pytest.mark.parametrize("trainer", [TITAN, TUNE, GPT, MEGATRON])
def test_a_file_is_of_the_trainer_however_many_lines_the_engine_prints(trainer: str) -> None:
    rates = "epoch=0/micro_step={n}0/global_step={n}0, CurrSamplesPerSec=8.25, MemAllocated=5.5GB\n"
    engine = [ENGINE + part for part in ("time (ms) | fwd_microstep: 40.25\n", "time (ms) | fwd: 40.25\n", rates)]
    document = read(lines(*engine, trainer))
    assert document.format == format_of(lines(trainer))
