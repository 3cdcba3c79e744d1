"""Search for the largest model, the largest micro batch or the fewest processes that train, by short real runs.

Run `python -m runners.engines.capacity --config config.json`, one process. Each trial is a separate run, so running out
of memory ends the trial and not the search. See docs/understand/engines.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runners.config import ConfigError, Problem, RunConfig, check
from runners.engines.process.rank import Rank, start
from runners.node.launch import launch
from runners.supervisor import processes
from runners.supervisor.verdict import Evidence
from runners.wire.protocol import EVENT_PREFIX, RunState

LAST_LINES = 20
"""Number of last lines of a failed trial that are copied to the log."""
KILLED = "killed by signal 9"
"""Start of a verdict's reason when the kernel's out-of-memory killer acted before the allocator raised."""


class Trial(NamedTuple):
    value: int
    fits: bool
    seconds: float
    reason: str
    memory_peak_bytes: int | None
    """Peak of the rank with the highest memory use."""
    parameters: int | None
    """Parameters of the whole model."""
    tokens_per_s: float | None


def search(values: Sequence[int], fits: Callable[[int], bool], *, is_rising: bool) -> int | None:
    """Return the largest of ascending values that fits, or the smallest with `is_rising`; None if no value fits.

    `fits` must be monotonic: true up to a limit, or with `is_rising` from a limit on. The 1st, 2nd, 4th, 8th, ... value
    bracket the limit, then bisection finds it. That takes about 2 log2(n) trials, none of them far beyond the limit.
    """
    order = list(values)
    # order[:before] lies on one side of the limit, order[beyond:] on the other.
    before, beyond, stride = 0, len(order), 1
    while before < beyond:
        middle = min(stride - 1, beyond - 1) if beyond == len(order) else (before + beyond - 1) // 2
        if fits(order[middle]) != is_rising:
            before, stride = middle + 1, stride * 2
        else:
            beyond = middle
    if is_rising:
        return order[before] if before < len(order) else None
    return order[before - 1] if before else None


def trial_data(config: RunConfig, value: int) -> dict[str, Any]:
    """Return the unchecked RunConfig of a trial with one value of `capacity.find`."""
    data = config.model_dump(mode="json")
    parallel, train, capacity = data["parallel"], data["train"], config.capacity
    parallel["engine"] = capacity.engine
    data["cluster"]["gpus_per_node"] = None
    if capacity.find == "num_layers":
        data["model"]["num_layers"] = value
    elif capacity.find == "micro_batch_size":
        # Keep the number of micro batches, so that nothing else of the layout changes.
        train["micro_batch_size"] = value
        train["global_batch_size"] = value * config.parallel.data_parallel_size * config.num_micro_batches
    else:
        is_data_parallel = config.training_engine.is_data_parallel_only
        parallel["data_parallel_size" if is_data_parallel else "pipeline_parallel_size"] = value
    return data


def candidates(config: RunConfig) -> list[int]:
    """Return the values up to capacity.at_most that give a valid configuration; raise ConfigError if none does."""
    problems: list[Problem] = []
    values = []
    for value in range(1, config.capacity.at_most + 1):
        trial, trial_problems = check(trial_data(config, value))
        if trial is not None:
            values.append(value)
        problems = problems or trial_problems
    if not values:
        raise ConfigError(problems)
    return values


def run_trial(config: RunConfig, value: int, directory: Path, log: Callable[[str], None]) -> Trial:
    """Train with one value in separate processes.

    Raises ConfigError for a value that gives no valid configuration, and RuntimeError if the trial takes longer than
    capacity.trial_timeout_s or fails for a reason other than memory.
    """
    data, name, capacity = trial_data(config, value), config.capacity.find, config.capacity
    trial, problems = check(data)
    if trial is None:
        raise ConfigError(problems)
    path = directory / f"{name}-{value}.json"
    path.write_text(json.dumps(trial.resolved()))
    began = time.monotonic()
    # The kernel kills the launcher with this process, and its ranks with it: no process of a trial outlives the search.
    child = subprocess.Popen(
        launch.command(trial, path),
        env={**os.environ, **launch.additions(trial, os.environ, os.environ.get(processes.MARKER, ""))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=processes.die_with(os.getpid(), config.launcher.memory_limit_mib),  # noqa: PLW1509  # one thread
    )
    try:
        output, _ = child.communicate(timeout=capacity.trial_timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        limit = f"capacity.trial_timeout_s {capacity.trial_timeout_s}"
        raise RuntimeError(
            f"the trial of {name} {value} took longer than {limit} s; raise it, or reduce train.iterations"
        ) from None
    evidence = Evidence()
    evidence.see(output)
    verdict = evidence.verdict(child.returncode)
    if verdict.state != RunState.FINISHED:
        lines = [line for line in output.splitlines() if not line.startswith(EVENT_PREFIX)]
        for line in lines[-LAST_LINES:]:
            log(f"{name} {value}| {line.decode(errors='replace')}")
        if verdict.state != RunState.OOM and not verdict.reason.startswith(KILLED):
            raise RuntimeError(f"the trial of {name} {value} failed for a reason other than memory: {verdict.reason}")
    measures = _trial_measures(output, trial)
    return Trial(value, verdict.state == RunState.FINISHED, time.monotonic() - began, verdict.reason, *measures)


def _trial_measures(output: bytes, trial: RunConfig) -> tuple[int | None, int | None, float | None]:
    """Return (peak memory in bytes, parameters, tokens per second) from a trial's events."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith(EVENT_PREFIX)]
    peaks = [event["memory_peak_bytes"] for event in events if event["event"] == "step"]
    parameters = [event["parameters"] for event in events if event["event"] == "start"]
    steps = [event["average_step_time_s"] for event in events if event["event"] == "end"]
    tokens = trial.train.global_batch_size * trial.model.sequence_length
    # A data parallel rank reports the whole model; a stage or tensor parallel rank reports its part of one replica.
    is_data_parallel = trial.engine.is_data_parallel_only
    replicas = 1 if is_data_parallel else trial.parallel.data_parallel_size
    whole = max(parameters, default=0) if is_data_parallel else sum(parameters) // replicas
    return max(peaks, default=None), whole or None, tokens / max(steps) if steps else None


def run(rank: Rank) -> None:
    """Run the search; print an event for each trial and one for the result."""
    config, find = rank.config, rank.config.capacity.find
    values, is_rising = candidates(config), find == "processes"
    rank.emit_start("capacity", "the trials' own", parameters=0)
    trials: dict[int, Trial] = {}
    with tempfile.TemporaryDirectory(prefix="parlab-capacity-") as directory:

        def fits(value: int) -> bool:
            rank.printer.log(f"trial {len(trials) + 1}: {find} {value}")
            trial = trials[value] = run_trial(config, value, Path(directory), rank.printer.log)
            _emit_trial(rank, len(trials), trial)
            return trial.fits

        best = search(values, fits, is_rising=is_rising)
    _emit_best(rank, values, trials[best] if best is not None else None)


def _emit_trial(rank: Rank, number: int, trial: Trial) -> None:
    find = rank.config.capacity.find
    measures = {
        "memory_peak_bytes": trial.memory_peak_bytes,
        "model_parameters": trial.parameters,
        "tokens_per_s": trial.tokens_per_s,
    }
    available = {name: value for name, value in measures.items() if value is not None}
    rank.printer.emit(
        "step", step=number, **{find: trial.value}, fits=trial.fits, trial_s=round(trial.seconds, 3), **available
    )
    rank.printer.log(f"{find} {trial.value} {'fits' if trial.fits else 'does not fit: ' + trial.reason}")


def _emit_best(rank: Rank, values: Sequence[int], best: Trial | None) -> None:
    capacity = rank.config.capacity
    name = f"{'fewest' if capacity.find == 'processes' else 'largest'}_{capacity.find}"
    if best is None:
        rank.printer.log(
            f"nothing fits: no {capacity.find} from {values[0]} to {values[-1]} trains; reduce the other sizes"
        )
        rank.printer.emit("end", **{name: None})
        return
    is_open = capacity.find != "processes" and best.value == values[-1]
    note = f"; capacity.at_most {capacity.at_most} fits, larger values may too" if is_open else ""
    size = f" ({best.parameters:,} parameters)" if best.parameters else ""
    rank.printer.log(f"{name.replace('_', ' ', 1)} {best.value}{size}{note}")
    rank.printer.emit("end", **{name: best.value}, model_parameters=best.parameters, is_at_most=is_open)


if __name__ == "__main__":
    start("capacity", run, is_alone=True)
