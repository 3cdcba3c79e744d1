"""What `profile.steps` costs the steps that it does not record: runs of an engine with and without it, alternating."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from tests.bench.result import Result, Scale
from tests.engines.started import ROOT, TORCHRUN

RANKS, WARM_UP, PROFILED = 2, 5, (10, 11)
DATA: dict[str, Any] = {
    "model": {
        "num_layers": 4, "hidden_size": 128, "num_attention_heads": 2, "sequence_length": 32, "vocab_size": 256,
    },
    "train": {"iterations": 60, "warmup_steps": WARM_UP, "global_batch_size": 32, "micro_batch_size": 16},
    "parallel": {"engine": "megatron", "pipeline_parallel_size": 1, "data_parallel_size": RANKS},
}  # fmt: skip


def profile_outside_pct(scale: Scale) -> Result:
    """Compare the steps before and after the recorded ones with the same steps of runs that record none."""
    pairs = scale.repeats(4)
    plain: list[float] = []
    profiled: list[float] = []
    for _ in range(pairs):
        plain += _outside_s(DATA)
        profiled += _outside_s(DATA | {"profile": {"steps": list(PROFILED)}})
    without, beside = (_undisturbed(times) for times in (plain, profiled))
    excess = beside / without - 1
    medians = median(profiled) / median(plain) - 1
    against = f"none: {1e3 * without:.1f} ms/step; medians differ by {100 * medians:.1f} %"
    return Result(100 * excess, against, pairs, 1 / (1 + excess))


def _undisturbed(times: list[float]) -> float:
    """Return the tenth percentile: other work of the machine lengthens steps, the recorder would lengthen all."""
    return quantiles(times, n=10)[0]


def _outside_s(data: dict[str, Any]) -> list[float]:
    """Run the engine; return the times of the steps that are neither warm-up nor recorded."""
    with tempfile.TemporaryDirectory(prefix="parlab-profile-") as directory:
        path = Path(directory) / "config.json"
        path.write_text(json.dumps(data))
        ranks = [*TORCHRUN, f"--nproc-per-node={RANKS}", "-m", "runners.engines.megatron", "--config", str(path)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        # Ranks write their traces to the working directory.
        done = subprocess.run(
            [sys.executable, *ranks], cwd=directory, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    slowest: dict[int, float] = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"parlab"') and '"event":"step"' in line:
            event = json.loads(line)
            slowest[event["step"]] = max(event["step_time_s"], slowest.get(event["step"], 0.0))
    # The step after the recorded ones writes the trace.
    left_out = {*range(WARM_UP + 1), *PROFILED}
    return [seconds for step, seconds in slowest.items() if step not in left_out]
