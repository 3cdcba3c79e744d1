"""DeepSpeed's own autotuner, driven over engine zero: `deepspeed --autotuning tune`, and what came of each experiment.

`python -m runners.engines.autotuning --config config.json`, one process. See docs/tuner.md. What the tuner needs and
does not bring along is put beside it: on a CPU the number of slots; a script that takes its configuration; and a
`pdsh` that does nothing, since after each experiment it asks the machine to end processes by name, and on one machine
those are gone already when their launcher has ended.
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

from runners import launch, ports, processes
from runners.config import ConfigError, Problem, RunConfig
from runners.engines.autotuned import PROFILED_STEPS, VISIBLE_DEVICES
from runners.engines.rank import Rank, start
from runners.engines.zero_settings import deepspeed_settings
from runners.protocol import EVENT_PREFIX, RunState
from runners.verdict import Evidence

PROFILE = "profile_model_info"
"""The experiment that only counts parameters and measures activations."""
MICROSECONDS = 1e6
"""Times in metrics.json are microseconds since DeepSpeed 0.7 (utils/timer.py)."""
SHOWN_LINES = 20
_LAUNCHING = re.compile(r"Launching exp_id = \d+, exp_name = (\S+), with")
_DONE = re.compile(r"Done running exp_id = \d+, exp_name = (\S+), with")
_SUMS = {"forward": "fwd", "backward": "bwd", "step": "step"}


class Outcome(NamedTuple):
    """What one experiment of the tuner gave."""

    name: str
    state: RunState
    reason: str
    zero_stage: int
    micro_batch_size: int
    accumulation: int
    step_times_s: list[float]
    """Timed steps from end to end, each as long as its slowest rank."""
    memory_peak_bytes: dict[str, int]
    """By rank."""
    tuner_s: dict[str, float]
    """What the tuner's metric is made of: forward, backward and step of one iteration; empty without one."""


def tuner_settings(config: RunConfig) -> dict[str, Any]:
    """Return the configuration file of DeepSpeed for the search, with sizes as numbers: the tuner takes no others."""
    settings = deepspeed_settings(config)
    # The tuner sets stage, micro batch and the whole batch of each experiment; a batch of its own would contradict.
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
    """Write what the tuner reads into a directory; returns the command to run there.

    Raises ConfigError where this machine has no tuner.
    """
    program = shutil.which("deepspeed", path=str(Path(sys.executable).parent)) or shutil.which("deepspeed")
    missing = [name for name in ("deepspeed", "tabulate") if importlib.util.find_spec(name) is None]
    if program is None or missing:
        what = " and ".join(missing) or "the command deepspeed"
        message = (
            f"DeepSpeed's autotuner needs {what}; install runners/requirements.txt on the node, or use engine zero"
        )
        raise ConfigError([Problem("parallel.engine", "autotuning", message)])
    (directory / "config.json").write_text(json.dumps(config.resolved()))
    (directory / "ds_config.json").write_text(json.dumps(tuner_settings(config)))
    (directory / "train.py").write_text("from runners.engines.autotuned import main\n\nmain()\n")
    (directory / "bin").mkdir()
    stand_in = directory / "bin" / "pdsh"
    stand_in.write_text("#!/bin/sh\nexit 0\n")
    stand_in.chmod(0o755)
    options = [f"--num_gpus={config.world_size}", f"--master_port={ports.free_port()}", "--autotuning", "tune"]
    script = ["train.py", "--config", str(directory / "config.json"), "--deepspeed_config", "ds_config.json"]
    return [program, *options, *script]


def variables(config: RunConfig, directory: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the tuner."""
    found = {**base, **launch.additions(config, base, base.get(processes.MARKER, ""))}
    found["PATH"] = os.pathsep.join([str(directory / "bin"), str(Path(sys.executable).parent), base.get("PATH", "")])
    if not config.device.may_use_gpus or not has_gpus():
        found |= {"DS_ACCELERATOR": "cpu", "LOCAL_SIZE": str(config.world_size)}
    elif "CUDA_VISIBLE_DEVICES" in base:
        found[VISIBLE_DEVICES] = found.pop("CUDA_VISIBLE_DEVICES")
    return found


def has_gpus() -> bool:
    """Tell whether torch finds a GPU, asked in a process of its own: this one holds none."""
    question = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", question], check=False).returncode == 0


def outcome(directory: Path, config: RunConfig) -> Outcome:
    """Read what an experiment left in its directory of results."""
    name = directory.name
    asked = json.loads((directory / "exp.json").read_text())["ds_config"]
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
    passes = int(asked["gradient_accumulation_steps"])
    state, reason = RunState.FINISHED, ""
    if (not metrics and name != PROFILE) or (name == PROFILE and not (directory / "model_info.json").exists()):
        evidence = Evidence()
        evidence.see(output + b"\n" + _bytes(directory / "stderr.log"))
        state, reason, _ = evidence.verdict(1)
    return Outcome(
        name=name,
        state=state,
        reason=reason,
        zero_stage=int(asked["zero_optimization"]["stage"]),
        micro_batch_size=int(asked["train_micro_batch_size_per_gpu"]),
        accumulation=passes,
        step_times_s=[slowest[step] for step in sorted(slowest)],
        memory_peak_bytes=peaks,
        tuner_s={said: passes * metrics[theirs] / MICROSECONDS for said, theirs in _SUMS.items() if theirs in metrics},
    )


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _metrics(path: Path) -> dict[str, float]:
    """Read metrics.json; empty where the experiment failed, which the tuner also says by a zero."""
    if not path.exists():
        return {}
    found = {name: float(value) for name, value in json.loads(path.read_text()).items()}
    return found if found.get("latency") else {}


def follow(command: list[str], directory: Path, environment: Mapping[str, str], rank: Rank) -> Iterator[str]:
    """Run the tuner, pass its lines on to the log, and yield the name of each experiment that has ended."""
    # Killed with this process, and the ranks with their launchers: nothing of the search outlives it.
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
        if found := _DONE.search(line):
            running.remove(found[1])
            yield found[1]
        elif found := _LAUNCHING.search(line):
            yield from running
            running = [found[1]]
    code = child.wait()
    yield from running
    if code:
        raise RuntimeError(f"DeepSpeed's autotuner ended with exit code {code}; see the last lines of the log")


def run(rank: Rank) -> None:
    """Search, and print an event for every experiment and one for the best."""
    config = rank.config
    with tempfile.TemporaryDirectory(prefix="parlab-autotuning-") as name:
        directory = Path(name)
        command = prepare(config, directory)
        rank.emit_start("autotuning", "the experiments' own", parameters=0)
        found: list[Outcome] = []
        began = time.time()
        for experiment in follow(command, directory, variables(config, directory, os.environ), rank):
            one = outcome(directory / "autotuning_results" / experiment, config)
            if one.state != RunState.FINISHED:
                _show_end(directory / "autotuning_results" / experiment, rank)
            if experiment == PROFILE:
                if one.state != RunState.FINISHED:
                    raise RuntimeError(f"the profile of the model failed, so nothing was tuned: {one.reason}")
            else:
                found.append(one)
                _tell(rank, len(found), one, began)
            began = time.time()
    _conclude(rank, found)


def _show_end(directory: Path, rank: Rank) -> None:
    lines = (_bytes(directory / "stdout.log") + _bytes(directory / "stderr.log")).splitlines()
    for line in [line for line in lines if not line.startswith(EVENT_PREFIX)][-SHOWN_LINES:]:
        rank.printer.log(f"{directory.name}| {line.decode(errors='replace')}")


def _tell(rank: Rank, number: int, one: Outcome, began: float) -> None:
    batch = one.micro_batch_size * one.accumulation * rank.config.parallel.data_parallel_size
    times: dict[str, float] = {}
    if one.step_times_s:
        low, middle, high = (float(np.percentile(one.step_times_s, part)) for part in (10, 50, 90))
        times = {"median": middle, "p10": low, "p90": high, "mean": float(np.mean(one.step_times_s))}
    shared = {
        "zero_stage": one.zero_stage,
        "micro_batch_size": one.micro_batch_size,
        "accumulation": one.accumulation,
    }
    rank.printer.emit(
        "experiment",
        number=number,
        name=one.name,
        state=one.state,
        reason=one.reason,
        **shared,
        global_batch_size=batch,
        began=round(began, 3),
        ended=round(time.time(), 3),
        steps=len(one.step_times_s),
        step_time_s=times,
        timers_s=one.tuner_s,
        memory_peak_bytes=one.memory_peak_bytes,
    )
    rates = {"samples_per_s": batch / times["median"]} if times else {}
    rates |= {"tuner_samples_per_s": batch / sum(one.tuner_s.values())} if one.tuner_s else {}
    rank.printer.emit("step", step=number, **shared, trial_s=round(time.time() - began, 3), **rates)


def _conclude(rank: Rank, found: list[Outcome]) -> None:
    ran = [one for one in found if one.tuner_s]
    if not ran:
        reason = found[-1].reason if found else "it started none; see the log"
        raise RuntimeError(f"no experiment of DeepSpeed's autotuner ran: {reason}")

    def metric(one: Outcome) -> float:
        return one.micro_batch_size * one.accumulation / sum(one.tuner_s.values())

    best = max(ran, key=metric)
    rank.printer.log(f"best of {len(found)} experiments by the tuner's metric: {best.name}")
    rank.printer.emit("end", experiments=len(found), best=best.name)


if __name__ == "__main__":
    start("autotuning", run, is_alone=True)
