"""Contradictions in result tables and in the summaries of a tuner."""

from __future__ import annotations

import pytest

from parlab.findings import document_findings
from parlab.formats.schema import Finding
from tests.findings.reading import document_of, findings_of, rules_of

SCALING = """# Scaling

| Model size | Hidden size | TP | PP | DP | MP | GPUs | Micro BS | Global BS | TFlops /GPU | TFlops % | {aggregate} |
| ---: | ---: | -: | -: | -: | -: | ---: | ---: | ---: | ---: | ---: | ---: |
| 2B | 2304 | 1 | 1 | 32 | 1 | 32 | 16 | 512 | 131 | 42% | {first} |
| 8B | 4096 | 4 | 1 | 32 | 4 | 128 | 16 | 512 | 140 | 45% | {second} |
|  |  |  |  |  |  |  |  |  |  |  |  |
"""


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def line_with(text: str, excerpt: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if excerpt in line)


@pytest.mark.parametrize(
    ("aggregate", "first", "second"),
    [("TFlops Aggreg", "4190", "17900"), ("PFlops Aggreg", "4.2", "17.9"), ("Aggregate PFLOP/s", "4.19", "17.92")],
)
def test_aggregates_in_the_unit_of_their_column_are_healthy_within_their_digits(
    aggregate: str, first: str, second: str
) -> None:
    assert rules_of(SCALING.format(aggregate=aggregate, first=first, second=second)) == []


def test_an_aggregate_column_in_peta_called_tera_is_one_finding_of_the_column() -> None:
    text = SCALING.format(aggregate="TFlops Aggreg", first="4.2", second="17.9")

    finding = only(findings_of(text))

    assert (finding.rule, finding.severity) == ("aggregate", "error")
    assert "4.2 where 32 GPUs x 131 TFLOP/s = 4,192 TFLOP/s" in finding.message
    assert "all 2 rows; the column is in PFLOP/s" in finding.message
    assert (finding.where.table, finding.where.row, finding.where.column) == (0, None, 11)
    assert finding.lines == [3, 5]


def test_one_wrong_aggregate_is_a_finding_of_its_row_and_looks_like_a_node_of_8() -> None:
    text = SCALING.format(aggregate="TFlops Aggreg", first="4190", second="2240")

    finding = only(findings_of(text))

    assert (finding.where.row, finding.where.column) == (1, 11)
    assert "2,240 TFLOP/s are stated for all GPUs, but 128 GPUs x 140 TFLOP/s = 17,920 TFLOP/s" in finding.message
    assert "one GPU instead of a node of 8" in finding.message
    assert finding.lines == [line_with(text, "2240")]


def test_rows_whose_sizes_do_not_multiply_are_found_with_their_line() -> None:
    text = SCALING.format(aggregate="PFlops Aggreg", first="4.2", second="17.9").replace("| 512 | 140", "| 520 | 140")
    text = text.replace("| 1 | 1 | 32 | 1 | 32 |", "| 2 | 1 | 32 | 2 | 32 |")

    layout, batch = findings_of(text)

    assert (layout.rule, layout.where.row, layout.lines) == ("gpus-of-layout", 0, [line_with(text, "2304")])
    assert "TP 2 x PP 1 x DP 32 = 64" in layout.message
    assert (batch.rule, batch.where.row, batch.lines) == ("batch-of-parts", 1, [line_with(text, "4096")])
    assert "global batch size of 520 is stated" in batch.message


def test_gpus_are_compared_with_mp_and_dp_where_only_they_are_known() -> None:
    table = "# T\n\n| GPUs | MP | DP |\n| --: | --: | --: |\n| 64 | 16 | 4 |\n| 64 | 16 | 2 |\n"

    finding = only(findings_of(table))

    assert (finding.rule, finding.where.row) == ("gpus-of-layout", 1)
    assert "MP 16 x DP 2 = 32" in finding.message


WORK = """# T

| GPUs | Size | DP | GAS | MBS | GBS | Speed | TFlops |
| ---: | ---: | -: | --: | --: | --: | ----: | -----: |
| 64 | 52B | 1 | 256 | 4 | 1024 | 146s | 46.7 |
| 64 | 52B | 1 | 384 | 4 | 1536 | {time} | 49.6 |
| 64 | 39B | 1 | 256 | 4 | 1024 | 104s | 49.2 |
| 64 | 52B | 1 | 256 | 4 | {batch} | 126s | 54.1 |
| 64 | 52B | 1 | 1024 | 4 | 4096 | OOM | |
"""


def test_rows_with_the_same_flops_formula_are_healthy() -> None:
    assert rules_of(WORK.format(time="206s", batch="1024")) == []


def test_a_row_whose_tflops_do_not_fit_its_time_is_found() -> None:
    finding = only(findings_of(WORK.format(time="186s", batch="1024")))

    assert (finding.rule, finding.where.row, finding.where.column) == ("flops-times-time", 1, 7)
    assert "49.6 TFLOP/s per GPU are stated" in finding.message
    assert "186 s give 54." in finding.message


def test_a_time_column_without_a_unit_is_not_checked() -> None:
    text = WORK.format(time="186", batch="1024").replace("146s", "146").replace("104s", "104").replace("126s", "126")

    assert rules_of(text) == []


def test_shares_and_efficiencies_above_100_percent_are_found() -> None:
    table = (
        "# T\n\n| GPUs | MFU | Scaling efficiency |\n| --: | --: | --: |\n"
        "| 8 | 52% | 100% |\n| 16 | 104% | 103% |\n| 32 | 51% | 112% |\n"
    )

    peak, efficiency = findings_of(table)

    assert (peak.rule, peak.where.row, peak.where.column) == ("above-peak", 1, 1)
    assert "104 %" in peak.message
    assert (efficiency.rule, efficiency.where.row, efficiency.where.column) == ("efficiency-above-one", 2, 2)
    assert "112 %" in efficiency.message


TUNING = """# Tuning

| Model name | baseline | HF + DS handtuned | HF + DS autotuning |
| ---------- | -------- | ----------------- | ------------------ |
| small | 250.22 (gas = 1, mbs = 16) | 252.36 (z = 0, gas = 1, mbs = 16) | {tuned} (z0_gas1_tmbspg22) |

## Result

- Number of experiments: {prose}
- Throughput Improvement over baseline: {improvement}

| tuning_space | num_experiments | best_metric_val | best_exp_name |
| :----------- | --------------: | --------------: | :------------ |
| z0 | 9 | 288.09 | z0_gas1_tmbspg22 |
| z1 | 7 | 286.14 | z1_gas1_tmbspg22 |
| z3 | 1 | {failed} | z3_gas1_tmbspg22 |
| global | {total} | {best} | {name} |

Tuning completed in 0:43:33.853567. Total number of experiments: {footer}.
"""
HEALTHY = {
    "tuned": "268.28", "prose": "17", "improvement": "1.07x", "total": "17", "best": "288.09",
    "name": "z0_gas1_tmbspg22", "footer": "17", "failed": "0",
}  # fmt: skip


def test_a_healthy_tuning_page_has_no_findings() -> None:
    assert rules_of(TUNING.format(**HEALTHY)) == []


@pytest.mark.parametrize("improvement", ["Inf", "1.072x", "1.1x", "1.08x"])
def test_improvements_cut_or_rounded_are_healthy(improvement: str) -> None:
    assert rules_of(TUNING.format(**HEALTHY | {"improvement": improvement})) == []


@pytest.mark.parametrize(
    ("change", "rule", "excerpt", "line"),
    [
        (
            {"footer": "18"},
            "total-of-rows",
            "18 experiments are stated in total, but the 3 rows add up to 17",
            "Total number",
        ),
        ({"prose": "71"}, "total-of-rows", "71 experiments are stated in total", "Number of experiments"),
        ({"total": "16"}, "total-of-rows", "16 experiments are stated in total", "| global"),
        ({"best": "286.14"}, "best-row", "a row is better: 288.09 (z0)", "| global"),
        ({"best": "291.11"}, "best-row", "no row contains it; the best row is 288.09 (z0)", "| global"),
        ({"name": "z1_gas1_tmbspg22"}, "best-row", "the best value 288.09 is z0_gas1_tmbspg22", "| global"),
        ({"improvement": "1.15x"}, "improvement", "268.28 / 250.22 is 1.07 times", "Improvement"),
        (
            {"tuned": "201.00", "improvement": "Inf"},
            "tuner-metric",
            "288.09 samples/s is 43.3 % above the 201",
            "| global",
        ),
    ],
)
def test_a_summary_that_contradicts_itself_is_found_on_its_line(
    change: dict[str, str], rule: str, excerpt: str, line: str
) -> None:
    text = TUNING.format(**HEALTHY | change)

    finding = only(findings_of(text))

    assert finding.rule == rule
    assert excerpt in finding.message
    assert line_with(text, line) in finding.lines


TWO_STUDIES = """# Tuning

| Model name | baseline | HF + DS autotuning |
| ---------- | -------- | ------------------ |
| large | 20.5 | 27.5 (z1_gas1_tmbspg3) |

## Result

- Number of experiments: 9

| tuning_space | num_experiments | best_metric_val | best_exp_name |
| :----------- | --------------: | --------------: | :------------ |
| z0 | 9 | 59.32 | z0_gas1_tmbspg8 |
| z1 | 8 | 59.90 | z1_gas1_tmbspg8 |
| global | 17 | 59.90 | z1_gas1_tmbspg8 |

| tuning_space | num_experiments | best_metric_val | best_exp_name |
| :----------- | --------------: | --------------: | :------------ |
| z1 | 6 | 28.31 | z1_gas1_tmbspg3 |
| z2 | 3 | 27.02 | z2_gas1_tmbspg3 |
| global | 9 | 28.31 | z1_gas1_tmbspg3 |
"""


def test_figures_beside_two_tuning_tables_are_not_paired_with_one_of_them() -> None:
    assert rules_of(TWO_STUDIES) == []


def test_a_best_metric_of_zero_is_a_placeholder() -> None:
    document = document_of(TUNING.format(**HEALTHY))
    cell = document.tables[1].rows[2][2]
    assert cell.kind == "failure"
    cell.kind, cell.value = "number", 0.0

    finding = only(document_findings(document))
    assert (finding.rule, finding.where.row) == ("placeholder", 2)
    assert "z3 is 0" in finding.message


def scaling(rates: dict[int, float]) -> str:
    rows = "".join(f"| BERT | {gpus} | {gpus * 8} | {rate} |\n" for gpus, rate in rates.items())
    return f"# T\n\n| Model | GPUs | GBS | samples/s |\n| --- | --: | --: | --: |\n{rows}"


def test_a_scaling_table_with_falling_efficiency_is_healthy() -> None:
    assert rules_of(scaling({8: 100.0, 16: 190.0, 32: 350.0, 64: 620.0})) == []


def test_a_row_whose_throughput_is_far_off_its_neighbours_is_found() -> None:
    text = scaling({8: 100.0, 16: 19.0, 32: 350.0, 64: 620.0})

    finding = only(findings_of(text))

    assert (finding.rule, finding.where.row, finding.where.column) == ("off-neighbours", 1, 3)
    assert "19 samples/s at GPUs 16 is 9.85 times slower" in finding.message
    assert finding.lines == [line_with(text, "| 16 |")]


def test_a_row_with_an_efficiency_above_one_is_found() -> None:
    finding = only(findings_of(scaling({8: 100.0, 16: 190.0, 32: 480.0, 64: 620.0})))

    assert (finding.rule, finding.where.row) == ("efficiency-above-one", 2)
    assert "480 samples/s on 32 GPUs is an efficiency of 120 % relative to 100 samples/s on 8" in finding.message


def test_rows_of_other_models_are_not_compared() -> None:
    text = scaling({8: 100.0, 16: 19.0, 32: 350.0, 64: 620.0}).replace("| BERT | 16 |", "| GPT-3 | 16 |")

    assert rules_of(text) == []
