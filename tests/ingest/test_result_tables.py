"""Which tables hold results, and what their rows, cells and columns mean."""

from __future__ import annotations

import pytest

from parlab.formats.documents.tables import table
from parlab.formats.schema import Table
from parlab.ingest.readings.columns import heading_pair, quantity_in_context, quantity_of, setting_of
from parlab.ingest.readings.result_tables import TableResult, results_of


def pipes(text: str, context: str = "") -> list[TableResult]:
    return results_of(parsed(text), context)


def parsed(text: str) -> Table:
    rows = [[part.strip() for part in line.strip().strip("|").split("|")] for line in text.strip().splitlines()]
    return table(rows[:1], rows[1:], line=10, align=[""] * len(rows[0]))


def test_a_list_has_a_result_per_row_with_settings_and_quantities() -> None:
    first, second = pipes("""
        | GPUs | TP | Micro batch | Step time (ms) | Samples/s | Peak memory (GiB) |
        | 8    | 2  | 4           | 500            | 64        | 30.5              |
        | 16   | 2  | 4           | 510            | 125.5     | 29                |
    """)
    assert first.axes == {"GPUs": 8, "parallel.tensor_parallel_size": 2, "train.micro_batch_size": 4}
    assert first.settings["world_size"] == 8
    assert first.measured == {"step_time_s": 0.5, "samples_per_s": 64.0, "memory_peak_bytes": 30.5 * 2**30}
    assert (second.row, second.column, second.line) == (1, None, 13)
    assert second.figures["Samples/s"] == {"value": 125.5, "unit": "", "text": "125.5"}


def test_a_grid_over_one_setting_has_a_result_per_cell() -> None:
    result = pipes("""
        | Schedule | mbs=1  | mbs=2  | mbs=4    |
        | gpipe    | 100 ms | 90 ms  | OOM      |
        | 1f1b     | 95 ms  |        | 80 ms    |
    """)
    assert [(entry.row, entry.column) for entry in result] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    assert result[0].axes == {"parallel.schedule": "gpipe", "train.micro_batch_size": 1}
    assert result[0].settings == {"parallel.schedule": "gpipe", "train.micro_batch_size": 1}
    assert result[0].measured == {"step_time_s": 0.1}
    assert (result[2].state, result[2].reason, result[2].measured) == ("oom", "OOM", {})
    assert (result[4].state, result[4].reason) == ("lost", "Missing: the table contains no value here.")


def test_a_grid_over_gpus_is_recognised_by_its_headings() -> None:
    result = pipes(
        """
        | Model | 8 GPUs | 16 GPUs |
        | 1B    | 10     | 19      |
    """,
        "Throughput in samples per second.",
    )
    assert [entry.axes["GPUs"] for entry in result] == [8, 16]
    assert [entry.settings["world_size"] for entry in result] == [8, 16]
    assert [entry.measured for entry in result] == [{"samples_per_s": 10.0}, {"samples_per_s": 19.0}]


def test_variants_in_columns_are_compared_by_the_text_above() -> None:
    result = pipes(
        """
        | Model  | plain               | tuned                 |
        | tiny   | 70.5 (gas=1, mbs=8) | 80.25 (z1_gas2_tmbspg16) |
        | larger | Not runnable        | 10 (z3_gas1_tmbspg1) |
    """,
        "All figures are latency in seconds. The table shows tokens/s.",
    )
    assert [entry.axes["variant"] for entry in result] == ["plain", "tuned"] * 2
    assert [entry.measured.get("tokens_per_s") for entry in result] == [70.5, 80.25, None, 10.0]
    assert result[1].settings == {"zero_stage": 1, "gradient_accumulation_steps": 2, "micro_batch_size": 16}
    assert (result[2].state, result[2].reason) == ("failed", "Not runnable")


def test_two_columns_of_one_quantity_are_variants_too() -> None:
    result = pipes("""
        | Nodes | GPipe time (s) | 1F1B time (s) |
        | 2     | 4.0            | 3.5           |
    """)
    assert [(entry.axes["variant"], entry.measured) for entry in result] == [
        ("GPipe time (s)", {"step_time_s": 4.0}),
        ("1F1B time (s)", {"step_time_s": 3.5}),
    ]


def test_a_sheet_has_a_result_per_column() -> None:
    result = pipes("""
        |                 | small  | large  |
        | GPUs            | 8      | 64     |
        | Step time (s)   | 0.5    | 2      |
        | Throughput (tokens/s) | 1000 | 8000 |
    """)
    assert [entry.column for entry in result] == [1, 2]
    assert [entry.axes["variant"] for entry in result] == ["small", "large"]
    assert result[1].settings == {"world_size": 64}
    assert result[1].measured == {"step_time_s": 2.0, "tokens_per_s": 8000.0}


@pytest.mark.parametrize(
    "text",
    [
        "| Term | Meaning |\n| TP | tensor parallel |\n| PP | pipeline parallel |",
        "| Model | Layers | Hidden size |\n| small | 12 | 768 |\n| large | 24 | 1024 |",
        "| a | b |\n|  |  |",
        "| only |\n| 1 |",
    ],
)
def test_tables_about_something_else_have_no_results(text: str) -> None:
    assert pipes(text) == []


def test_blank_rows_and_sums_are_not_results() -> None:
    result = pipes("""
        | Space  | Throughput (samples/s) |
        | z0     | 10 |
        | z1     | 20 |
        |        |    |
        | global | 20 |
    """)
    assert [entry.axes["space"] for entry in result] == ["z0", "z1"]


def test_the_size_of_a_model_is_a_label_and_not_memory() -> None:
    first, _ = pipes("""
        | Model size | TFLOP/s per GPU |
        | 1.7B       | 137             |
        | 3.6B       | 138             |
    """)
    assert first.axes == {"model size": "1.7B"}
    assert first.measured == {"tflops_per_gpu": 137.0}


@pytest.mark.parametrize(
    ("heading", "field"),
    [
        ("Lay ers", "model.num_layers"),
        ("# GPUs", "world_size"),
        ("Micro BS", "train.micro_batch_size"),
        ("Pipeline-parallel size", "parallel.pipeline_parallel_size"),
        ("Global batch (sequences)", "train.global_batch_size"),
        ("Loss", None),
    ],
)
def test_headings_name_settings(heading: str, field: str | None) -> None:
    assert setting_of(heading) == field


@pytest.mark.parametrize(
    ("heading", "unit", "quantity"),
    [
        ("Iteration time (ms)", "", ("step_time_s", 1e-3)),
        ("sec/iter", "s", ("step_time_s", 1.0)),
        ("Throughput (sequences/s)", "", ("samples_per_s", 1.0)),
        ("tokens per second", "", ("tokens_per_s", 1.0)),
        ("TFLOPs / GPU", "", ("tflops_per_gpu", 1.0)),
        ("TFLOPs total", "", None),
        ("TFLOPs %", "%", None),
        ("GPU utilisation", "%", ("gpu_util_pct", 1.0)),
        ("Memory", "GB", ("memory_peak_bytes", 2.0**30)),
        ("Parameters", "B", None),
        ("step_time_ms", "", ("step_time_s", 1e-3)),
        ("peak_mem_gb", "", ("memory_peak_bytes", 2.0**30)),
        ("Time", "ms", ("step_time_s", 1e-3)),
        ("Time per step (min)", "", ("step_time_s", 60.0)),
        ("Time per epoch (s)", "", None),
        ("Total time (s)", "", None),
        ("Wall time (h)", "", None),
        ("Time to first token (ms)", "", None),
        ("Checkpoint time (s)", "", None),
        ("Forward (ms)", "", None),
        ("Tokens/s/GPU", "", None),
        ("Checkpoint size (GB)", "", None),
        ("Model size", "GB", None),
    ],
)
def test_headings_name_quantities(heading: str, unit: str, quantity: tuple[str, float] | None) -> None:
    assert quantity_of(heading, unit) == quantity


def test_a_heading_may_name_one_value_of_a_setting() -> None:
    assert heading_pair("Micro batch size: 4") == ("Micro batch size", 4.0)
    assert heading_pair("TP=2") == ("TP", 2.0)
    assert heading_pair("1,024 GPUs") == ("GPUs", 1024.0)
    assert heading_pair("DS autotuning") is None


def test_the_last_rate_above_a_table_counts() -> None:
    excerpt = "We measured tokens/s before. Below are samples per second."
    assert quantity_in_context(excerpt, "") == ("samples_per_s", 1.0)
    assert quantity_in_context(excerpt, "ms") == ("step_time_s", 1e-3)
    assert quantity_in_context("no word of it", "") is None
