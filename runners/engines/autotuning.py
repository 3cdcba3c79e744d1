"""DeepSpeed's own autotuner over engine zero: run `deepspeed --autotuning tune` and report each experiment.

Run `python -m runners.engines.autotuning --config config.json`. See docs/use/sweeps.md. The engine supplies
what the tuner expects from its environment: the number of slots on a CPU, a script that accepts its configuration, and
a `pdsh` that does nothing. The tuner calls pdsh after each experiment to kill processes by name; on one machine these
have already ended with their launcher.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runners.config import ConfigError, Problem, RunConfig
from runners.engines.autotuned import PROFILED_STEPS, VISIBLE_DEVICES
from runners.engines.process.rank import Rank, start
from runners.engines.zero_settings import deepspeed_settings
from runners.node.launch import launch, ports
from runners.supervisor import processes
from runners.supervisor.verdict import Evidence
from runners.wire.protocol import EVENT_PREFIX, RunState

PROFILE = "profile_model_info"
"""Name of the experiment that only counts parameters and measures activations."""
MICROSECONDS = 1e6
"""Times in metrics.json are in microseconds since DeepSpeed 0.7 (utils/timer.py)."""
LAST_LINES = 20
"""Number of last lines of a failed experiment that are copied to the log."""
_LAUNCHING = re.compile(r"Launching exp_id = \d+, exp_name = (\S+), with")
_DONE = re.compile(r"Done running exp_id = \d+, exp_name = (\S+), with")
_TUNER_TIMES = {"forward": "fwd", "backward": "bwd", "step": "step"}
"""Name in an `experiment` event -> name in metrics.json, where a time is that of one micro batch."""


class Outcome(NamedTuple):
    """Result of one experiment of the tuner."""

    name: str
    state: RunState
    reason: str
    zero_stage: int
    micro_batch_size: int
    accumulation: int
    step_times_s: list[float]
    """Time of each timed step: that of its slowest rank."""
    memory_peak_bytes: dict[str, int]
    """By rank."""
    tuner_s: dict[str, float]
    """Forward, backward and step time of one iteration, the basis of the tuner's metric; empty if it has none."""


def tuner_settings(config: RunConfig) -> dict[str, Any]:
    """Return DeepSpeed's configuration for the search; sizes are numbers, since the tuner rejects "auto"."""
    settings = deepspeed_settings(config)
    # The tuner sets stage, micro batch and global batch of each experiment; a fixed global batch would contradict it.
    del settings["train_batch_size"]
    begin = config.train.iterations
    return settings | {
        "gradient_accumulation_steps": config.num_micro_batches,
        "zero_optimization": {"stage": sorted(set(config.autotuning.stages))},
        "autotuning": {
            "enabled": True,
            "fast": True,
            "metric": "throughput",
            "start_profile_step": begin,
            "end_profile_step": begin + PROFILED_STEPS - 1,
            "max_train_micro_batch_size_per_gpu": config.autotuning.max_micro_batch_size,
        },
    }


def prepare(config: RunConfig, directory: Path) -> list[str]:
    """Write the tuner's input files into a directory; return the command to run there.

    Raises ConfigError if DeepSpeed or a package that its autotuner needs is not installed.
    """
    program = shutil.which("deepspeed", path=str(Path(sys.executable).parent)) or shutil.which("deepspeed")
    missing = [name for name in ("deepspeed", "tabulate") if importlib.util.find_spec(name) is None]
    if program is None or missing:
        requirement = " and ".join(missing) or "the deepspeed command"
        message = (
            f"DeepSpeed's autotuner requires {requirement}; pip install 'parlab[node]' on the node, or use engine zero"
        )
        raise ConfigError([Problem("parallel.engine", "autotuning", message)])
    (directory / "config.json").write_text(json.dumps(config.resolved()))
    (directory / "ds_config.json").write_text(json.dumps(tuner_settings(config)))
    (directory / "train.py").write_text("from runners.engines.autotuned import main\n\nmain()\n")
    (directory / "bin").mkdir()
    pdsh = directory / "bin" / "pdsh"
    pdsh.write_text("#!/bin/sh\nexit 0\n")
    pdsh.chmod(0o755)
    options = [f"--num_gpus={config.world_size}", f"--master_port={ports.free_port()}", "--autotuning", "tune"]
    script = ["train.py", "--config", str(directory / "config.json"), "--deepspeed_config", "ds_config.json"]
    return [program, *options, *script]


def hide_mlflow(directory: Path) -> Path:
    """Create a directory of modules in which `import mlflow` fails, and return it.

    DeepSpeed's autotuner reports to MLflow if the package is installed, and ends with a KeyError without MLFLOW_RUN_ID.
    """
    modules = directory / "modules"
    modules.mkdir(exist_ok=True)
    (modules / "mlflow.py").write_text('raise ImportError("parlab reports the experiments itself")\n')
    return modules


def variables(config: RunConfig, directory: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the tuner."""
    environment = {**base, **launch.additions(config, base, base.get(processes.MARKER, ""))}
    environment["PYTHONPATH"] = os.pathsep.join([str(hide_mlflow(directory)), environment["PYTHONPATH"]])
    programs = [str(directory / "bin"), str(Path(sys.executable).parent), base.get("PATH", "")]
    environment["PATH"] = os.pathsep.join(programs)
    if not config.device.may_use_gpus or not has_gpus():
        environment |= {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(config.world_size)}
    elif "CUDA_VISIBLE_DEVICES" in base:
        environment[VISIBLE_DEVICES] = environment.pop("CUDA_VISIBLE_DEVICES")
    return environment


def has_gpus() -> bool:
    """Return whether torch can use a GPU; checked in a subprocess, so that this process creates no CUDA context."""
    script = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def outcome(directory: Path, config: RunConfig) -> Outcome:
    """Read the results directory of an experiment."""
    name = directory.name
    settings = json.loads((directory / "exp.json").read_text())["ds_config"]
    output = _bytes(directory / "stdout.log")
    steps = [json.loads(line) for line in output.splitlines() if line.startswith(EVENT_PREFIX) and b'"step"' in line]
    slowest: dict[int, float] = {}
    peaks: dict[str, int] = {}
    for event in (event for event in steps if event["event"] == "step"):
        if not event["warmup"] and event["step"] <= config.train.iterations:
            slowest[event["step"]] = max(slowest.get(event["step"], 0.0), event["step_time_s"])
        peak = event.get("memory_peak_bytes") or 0
        peaks[str(event["rank"])] = max(peaks.get(str(event["rank"]), 0), peak)
    metrics = _metrics(directory / "metrics.json")
    passes = int(settings["gradient_accumulation_steps"])
    state, reason = RunState.FINISHED, ""
    if (not metrics and name != PROFILE) or (name == PROFILE and not (directory / "model_info.json").exists()):
        evidence = Evidence()
        evidence.see(output + b"\n" + _bytes(directory / "stderr.log"))
        verdict = evidence.verdict(1)
        state, reason = verdict.state, verdict.reason
    return Outcome(
        name=name,
        state=state,
        reason=reason,
        zero_stage=int(settings["zero_optimization"]["stage"]),
        micro_batch_size=int(settings["train_micro_batch_size_per_gpu"]),
        accumulation=passes,
        step_times_s=[slowest[step] for step in sorted(slowest)],
        memory_peak_bytes=peaks,
        tuner_s={
            name: passes * metrics[tuner_name] / MICROSECONDS
            for name, tuner_name in _TUNER_TIMES.items()
            if tuner_name in metrics
        },
    )


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _metrics(path: Path) -> dict[str, float]:
    """Read metrics.json; return {} for a failed experiment, which has no file or a latency of zero."""
    if not path.exists():
        return {}
    metrics = {name: float(value) for name, value in json.loads(path.read_text()).items()}
    return metrics if metrics.get("latency") else {}


def follow(command: list[str], directory: Path, environment: Mapping[str, str], rank: Rank) -> Iterator[str]:
    """Run the tuner, copy its lines to the log, and yield the name of each experiment when it has ended.

    Raises RuntimeError if the tuner fails.
    """
    # The kernel kills the tuner with this process, and ranks with their launchers: no process outlives the search.
    child = subprocess.Popen(
        command,
        cwd=directory,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=processes.die_with(os.getpid(), rank.config.launcher.memory_limit_mib),  # noqa: PLW1509  # one thread
    )
    assert child.stdout is not None
    running: list[str] = []
    for raw in child.stdout:
        line = raw.decode(errors="replace").rstrip().rpartition("\r")[2]
        rank.printer.log(line)
        if match := _DONE.search(line):
            running.remove(match[1])
            yield match[1]
        elif match := _LAUNCHING.search(line):
            yield from running
            running = [match[1]]
    code = child.wait()
    yield from running
    if code:
        raise RuntimeError(f"DeepSpeed's autotuner ended with exit code {code}; see the last lines of the log")


def run(rank: Rank) -> None:
    """Run the search; print an event for each experiment and one for the result."""
    config = rank.config
    with tempfile.TemporaryDirectory(prefix="parlab-autotuning-") as name:
        directory = Path(name)
        command = prepare(config, directory)
        rank.emit_start("autotuning", "the experiments' own", parameters=0)
        outcomes: list[Outcome] = []
        began = time.time()
        for experiment in follow(command, directory, variables(config, directory, os.environ), rank):
            result = outcome(directory / "autotuning_results" / experiment, config)
            if result.state != RunState.FINISHED:
                _log_last_lines(directory / "autotuning_results" / experiment, rank)
            if experiment == PROFILE:
                if result.state != RunState.FINISHED:
                    raise RuntimeError(f"profiling the model failed, so nothing was tuned: {result.reason}")
            else:
                outcomes.append(result)
                _emit_experiment(rank, len(outcomes), result, began)
            began = time.time()
    _emit_best(rank, outcomes)


def _log_last_lines(directory: Path, rank: Rank) -> None:
    lines = (_bytes(directory / "stdout.log") + _bytes(directory / "stderr.log")).splitlines()
    for line in [line for line in lines if not line.startswith(EVENT_PREFIX)][-LAST_LINES:]:
        rank.printer.log(f"{directory.name}| {line.decode(errors='replace')}")


def _emit_experiment(rank: Rank, number: int, result: Outcome, began: float) -> None:
    batch = result.micro_batch_size * result.accumulation * rank.config.parallel.data_parallel_size
    times: dict[str, float] = {}
    if result.step_times_s:
        low, median, high = (float(np.percentile(result.step_times_s, part)) for part in (10, 50, 90))
        times = {"median": median, "p10": low, "p90": high, "mean": float(np.mean(result.step_times_s))}
    shared = {
        "zero_stage": result.zero_stage,
        "micro_batch_size": result.micro_batch_size,
        "accumulation": result.accumulation,
    }
    rank.printer.emit(
        "experiment",
        number=number,
        name=result.name,
        state=result.state,
        reason=result.reason,
        **shared,
        global_batch_size=batch,
        began=round(began, 3),
        ended=round(time.time(), 3),
        steps=len(result.step_times_s),
        step_time_s=times,
        timers_s=result.tuner_s,
        memory_peak_bytes=result.memory_peak_bytes,
    )
    rates = {"samples_per_s": batch / times["median"]} if times else {}
    rates |= {"tuner_samples_per_s": batch / sum(result.tuner_s.values())} if result.tuner_s else {}
    rank.printer.emit("step", step=number, **shared, trial_s=round(time.time() - began, 3), **rates)


def _emit_best(rank: Rank, outcomes: list[Outcome]) -> None:
    rated = [outcome for outcome in outcomes if outcome.tuner_s]
    if not rated:
        reason = outcomes[-1].reason if outcomes else "it started none; see the log"
        raise RuntimeError(f"no experiment of DeepSpeed's autotuner succeeded: {reason}")

    def metric(outcome: Outcome) -> float:
        return outcome.micro_batch_size * outcome.accumulation / sum(outcome.tuner_s.values())

    best = max(rated, key=metric)
    rank.printer.log(f"best of {len(outcomes)} experiments by the tuner's metric: {best.name}")
    rank.printer.emit("end", experiments=len(outcomes), best=best.name)


if __name__ == "__main__":
    start("autotuning", run, is_alone=True)
