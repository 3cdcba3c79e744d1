"""Contradictions in stored runs and between the runs of a sweep."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.findings import Finding, RunFacts, run_findings, sweep_findings
from runners.config import ENGINES, RunConfig

A100 = "NVIDIA A100-SXM4-40GB"


def config(**values: Any) -> dict[str, Any]:
    """A resolved configuration; `train__precision="bf16"` changes one field."""
    data = RunConfig().resolved()
    for name, value in values.items():
        section, field = name.split("__")
        data[section][field] = value
    return data


def summary(step_time_s: float = 0.5, batch: int = 16, sequence: int = 64, **more: Any) -> dict[str, Any]:
    return {
        "steps": {"count": 9, "first": 2, "last": 10, "left_out": [1], "why": "warm-up"},
        "step_time_s": {"median": step_time_s, "p10": step_time_s, "p90": step_time_s, "mean": step_time_s},
        "samples_per_s": batch / step_time_s,
        "tokens_per_s": batch * sequence / step_time_s,
        "ms_per_sample": step_time_s * 1000 / batch,
        "timers_s": {
            "forward-compute": {"median": 0.3 * step_time_s, "by_rank": {"0": 0.3 * step_time_s}},
            "backward-compute": {"median": 0.6 * step_time_s, "by_rank": {"0": 0.6 * step_time_s}},
        },
        "loss": {"first": 6.9, "last": 6.8},
    } | more


def run(number: int = 1, state: str = "finished", **more: Any) -> RunFacts:
    return RunFacts(number, state, more.pop("config", config()), more.pop("summary", summary()), **more)


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_a_healthy_run_has_no_findings() -> None:
    assert run_findings(run()) == []


@pytest.mark.parametrize("engine", ["sharding", "capacity", "command"])
def test_engines_whose_processes_are_not_a_product_of_the_layout_are_healthy(engine: str) -> None:
    has_product_layout = ENGINES[engine].has_product_layout
    assert not has_product_layout
    facts = run(config=config(cluster__gpus_per_node=4), has_product_layout=has_product_layout)
    assert run_findings(facts) == []
    assert run_findings(run(config=config(cluster__gpus_per_node=4))) != []


@pytest.mark.parametrize("state", ["queued", "running", "oom", "failed", "cancelled", "lost"])
def test_a_run_without_numbers_has_no_findings(state: str) -> None:
    assert run_findings(run(state=state, summary={})) == []


@pytest.mark.parametrize(
    ("changed", "rule", "excerpt"),
    [
        ({"samples_per_s": 16.0, "tokens_per_s": 1024.0}, "samples-per-second", "16 samples / 0.5 s = 32 samples/s"),
        ({"tokens_per_s": 4096.0}, "tokens-per-second", "32 samples/s x 64 tokens = 2,048 tokens/s"),
        ({"ms_per_sample": 500.0}, "time-per-sample", "500 ms per sample x 16 samples = 8 s per step"),
        ({"loss": {"first": 6.9, "last": -1.0}}, "placeholder", "loss (last) of -1 is not a loss"),
        ({"mfu_pct": 131.0}, "above-peak", "An MFU of 131 %"),
        (
            {
                "reload": {
                    "attempts": [1, 2],
                    "step": 40,
                    "steps": 9,
                    "before": 2.4,
                    "after": 6.9,
                    "difference": 4.5,
                    "limit": 0.1,
                }
            },
            "loss-after-reload",
            "The loss of step 40 was 2.4 in attempt 1 and is 6.9 in attempt 2, after the reload",
        ),
        (
            {"steps": {"count": 6, "first": 2, "last": 7, "left_out": [1]}},
            "cut-short",
            "after iteration 7, but 10 iterations are configured",
        ),
    ],
)
def test_a_summary_that_contradicts_itself_or_its_configuration(
    changed: dict[str, Any], rule: str, excerpt: str
) -> None:
    finding = only(run_findings(run(number=7, summary=summary() | changed)))

    assert finding.rule == rule
    assert excerpt in finding.message
    assert finding.where.run == 7
    assert finding.lines == []


def test_a_unit_error_is_named() -> None:
    finding = only(run_findings(run(summary=summary() | {"samples_per_s": 0.032, "tokens_per_s": 2.048})))

    assert "the factor of 1,000 suggests a wrong unit prefix" in finding.message


def test_the_rank_whose_timers_exceed_the_step_is_named() -> None:
    timers = {
        "forward-compute": {"median": 0.4, "by_rank": {"0": 0.2, "1": 0.6}},
        "backward-compute": {"median": 0.4, "by_rank": {"0": 0.2, "1": 0.6}},
        "optimizer": {"median": 0.01, "by_rank": {"0": 0.01, "1": 0.01}},
    }

    finding = only(run_findings(run(summary=summary(timers_s=timers))))

    assert finding.rule == "timers-of-step"
    assert finding.message.startswith("Rank 1: ")
    assert "1.21 s" in finding.message
    assert "0.5 s" in finding.message


def test_timers_that_one_rank_prints_for_the_slowest_of_all_may_exceed_the_step() -> None:
    timers = {
        name: {"median": 0.4, "min": 0.2, "max": 0.4, "by_rank": {"0": 0.4}}
        for name in ("forward-compute", "backward-compute")
    }

    assert run_findings(run(summary=summary(timers_s=timers))) == []


def test_timers_of_a_few_steps_are_not_checked() -> None:
    timers = {"forward-compute": {"median": 0.9}, "optimizer": {"median": 0.1}}
    steps = {"count": 3, "first": 2, "last": 10, "left_out": [1]}

    assert [finding.rule for finding in run_findings(run(summary=summary(timers_s=timers)))] == ["timers-of-step"]
    assert run_findings(run(summary=summary(timers_s=timers, steps=steps))) == []


def test_arguments_of_the_launch_override_the_configuration() -> None:
    finding = only(run_findings(run(arguments={"world_size": 8})))

    assert finding.rule == "gpus-of-layout"
    assert "8 GPUs are stated, but TP 1 x PP 1 x DP 1 = 1" in finding.message


@pytest.mark.parametrize(
    "arguments",
    [
        {"world_size": 8, "parallelism.data_parallel_shard_degree": 8},
        {"world_size": 8, "context_parallel_size": 8},
    ],
)
def test_layouts_of_other_tools_are_healthy(arguments: dict[str, Any]) -> None:
    assert run_findings(run(arguments=arguments)) == []


def test_a_published_run_is_checked_by_its_partial_configuration() -> None:
    facts = RunFacts(
        3, "finished", {}, {"samples_per_s": 10.0, "step_time_s": {"median": 2.0}}, {"global_batch_size": 32}
    )

    finding = only(run_findings(facts))

    assert (finding.rule, finding.numbers["expected_samples_per_s"]) == ("samples-per-second", 16.0)


GPT_1B = {
    "model__num_layers": 24, "model__hidden_size": 2048, "model__sequence_length": 2048, "model__vocab_size": 51200,
    "train__precision": "bf16", "train__global_batch_size": 16,
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "rules"), [(2.0, []), (0.5, ["above-peak"])])
def test_a_step_faster_than_the_device_can_compute_is_found(seconds: float, rules: list[str]) -> None:
    facts = run(config=config(**GPT_1B), summary=summary(seconds, 16, 2048), device=A100)

    findings = run_findings(facts)

    assert [finding.rule for finding in findings] == rules
    assert all("312 TFLOP/s" in finding.message for finding in findings)


def peak(kind: str, flops: float = 5e10, precision: str = "fp32", device: str = "") -> dict[str, Any]:
    return {"flops": flops, "precision": precision, "source": "where it is from", "kind": kind, "device": device}


@pytest.mark.parametrize(
    ("parts", "excerpt"),
    [
        ({"mfu": 1.3, "peak": peak("measured")}, "restart its daemon"),
        ({"mfu": 0.9, "hfu": 1.2, "peak": peak("data sheet", 312e12, "bf16")}, "An HFU of 120 %"),
    ],
)
def test_a_computed_share_above_its_peak_names_the_peak_and_a_remedy(parts: dict[str, Any], excerpt: str) -> None:
    finding = only(run_findings(run(summary=summary() | parts)))

    assert finding.rule == "above-peak"
    assert excerpt in finding.message
    assert "where it is from" in finding.message


def test_fp32_on_tensor_cores_is_not_above_the_peak_of_fp32() -> None:
    data_sheet = peak("data sheet", 19.5e12, device=A100)

    assert run_findings(run(summary=summary() | {"mfu": 2.0, "peak": data_sheet})) == []
    assert run_findings(run(summary=summary() | {"mfu": 9.0, "peak": data_sheet})) != []


def test_a_device_with_an_unknown_peak_is_not_checked() -> None:
    assert run_findings(run(config=config(**GPT_1B), summary=summary(0.5, 16, 2048), device="Radeon 9700")) == []


def test_stated_tflops_that_do_not_fit_the_model_are_found() -> None:
    facts = run(config=config(**GPT_1B), summary=summary(2.0, 16, 2048, tflops_per_gpu=1200.0))

    finding = only(run_findings(facts))

    assert finding.rule == "flops-of-model"
    assert "1,200 TFLOP/s per GPU" in finding.message


def sweep(values: dict[int, float], axis: str = "parallel.data_parallel_size") -> list[RunFacts]:
    """Runs along one axis: value -> samples/s."""
    runs = []
    for number, (value, rate) in enumerate(values.items(), 1):
        section, _, field = axis.partition(".")
        resolved = config(**{f"{section}__{field}": value})
        gpus = value if axis.startswith("parallel") else 1
        resolved["cluster"]["gpus_per_node"] = gpus
        runs.append(run(number, config=resolved, summary={"samples_per_s": rate}, point={axis: value}))
    return runs


def test_a_healthy_sweep_has_no_findings() -> None:
    assert sweep_findings(sweep({1: 10.0, 2: 19.0, 4: 36.0, 8: 66.0, 16: 120.0})) == []


def test_a_point_far_off_its_neighbours_is_found() -> None:
    finding = only(sweep_findings(sweep({1: 10.0, 2: 19.0, 4: 9.0, 8: 66.0, 16: 120.0})))

    assert (finding.rule, finding.where.run) == ("off-neighbours", 3)
    assert (
        "9 samples/s at data parallel size 4 is 3.93 times slower than the 35.4 samples/s interpolated"
        in finding.message
    )


def test_three_points_are_too_few_for_an_outlier() -> None:
    assert "off-neighbours" not in [finding.rule for finding in sweep_findings(sweep({1: 10.0, 2: 4.0, 4: 36.0}))]


def test_points_are_compared_only_with_those_that_share_their_other_values() -> None:
    fast = sweep({1: 10.0, 2: 19.0, 4: 36.0, 8: 66.0})
    slow = sweep({1: 1.0, 2: 1.9, 4: 3.6, 8: 6.6})
    runs = [
        facts._replace(number=index, point={**facts.point, "parallel.schedule": name})
        for index, (facts, name) in enumerate([(f, "1f1b") for f in fast] + [(s, "gpipe") for s in slow])
    ]

    assert sweep_findings(runs) == []


def test_an_efficiency_above_one_is_found_against_the_smallest_run() -> None:
    finding = only(sweep_findings(sweep({1: 10.0, 2: 19.0, 4: 48.0})))

    assert (finding.rule, finding.where.run) == ("efficiency-above-one", 3)
    assert "48 samples/s on 4 GPUs is an efficiency of 120 % relative to 10 samples/s on 1" in finding.message


def test_a_run_that_differs_in_a_setting_no_axis_shows_is_found() -> None:
    runs = sweep({1: 10.0, 2: 19.0, 4: 36.0})
    runs[1] = runs[1]._replace(config=config(train__precision="bf16", model__sequence_length=128))

    finding = only(sweep_findings(runs))

    assert (finding.rule, finding.where.run) == ("hidden-setting", 2)
    assert "sequence length is 128, not 64" in finding.message
    assert "precision is bf16, not fp32" in finding.message


def test_a_setting_that_is_an_axis_is_not_hidden() -> None:
    assert sweep_findings(sweep({32: 20.0, 64: 10.0, 128: 5.0}, "model.sequence_length")) == []


def test_runs_without_throughput_are_not_compared() -> None:
    runs = sweep({1: 10.0, 2: 19.0, 4: 36.0})
    runs.append(run(9, "oom", config=config(train__precision="bf16"), summary={}, point={}))

    assert sweep_findings(runs) == []


def linked(**network: Any) -> dict[str, Any]:
    data = config()
    data["network"] |= {"apply": "emulate", "delay_ms": 10.0, "bandwidth_gbps": 1.0, **network}
    return data


def measured(round_trip_s: float = 0.0201, bits_per_s: float = 0.99e9) -> dict[str, Any]:
    return summary(links=[{"source": 0, "target": 1, "round_trip_s": round_trip_s, "bits_per_s": bits_per_s}])


@pytest.mark.parametrize(
    ("network", "numbers", "excerpt"),
    [
        (
            {},
            {"round_trip_s": 0.023},
            "The round trip between 0 and 1 took 23 ms before the run, but the configured delays add up to 20 ms",
        ),
        ({}, {"bits_per_s": 0.85e9}, "carried 0.85 Gbit/s before the run, 85 % of the configured 1 Gbit/s"),
        ({"links": [{"source": 0, "target": 1, "delay_ms": 1.0, "bandwidth_gbps": None}]}, {}, "add up to 11 ms"),
    ],
)
def test_a_link_more_than_ten_percent_off_its_configuration_is_found(
    network: dict[str, Any], numbers: dict[str, float], excerpt: str
) -> None:
    finding = only(run_findings(run(config=linked(**network), summary=measured(**numbers))))
    assert finding.rule == "link-off-setting"
    assert excerpt in finding.message


@pytest.mark.parametrize(
    ("network", "numbers"),
    [
        ({}, {}),
        ({}, {"round_trip_s": 0.0219, "bits_per_s": 0.91e9}),
        ({"delay_ms": 0.1}, {"round_trip_s": 0.00029}),
        ({"jitter_ms": 5.0}, {"round_trip_s": 0.028}),
        ({"loss_pct": 1.0}, {"bits_per_s": 0.2e9}),
        ({"bandwidth_gbps": None}, {"bits_per_s": 7e9}),
        ({"apply": "none"}, {"round_trip_s": 5.0}),
    ],
)
def test_links_that_match_their_configuration_have_no_findings(
    network: dict[str, Any], numbers: dict[str, float]
) -> None:
    assert run_findings(run(config=linked(**network), summary=measured(**numbers))) == []
