"""Each rule finds its contradiction in documents and logs, and nothing in a healthy variant."""

from __future__ import annotations

import pytest

from parlab.formats.schema import Finding
from tests.findings.reading import document_of, findings_of, iteration, launch, rules_of

SIZES: dict[str, object] = {
    "world_size": 32, "data_parallel_size": 8, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
    "micro_batch_size": 4, "global_batch_size": 128, "num_layers": 24, "hidden_size": 1024, "seq_length": 512,
    "fp16": True,
}  # fmt: skip


def only(findings: list[Finding]) -> Finding:
    assert [finding.rule for finding in findings] == [findings[0].rule], findings
    return findings[0]


def page(gpus: int, batch: int, ms: float, *more: str, samples: int | None = None, **sizes: object) -> str:
    """One section of a results page: arguments and what was measured over 100 iterations."""
    arguments = SIZES | {"world_size": gpus, "data_parallel_size": gpus // 4, "global_batch_size": batch} | sizes
    samples_line = f"(over 100 iterations = {100 * batch if samples is None else samples} samples)"
    return "\n".join([f"## {gpus} GPUs", "", launch(**arguments), samples_line, f"{ms} ms per sample", "", *more, ""])


TIMERS = "time (ms) | forward-compute: 90.10 | backward-compute: 180.20 | optimizer: 60.30 | batch-generator: 9.00"


def test_a_healthy_page_has_no_findings() -> None:
    assert findings_of("# Results\n\n" + page(32, 128, 2.75, TIMERS)) == []


def test_samples_that_are_not_iterations_times_batch_name_both_numbers_and_the_missing_digit() -> None:
    finding = only(findings_of("# Results\n\n" + page(32, 128, 2.75, samples=1280)))

    assert (finding.rule, finding.severity) == ("samples-of-iterations", "error")
    assert "1,280 samples" in finding.message
    assert "12,800" in finding.message
    assert "a missing or extra digit" in finding.message
    assert finding.numbers["samples"] == 1280
    assert finding.numbers["expected_samples"] == 12800
    assert (finding.where.segment, finding.where.figure) == (0, "measured_samples")
    text = ("# Results\n\n" + page(32, 128, 2.75, samples=1280)).splitlines()
    assert [text[line - 1] for line in finding.lines] == ["(over 100 iterations = 1280 samples)"]


def test_samples_off_by_the_accumulation_steps_name_them() -> None:
    finding = only(findings_of("# Results\n\n" + page(32, 512, 0.7, samples=100 * 32)))

    assert "the 16 accumulation steps" in finding.message


def test_consumed_samples_of_a_log_that_grow_faster_than_the_batch() -> None:
    healthy = launch(**SIZES) + iteration(10, 1.0, batch=128) + iteration(20, 1.0, batch=128)
    wrong = launch(**SIZES) + iteration(10, 1.0, batch=128) + iteration(20, 1.0, batch=128, consumed=5120)

    assert rules_of(healthy) == []
    assert rules_of(wrong) == ["samples-of-iterations"]


def test_consumed_samples_of_a_log_that_stay_the_same() -> None:
    text = launch(**SIZES) + iteration(10, 1.0, batch=128) + iteration(20, 1.0, batch=128, consumed=1280)

    assert rules_of(text) == ["samples-of-iterations"]


def test_consumed_samples_of_a_growing_batch_are_not_checked() -> None:
    text = launch(**SIZES) + iteration(10, 1.0, batch=64, consumed=640) + iteration(20, 1.0, batch=128, consumed=1700)

    assert rules_of(text) == []


@pytest.mark.parametrize(
    ("change", "rule", "excerpt"),
    [
        ({"world_size": 64}, "gpus-of-layout", "64 GPUs are stated, but TP 2 x PP 2 x DP 8 = 32"),
        ({"micro_batch_size": 3}, "batch-of-parts", "not a multiple of micro batch size 3 x DP 8 = 24"),
        ({"num_micro_batches": 8}, "batch-of-parts", "micro batch size 4 x 8 accumulation steps x DP 8 = 256"),
    ],
)
def test_sizes_that_do_not_multiply(change: dict[str, object], rule: str, excerpt: str) -> None:
    text = launch(**(SIZES | change)) + iteration(10, 1.0, batch=128)

    finding = only(findings_of(text))

    assert (finding.rule, finding.severity) == (rule, "error")
    assert excerpt in finding.message


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"world_size": 64, "context_parallel_size": 2},
        {"world_size": 64, "data_parallel_shard_degree": 8},
        {"micro_batch_size": 3, "rampup_batch_size": "['16', '16', '1000']"},
    ],
)
def test_layouts_with_further_dimensions_and_growing_batches_are_healthy(change: dict[str, object]) -> None:
    assert rules_of(launch(**(SIZES | change)) + iteration(10, 1.0, batch=128)) == []


DEVICE_MAP = """# Case

```json
{"mode": "sharding", "stage_cnt": %d, "sharding_size": %d, "device_mapping": {
  "stage_0": {"shard_0": "GPU:0", "shard_1": "GPU:0"}, "stage_1": {"shard_0": "GPU:1", "shard_1": "GPU:1"}}}
```
"""


def test_a_device_map_of_all_stages_and_shards_is_healthy() -> None:
    assert rules_of(DEVICE_MAP % (2, 2)) == []


def test_a_device_map_without_a_stage_or_a_shard_is_found() -> None:
    stages, shards = findings_of(DEVICE_MAP % (4, 3))

    assert "stage_cnt is 4, but device_mapping contains 2 stages" in stages.message
    assert "sharding_size is 3, but device_mapping contains 2 shards of stage_0; 1 more stage differs" in shards.message
    assert stages.lines
    assert (stages.where.figure, shards.where.figure) == ("stage_cnt", "sharding_size")


def test_time_per_sample_that_is_not_the_step_time() -> None:
    healthy = page(32, 128, 2.75, "352 ms per iteration")
    wrong = page(32, 128, 2.75, "35.2 ms per iteration")

    assert rules_of("# Results\n\n" + healthy) == []
    finding = only(findings_of("# Results\n\n" + wrong))
    assert finding.rule == "time-per-sample"
    assert "2.75 ms per sample x 128 samples = 0.352 s per step, but the step takes 0.0352 s" in finding.message


def test_the_precision_of_the_digits_is_the_tolerance() -> None:
    """0.9 +- 0.05 ms x 128 samples is 109 to 122 ms, which excludes 130 ms and includes 0.12 s as printed."""
    assert rules_of("# Results\n\n" + page(32, 128, 0.9, "121 ms per iteration")) == []
    assert rules_of("# Results\n\n" + page(32, 128, 0.9, "130 ms per iteration")) == ["time-per-sample"]
    assert rules_of("# Results\n\n" + page(32, 128, 0.9, "0.12 s per iteration")) == []


def test_timers_that_exceed_the_step_are_found_and_nested_ones_not_counted() -> None:
    nested = TIMERS + " | optimizer-copy-to-main-grad: 55.00 | optimizer-clip-main-grad: 80.00"
    wrong = "time (ms) | forward-compute: 390.10 | backward-compute: 180.20 | optimizer: 60.30"

    assert rules_of("# Results\n\n" + page(32, 128, 2.75, nested)) == []
    finding = only(findings_of("# Results\n\n" + page(32, 128, 2.75, wrong)))
    assert finding.rule == "timers-of-step"
    assert "add up to 0.6306 s" in finding.message
    assert "0.352 s" in finding.message


def test_timers_in_seconds_that_were_printed_as_ms_are_found() -> None:
    text = "# Results\n\n" + page(
        32, 128, 2.75, "time (ms) | forward-compute: 0.09 | backward-compute: 0.18 | optimizer: 0.06"
    )

    finding = only(findings_of(text))

    assert finding.rule == "timers-of-step"
    assert "a wrong unit prefix" in finding.message


def test_timers_of_different_slowest_ranks_may_exceed_the_step() -> None:
    timers = (
        "    (min, max) time across ranks (ms):\n"
        "    forward-compute ................................: (300.00, 900.00)\n"
        "    backward-compute ...............................: (300.00, 900.00)\n"
        "    optimizer ......................................: (60.00, 70.00)\n"
    )
    text = launch(**SIZES) + "".join(iteration(n, 1.0, batch=128) + timers for n in (10, 20, 30))

    assert rules_of(text) == []


def test_samples_per_second_of_a_log_are_batch_over_time() -> None:
    healthy = launch(**SIZES) + iteration(10, 2.0, "samples per second: 64.000", batch=128)
    per_gpu = launch(**SIZES) + iteration(10, 2.0, "samples per second: 2.000", batch=128)

    assert rules_of(healthy) == []
    finding = only(findings_of(per_gpu))
    assert (finding.rule, finding.severity) == ("samples-per-second", "error")
    assert "2 samples/s are stated, but 128 samples / 2 s = 64 samples/s" in finding.message
    assert "the 32 GPUs" in finding.message


def test_a_throughput_of_less_than_a_sample_a_step_is_a_unit_error() -> None:
    """What DeepSpeed printed from 0.7 until early 2023."""
    text = (
        '{"forward": 500000.5, "backward": 1500000.5, "step": 2000.5, "latency": 2002001.5,'
        ' "FLOPS_per_gpu": 5000000.5, "throughput": 0.01598}'
    )

    finding = only(findings_of(text))

    assert finding.rule == "samples-per-second"
    assert "0.01598 samples/s are printed for steps of 2.002 s" in finding.message


def test_two_throughputs_of_one_log_that_disagree() -> None:
    lines = "".join(
        f"[2021-06-12 07:3{n}:31,215] [INFO] [timer.py:160:stop] 0/{n}00, SamplesPerSec=8.6\n"
        f"0 {n}00 sample_per_sec - {rate}\n"
        for n, rate in ((1, 33.1), (2, 35.2))
    )

    finding = only(findings_of(lines))

    assert (finding.rule, finding.severity) == ("throughputs-apart", "warning")
    assert "8.6 samples/s" in finding.message
    assert "34.15 samples/s" in finding.message


def test_two_rates_of_tokens_per_gpu_that_disagree() -> None:
    lines = "".join(
        f"Training epoch 0, iteration {n}/9 | train_step_timing in s: 21.0{n} | tokens_per_sec_per_gpu: 1.55{n}e+03"
        f" | tokens_per_sec_per_gpu_refined: 389.{n}\n"
        for n in range(4)
    )
    finding = only(findings_of(lines))
    assert finding.rule == "throughputs-apart"
    assert "tokens/s per GPU" in finding.message


# 24 layers, hidden 1024, sequence 512, batch 128, vocabulary unknown: a step is 0.12 to 0.29 PFLOP.
@pytest.mark.parametrize("tflops", ["120.0", "150.0", "200.0"])
def test_tflops_by_any_formula_are_healthy(tflops: str) -> None:
    sizes = SIZES | {"world_size": 1, "data_parallel_size": 1, "tensor_model_parallel_size": 1,
                     "pipeline_model_parallel_size": 1}  # fmt: skip
    text = launch(**sizes) + iteration(10, 1.0, f"throughput per GPU (TFLOP/s/GPU): {tflops}", batch=128)

    assert rules_of(text) == []


@pytest.mark.parametrize(("tflops", "excerpt"), [("15.0", "15 TFLOP/s"), ("2000.0", "2,000 TFLOP/s")])
def test_tflops_that_no_formula_gives_are_found(tflops: str, excerpt: str) -> None:
    sizes = SIZES | {"world_size": 1, "data_parallel_size": 1, "tensor_model_parallel_size": 1,
                     "pipeline_model_parallel_size": 1}  # fmt: skip
    text = launch(**sizes) + iteration(10, 1.0, f"throughput per GPU (TFLOP/s/GPU): {tflops}", batch=128)

    finding = only(findings_of(text))

    assert finding.rule == "flops-of-model"
    assert excerpt in finding.message


def test_tflops_of_a_model_with_experts_are_not_checked() -> None:
    text = launch(**SIZES, num_experts=8) + iteration(10, 1.0, "throughput per GPU (TFLOP/s/GPU): 1.0", batch=128)

    assert rules_of(text) == []


def test_tflops_times_time_stays_the_same_within_a_run() -> None:
    def log(last: str) -> str:
        """A slow start, four steps of 200 TFLOP and a last one."""
        steps = [(10, 9.0, "15.0"), *((n, 2.0, "100.0") for n in (20, 30, 40, 50)), (60, 2.5, last)]
        return "".join(iteration(n, time, f"throughput per GPU (TFLOP/s/GPU): {flops}") for n, time, flops in steps)

    assert rules_of(log("80.0")) == []
    finding = only(findings_of(log("100.0")))
    assert finding.rule == "flops-times-time"
    assert "200 TFLOP" in finding.message
    assert "250 TFLOP" in finding.message


def test_an_mfu_above_100_percent_is_found() -> None:
    def log(mfu: str) -> str:
        return (
            "[rank0]:2026-02-24 19:46:17,508 - root - INFO - step:  4  loss:  7.62585  grad_norm: 26.6250"
            f"  memory: 66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: {mfu}%\n"
        )

    assert rules_of(log("51.20")) == []
    assert rules_of(log("100.00")) == []
    finding = only(findings_of(log("102.30")))
    assert (finding.rule, finding.severity) == ("above-peak", "error")
    assert "102.3 %" in finding.message


def test_repeated_iterations_after_a_restart_are_information() -> None:
    healthy = "".join(iteration(n, 1.0) for n in (10, 20, 30)) + "".join(iteration(n, 1.0) for n in (10, 20))
    again = "".join(iteration(n, 1.0) for n in (10, 20, 30)) + "".join(iteration(n, 1.0) for n in (20, 30, 40))

    assert len(document_of(healthy).segments) == 2
    assert rules_of(healthy) == []
    finding = only(findings_of(again))
    assert (finding.rule, finding.severity) == ("again", "info")
    assert "Iterations 20 to 30 occur twice" in finding.message
    assert finding.lines == [3, 4]


def test_only_the_outlier_is_found_and_not_its_neighbours() -> None:
    scaling = {4: 12.0, 8: 6.3, 16: 3.3, 32: 1.75, 64: 0.95}
    healthy = "# R\n\n" + "".join(page(gpus, gpus * 4, ms) for gpus, ms in scaling.items())
    wrong = "# R\n\n" + "".join(page(gpus, gpus * 4, ms) for gpus, ms in (scaling | {8: 30.1}).items())

    assert rules_of(healthy) == []
    finding = only(findings_of(wrong))
    assert (finding.rule, finding.severity) == ("off-neighbours", "warning")
    assert finding.where.segment == 1
    assert "30.1 ms per sample" in finding.message
    assert "4.78 times slower" in finding.message
    assert "neighbours at 4 and 16" in finding.message


def test_an_end_of_a_sweep_that_is_off_does_not_make_its_neighbour_look_wrong() -> None:
    text = "# R\n\n" + "".join(page(g, g * 4, ms) for g, ms in {4: 90.0, 8: 6.3, 16: 3.3, 32: 1.75, 64: 0.95}.items())

    assert "off-neighbours" not in rules_of(text)


def test_an_efficiency_above_one_is_found() -> None:
    healthy = "# R\n\n" + page(4, 16, 12.0) + page(8, 32, 6.0)
    wrong = "# R\n\n" + page(4, 16, 12.0) + page(8, 32, 5.0)

    assert rules_of(healthy) == []
    finding = only(findings_of(wrong))
    assert (finding.rule, finding.severity) == ("efficiency-above-one", "warning")
    assert "120 %" in finding.message


def test_a_result_with_a_different_sequence_length_than_the_others_is_found() -> None:
    sizes = {4: 12.0, 8: 6.3, 16: 3.3}
    hidden = "# R\n\n" + "".join(page(g, g * 4, ms, seq_length=1024 if g == 8 else 512) for g, ms in sizes.items())

    finding = only(findings_of(hidden))

    assert (finding.rule, finding.severity) == ("hidden-setting", "warning")
    assert "sequence length is 1024, not 512" in finding.message
    assert finding.where.segment == 1


def test_a_setting_that_the_headings_name_is_not_hidden() -> None:
    named = "# R\n\n" + "".join(
        page(g, g * 4, ms, seq_length=sequence).replace("GPUs\n", f"GPUs, sequence {sequence}\n", 1)
        for g, ms, sequence in ((4, 12.0, 512), (8, 12.6, 1024), (16, 3.3, 512))
    )

    assert rules_of(named) == []
