"""Checks of the corpus for the trainers and tools beside Megatron and DeepSpeed; see corpus_checks.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from parlab.formats.files import read_file
from parlab.formats.schema import Segment, Table
from tests.formats.corpus_checks import Check, Expected, near, only, read_records, step_values

MIB, GIB, GBIT = 2**20, 2**30, 1e9 / 8


def column(table: Table, name: str) -> list[float | None]:
    at = table.columns.index(name)
    return [row[at].value for row in table.rows]


def words(table: Table, name: str) -> list[str]:
    at = table.columns.index(name)
    return [row[at].text for row in table.rows]


def check_titan_all_ranks(path: Path, expected: Expected) -> None:
    document = read_file(path)
    segment = only(document)
    assert document.lines == expected["lines"]
    assert segment.records == len(expected["distinct_steps"])
    assert {record.iteration for record in read_records(path, "step")} == set(expected["distinct_steps"])
    # The expected figures are those that most of the seven copies print.
    copies = [record.values for record in read_records(path, "step") if record.iteration == 4]
    fourth = {name: Counter(values[name] for values in copies).most_common(1)[0][0] for name in copies[0]}
    stated = expected["step4"]
    assert fourth["loss"] == stated["loss"]
    assert fourth["grad_norm"] == stated["grad_norm"]
    assert fourth["memory_bytes"] == near(stated["mem_gib"] * GIB)
    assert fourth["memory_share_pct"] == stated["mem_pct"]
    assert fourth["tokens_per_s_per_gpu"] == stated["tps"]
    assert fourth["flops_per_gpu"] == near(stated["tflops"] * 1e12)
    assert fourth["mfu_pct"] == stated["mfu"]


def check_titan_rank0(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["steps"]
    assert segment.steps is not None
    assert (segment.steps.first, segment.steps.last) == (expected["first"], expected["last"])
    assert step_values(path, "tokens_per_s_per_gpu") == expected["tps"]
    assert segment.metrics["tokens_per_s_per_gpu"].mean == near(expected["mean_tps"])
    assert segment.tokens_per_s is None, "tps is per device, and nothing says how many there are"


def check_nanotron(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == len(expected["iteration"])
    steps = read_records(path, "step")
    assert [record.iteration for record in steps] == expected["iteration"]
    assert [record.values["step_time_s"] * 1000 for record in steps] == near(expected["elapsed_ms"])
    tokens = steps[0].values["tokens_seen"] / expected["iteration"][0]
    assert tokens == near(expected["tokens_per_iter"], 5e-3), "three digits are printed"
    if "derived_gpus" in expected:
        assert step_values(path, "tokens_per_s") == near(expected["tokens_per_s"])
        assert step_values(path, "tokens_per_s_per_gpu") == near(expected["tokens_per_s_per_gpu"])
        values = steps[0].values
        assert round(values["tokens_per_s"] / values["tokens_per_s_per_gpu"]) == expected["derived_gpus"]
    else:
        assert segment.step_time_s is not None
        assert segment.metrics["step_time_s"].max > 100 * segment.step_time_s.median, "outliers do not move the median"


def check_nemo_bar(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.first is not None
    assert segment.first.iteration == expected["global_step"]
    assert segment.first.values["consumed_samples"] == expected["consumed_samples"]
    assert segment.first.values["step_time_s"] == expected["step_s"]
    assert segment.validation[0].values == {"val_loss": 2.8}


def check_nemo_epochs(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["records"]
    steps = read_records(path, "step")
    # The line's own iteration (expected["iteration"]) starts again with each epoch: the output counts global steps.
    assert [record.iteration for record in steps] == expected["global_step"]
    assert [record.iteration - at for record, at in zip(steps, expected["iteration"], strict=True)] == [19, 19]
    assert {record.values["epoch"] for record in steps} == {expected["epoch"]}
    assert step_values(path, "step_time_s") == expected["step_s"]
    assert step_values(path, "consumed_samples") == expected["consumed"]
    assert segment.launch.global_batch_size == expected["global_batch"]


def check_nemo_lines(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == expected["records"]
    for end, key in ((segment.first, "first"), (segment.last, "last")):
        assert end is not None
        assert end.iteration == expected[key]["iteration"]
        assert end.values["step_time_s"] == expected[key]["step_s"]
        assert end.values["consumed_samples"] == expected[key]["consumed"]
    assert segment.launch.global_batch_size == expected["global_batch"]
    assert segment.step_time_s is not None
    assert segment.step_time_s.mean == near(expected["mean_all"], 1e-5)
    assert segment.step_time_s.mean_without_first == near(expected["mean_excluding_first"], 1e-5)


def check_mlperf(path: Path, expected: Expected) -> None:
    document = read_file(path)
    segment = only(document)
    launch, metrics = segment.launch, segment.metrics
    assert document.figures["time_to_train_s"][0].value == near(expected["time_to_train_ms"] / 1000, 1e-12)
    assert metrics["time_to_train_s"].last / 60 == near(expected["time_to_train_min"], 1e-4)
    assert launch.global_batch_size == expected["global_batch"]
    assert launch.gradient_accumulation_steps == expected["grad_accum"]
    assert launch.world_size == expected.get("gpus", expected.get("accelerators"))
    assert segment.validation[-1].values["eval_accuracy"] == expected["final_eval"]
    assert segment.end.state == "finished"
    optional: dict[str, Callable[[], object]] = {
        "events": lambda: document.figures["events"][0].value,
        "status": lambda: (segment.end.reason or "").removeprefix("run_stop: "),
        "seq_length": lambda: launch.sequence_length,
        "steps": lambda: segment.records,
        "median_step_s": lambda: round(metrics["step_time_s"].median, 4),
        "first_step_s": lambda: metrics["step_time_s"].first,
        "throughput_tokens_per_s": lambda: metrics["tokens_per_s"].last,
        "throughput_sequences_per_s": lambda: segment.samples_per_s,
        "derived_tokens_per_s": lambda: round(segment.tokens_per_s or 0),
        "evals": lambda: len(segment.validation),
        "init_s": lambda: round(metrics["init_s"].last, 1),
        "trained_samples": lambda: metrics["epoch_num"].last,
    }
    assert {name: read() for name, read in optional.items() if name in expected} == {
        name: expected[name] for name in optional if name in expected
    }
    _check_mlperf_rates(path, segment, expected)


def _check_mlperf_rates(path: Path, segment: Segment, expected: Expected) -> None:
    launch, metrics = segment.launch, segment.metrics
    if "per_step_tokens_per_s" in expected:
        tokens = (launch.global_batch_size or 0) * (launch.sequence_length or 0)
        assert round(tokens / metrics["step_time_s"].median) == near(expected["per_step_tokens_per_s"], 1e-5)
        assert segment.tokens_per_s == near(expected["per_step_tokens_per_s"], 1e-3), "evaluation left out"
    if "throughput" in expected:
        # If the log prints no throughput, the name of the figure describes how it was computed.
        (rate,) = [record for record in read_records(path, "metrics") if "tokens_per_s" in record.values]
        assert rate.fields[0].key == "train_samples / (run_stop - run_start)"
        assert expected["throughput"] is None


def check_mlperf_prefix(path: Path, expected: Expected) -> None:
    document = read_file(path)
    metrics = only(document).metrics
    assert document.figures["events"][0].value == expected["events"]
    assert metrics["samples_per_s"].last == expected["throughput_samples_per_s"]
    assert metrics["block_s"].last == near(expected["block_s"])
    assert metrics["block_samples"].last == expected["samples"]
    # Expected is rounded down: 384 / 199.434 = 1.92545.
    assert metrics["block_samples_per_s"].last == near(expected["derived_samples_per_s"], 1e-4)


def check_nccl(path: Path, expected: Expected) -> None:
    document = read_file(path)
    (table,) = document.tables
    assert len(table.rows) == expected["rows"]
    last = {name: cell.value for name, cell in zip(table.columns, table.rows[-1], strict=True)}
    names = {
        "size": "size (B)",
        "oop_us": "out-of-place time (us)",
        "oop_algbw": "out-of-place algbw (GB/s)",
        "oop_busbw": "out-of-place busbw (GB/s)",
        "ip_us": "in-place time (us)",
        "ip_algbw": "in-place algbw (GB/s)",
        "ip_busbw": "in-place busbw (GB/s)",
    }
    assert {key: last[names[key]] for key in expected.get("last", {})} == expected.get("last", {})
    if "ranks" in expected:
        assert document.figures["derived_ranks"][0].value == expected["ranks"]
    if "max_busbw_GBps" in expected:
        assert document.figures["max_busbw_bytes_per_s"][0].value == near(expected["max_busbw_GBps"] * 1e9)
    if "avg_busbw_GBps" in expected:
        assert document.figures["avg_busbw_bytes_per_s"][0].value == near(expected["avg_busbw_GBps"] * 1e9)
    if "algo" in expected:
        assert words(table, "algo") == expected["algo"]


def check_all_reduce_bench(path: Path, expected: Expected) -> None:
    document = read_file(path)
    segment = only(document)
    (table,) = document.tables
    busbw = segment.metrics["busbw_bytes_per_s"]
    assert busbw.count == len(table.rows) == expected["records"]
    assert segment.launch.world_size == expected["ranks"]
    assert segment.launch.arguments["trials"] == expected["trials"]
    assert busbw.min == near(expected["busbw_min_gbps"] * GBIT, 1e-3)
    assert busbw.max == near(expected["busbw_max_gbps"] * GBIT, 1e-3)
    later = segment.metrics["busbw_after_first_trial_bytes_per_s"]
    assert later.mean == near(expected["mean_busbw_gbps_excluding_first_trial"] * GBIT, 1e-4)
    assert segment.metrics["payload_bytes"].median == near(expected["payload_gb"] * 1e9, 1e-3)
    ratio = busbw.mean / segment.metrics["algo_throughput_bytes_per_s"].mean
    assert ratio == near(expected["busbw_over_algo"], 1e-4)
    assert segment.metrics["algbw_bytes_per_s"].mean * 2 == near(segment.metrics["algo_throughput_bytes_per_s"].mean)


def check_trainer_output(path: Path, expected: Expected) -> None:
    document = read_file(path)
    assert len(document.segments) == expected["launches_in_file"]
    finished = [segment for segment in document.segments if segment.end.state == "finished"]
    assert len(finished) == expected["completed_launches"]
    launch, metrics = finished[0].launch, finished[0].metrics
    assert metrics["train_runtime_s"].count == expected["final_records"]
    runtimes = [r.values["train_runtime_s"] for r in read_records(path, "metrics") if "train_runtime_s" in r.values]
    # 273.0144 and 273.0148 both come three times; the expected mode is the larger of them.
    counts = Counter(runtimes)
    assert counts[expected["train_runtime_s_mode"]] == max(counts.values())
    assert metrics["samples_per_s"].median == expected["train_samples_per_s"]
    assert finished[0].samples_per_s == near(expected["train_samples_per_s"], 1e-4)
    assert metrics["steps_per_s"].median == expected["train_steps_per_s"]
    assert launch.global_batch_size == expected["train_batch_size"]
    assert launch.micro_batch_size == expected["micro_batch"]
    assert launch.world_size == expected["gpus"]
    assert launch.zero_stage == expected["zero_stage"]
    samples = metrics["samples_per_s"].median * metrics["train_runtime_s"].median
    assert round(samples) == near(expected["derived_samples"], 1e-3)
    assert -(-round(samples) // (launch.global_batch_size or 1)) == expected["derived_steps"]


def check_trainer_state(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    arguments = segment.launch.arguments
    names = {"global_step": "global_step", "max_steps": "max_steps", "epochs": "num_train_epochs"}
    names["total_flos"] = "total_flos"
    assert {key: arguments[name] for key, name in names.items()} == {key: expected[key] for key in names}
    assert segment.launch.micro_batch_size == expected["train_batch_size"], "per device, as the note says"
    assert segment.records == expected["loss_entries"]
    assert segment.records + len(segment.validation) == expected["log_entries"]
    for end, key in ((segment.first, "first_loss"), (segment.last, "last_loss")):
        assert end is not None
        assert {**end.values, "step": end.iteration} == expected[key]
    assert segment.metrics.get("train_runtime_s") is expected["train_runtime"] is None
    assert segment.samples_per_s is None


def check_dmon(path: Path, expected: Expected) -> None:
    (table,) = read_file(path).tables
    assert len(table.rows) == expected["rows"]
    if "columns" in expected:
        assert len(table.columns) == expected["columns"]
        return
    records = read_records(path, "metrics")
    assert {record.rank for record in records} == set(expected["gpus"])
    for gpu in expected["gpus"]:
        own = [record.values for record in records if record.rank == gpu]
        assert [values["power_watts"] for values in own] == expected[f"gpu{gpu}"]["pwr"]
        assert [values["gpu_mem_bytes"] / MIB for values in own] == expected[f"gpu{gpu}"]["fb"]


def check_query_gpu(path: Path, expected: Expected) -> None:
    document = read_file(path)
    segment = only(document)
    assert len(document.tables[0].rows) == expected["rows"]
    assert segment.metrics["gpu_util_pct"].max == expected["max_util_pct"]
    assert segment.gpu_mem_max_bytes == expected["max_mem_mib"] * MIB
    assert column(document.tables[0], "power.draw") == expected["power_w"]


def check_maxtext(path: Path, expected: Expected) -> None:
    first = only(read_file(path)).first
    assert first is not None
    assert first.iteration == expected["step"]
    assert first.values["step_time_s"] == expected["seconds"]
    assert first.values["flops_per_gpu"] == near(expected["tflops_per_device"] * 1e12)
    assert first.values["tokens_per_s_per_gpu"] == expected["tokens_per_s_per_device"]
    assert first.values["loss"] == expected["loss"]


def check_rank_lines(path: Path, expected: Expected) -> None:
    segment = only(read_file(path))
    assert segment.records == 1
    assert segment.first is not None
    assert segment.first.iteration == expected["batch"]
    assert len(segment.timers_s["Total"].by_rank) == expected["ranks"]
    assert [value * 1000 for value in segment.timers_s["Total"].by_rank.values()] == near(sorted_by_rank(path))
    printed = [record.values["step_time_s"] * 1000 for record in read_records(path, "step")]
    # Ranks 0, 2, 1, 3 print in this order; expected is sorted like the lines.
    assert printed == near(expected["total_ms"])


def sorted_by_rank(path: Path) -> list[float]:
    steps = sorted(read_records(path, "step"), key=lambda record: record.rank or 0)
    return [record.values["step_time_s"] * 1000 for record in steps]


CHECKS: dict[str, Check] = {
    "torchtitan__pr2389_allranks_duplicate.log.json": check_titan_all_ranks,
    "torchtitan__pr3393_rank0.log.json": check_titan_rank0,
    "nanotron__notebook_tiny_15iters.log.json": check_nanotron,
    "nanotron__pr23_8gpu.log.json": check_nanotron,
    "nemo__aws_nemo1_tqdm.log.json": check_nemo_bar,
    "nemo__aws_nemo2_skypilot_a.log.json": check_nemo_epochs,
    "nemo__cloudai_nemo_run_stdout.txt.json": check_nemo_lines,
    "mlperf__Intel-HabanaLabs__HLS-Gaudi2-N32-PT__gpt3__result_0.txt.json": check_mlperf,
    "mlperf__NVIDIA__eos_n64_ngc23.09_nemo__gpt3__result_0.txt.json": check_mlperf,
    "mlperf__NVIDIA__eos_ngc23.04_pytorch__bert__result_0.txt.json": check_mlperf,
    "prefixes__mllog_srun_prefix.log.json": check_mlperf_prefix,
    "nccl-tests__aws_2xp4de_16gpu_srun_l.txt.json": check_nccl,
    "nccl-tests__aws_eks_mpirun_tagoutput.txt.json": check_nccl,
    "nccl-tests__rccl_extra_columns.txt.json": check_nccl,
    "torch-allreduce__bs_n1_32gb_all_reduce_bench.txt.json": check_all_reduce_bench,
    "torch-allreduce__bs_all_reduce_bench-32gb-n4.txt.json": check_all_reduce_bench,
    "hf-trainer__bs_hf_ds_gpt2_perf_n16_bs4-mbs8.out.json": check_trainer_output,
    "hf-trainer__trainer_state_viz_trainer_state.json.json": check_trainer_state,
    "nvidia-smi__dmon_2xA100_idle_to_busy.log.json": check_dmon,
    "nvidia-smi__dmon_gpm_columns.log.json": check_dmon,
    "nvidia-smi__query_gpu_units.csv.json": check_query_gpu,
    "prefixes__maxtext_step.log.json": check_maxtext,
    "prefixes__weathergen668_srun_rank_lines.log.json": check_rank_lines,
}
