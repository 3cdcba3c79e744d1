"""All benchmarks by name; to add one, write a function in a module for its subject and add a line here."""

from collections.abc import Callable

from tests.bench import (
    client,
    deepspeed_pipelines,
    figures,
    formats,
    imports,
    ingest,
    lists,
    megatrons,
    networks,
    pipelines,
    series,
    simulations,
    telemetry,
    tuner,
    zero,
)
from tests.bench.result import Result, Scale

BENCHMARKS: dict[str, Callable[[Scale], Result]] = {
    "ingest_points_per_s": ingest.points_per_s,
    "client_log_us": client.log_us,
    "series_bytes_per_point": series.bytes_per_point,
    "read_series_1000_ms": series.read_series,
    "read_20_runs_ms": series.read_20_runs,
    "megatron_reader_mb_per_s": formats.megatron_reader_mb_per_s,
    "reader_peak_mib": formats.reader_peak_mib,
    "experiments_page_p95_ms": lists.experiments_page_p95_ms,
    "first_figure_ms": figures.first_figure_ms,
    "ingest_100k_iterations_s": imports.import_100k,
    "pipeline_vs_torch": pipelines.pipeline_vs_torch,
    "pipeline_vs_deepspeed": deepspeed_pipelines.pipeline_vs_deepspeed,
    "megatron_vs_ddp": megatrons.megatron_vs_ddp,
    "simulation_error_gpipe_pct": simulations.gpipe_error_pct,
    "simulation_error_1f1b_pct": simulations.one_f_one_b_error_pct,
    "forwarder_gbit_per_s": networks.forwarder_gbit_per_s,
    "slowdown_gpipe": networks.slowdown_gpipe,
    "slowdown_1f1b": networks.slowdown_1f1b,
    "slowdown_best_fp32": networks.slowdown_best_fp32,
    "slowdown_best_fp16": networks.slowdown_best_fp16,
    "gap_to_bound_pct": networks.gap_to_bound_pct,
    "micro_batches_held": networks.micro_batches_held,
    "zero_vs_deepspeed": zero.zero_vs_deepspeed,
    "telemetry_overhead_pct": telemetry.overhead_pct,
    **tuner.BENCHMARKS,
}
