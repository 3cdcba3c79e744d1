"""No reader passes over a measurement in silence; test_golden.py holds that of all samples."""

from __future__ import annotations

import pytest

from parlab.formats import read_document, records
from parlab.formats.coverage.events import EVENTS, is_measurement
from parlab.formats.coverage.leftovers import named_numbers
from parlab.formats.coverage.silence import LEFT, PARTS, SILENT
from parlab.formats.logs.registry import LOGS
from parlab.formats.schema import Segment
from tests.bench import readers

DOCUMENTS = {
    "markdown": "# Page\n\n{line}\n",
    "a list of Markdown": "# Page\n\n- {line}\n- loss: 3\n",
    "code of Markdown": "# Page\n\n```\n{line}\n```\n",
    "a log in Markdown": "# Page\n\n```\n iteration 5/ 9 | elapsed time per iteration (ms): 5.0 |\n{line}\n```\n",
    "rst": "Page\n====\n\n.. note:: x\n\n{line}\n",
    "a list of rst": "Page\n====\n\n.. note:: x\n\n- {line}\n",
}


@pytest.mark.parametrize("page", DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_a_measurement_of_a_document_that_no_reader_defines_is_unread(page: str) -> None:
    lines = page.format(line="the shuffle took 12.5 ms per rank").splitlines(keepends=True)
    document = read_document(lines, file="x")
    assert document.format in ("markdown", "rst")
    place = next(n for n, text in enumerate(lines, 1) if "shuffle" in text)
    assert [example.line for example in document.unread.examples] == [place]


@pytest.mark.parametrize(
    "lines",
    [
        ["step,step_time_s,loss\n", "1,0.5,2.5\n", "2,0.5 s?,2.4\n", "3,0.5,2.3\n", "4,0.5,2.2\n"],
        ['{"step": 1, "step_time_s": 0.5}\n', '{"step": 2, "step_time_s": 0.5\n', '{"step": 3, "step_time_s": 0.5}\n'],
    ],
    ids=["csv", "jsonl"],
)
def test_a_damaged_row_of_a_table_is_unread(lines: list[str]) -> None:
    document = read_document(lines, file="x")
    assert document.format in ("csv", "jsonl")
    place = next(n for n, text in enumerate(lines, 1) if "?" in text or (text[0] == "{" and "}" not in text))
    assert place in [example.line for example in document.unread.examples]


def test_a_line_that_a_reader_does_not_define_is_unread() -> None:
    line = " iteration {n}/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n"
    document = read_document([line.format(n=1), "optimizer step took 12.5 ms on rank 3\n", line.format(n=2)], file="x")
    assert document.segments[0].records == 2
    assert [(example.line, example.reason) for example in document.unread.examples] == [(2, SILENT)]
    assert document.notes == ["1 of 3 lines could not be read"]


def test_halves_of_a_spliced_line_are_not_lost() -> None:
    line = " iteration {n}/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n"
    lines = [line.format(n=1), "elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n", line.format(n=2)]
    assert read_document(lines, file="x").unread.lines == 1


def test_lines_far_before_the_end_are_reported_in_their_order() -> None:
    line = " iteration {n}/ 9000 | elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n"
    lines = [part for n in range(1, 1_500) for part in (line.format(n=n), f"step {n} took 3.5 ms\n")]
    found = [record.line for record in records(lines, "megatron") if record.kind == "unread"]
    assert found == list(range(2, 2_999, 2))


def test_a_file_of_an_unknown_trainer_is_marked() -> None:
    line = "global step {n} => time/step: 0.5 s, throughput: 1000.0 samples/s, loss=4.0\n"
    document = read_document([line.format(n=n) for n in range(1, 5)], file="x")
    assert document.format == "pairs"
    assert document.notes[0].startswith("no known format")


@pytest.mark.parametrize(
    "text", ["step time 12.5 ms", "throughput = 3.25 samples/s", "peak memory: 20.5 GiB", "took 3 s"]
)
def test_a_number_beside_a_word_of_measurements_is_one(text: str) -> None:
    assert is_measurement(text)


@pytest.mark.parametrize(
    "text", ["hello 5", "elapsed", "--train-iters 500", "WARNING: step 5 is slow", "version 2.5.1"]
)
def test_noise_is_no_measurement(text: str) -> None:
    assert not is_measurement(text)


def test_each_kind_of_event_has_a_name() -> None:
    assert all(kind for _, kind in EVENTS)
    assert all(kind for kinds in PARTS.values() for kind in kinds)
    assert set(PARTS) <= set(LOGS)


STEP = " iteration {n}/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 8.0 |\n"


def test_a_number_that_the_reader_leaves_of_its_line_is_unread_and_the_rest_is_read() -> None:
    lines = [STEP.format(n=1).rstrip("\n") + " frobs: 12\n", STEP.format(n=2)]
    document = read_document(["step 1 | loss: 3.0 | dt: 350 ms | kept 12 kB somewhere\n"] * 2, file="x")
    assert document.segments[0].records == 1
    assert read_document(lines, file="x").unread.lines == 1
    reasons = {example.reason for example in read_document(lines, file="x").unread.examples}
    assert reasons <= {LEFT, "the line ends inside this cell"}


def test_a_bar_of_no_known_work_is_unread_and_one_of_other_work_an_event() -> None:
    lines = [
        STEP.format(n=1),
        "Map:  67%|######    | 2/3 [00:05<00:02,  2.50s/it]\n",
        "Frobnicating:  67%|######    | 2/3 [00:05<00:02,  2.50s/it]\n",
        STEP.format(n=2),
    ]
    document = read_document(lines, file="x")
    assert [(example.line, example.reason) for example in document.unread.examples] == [(3, SILENT)]
    assert document.events["other work"].first == 2


def test_bars_between_the_entries_of_a_trainer_are_steps() -> None:
    bar = "\r 10%|#         | {n}/100 [00:{n:02}<16:30,  5.00s/it]"
    lines = [
        *(bar.format(n=n) + "\n" for n in range(1, 4)),
        "{'loss': 1.9, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.03}\n",
        *(bar.format(n=n) + "\n" for n in range(4, 6)),
        "{'loss': 1.8, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.05}\n",
    ]
    segment = read_document(lines, file="x").segments[0]
    assert segment.records == 5
    assert segment.metrics["loss"].count == 2
    assert segment.metrics["step_time_s"].count == 5


def test_lone_numbers_before_the_first_step_are_settings_and_later_ones_unread() -> None:
    document = read_document(["frobs: 12\n", STEP.format(n=1), "frobs: 13\n", STEP.format(n=2)], file="x")
    assert document.events["setting"].count == 1
    assert [example.line for example in document.unread.examples] == [3]


def test_overflows_of_a_healthy_run_are_events() -> None:
    line = (
        "[2023-04-18 01:46:53,259] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
        " Attempted loss scale: 65536, reducing to 32768\n"
    )
    document = read_document([line], file="x", format="deepspeed")
    assert document.unread.lines == 0
    assert document.events["overflow"].count == 1


def test_a_line_that_only_says_where_it_stands_is_an_event() -> None:
    document = read_document([STEP.format(n=1), "epoch: 3, rank: 1\n", STEP.format(n=2)], file="x")
    assert (document.events["position"].first, document.unread.lines) == (2, 0)


def test_the_epoch_of_a_block_of_metrics_is_read() -> None:
    block = "***** train metrics *****\n  epoch = 3.0\n  train_loss = 0.72\n  train_runtime = 0:36:58.55\n"
    (segment,) = read_document(block.splitlines(keepends=True), file="x").segments
    assert {name: segment.metrics[name].last for name in ("epoch", "train_runtime_s")} == {
        "epoch": 3.0,
        "train_runtime_s": 2218.55,
    }


def test_two_runs_in_a_text_have_the_options_of_the_sentences_above_them() -> None:
    lines = [
        text
        for size in (8, 16)
        for text in (
            f"With --micro-batch-size {size}:\n",
            *(f"> [2024-05-01 10:00:0{n},000 INFO] step {n} | loss: 2.{n} | dt: 350 ms\n" for n in range(1, 4)),
        )
    ]
    segments = read_document(lines, file="x").segments
    assert [(segment.launch.micro_batch_size, segment.records) for segment in segments] == [(8, 3), (16, 3)]
    assert segments[0].first is not None
    assert segments[0].first.time == "2024-05-01 10:00:01,000"


def only(*lines: str) -> Segment:
    (segment,) = read_document([f"{line}\n" for line in lines], file="x").segments
    return segment


def test_a_rate_ends_its_cell_and_a_batch_in_brackets_counts() -> None:
    line = "[INFO:sockeye.training] Epoch[0] Batch [{n}]    Speed: 1180.5 samples/sec 6.25 updates/sec perplexity=14.5"
    segment = only(*(line.format(n=n) for n in (50, 100, 150)))
    assert segment.steps is not None
    assert (segment.steps.first, segment.steps.last) == (50, 150)
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == pytest.approx(0.16)
    assert segment.metrics["perplexity"].last == 14.5


def test_names_and_values_in_turn_may_have_a_clock_among_them() -> None:
    line = (
        "tick {n}     kimg {n}0.0     time 1h 19m 08s   sec/tick 4711.9  sec/kimg 235.59  gpumem 10.88  augment 0.188"
    )
    segment = only(*(line.format(n=n) for n in (1, 2, 3)))
    assert segment.records == 3
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 4711.9
    assert {name: segment.metrics[name].last for name in ("gpumem", "augment")} == {"gpumem": 10.88, "augment": 0.188}


def test_cells_in_front_of_the_counter_are_read() -> None:
    segment = only(*(f"loss: 9.{n}0000, learning_rate: 1e-05, global_step: {n}0, samples/s: 4.5" for n in (1, 2, 3)))
    assert segment.loss is not None
    assert (segment.loss.first, segment.loss.last) == (9.1, 9.3)


def test_a_bar_between_the_lines_of_another_format_gives_its_time_and_cells() -> None:
    lines = [
        STEP.format(n=1),
        "Training:  67%|######    | 2/3 [00:05<00:02,  2.50s/it, reward=0.5]\n",
        STEP.format(n=2),
    ]
    (segment,) = read_document(lines, file="x").segments
    assert segment.metrics["reward"].last == 0.5
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == 0.005


def test_a_lone_number_that_changes_is_no_setting() -> None:
    lines = ["reward_mean: -550.25\n", "took 3 s\n", "reward_mean: -538.1\n", "took 3 s\n"]
    document = read_document(lines, file="x", format="pairs")
    assert 3 in [example.line for example in document.unread.examples]


@pytest.mark.parametrize("format", sorted(LOGS))
def test_a_healthy_log_of_each_format_has_nothing_unread(format: str) -> None:
    lines = list(readers.sample(format, 1, 60))
    assert [record.data for record in records(lines, format) if record.kind == "unread"] == []


@pytest.mark.parametrize(
    ("printed", "values"),
    [
        ("lr=[1e-05, 1e-05], mom=[[0.9, 0.95], [0.9, 0.95]]", {"learning_rate": 1e-5, "beta1": 0.9, "beta2": 0.95}),
        (
            "lr=[1e-05, 2e-05], mom=[(0.9, 0.95), (0.8, 0.95)]",
            {"learning_rate": 1e-5, "learning_rate_1": 2e-5, "beta1": 0.9, "beta1_1": 0.8, "beta2": 0.95},
        ),
        ("lr=[1e-05], mom=[0.9, 0.8]", {"learning_rate": 1e-5, "momentum": 0.9, "momentum_1": 0.8}),
    ],
    ids=["betas of all groups", "groups that differ", "one momentum of each group"],
)
def test_rates_and_momenta_of_groups_of_parameters_are_read(printed: str, values: dict[str, float]) -> None:
    line = f"[2026-01-02 10:00:10,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, {printed}\n"
    (step,) = (record for record in records([line]) if record.kind != "event")
    assert step.values == {"skipped_total": 0.0, **values}


def test_each_number_of_a_short_list_is_one_with_a_name() -> None:
    cells = named_numbers("step 3 | loss: 2.5 | norms=[1.5, 2.25] | mom=[[0.9, 0.95]]")
    assert [(cell.key, cell.value) for cell in cells[1:]] == [
        ("norms", 1.5), ("norms_1", 2.25), ("mom", 0.9), ("mom_1", 0.95)
    ]  # fmt: skip
