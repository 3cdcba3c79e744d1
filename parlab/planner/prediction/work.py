"""FLOPs of one iteration of a configured run, and its utilisation of the devices' peak.

Formulas and their sources are in `planner.flops`; this module applies them to the sections of a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from parlab.planner.job.configs import other_model
from parlab.planner.job.hardware import Peak
from parlab.planner.job.workload import Job
from parlab.planner.prediction.flops import Recompute, Shape, executed_flops, flops_per_gpu, model_flops
from parlab.planner.prediction.job_flops import flops_of

FORMULA = "72 B s l h² (1 + s/6h + V/12lh)"
_RECOMPUTED = {
    "selective": "+ 4 B s² l h for the recomputed attention",
    "full": "96 B s l h² (1 + s/6h + V/16lh), all layers recomputed",
}
_SOURCE = "Narayanan et al. 2021"


class Work(NamedTuple):
    """FLOPs of one iteration over all devices."""

    model_flops: float
    executed_flops: float | None
    """FLOPs with recomputation; None if the recomputation mode is unknown."""
    formula: str
    """The formula used, for people."""


def work_of(sections: Mapping[str, Mapping[str, Any]]) -> Work | None:
    """Return the FLOPs of an iteration of a resolved configuration; None if a size is missing or compute is emulated.

    A BERT adds its masked-token transform (6 B s h²) and its next-sentence head (6 B h (h + 2)). A prefix of p tokens
    excludes p - 1 positions from the logits.
    """
    model, train = sections.get("model", {}), sections.get("train", {})
    sizes = [model.get(name) for name in ("num_layers", "hidden_size", "sequence_length", "vocab_size")]
    batch = train.get("global_batch_size")
    if not all(isinstance(size, int) and size > 0 for size in [*sizes, batch]):
        return None
    if train.get("compute", "real") != "real":
        return None  # emulated compute waits for a configured time and executes no FLOPs
    layers, hidden, sequence, vocabulary = cast("list[int]", sizes)
    batch = cast(int, batch)
    if counted := _counted(model, train, batch):
        return counted
    shape = Shape(layers, hidden, sequence, vocabulary)
    terms = [f"{FORMULA}, {_SOURCE}"]
    extra = 0.0
    if model.get("kind") == "bert":
        extra += 6.0 * batch * hidden * (sequence * hidden + hidden + 2)
        terms.append("+ 6 B s h² + 6 B h (h + 2) for the heads of BERT")
    prefix = model.get("prefix_length") or 0
    if model.get("attention_mask") == "prefix" and prefix > 1:
        extra -= 6.0 * batch * min(prefix - 1, sequence) * hidden * vocabulary
        terms.append("- 6 B (p - 1) h V: the prefix has no logits")
    needed = model_flops(shape, batch) + extra
    recompute = train.get("recompute")
    executed = None
    if recompute in ("none", "selective", "full"):
        executed = executed_flops(shape, batch, cast(Recompute, recompute)) + extra
        terms += [f"hardware: {_RECOMPUTED[recompute]}"] if recompute in _RECOMPUTED else []
    return Work(needed, executed, "; ".join(terms))


def _counted(model: Mapping[str, Any], train: Mapping[str, Any], batch: int) -> Work | None:
    """Count the FLOPs of a model with experts, grouped queries or gated MLPs by its matrices; None for other models."""
    other = other_model(model)
    if other is None:
        return None
    recompute = train.get("recompute")
    is_stated = recompute in ("none", "selective", "operations", "full")
    job = Job(
        other,
        batch,
        recompute=cast(Any, recompute) if is_stated else "none",
        recomputed_layers=train.get("recomputed_layers"),
        has_flash_attention=True,
    )
    needed, executed = flops_of(job)
    terms = [
        "3 B s (2 P + 4 k a l + 2 h V)",
        f"P {other.matrix_parameters:.4g} weights of a token in the layers",
        f"k {other.keys_per_token:.6g} keys of a token on average",
        f"a {other.score_size:g} width of all heads",
    ]
    terms += [f"hardware: recomputation {recompute}"] if is_stated and recompute != "none" else []
    return Work(needed, executed if is_stated else None, "; ".join(terms))


class Utilisation(NamedTuple):
    """Throughput of one iteration relative to the peak of the devices; `mfu` and `hfu` are 0 to 1."""

    tflops_per_gpu: float
    """Model TFLOP/s per device."""
    mfu: float | None
    hfu: float | None


def utilisation(work: Work, devices: int, step_time_s: float, peak: Peak | None) -> Utilisation:
    """Return model FLOPs / (devices x peak x time), and the same for executed FLOPs.

    Without a peak both shares are None. Raises ValueError unless devices and time are positive.
    """
    needed = flops_per_gpu(work.model_flops, devices, step_time_s)
    if peak is None:
        return Utilisation(needed / 1e12, None, None)
    executed = None if work.executed_flops is None else flops_per_gpu(work.executed_flops, devices, step_time_s)
    return Utilisation(
        needed / 1e12,
        needed / peak.flops_per_s,
        None if executed is None else executed / peak.flops_per_s,
    )
