"""Rules of advice: predicted gains, ranking, and the record of what was tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parlab.advice.adjacent_settings import neighbours
from parlab.advice.goodput import NO_FAILURES, Failures
from parlab.advice.observations import Checkpoints, Reached, Signs, Slowest
from parlab.advice.rules import Case, advise, gain_of, is_certain, memory_change
from parlab.advice.score import Measurement, Outcome, change_of, records, replay, top
from parlab.advice.simulated import Passes
from parlab.advice.waterfalls.measured import Rate, Step, timers_of, waterfall_of
from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.planner import Cluster, Job, Model, cluster, predict_job
from parlab.planner.schedule import Link, Plan, StageTimes, outcome, uniform

from .test_waterfall import by_rank

MODEL = Model(24, 2048, 16, 2048, 50_000)
A100 = cluster("A100", 8)


def measured(job: Job, factor: float = 1.0) -> Waterfall:
    """Return the waterfall of a run that takes `factor` times as long as the planner predicts, with timers."""
    return measured_on(job, A100, factor)


def measured_on(job: Job, where: Cluster, factor: float = 1.0, *, data: float = 1.0) -> Waterfall:
    """The same on another cluster; the exchange of gradients takes `data` times as long as predicted besides."""
    parts = predict_job(job, where).parts
    ranks = job.world_size
    timers = {
        "forward-compute": by_rank(*[factor * parts.compute_s / 4] * ranks),
        "backward-compute": by_rank(*[factor * parts.compute_s * 3 / 4] * ranks),
        "forward-recv": by_rank(*[factor * (parts.bubble_s + parts.pipeline_s)] * ranks),
        "all-grads-sync": by_rank(*[factor * data * parts.data_s] * ranks),
        "optimizer": by_rank(*[factor * parts.optimizer_s] * ranks),
    }
    step = Step(
        "Run 1", factor * (parts.total_s + (data - 1) * parts.data_s), ranks, timers_of(timers),
        peak=Rate(312e12, "data sheet"), stages=job.pipeline_parallel, micro_batches=job.num_micro_batches,
        schedule=job.schedule, predicted=parts,
    )  # fmt: skip
    return waterfall_of(step)


def test_recomputation_without_need_is_the_first_advice() -> None:
    job = Job(MODEL, 64, 1, 1, 1, 8, recompute="full", has_flash_attention=True)
    first = advise(Case(measured(job), job, A100))[0]
    assert first.kind == "recompute"
    assert first.settings == {"train.recompute": "none"}
    assert first.low < first.gain < first.high
    assert 0.15 < first.gain < 0.35  # a fourth of the work
    assert "as much memory, 26.3 GiB" in first.evidence
    assert first.predicted_s(1.0) == pytest.approx(1 - first.gain)


def test_too_few_micro_batches_in_a_pipeline_are_a_bubble() -> None:
    job = Job(MODEL, 8, 4, 1, 8, 1, schedule="gpipe", has_flash_attention=True)
    advice = advise(Case(measured(job), job, A100))
    assert {row.kind for row in advice} >= {"micro_batch", "layout"}
    assert "bubble" in {row.part for row in advice[:3]}


def test_gains_scale_with_the_measured_terms() -> None:
    job = Job(MODEL, 64, 1, 1, 1, 8, recompute="full", has_flash_attention=True)
    before, after = (predict_job(Job(MODEL, 64, 1, 1, 1, 8, recompute=mode), A100).parts for mode in ("full", "none"))
    gains = [gain_of(measured(job, factor), before, after) for factor in (1.0, 3.0)]
    assert gains[0] == pytest.approx(gains[1], rel=1e-6)
    # Without measured terms the ratio of both predictions counts.
    bare = waterfall_of(Step("Run 1", 5.0, 8))
    assert gain_of(bare, before, after) == pytest.approx(1 - after.total_s / before.total_s)


def test_changes_that_do_not_fit_in_memory_are_not_advised() -> None:
    big = Model(96, 12_288, 96, 2048, 50_000)
    where = cluster("A100", 64)
    job = Job(big, 64, 1, 8, 8, 1, recompute="full", has_flash_attention=True)
    step = waterfall_of(Step("Run 1", predict_job(job, where).iteration_s, 64))
    for row in advise(Case(step, job, where)):
        changed = next(item for item in neighbours(job) if item.title == row.title)
        assert predict_job(changed.job, where).fits


def test_a_slow_rank_slow_loading_and_a_host_bound_trace_are_named() -> None:
    timers = {
        "forward-compute": by_rank(0.2, 0.2, 0.5, 0.2),
        "backward-params-all-reduce": by_rank(0.4, 0.4, 0.1, 0.4),
        "data_loading": by_rank(0.2, 0.2, 0.2, 0.2),
    }
    waterfall = waterfall_of(Step("Run 1", 0.9, 4, timers_of(timers)))
    advice = {row.kind: row for row in advise(Case(waterfall, signs=Signs(Slowest(2, 1.5), idle_host_share=0.3)))}
    assert set(advice) == {"rank", "loading", "host"}
    assert advice["rank"].title == "Look at rank 2"
    assert advice["rank"].gain == pytest.approx(0.75 * 0.225 / 0.9), "half of the waiting to all of it"
    assert "150 % longer" in advice["rank"].evidence
    assert advise(Case(waterfall_of(Step("Run 1", 0.9, 4)))) == []


def test_idle_gpus_without_a_trace_are_host_bound_unless_data_loading_explains_them() -> None:
    timers = {"forward-compute": by_rank(0.6, 0.6), "data_loading": by_rank(0.3, 0.3)}
    waterfall = waterfall_of(Step("Run 1", 1.0, 2, timers_of(timers)))
    (host,) = [row for row in advise(Case(waterfall, signs=Signs(busy_share=0.4))) if row.kind == "host"]
    assert host.gain == pytest.approx(0.3)
    assert "no kernel 60 % of the time" in host.evidence
    assert "host" not in {row.kind for row in advise(Case(waterfall, signs=Signs(busy_share=0.6)))}
    # A trace measures it better.
    assert "host" not in {row.kind for row in advise(Case(waterfall, signs=Signs(idle_host_share=0.0, busy_share=0.4)))}


def test_neighbours_keep_the_work_and_the_number_of_ranks() -> None:
    job = Job(MODEL, 64, 2, 2, 2, 2, precision="fp32", schedule="interleaved-1f1b", virtual_stages=2)
    for item in neighbours(job):
        assert (item.job.world_size, item.job.global_batch_size, item.job.model) == (8, 64, MODEL)
        assert item.job != job
        assert item.settings
    kinds = {"micro_batch", "schedule", "recompute", "zero", "layout", "wire", "overlap"}
    assert {item.kind for item in neighbours(job)} == kinds


def test_records_count_only_clear_results_for_the_sign() -> None:
    outcomes = [
        Outcome("zero", 0.2, 0.1),
        Outcome("zero", 0.2, -0.1),
        Outcome("zero", 0.2, 0.04),
        Outcome("layout", -0.1, -0.2),
    ]
    zero, layout, everything = records(outcomes)
    assert (zero.kind, zero.tried, zero.clear, zero.right, zero.right_pct) == ("zero", 3, 2, 1, 50.0)
    assert zero.mean_error == pytest.approx((0.1 + 0.3 + 0.16) / 3)
    assert layout.right_pct == 100.0
    assert (everything.kind, everything.tried) == ("all", 4)
    assert records([]) == []


def test_a_gain_within_the_noise_of_its_runs_counts_neither_as_right_nor_as_wrong() -> None:
    (kind, _everything) = records([Outcome("zero", 0.2, 0.15, noise=0.22), Outcome("zero", 0.2, 0.3, noise=0.22)])
    assert (kind.tried, kind.unclear, kind.clear, kind.right) == (2, 1, 1, 1)


def test_a_replay_judges_each_change_by_its_measured_neighbour() -> None:
    jobs = [Job(MODEL, 64, size, 1, 1, 8, has_flash_attention=True) for size in (1, 2, 4)]
    points = [Measurement("sweep", job, A100, predict_job(job, A100).iteration_s) for job in jobs]
    result = replay(points)
    assert len(result.outcomes) == 6
    assert all(outcome.predicted == pytest.approx(outcome.realised) for outcome in result.outcomes)
    assert result.wrong_in_top == {"sweep": 0}
    other = Measurement("sweep", Job(MODEL, 64, 2, 2, 1, 4), A100, 1.0)
    assert change_of(points[0], other) == ""  # two decisions
    assert change_of(points[0], points[1]) == "micro_batch"


def test_uneven_stages_and_a_slow_network_are_named() -> None:
    stages = {
        "forward-compute": by_rank(0.1, 0.2),
        "forward-recv": by_rank(0.15, 0.05),
        "optimizer": by_rank(0.02, 0.02),
    }
    step = Step("Run 1", 0.3, 2, timers_of(stages), stages=2, micro_batches=8, schedule="1f1b", is_emulated=True)
    row = advise(Case(waterfall_of(step), signs=Signs(slowest_stage=Slowest(1, 0.33))))[0]
    assert (row.kind, row.part) == ("stages", "straggler")
    assert "rank 1 computes 33 % longer" in row.evidence
    slow = advise(Case(waterfall_of(step), signs=Signs(reached=Reached(2e9, 10e9, 0.4))))
    assert slow[0].kind == "network"
    assert slow[0].gain == pytest.approx(0.32)
    assert not advise(Case(waterfall_of(step), signs=Signs(reached=Reached(8e9, 10e9, 0.4))))


def test_a_replay_judges_the_advice_that_a_run_would_get() -> None:
    outcomes = [
        Outcome("micro_batch", 0.30, 0.1),
        Outcome("micro_batch", 0.20, -0.5),  # only the best of a kind is advised
        Outcome("layout", 0.29, 0.2),  # a wider interval than that of a schedule
        Outcome("schedule", 0.25, -0.2),
        Outcome("zero", 0.01, -0.2),  # too small to be advised
        Outcome("recompute", 0.40, -0.2, is_certain=False),  # saves little more than it adds
    ]
    assert [outcome.kind for outcome in top(outcomes)] == ["micro_batch", "schedule", "layout"]


def test_a_slow_link_is_hidden_by_a_steeper_slope_or_a_16_bit_wire() -> None:
    slow = uniform(3, 12, StageTimes(0.005, 0.010, 0.005), Link(0.04, 1e9), 4 * 2**20)
    timers = {"forward-compute": by_rank(*[0.06] * 3), "forward-recv": by_rank(*[0.8] * 3)}
    step = waterfall_of(Step("Run 1", 1.0, 3, timers_of(timers), stages=3, micro_batches=12, is_emulated=True))
    advice = advise(Case(step, passes=Passes(slow, Plan("1f1b"), "same", 4)))
    assert [row.kind for row in advice] == ["schedule", "wire"]
    schedule = advice[0]
    assert schedule.settings["parallel.schedule"] == "1f1b"
    assert schedule.settings["parallel.warmup_slope"] > 1
    assert "micro batches in flight" in schedule.evidence
    before = outcome(Plan("1f1b"), slow).simulation.iteration_s
    after = outcome(Plan("1f1b", schedule.settings["parallel.warmup_slope"]), slow).simulation.iteration_s
    assert schedule.gain == pytest.approx((before - after) / max(1.0, before))
    # Interleaved schedules have times per chunk, which other schedules have not.
    assert not advise(Case(step, passes=Passes(slow, Plan("interleaved-1f1b", 1, 2), "same", 4)))


def test_gathers_inside_the_passes_count_for_a_zero_stage() -> None:
    job = Job(MODEL, 8, 1, 1, 1, 8, zero_stage=3, has_flash_attention=True)
    parts = predict_job(job, A100).parts
    timers = {"forward-compute": by_rank(*[parts.total_s] * 8), "backward-compute": by_rank(*[2 * parts.total_s] * 8)}
    step = Step("Run 1", 3.1 * parts.total_s, 8, timers_of(timers), predicted=parts)
    assert "zero" in {row.kind for row in advise(Case(waterfall_of(step), job, A100))}


def test_gradients_that_do_not_overlap_are_named_with_the_setting_that_lets_them() -> None:
    job = Job(MODEL, 64, 1, 1, 1, 64, has_flash_attention=True)
    where = cluster("A100", 64)
    (row,) = [each for each in advise(Case(measured_on(job, where), job, where)) if each.kind == "overlap"]
    assert (row.part, row.settings) == ("data", {"parallel.overlap_gradients": True})
    before, after = (predict_job(each, where).iteration_s for each in (job, replace(job, overlaps_gradients=True)))
    assert row.gain == pytest.approx(1 - after / before)
    overlapping = replace(job, overlaps_gradients=True)
    assert "overlap" not in {each.kind for each in advise(Case(measured_on(overlapping, where), overlapping, where))}


def test_a_change_that_adds_nearly_as_much_as_it_saves_is_not_advised() -> None:
    job = Job(MODEL, 64, 1, 1, 8, 1, has_flash_attention=True)
    before = predict_job(job, A100).parts
    cheaper = replace(before, compute_s=0.5 * before.compute_s)
    dearer = replace(cheaper, bubble_s=before.bubble_s + 0.3 * before.compute_s)
    for waterfall in (None, measured(job)):
        assert is_certain(waterfall, before, cheaper)
        assert not is_certain(waterfall, before, dearer)
    assert gain_of(measured(job), before, dearer) > 0


def test_two_sizes_have_one_number_of_decimals_and_equal_ones_are_told_once() -> None:
    assert memory_change(0.36 * 2**30, 0.361 * 2**30) == "as much memory, 0.361 GiB"
    assert memory_change(0.36 * 2**30, 12 * 2**30) == "12.000 GiB instead of 0.360 GiB"
    assert memory_change(30 * 2**30, 21.04 * 2**30) == "21.0 GiB instead of 30.0 GiB"


def checkpoint_advice(every_s: float, failures: Failures) -> list[str]:
    """Return titles and rules for checkpoints of 5 s on 8 GPUs, one in 100 steps."""
    checkpoints = Checkpoints(100, 5.0, 5.0 / every_s, 8, every_s, failures)
    rows = advise(Case(measured(Job(MODEL, 64, 1, 1, 1, 8)), signs=Signs(checkpoints=checkpoints)))
    return [f"{row.title}; {row.rule}" for row in rows if row.kind == "checkpoint"]


def test_checkpoints_are_advised_at_the_interval_of_the_measured_failures() -> None:
    hourly = Failures(10, 10 * 8 * 3600.0)
    (less,) = checkpoint_advice(25.0, hourly)
    assert less.startswith("Save checkpoints less often: every 3")
    assert "measured: 10 attempts were lost in 80 GPU hours" in less
    (more,) = checkpoint_advice(3600.0, hourly)
    assert more.startswith("Save checkpoints more often: every 3")
    assert more.partition(";")[0].endswith(" 5 steps")
    assert checkpoint_advice(190.0, hourly) == []


def test_without_failures_of_its_own_the_published_time_counts() -> None:
    (less,) = checkpoint_advice(25.0, NO_FAILURES)
    assert "published, because fewer than 3 attempts were lost here" in less
    assert checkpoint_advice(3600.0, NO_FAILURES) == []
