"""FLOPs of a job: closed formulas for a plain GPT, a count of the matrices for other models."""

from __future__ import annotations

from dataclasses import replace

from .flops import Shape, executed_flops, model_flops, parameters
from .workload import Job, Model


def flops_of(job: Job) -> tuple[float, float]:
    """Return the FLOPs of one iteration: those that the model needs, and those that are executed."""
    model = job.model
    shape = Shape(model.num_layers, model.hidden_size, model.sequence_length, model.vocab_size)
    has_plain_shape = model.num_kv_heads in (None, model.num_heads) and model.ffn_size == 4 * model.hidden_size
    if has_plain_shape and not model.is_gated and model.num_experts == 1:
        recompute = "none" if job.has_flash_attention and job.recompute == "selective" else job.recompute
        return model_flops(shape, job.global_batch_size), executed_flops(shape, job.global_batch_size, recompute)
    matrices = active_parameters(model) - model.embedding_parameters + model.hidden_size * model.vocab_size
    layers = 2 * (matrices - model.hidden_size * model.vocab_size)
    attention = 4 * model.sequence_length * model.hidden_size * model.num_layers
    forward = layers + attention + 2 * model.hidden_size * model.vocab_size
    recomputed = layers + attention if job.recompute == "full" else 0.0
    return 3 * job.tokens * forward, job.tokens * (3 * forward + recomputed)


def active_parameters(model: Model) -> float:
    """Return the parameters used per token: of the experts only those that a token is routed to."""
    shape = Shape(model.num_layers, model.hidden_size, model.sequence_length, model.vocab_size)
    if model.num_experts == 1 and not model.is_gated and model.num_kv_heads is None and model.ffn_hidden_size is None:
        return parameters(shape)
    return replace(model, num_experts=model.experts_per_token).parameters
