"""The terms of a waterfall: meaning and source of each. docs/use/time.md has the definitions."""

from __future__ import annotations

from typing import NamedTuple

_SC21 = "Narayanan et al. 2021 (SC21)"


class Term(NamedTuple):
    key: str
    title: str
    definition: str
    source: str


_ROWS = (
    Term(
        "ideal",
        "Model FLOPs at the peak",
        "model FLOPs of a step / (devices x peak FLOP/s)",
        "data sheet, or matmul.py",
    ),
    Term(
        "matrix_rate",
        "Reachable matrix rate",
        "model FLOPs / (devices x measured ceiling of matrix products) - the time at the peak",
        "Bekman 2024, maximum achievable matmul FLOPS; devices without a measurement: 0.8 of the peak",
    ),
    Term(
        "kernels",
        "Other kernels",
        "forward and backward passes - matrix products at the reachable rate - recomputation - communication inside the"
        " passes; also products that miss the reachable rate",
        "timers forward-compute and backward-compute",
    ),
    Term(
        "host",
        "Host",
        "in the passes, nothing runs on the device and the next kernel has not been launched; on a processor, Python",
        "traces only",
    ),
    Term("compute", "Compute", "forward and backward passes; their FLOPs or the peak are unknown", "timers"),
    Term(
        "recompute",
        "Recomputation",
        "forward time x (executed - model FLOPs) / (model FLOPs / 3)",
        f"{_SC21}, equation 3; Korthikanti et al. 2022, section 5",
    ),
    Term(
        "bubble",
        "Pipeline bubble",
        "compute x (p - 1) / (v m) x share of the schedule, at most the measured waits of the stages",
        f"{_SC21}, section 2.2; Qi et al. 2023 for zero bubble",
    ),
    Term(
        "tensor",
        "Tensor-parallel communication",
        "timers of tensor parallel collectives; inside the passes the planner's time of their all-reduces",
        f"{_SC21}, section 2.3",
    ),
    Term(
        "context", "Context-parallel communication", "the planner's time of the exchange of keys and values", "planner"
    ),
    Term(
        "pipeline",
        "Pipeline communication",
        "measured waits of the stages - bubble - waiting for the slowest stage",
        "timers forward-recv, backward-recv, -send and their combinations",
    ),
    Term(
        "data",
        "Data-parallel communication",
        "time of gradient and weight collectives on the rank that arrives last: what is not hidden behind compute",
        "timers backward-params-all-reduce, all-grads-sync and others",
    ),
    Term("expert", "Expert-parallel communication", "the planner's time of the all-to-all of experts", "planner"),
    Term(
        "straggler",
        "Waiting for the slowest rank",
        "collectives: mean - shortest time over the ranks; pipelines: compute of the slowest stage - mean",
        "timers by rank",
    ),
    Term("optimizer", "Optimizer", "update of the weights, mean over the ranks", "timer optimizer"),
    Term("loading", "Data loading", "reading of the batch that is not hidden", "timer batch-generator and others"),
    Term("logging", "Logging and checkpoints", "writing inside a step", "timer save-checkpoint and others"),
    Term(
        "fixed",
        "Fixed overhead",
        "the planner's constant of every step: launches of the optimizer, logging, data loading",
        "planner, calibrated",
    ),
    Term("unexplained", "Unexplained", "step time - all other terms; below 0 if they add up to more", "subtraction"),
)

TERMS: dict[str, Term] = {term.key: term for term in _ROWS}
"""By key, from the ideal to what is left."""


def flops_text(flops_per_s: float) -> str:
    """Write a rate with four digits, that of a processor in GFLOP/s."""
    return f"{flops_per_s / 1e12:.4g} TFLOP/s" if flops_per_s >= 1e12 else f"{flops_per_s / 1e9:.4g} GFLOP/s"
