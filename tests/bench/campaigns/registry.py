"""All campaigns: `make bench-NAME` runs one, and `make bench ONLY=name` one of its benchmarks."""

from typing import NamedTuple

from tests.bench.benchmark import Benchmark, at_least, at_most


class Campaign(NamedTuple):
    """Benchmarks that take minutes, or that other machines or packages are needed for: `make bench-<name>`."""

    name: str
    work: str
    benchmarks: tuple[Benchmark, ...]


CAMPAIGNS = (
    Campaign(
        "advice", "The planner's advice, replayed over published measurements; independent of the machine",
        (
            Benchmark(
                "advice_sign_right_pct", "campaigns.advice:advice_sign_right_pct", "%", at_least(90),
                "published measurements that differ in one decision, and by more than 5 % in step time: share of"
                " predicted gains with the right sign; prints it by kind",
                "", 10,
            ),
            Benchmark(
                "advice_top3_wrong", "campaigns.advice:advice_top3_wrong", "wrong", at_most(1),
                "the same: wrong ones among the first three pieces of advice, from the worst start of any sweep", "", 1,
            ),
            Benchmark(
                "advice_nodes_right_pct", "campaigns.advice:advice_nodes_right_pct", "%", None,
                "published measurements on other numbers of GPUs: advised changes that shorten the step by more than"
                " 5 % (twice the GPUs), or save 15 % of the GPU hours (half of them)", "", 5,
            ),
        ),
    ),
    Campaign(
        "chain", "A training over time limits and preemptions in a real Slurm of three nodes",
        (
            Benchmark(
                "chain_steps_once_pct", "campaigns.chains:chain_steps_once_pct", "%", at_least(99),
                "one chain over 10 time limits of two minutes and 5 preemptions: share of steps computed once. Fails"
                " unless it is one curve without gaps, the next job is always queued, one attempt is alive at a time"
                " and no process is left; writes `build/chain.json`",
                "", 1500,
            ),
            Benchmark(
                "chain_faults_once_pct", "campaigns.chains:chain_faults_once_pct", "%", at_least(99),
                "the same over two daemons, one of which is killed 20 times with all its processes; a checkpoint"
                " every ten steps, 1,000 steps between faults", "", 400,
            ),
        ),
    ),
    Campaign(
        "cluster", "A server with a thousand nodes, and a run of a thousand ranks; simulated daemons, PostgreSQL",
        (
            Benchmark(
                "thousand_nodes_cores", "campaigns.thousand_nodes:thousand_nodes_cores", "cores", at_most(1),
                "1,000 simulated daemons, 300 with a live run of ten numbers a second (`PARLAB_BENCH_LIVE_S`,"
                " default 15 s), then queued runs for others (`PARLAB_BENCH_QUEUED`, default 200); a browser asks"
                " for four pages at a time; every point must be stored: share of a core of the server while the runs"
                " are live", "", 90,
            ),
            Benchmark(
                "browsers_page_p95_s", "campaigns.browsers:browsers_page_p95_s", "s", at_most(1),
                "200 browsers at the same cluster for a minute, each on a page with figures and live parts, another"
                " one after half a minute; every point must be stored: 95th percentile of the pages", "", 150,
            ),
            Benchmark(
                "thousand_ranks_page_s", "campaigns.thousand_ranks:thousand_ranks_page_s", "s", None,
                "one run over 128 nodes of 8 ranks each, worker and beat as in production: slowest page of the run;"
                " states processor of the worker, time and size of the heat map", "", 45,
            ),
        ),
    ),
    Campaign(
        "kubernetes", "A pool of Kubernetes on a real control plane of 1.20, whose pods are processes",
        (
            Benchmark(
                "pod_gang_start_overhead_s", "campaigns.kubernetes:gang_start_overhead_s", "s", at_most(3),
                "engine pipeline in three pods on three nodes: from the launch to the end of the first step of the"
                " slowest rank, minus that of torchrun", "three pods by hand, alternating", 120,
            ),
            Benchmark(
                "pod_event_lag_s", "campaigns.kubernetes:pod_event_lag_s", "s", at_most(2),
                "ten pods that fit nowhere: from the scheduler's reason at the API server until the page of the run"
                " shows it, the worst", "", 60,
            ),
            Benchmark(
                "thousand_pods_cores", "campaigns.kubernetes:thousand_pods_cores", "cores", at_most(0.2),
                "1,000 runs whose pods run on a node that starts nothing: processor time of their controller over 30 s",
                "", 240,
            ),
            Benchmark(
                "posting_pods_lag_s", "campaigns.kubernetes:posting_pods_lag_s", "s", at_most(3),
                "200 simulated pods without a volume, two steps a second each, at one server on SQLite: from a step to"
                " the answer that it is stored, 99th percentile; fails unless all are stored once",
                "median, steps a second, errors", 60,
            ),
            Benchmark(
                "ended_pods_delay_s", "campaigns.kubernetes:ended_pods_delay_s", "s", at_most(0.5),
                "from a launch to its pod, of a controller that has just started beside 10,000 ended pods, minus"
                " that without them", "", 300,
            ),
        ),
    ),
    Campaign(
        "links", "Pipelines and advice on slow links between network namespaces; needs root",
        (
            Benchmark(
                "forwarder_gbit_per_s", "campaigns.networks:forwarder_gbit_per_s", "Gbit/s", at_least(5),
                "one TCP connection between two namespaces through the unshaped forwarder", "loopback", 10,
            ),
            Benchmark(
                "slowdown_gpipe", "campaigns.networks:slowdown_gpipe", "x", at_most(1.39),
                "the published 3-node case with emulated compute, micro batch 1: time at 10 ms and 1 Gbit/s / time"
                " on the default network; GPipe (published: 1.26; target: 10 % more)",
                "the simulation", 40,
            ),
            Benchmark(
                "slowdown_1f1b", "campaigns.networks:slowdown_1f1b", "x", at_most(1.88),
                "the same for 1F1B (published: 1.71)", "the simulation", 50,
            ),
            Benchmark(
                "slowdown_best_fp32", "campaigns.networks:slowdown_best_fp32", "x", at_most(1.15),
                "the same for 1F1B with the warm-up slope that is fastest in the simulation with at most 9 micro"
                " batches", "the simulation", 45,
            ),
            Benchmark(
                "slowdown_best_fp16", "campaigns.networks:slowdown_best_fp16", "x", at_most(1.05),
                "the same with 16-bit transfers", "the simulation", 45,
            ),
            Benchmark(
                "gap_to_bound_pct", "campaigns.networks:gap_to_bound_pct", "%", at_most(5),
                "of that schedule in fp32: excess over the lower bound", "the bound", 1,
            ),
            Benchmark(
                "micro_batches_held", "campaigns.networks:micro_batches_held", "count", at_most(9),
                "of that schedule in fp32: micro batches on the first rank", "GPipe", 1,
            ),
            Benchmark(
                "three_nodes_deviation_pct", "campaigns.three_nodes:three_nodes_deviation_pct", "%", at_most(3),
                "all 24 cells of both published tables on three daemons (fewer: `PARLAB_BENCH_CELLS`): largest"
                " deviation; writes `build/three_nodes.json`",
                "the emulation of one supervisor", 1200,
            ),
            Benchmark(
                "advice_links_right", "campaigns.advised_nodes:advice_links_right", "rates", at_least(2),
                "a training on one and on two daemons, with links of 0.02 and 0.05 Gbit/s: rates at which one node"
                " is advised, with the sign of the measured gain", "the measured gain", 120,
            ),
        ),
    ),
    Campaign(
        "mlflow", "Unmodified MLflow clients; installs MLflow's newest server below build/ (1 GB)",
        (
            Benchmark(
                "mlflow_log_batch_ratio", "campaigns.mlflows:log_batch_ratio", "x", at_least(5),
                "`log_batch` with 1,000 metrics a call, four clients: points per second",
                "MLflow's server, alternating", 60,
            ),
            Benchmark(
                "mlflow_log_step_ratio", "campaigns.mlflows:log_step_ratio", "x", None,
                "the same with the ten metrics of one step a call", "the same", 1,
            ),
        ),
    ),
    Campaign(
        "palette", "The palette's list, letter by letter",
        (
            Benchmark(
                "palette_ms", "lists:palette_p95_ms", "ms", at_most(100),
                "10,000 runs and 500 experiments, queries as they are typed: 95th percentile of the server's time",
                "", 30,
            ),
        ),
    ),
    Campaign(
        "profile", "What `profile.steps` costs",
        (
            Benchmark(
                "profile_outside_pct", "campaigns.profiles:profile_outside_pct", "%", at_most(2),
                "engine megatron on two ranks: tenth percentile of the steps that are not recorded, four pairs of"
                " runs of 60 steps",
                "runs without `profile.steps`, alternating", 110,
            ),
        ),
    ),
    Campaign(
        "tuner", "The tuner on a space measured on this machine, and on published measurements",
        (
            Benchmark(
                "tuner_planned_launches", "campaigns.tuner:planned_launches", "launches", at_most(6),
                "BERT-mini on two ranks, 24 settings (ZeRO 0 to 3, three micro batches, two accumulations) measured"
                " in one launch, then replayed by strategy `planned`: launches until within 1 % of the best",
                "DeepSpeed's order", 90,
            ),
            Benchmark(
                "tuner_regret_pct", "campaigns.tuner:regret_pct", "%", at_most(1),
                "deviation of its final best from the best of all settings", "DeepSpeed's order", 1,
            ),
            Benchmark(
                "tuner_replay_within_1pct_share", "campaigns.tuner:replay_share", "%", at_least(95),
                "135 published workloads of one node, each searched with the measurements of the others: share whose"
                " best is found to within 1 % in five measurements", "", 150,
            ),
        ),
    ),
    Campaign(
        "wandb", "Scripts with the unmodified client of W&B",
        (
            Benchmark(
                "wandb_scenarios_right", "campaigns.wandbs:scenarios_right", "right", at_least(22),
                "27 scripts: live, offline, resumed and shared runs, artifacts, media, alerts, reading back,"
                " trainers, kill -9; each must end as it should, with everything stored once",
                "", 210,
            ),
            Benchmark(
                "wandb_script_ratio", "campaigns.wandbs:script_ratio", "x", at_least(1),
                "2,000 calls of `log` with ten metrics: their time in the client's offline mode / that against our"
                " server", "the offline mode, alternating", 60,
            ),
        ),
    ),
    Campaign(
        "watch", "The detection of changes on simulated series; prints its accuracy by size and kind, see watch.md",
        (
            Benchmark(
                "watch_f1_5pct", "campaigns.watch:f1_5pct", "F1", at_least(0.95),
                "F1 of the changes of 5 % in simulated series of six kinds", "Perfherder's rule", 60,
            ),
            Benchmark(
                "watch_false_per_1000", "campaigns.watch:false_per_1000", "alerts", at_most(1),
                "false alerts per 1,000 results of these series, over changes of 0 to 20 %", "Perfherder's rule", 1,
            ),
            Benchmark(
                "watch_10k_series_s", "campaigns.watch:series_10k_s", "s", at_most(60),
                "changes of 10,000 series of 1,000 results, in two threads", "Perfherder's rule",
                35,
            ),
        ),
    ),
)  # fmt: skip
