"""FLOPs of a job: closed formulas for a plain GPT, a count of the matrices for other models."""

from __future__ import annotations

from parlab.planner.job.workload import Job

from .flops import Shape, executed_flops, model_flops


def flops_of(job: Job) -> tuple[float, float]:
    """Return the FLOPs of one iteration: those that the model needs, and those that are executed.

    A plain GPT with plain attention has the closed formulas, which count all scores. Fused attention skips the scores
    that the mask excludes, so that they count neither here nor in the time: MFU and HFU stay below 1.
    """
    model = job.model
    shape = Shape(model.num_layers, model.hidden_size, model.sequence_length, model.vocab_size)
    if model.is_plain and not job.has_flash_attention and job.recompute != "operations" and job.recomputed_share == 1:
        return (
            model_flops(shape, job.global_batch_size),
            executed_flops(shape, job.global_batch_size, job.recompute),
        )
    logits = float(model.hidden_size * model.vocab_size)
    matrices = model.matrix_parameters
    keys = model.keys_per_token if job.has_flash_attention else model.sequence_length
    attention = 4 * keys * model.score_size * model.num_layers
    forward = 2 * matrices + attention + 2 * logits
    repeated = {"full": 2 * matrices + attention, "operations": matrices}.get(job.recompute, 0.0)
    if job.recompute == "selective" and not job.has_flash_attention:
        repeated = attention
    return 3 * job.tokens * forward, job.tokens * (3 * forward + repeated * job.recomputed_share)
