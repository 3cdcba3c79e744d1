"""What the files of a corpus of real logs must yield: one check per expected file, against the documented output.

The expected files were written by hand, each with keys of its own; a check says which field of the output holds which
figure. CHECKS maps the name of an expected file to its check.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parlab.formats import Document, Record, records
from parlab.formats.files import read_file, read_results_directory
from parlab.formats.schema import Segment, Table
from parlab.formats.source import Lines, open_text

MIB = 2**20
Expected = dict[str, Any]
Check = Callable[[Path, Expected], None]


def near(value: object, relative: float = 1e-6) -> object:
    return pytest.approx(value, rel=relative)


def read_records(path: Path, kind: str) -> list[Record]:
    with open_text(path) as stream:
        return [record for record in records(Lines(stream)) if record.kind == kind]


def only(document: Document) -> Segment:
    assert len(document.segments) == 1
    return document.segments[0]


def step_values(path: Path, name: str) -> list[float | None]:
    return [record.values.get(name) for record in read_records(path, "step")]


def elapsed_ms(path: Path) -> list[float]:
    return [float(value or 0) * 1000 for value in step_values(path, "step_time_s")]


def check_bigscience(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    launch, time = segment.launch, segment.step_time_s
    assert segment.records == expected["log_records"]
    for end, key in ((segment.first, "first_record"), (segment.last, "last_record")):
        assert end is not None
        assert end.iteration == expected[key]["iteration"]
        assert end.values["step_time_s"] * 1000 == near(expected[key]["elapsed_ms"])
    assert time is not None
    assert (time.mean_without_first or 0) * 1000 == near(expected["mean_elapsed_ms_excluding_first_record"], 1e-5)
    assert time.median * 1000 == near(expected["median_elapsed_ms"])
    assert segment.skipped_iterations == expected["skipped_iterations_total"]
    names = {
        "world_size": launch.world_size,
        "tensor_parallel": launch.tensor_parallel_size,
        "pipeline_parallel": launch.pipeline_parallel_size,
        "data_parallel": launch.data_parallel_size,
        "micro_batch": launch.micro_batch_size,
        "global_batch": launch.global_batch_size,
        "grad_accum": launch.gradient_accumulation_steps,
        "seq_length": launch.sequence_length,
        "num_layers": launch.num_layers,
        "hidden_size": launch.hidden_size,
        "log_interval": launch.arguments["log_interval"],
    }
    assert names == {name: expected[name] for name in names}
    _check_bigscience_results(segment, expected)


def _check_bigscience_results(segment: Segment, expected: Expected) -> None:
    ranks = segment.memory.ranks if segment.memory else 0
    assert ranks == expected["memory_ranks"]
    peak = expected["max_allocated_mb_over_ranks"]
    assert segment.gpu_mem_max_bytes == (None if peak is None else near(peak * MIB))
    assert segment.samples_per_s == near(expected["samples_per_s_excluding_first_record"], 1e-4)
    assert segment.tokens_per_s == near(expected["tokens_per_s_excluding_first_record"], 1e-4)
    if "validation" in expected:
        losses = [{"iteration": v.iteration, "lm_loss": v.values["lm_loss"]} for v in segment.validation]
        assert losses == expected["validation"]
    if expected.get("run_status") == "cancelled by slurm":
        assert segment.end.state == "cancelled"
        assert "slurm" in (segment.end.reason or "")


def check_aws_gpt3(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["records"]
    assert elapsed_ms(path) == near(expected["elapsed_ms"])
    assert segment.launch.global_batch_size == expected["global_batch"]
    assert segment.skipped_iterations == expected["skipped"]


def check_bigcode_timers(path: Path, expected: Expected) -> None:
    timers = only(read_file(path)).timers_s
    assert len(timers) == expected["timers"]
    for name in ("forward_backward", "batch_generator", "optimizer"):
        timer = timers[name.replace("_", "-")]
        assert [timer.min * 1000, timer.max * 1000] == near(expected[name])


def check_cloudai_megatron(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["records"]
    assert elapsed_ms(path) == near(expected["elapsed_ms"])
    assert [float(v or 0) / 1e12 for v in step_values(path, "flops_per_gpu")] == near(expected["tflops"])
    assert segment.metrics["step_time_s"].mean * 1000 == near(expected["avg_elapsed_ms"])
    assert segment.metrics["flops_per_gpu"].mean / 1e12 == near(expected["avg_tflops"])
    assert step_values(path, "num_zeros") == expected["num_zeros"]


def check_mdk(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["records"]
    # mpirun's --np is the only place that names the number of GPUs.
    assert segment.launch.world_size == expected["world_size"]
    for end, key in ((segment.first, "first"), (segment.last, "last")):
        assert end is not None
        assert end.iteration == expected[key]["iteration"]
        assert end.values["step_time_s"] * 1000 == near(expected[key]["elapsed_ms"])
        assert end.values["flops_per_gpu"] / 1e12 == near(expected[key]["tflops_per_gpu"])
    assert segment.last is not None
    assert segment.skipped_iterations == expected["skipped_total"]
    assert segment.launch.global_batch_size == expected["global_batch"]
    rate = segment.last.values["global_batch_size"] / segment.last.values["step_time_s"]
    assert rate == near(expected["samples_per_s_last"], 1e-3)
    assert segment.metrics["parameters"].last / 1e9 == near(expected["params_b"])
    assert segment.gpu_mem_max_bytes == near(expected["memory_rank0_max_allocated_mb"] * MIB)


def check_mlm_memory(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.last is not None
    assert segment.last.iteration == expected["iteration"]
    assert segment.last.values["step_time_s"] * 1000 == near(expected["elapsed_ms"])
    assert segment.last.time == expected["timestamp"]
    (memory,) = read_records(path, "memory")
    assert memory.rank == expected["memory"]["rank"]
    for name in ("allocated", "max_allocated", "reserved"):
        assert memory.values[f"{name}_bytes"] == near(expected["memory"][name] * MIB)


def check_nccl743(path: Path, expected: Expected) -> None:
    document = read_file(path)
    assert only(document).records == expected["records"]
    steps = {str(record.iteration): record.values for record in read_records(path, "step")}
    assert {n: values["step_time_s"] * 1000 for n, values in steps.items()} == near(expected["elapsed_ms"])
    assert {n: values.get("skipped_iterations") for n, values in steps.items()} == expected["skipped"]
    assert steps["20"]["lm_loss"] == expected["losses_20"]["lm loss"]
    assert steps["20"]["sop_loss"] == expected["losses_20"]["sop loss"]
    (memory,) = read_records(path, "memory")
    for name, value in expected["memory_rank0"].items():
        assert memory.values[f"{name}_bytes"] == near(value * MIB)
    assert document.unread.lines == 1, "the cut line is counted"


def check_pipeline_tail(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    steps = read_records(path, "step")
    pipeline = [record for record in steps if "samples_per_s" in record.values]
    found = [
        {
            "step": record.iteration,
            "iter_time_s": record.values["step_time_s"],
            "samples_per_s": record.values["samples_per_s"],
        }
        for record in pipeline
    ]
    assert found == expected["pipe_steps"]
    megatron = [record.values["step_time_s"] * 1000 for record in steps if "lm_loss" in record.values]
    assert megatron == near(expected["megatron_elapsed_ms"])
    assert segment.records == len(pipeline), "the same step, reported twice, is one"
    last = pipeline[-1].values
    assert round(last["step_time_s"] * last["samples_per_s"]) == expected["derived_global_batch"]
    assert (not segment.timers_s) is expected["timers_all_zero"]


def check_zero(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["log_records"]
    megatron = [record for record in read_records(path, "step") if "step_time_s" in record.values]
    assert [record.values["step_time_s"] * 1000 for record in megatron] == near(expected["elapsed_ms"])
    assert segment.step_time_s is not None
    mean = segment.step_time_s.mean_without_first or 0
    assert mean * 1000 == near(expected["mean_elapsed_ms_excluding_first_record"])
    launch = segment.launch
    sizes = (launch.world_size, launch.sequence_length, launch.num_layers, launch.hidden_size)
    assert sizes == tuple(expected[name] for name in ("world_size", "seq_length", "num_layers", "hidden_size"))
    # DeepSpeed's own memory lines, at the start, name no iteration.
    (memory,) = (record for record in read_records(path, "memory") if record.iteration is not None)
    for name, value in expected["memory_mb"].items():
        assert memory.values[f"{name}_bytes"] == near(value * MIB)
    timers = next(record for record in read_records(path, "timers") if "forward" in record.values)
    for name, value in expected["timers_iter1"].items():
        assert timers.values[name.replace("_", "-")] * 1000 == near(value)


def check_chronicles(path: Path, expected: Expected) -> None:
    document = read_file(path)
    assert sum(segment.records for segment in document.segments) == expected["log_records_in_file"]
    steps = {record.iteration: record for record in read_records(path, "step")}
    stated = expected["line_45"]
    first = steps[stated["iteration"]]
    assert first.line == 45
    assert first.values["step_time_s"] == near(stated["elapsed_s"])
    assert first.values["global_batch_size"] == stated["global_batch"]
    assert first.values["samples_per_s"] == near(stated["samples_per_s"])
    assert first.values["flops_per_gpu"] / 1e12 == near(stated["tflops"])
    drop = expected["throughput_drop"]
    for end in ("from", "to"):
        wrapped = steps[drop[f"{end}_iteration"]]
        assert wrapped.values["flops_per_gpu"] / 1e12 == near(drop[f"tflops_{end}"])
        assert wrapped.values["skipped_iterations"] == 0, "read although the line is wrapped in the middle of the cell"
    tokens_per_sample = first.values["consumed_tokens"] / first.values["consumed_samples"]
    assert tokens_per_sample == near(expected["consumed_tokens_over_samples"])


def check_dalle(path: Path, expected: Expected) -> None:
    steps = read_records(path, "step")
    assert [r.values["running_avg_samples_per_s"] for r in steps] == expected["deepspeed_samples_per_s"]
    script = [
        r.values["script_samples_per_s"] for r in read_records(path, "metrics") if "script_samples_per_s" in r.values
    ]
    assert script == expected["script_samples_per_s"]


def check_chat_step1(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["throughput_records"]
    columns = {
        "epoch": "epoch",
        "micro_step": "micro_step",
        "running_avg": "running_avg_samples_per_s",
        "curr": "samples_per_s",
    }
    for end, key in ((segment.first, "first"), (segment.last, "last")):
        assert end is not None
        assert end.iteration == expected[key]["global_step"]
        assert {name: end.values[column] for name, column in columns.items()} == {n: expected[key][n] for n in columns}
    assert segment.first is not None
    assert segment.first.values["allocated_bytes"] == near(expected["first"]["mem_gb"] * 2**30)
    assert segment.first.values["max_allocated_bytes"] == near(expected["first"]["max_mem_gb"] * 2**30)
    assert segment.skipped_iterations == expected["skipped_last"]
    assert segment.metrics["overflow_loss_scale"].count == expected["overflow_lines"]


def check_chat_step3(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["records"]
    for end, key, timers in (
        (segment.first, "first", read_records(path, "timers")[0]),
        (segment.last, "last", read_records(path, "timers")[-1]),
    ):
        assert end is not None
        values = {
            "e2e_s": end.values["step_time_s"],
            "generate_s": timers.values["generate"],
            "train_s": timers.values["training"],
            "others_s": timers.values["others"],
            "cur": end.values["samples_per_s"],
            "avg": end.values["running_avg_samples_per_s"],
        }
        assert {name: values[name] for name in expected[key]} == expected[key]


def check_gptneox(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == 0, "microsteps are no iterations"
    timers = [record.values for record in read_records(path, "timers") if "forward_microstep" in record.values]
    assert len(timers) == expected["microsteps"]
    assert [values["forward_microstep"] * 1000 for values in timers] == near(expected["forward_ms"])
    assert [values["backward_microstep"] * 1000 for values in timers] == near(expected["backward_ms"])


def tuning_table(document: Document) -> Table:
    return next(table for table in document.tables if "tuning_space" in table.columns)


def check_tuning_summary(path: Path, expected: Expected) -> None:
    document = read_file(path)
    spaces: dict[str, list[Any]] = {}
    for space, count, metric, name in tuning_table(document).rows:
        # An expected metric of 0 is the tuner's word for "every experiment failed": a failure in the output.
        value = 0 if metric.kind == "failure" else metric.value
        spaces[space.text] = [count.value, value, name.text]
    best = spaces.pop("global")
    assert best == expected["global_"]
    width = len(next(iter(expected["spaces"].values())))
    assert {space: row[:width] for space, row in spaces.items()} == expected["spaces"]
    assert document.figures["tuning_duration_s"][0].value == near(expected["duration_s"])
    total = expected.get("total_stated", expected.get("total"))
    assert document.figures["tuning_experiments"][0].value == total


def check_tuning_readme(path: Path, expected: Expected) -> None:
    check_tuning_summary(path, expected)
    document = read_file(path)
    comparison = next(table for table in document.tables if "tuning_space" not in table.columns)
    _, baseline, handtuned, autotuned = (cell.value for cell in comparison.rows[0])
    assert {"baseline": baseline, "handtuned": handtuned, "autotuned": autotuned} == expected["e2e"]
    improvement = document.figures["throughput_improvement_over_baseline"][0]
    assert improvement.value == expected["improvement"]


def check_tuning_metrics(path: Path, expected: Expected) -> None:
    document = read_file(path)
    segment = only(document)
    assert segment.step_time_s is not None
    assert segment.step_time_s.median == near(expected["latency_s"], 1e-12)
    assert segment.samples_per_s == near(expected["throughput_samples_per_s"], 1e-12)
    assert document.figures["train_batch_size"][0].value == near(expected["train_batch_size"])
    assert document.figures["logged_throughput_factor"][0].value == expected["logged_throughput_factor"]
    assert document.figures["time_unit_s"][0].unit == expected["unit_of_times"]


def check_tuning_experiment(path: Path, expected: Expected) -> None:
    launch = only(read_file(path)).launch
    names = ("name", "num_gpus", "num_nodes")
    assert {name: launch.arguments[name] for name in names} == {name: expected[name] for name in names}
    assert launch.zero_stage == expected["zero_stage"]
    # That it failed is what its directory says: there is no model_info.json beside it.
    whole = read_results_directory(path.parent.parent)
    assert whole is not None
    segment = only(whole)
    assert segment.section == expected["name"]
    assert (segment.end.state == "crashed") is (expected["status"] == "failed")
    assert (segment.first is None) is (expected["metrics"] is None)


def check_srun_prefix(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["records"]
    assert elapsed_ms(path) == near(expected["elapsed_ms"])
    assert {record.rank for record in read_records(path, "step")} == {expected["task"]}


CHECKS: dict[str, Check] = {
    "megatron-lm__bs_meg_gpt2_base_n16-1809577.out.json": check_bigscience,
    "megatron-lm__bs_meg_gpt2_base_n4-1809579.out.json": check_bigscience,
    "megatron-lm__bs_meg_gpt2_perf_n16.out.json": check_bigscience,
    "megatron-lm__aws_gpt3_39b_slurm_abbrev.log.json": check_aws_gpt3,
    "megatron-lm__bigcode28_minmax_timers.txt.json": check_bigcode_timers,
    "megatron-lm__cloudai_megatron_run_stdout.txt.json": check_cloudai_megatron,
    "megatron-lm__mdk_7b_1node.log.json": check_mdk,
    "megatron-lm__mlm5662_2026_memory.log.json": check_mlm_memory,
    "megatron-lm__nccl743_bert_fragments.log.json": check_nccl743,
    "megatron-deepspeed__bs_meg_ds_3d_old_perf_n16.tail90.out.json": check_pipeline_tail,
    "megatron-deepspeed__bs_meg_ds_zero_perf_n16_nbs48_ms48.out.json": check_zero,
    "megatron-deepspeed__bs_tr11_chronicles.md.json": check_chronicles,
    "deepspeed__dalle299_samplespersec_disagree.log.json": check_dalle,
    "deepspeed__dschat_step1_opt-1.3b-globalBatchSize128.log.json": check_chat_step1,
    "deepspeed__dschat_step3_rlhf_head120k.log.json": check_chat_step3,
    "deepspeed__gptneox965_wallclock.log.json": check_gptneox,
    "deepspeed-autotuning__dsexamples_hf_bert-base.README.md.json": check_tuning_readme,
    "deepspeed-autotuning__dsexamples_hf_bert-large.README.md.json": check_tuning_readme,
    "deepspeed-autotuning__dsexamples_hf_gpt2-medium.README.md.json": check_tuning_readme,
    "deepspeed-autotuning__dsexamples_hf_gpt2-xl.README.md.json": check_tuning_readme,
    "deepspeed-autotuning__gpt2-large_summary.txt.json": check_tuning_summary,
    "deepspeed-autotuning__pr2711_metrics.json.json": check_tuning_metrics,
    "deepspeed-autotuning__transformers27830__autotuning_exps__profile_model_info.json.json": check_tuning_experiment,
    "prefixes__aws_megatron_srun_l_prefix.log.json": check_srun_prefix,
}
