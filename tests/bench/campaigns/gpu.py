"""Tokens per second and MFU of each engine on one GPU, without Django.

`python -m tests.bench.campaigns.gpu` prints JSON.

Each measurement is a run of the engine as a node starts it. Micro batches grow until the GPU's memory is exhausted. MFU
is model FLOPs per second divided by the peak FLOP/s of the data sheet.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from parlab.planner.job.hardware import peak_of
from parlab.planner.prediction.flops import Shape, mfu, model_flops
from tests.engines.started import Output, run_engine

SIZES: dict[str, dict[str, int]] = {
    "350m": {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "sequence_length": 1024},
    "1.3b": {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "sequence_length": 2048},
}
VOCABULARY = 50_304
"""Size of GPT-2's vocabulary, padded to a multiple of 128."""
ENGINES = ("megatron", "zero", "pipeline")
MICRO_BATCHES = (4, 8, 16, 32, 64, 128)


class Measurement(NamedTuple):
    """Result of one engine and model at one micro batch."""

    engine: str
    model: str
    micro_batch_size: int
    step_time_s: float
    tokens_per_s: float
    mfu_pct: float | None
    model_tflops_per_s: float
    memory_peak_gib: float


def make_data(engine: str, size: str, micro_batch: int, steps: int, accumulation: int, **train: Any) -> dict[str, Any]:
    """Return the configuration of a run of one process in bf16."""
    model: dict[str, Any] = {**SIZES[size], "vocab_size": VOCABULARY}
    batch = {"global_batch_size": micro_batch * accumulation, "micro_batch_size": micro_batch, "iterations": steps}
    options = {"precision": "bf16", "optimizer": "adamw", "warmup_steps": min(3, steps - 1), **train}
    return {"model": model, "train": batch | options, "parallel": {"engine": engine}, "cluster": {"device": "cuda"}}


def measure(data: dict[str, Any], size: str, device_name: str) -> Measurement | str:
    """Train; return the measurement, or the reason why there is none."""
    with tempfile.TemporaryDirectory(prefix="parlab-gpu-") as directory:
        output: Output = run_engine(data, Path(directory), processes=0, timeout=900)
    if output.code == 77:
        return "out of memory"
    if output.code:
        return f"exit code {output.code}: {output.text[-1500:]}"
    steps = [step for step in output.events("step") if not step["warmup"]]
    seconds = median(step["step_time_s"] for step in steps)
    model, train = data["model"], data["train"]
    shape = Shape(model["num_layers"], model["hidden_size"], model["sequence_length"], model["vocab_size"])
    batch, peak = train["global_batch_size"], peak_of(device_name, train["precision"])
    return Measurement(
        data["parallel"]["engine"],
        size,
        train["micro_batch_size"],
        seconds,
        steps[0]["tokens"] / seconds,
        None if peak is None else 100 * mfu(shape, batch, 1, seconds, peak),
        model_flops(shape, batch) / seconds / 1e12,
        max(step["memory_peak_bytes"] for step in steps) / 2**30,
    )


def best(engine: str, size: str, device_name: str, steps: int, micro_batches: Sequence[int]) -> dict[str, Any]:
    """Try increasing micro batches until memory runs out; the best one has the most tokens per second."""
    tried: list[Measurement] = []
    ended = "largest micro batch tried"
    for micro_batch in micro_batches:
        result = measure(make_data(engine, size, micro_batch, steps, 2), size, device_name)
        sys.stderr.write(f"{engine} {size} micro batch {micro_batch}: {result}\n")
        if isinstance(result, str):
            ended = f"micro batch {micro_batch}: {result}"
            break
        tried.append(result)
    winner = max(tried, key=lambda result: result.tokens_per_s, default=None)
    return {
        "best": winner._asdict() if winner else None,
        "tried": [result._asdict() for result in tried],
        "ended": ended,
    }


def main() -> int:
    """Measure the selected engines and sizes and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.campaigns.gpu", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--steps", type=int, default=12, help="steps of each run, the first 3 as warm-up")
    parser.add_argument("--micro-batches", nargs="+", type=int, default=MICRO_BATCHES)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write(f"torch {torch.__version__} finds no GPU; run this on a machine with a GPU\n")
        return 2
    name = torch.cuda.get_device_name(0)
    peak = peak_of(name, "bf16")
    results = {
        f"{engine} {size}": best(engine, size, name, options.steps, options.micro_batches)
        for size in options.sizes
        for engine in options.engines
    }
    winners = {key: result["best"] for key, result in results.items() if result["best"]}
    report = {
        "device": name,
        "torch": torch.__version__,
        "peak_flops_per_s": peak.flops_per_s if peak else None,
        "peak_source": peak.source if peak else None,
        "gpu_tokens_per_s": {key: winner["tokens_per_s"] for key, winner in winners.items()},
        "gpu_mfu_pct": {key: winner["mfu_pct"] for key, winner in winners.items()},
        "runs": results,
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
