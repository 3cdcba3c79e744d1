"""All benchmarks. To add one, write a function in a module for its subject and add a row here.

`python -m tests.bench.tables` writes the tables of docs/contribute/bench.md from these rows.
"""

from tests.bench.benchmark import Benchmark, at_least, at_most

BENCHMARKS = (
    Benchmark(
        "ingest_points_per_s", "ingest:points_per_s", "points/s", at_least(1_000_000),
        "20 MB of output (three ranks, 20,000 steps, 12 numbers per line) in batches of up to 1 MiB through"
        " `batch_apply`, one thread",
        "a row per point", 10,
    ),
    Benchmark(
        "pipeline_ingest_points_per_s", "load:pipeline_points_per_s", "points/s", at_least(200_000),
        "three trainings of 20 MB in the spools of a daemon, until one worker has stored them; processes as in"
        " production",
        "", 22,
    ),
    Benchmark(
        "live_lag_p99_s", "load:live_lag_p99_s", "s", at_most(2),
        "100 runs that print ten metrics ten times a second, one daemon and one worker, for 15 s: age of the newest"
        " stored point; every point must be stored",
        "", 28,
    ),
    Benchmark(
        "series_bytes_per_point", "series:bytes_per_point", "bytes", at_most(4),
        "a noisy loss (6 decimals), a counter and a timer (3 decimals), 100,000 points each, 500 at a time: growth"
        " of the database",
        "a row per point", 4,
    ),
    Benchmark(
        "read_series_1000_ms", "series:read_series", "ms", at_most(5),
        "one series of 1,000,000 points, reduced to 1,000", "a row per point", 9,
    ),
    Benchmark(
        "read_20_runs_ms", "series:read_20_runs", "ms", at_most(20),
        "20 runs of 100,000 points, reduced to 1,000 each", "a row per point", 5,
    ),
    Benchmark(
        "client_log_us", "client:log_us", "us", at_most(15),
        "`run.log` with ten metrics, no server: median time of the call",
        "json.dumps, flushed", 4,
    ),
    Benchmark(
        "client_points_per_s", "client:points_per_s", "points/s", at_least(400_000),
        "a million points, ten metrics a step, from the first `log` until the server has stored them",
        "until the last `log` returned", 9,
    ),
    Benchmark(
        "client_scripts_lag_s", "client:scripts_lag_s", "s", at_most(2),
        "100 scripts that log ten metrics ten times a second, for 10 s: worst age of the newest stored point",
        "", 26,
    ),
    Benchmark(
        "follow_lag_ms", "client:follow_lag_ms", "ms", at_most(1000),
        "a followed Megatron-LM log that gets five lines a second: median time from a line to its point in the"
        " database",
        "", 16,
    ),
    Benchmark(
        "ingest_100k_iterations_s", "imports:import_100k", "s", at_most(10),
        "import of a Megatron-LM log of 100,000 iterations with 12 timers each (70 MB, 2.1 million points)",
        "its lines only", 19,
    ),
    Benchmark(
        "preview_first_s", "previews:preview_first_s", "s", at_most(2),
        "uploads of 100 MB, a Megatron-LM log and an unknown format: until the page shows the first findings, the"
        " slower one",
        "the whole file", 20,
    ),
    Benchmark(
        "megatron_reader_mb_per_s", "formats:megatron_reader_mb_per_s", "MB/s", at_least(60),
        "a Megatron-LM log of 150 MB to records, one thread", "its lines only", 14,
    ),
    Benchmark(
        "reader_peak_mib", "formats:reader_peak_mib", "MiB", at_most(150),
        "peak memory of a process that reads the same log", "its lines only", 6,
    ),
    Benchmark(
        "slowest_reader_mb_per_s", "readers:slowest_reader_mb_per_s", "MB/s", at_least(10),
        "1 MB of steps of each format of logs to records, and of lines in a learnt format, processor time: the"
        " slowest; prints all",
        "json.loads", 20,
    ),
    Benchmark(
        "learn_100mb_s", "learning:learn_100mb_s", "s", at_most(10),
        "learning a log of 100 MB with short lines and one with 60 metrics per line: the slower one",
        "reading all lines", 16,
    ),
    Benchmark(
        "large_inputs_growth", "large_inputs:large_inputs_growth", "x", at_most(2.5),
        "tables of 200,000 rows and of 20,000 columns, and 3 million empty lines: largest factor of the processor"
        " time when the size doubles",
        "", 25,
    ),
    Benchmark(
        "experiments_page_p95_ms", "lists:experiments_page_p95_ms", "ms", at_most(100),
        "lists of 200 experiments and 10,000 runs, eight filters in three orders: 95th percentile of the server's"
        " time",
        "filters by fields in JSON", 12,
    ),
    Benchmark(
        "pages_p95_ms", "pages:pages_p95_ms", "ms", at_most(60),
        "every page but the planner's search, without cache, with 10,000 runs and 100 million points: 95th"
        " percentile of the server's time",
        "", 22,
    ),
    Benchmark(
        "compare_100_runs_ms", "pages:compare_100_runs_ms", "ms", at_most(300),
        "a comparison of 100 runs of 100,000 points each, without cache", "its curves", 5,
    ),
    Benchmark(
        "first_figure_ms", "figures:first_figure_ms", "ms", at_most(400),
        "Chromium with compiled scripts of earlier visits: from the request of an experiment's page to its first"
        " figure",
        "a page with Plotly alone", 35,
    ),
    Benchmark(
        "redraw_ms", "redraw:redraw_ms", "ms", at_most(50),
        "Chromium, panels of an experiment of 100 runs: from an input to the end of the frame with the change, the"
        " slowest input",
        "each input", 18,
    ),
    Benchmark(
        "trace_mb_per_s", "traces:trace_mb_per_s", "MB/s", at_least(50),
        "a Kineto trace of 96,000 kernels (60 MB): read and broken down, processor time",
        "json.loads", 10,
    ),
    Benchmark(
        "pipeline_vs_torch", "pipelines:pipeline_vs_torch", "x", at_least(0.98),
        "a step of engine pipeline on two ranks, a GPT of 8 layers in 8 micro batches: worst ratio of three"
        " schedules, 9 steps each",
        "torch.distributed.pipelining, alternating", 45,
    ),
    Benchmark(
        "pipeline_vs_deepspeed", "deepspeed_pipelines:pipeline_vs_deepspeed", "x", at_least(0.98),
        "the same with 1F1B, 9 steps",
        "DeepSpeed's PipelineModule, alternating", 22,
    ),
    Benchmark(
        "megatron_vs_ddp", "megatrons:megatron_vs_ddp", "x", at_least(0.98),
        "a step of engine megatron, two replicas of a GPT of 4 layers, two micro batches each, 25 steps",
        "DistributedDataParallel, alternating", 20,
    ),
    Benchmark(
        "zero_vs_deepspeed", "zero:zero_vs_deepspeed", "x", at_least(0.98),
        "the same of engine zero: worst ratio of ZeRO 0 to 3, 25 steps for each of both orders of creation (the"
        " memory layout accounts for up to 5 %)",
        "DeepSpeed called directly, alternating", 135,
    ),
    Benchmark(
        "telemetry_overhead_pct", "telemetry:overhead_pct", "%", at_most(0.5),
        "steps of engine megatron with sampling at 20 times the normal rate; the overhead is divided by 20",
        "steps without sampling, alternating", 15,
    ),
    Benchmark(
        "multi_node_start_overhead_s", "nodes:start_overhead_s", "s", at_most(5),
        "engine pipeline on three daemons in network namespaces: from the launch to the end of the first step of the"
        " slowest rank, minus that of torchrun",
        "torchrun by hand, alternating", 40,
    ),
    Benchmark(
        "dispatch_1000_runs_s", "dispatching:dispatch_1000_runs_s", "s", at_most(5),
        "1,000 queued runs and 1,000 idle nodes: until all orders are in Redis",
        "", 8,
    ),
)  # fmt: skip
"""What `make bench` measures, at most MOST of them in LIMIT_S; each has a target."""
MOST, LIMIT_S = 30, 12 * 60
