"""Advice for runs of engines without steps: from their messages, trials or experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.advice.advice import Advice
from parlab.advice.units import Experiment, Message, Trial, message_advice, trial_advice, tuning_advice
from parlab.lab.models import Attempt, Run
from parlab.planner import predict_job
from parlab.planner.job.configs import job_of
from parlab.planner.job.nodes import cluster_of
from runners.config import RunConfig, check, tuned_config
from runners.wire.protocol import RunState

from .plannable import machine_of, place_of


def unit_advice(run: Run) -> tuple[list[Advice], str]:
    """Return the advice for a run without steps, largest certain gain first, or the reason why there is none."""
    if run.state != RunState.FINISHED:
        return [], "the run has not finished"
    config, _problems = check(run.resolved)
    if config is None:
        return [], "its configuration is no longer valid"
    rows = _advice(run, config)
    if rows is None:
        return (
            [],
            "the run measured neither messages nor trials; if it is from an earlier version, run manage.py reingest",
        )
    return sorted(rows, key=lambda row: (-row.low, -row.gain)), ""


def _advice(run: Run, config: RunConfig) -> list[Advice] | None:
    messages, trials = run.summary.get("messages"), run.summary.get("trials")
    if messages:
        by_operation = {
            name: [Message(int(size), seconds) for size, seconds in times.items()] for name, times in messages.items()
        }
        return message_advice(by_operation, config.collectives.size_factor)
    if not trials:
        return None
    if config.engine.searches_capacity:
        rows = [Trial(row["trial_s"], _step_s(config, row)) for row in trials]
        return trial_advice(rows, config.train.iterations, config.train.warmup_steps)
    experiments = [
        Experiment(int(row["zero_stage"]), int(row["micro_batch_size"]), 1 / row["samples_per_s"])
        for row in trials
        if row.get("samples_per_s")
    ]
    section = config.autotuning
    gains = _stage_gains(run, trials, section.stages)
    return tuning_advice(experiments, section.max_micro_batch_size, section.stages, gains)


def _step_s(config: RunConfig, trial: Mapping[str, float]) -> float | None:
    """Return the step time of a trial from its tokens per second; None if it did not fit."""
    rate = trial.get("tokens_per_s")
    if not rate or not trial.get("fits"):
        return None
    tokens = config.train.global_batch_size * config.model.sequence_length
    is_batch = config.capacity.find == "micro_batch_size"
    return tokens * (trial["micro_batch_size"] / config.train.micro_batch_size if is_batch else 1.0) / rate


def _stage_gains(run: Run, trials: Sequence[Mapping[str, Any]], stages: Sequence[int]) -> dict[int, float]:
    """Predict what the ZeRO stages that were not searched would save for the best experiment; only those that fit."""
    rated = [row for row in trials if row.get("samples_per_s")]
    attempt = Attempt.objects.filter(run=run, number=run.attempt_number).with_members().first()
    if not rated or attempt is None or (attempt.node is None and not attempt.environment):
        return {}
    best = max(rated, key=lambda row: float(row["samples_per_s"]))
    iterations = {}
    for stage in {*range(4), int(best["zero_stage"])}:
        config, _ = tuned_config(
            run.resolved,
            zero_stage=stage,
            micro_batch_size=int(best["micro_batch_size"]),
            num_micro_batches=int(best["accumulation"]),
        )
        if config is None:
            continue
        try:
            where = cluster_of(machine_of(config, attempt), config, place_of(attempt))
            prediction = predict_job(job_of(config, where.device.name), where)
        except ValueError:  # an unknown GPU, or no job of the planner
            return {}
        if prediction.fits:
            iterations[stage] = prediction.iteration_s
    own_s = iterations.get(int(best["zero_stage"]))
    if own_s is None:
        return {}
    return {stage: 1 - seconds / own_s for stage, seconds in iterations.items() if stage not in stages}
