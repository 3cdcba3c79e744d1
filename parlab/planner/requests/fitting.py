"""Defaults of a planner's request that fit the sizes that it states. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from .request import PlanRequest

STATE_BYTES = 16
"""Weights, gradients and optimizer of a parameter in mixed precision."""
ROOM_BYTES = 40e9
"""What they may take of a device, so that activations have room."""
_WIDTHS = (128, 64, 96, 80, 256, 32)
_SIZES = ("layers", "hidden", "heads", "nodes", "gpus_per_node", "global_batch", "micro_batch")


def fitting_defaults(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with heads, parallel sizes and batch that fit its sizes; what it states stays.

    Sizes that are no whole numbers are left to the validation, and known models to their own sizes.
    """
    if stated.get("model") or stated.get("huggingface"):
        return dict(stated)
    sizes = {name: _whole(stated.get(name, PlanRequest.model_fields[name].default)) for name in _SIZES}
    if not all(sizes.values()):
        return dict(stated)
    if "heads" not in stated:
        sizes["heads"] = _heads(sizes["hidden"])
    tensor, pipeline = _parallel(stated, sizes)
    replicas = max(1, sizes["nodes"] * sizes["gpus_per_node"] // (tensor * pipeline)) * sizes["micro_batch"]
    batch = -(-sizes["global_batch"] // replicas) * replicas
    return {
        "heads": sizes["heads"],
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "global_batch": batch,
        **stated,
    }


def read_question(data: Any, context: dict[str, Any] | None = None) -> PlanRequest:
    """Return a question; where defaults do not fit the sizes that it states, with those that do.

    Raises ValidationError for what the question states itself.
    """
    try:
        return PlanRequest.model_validate(data, context=context)
    except ValidationError as refused:
        if not isinstance(data, Mapping):
            raise
        filled = fitting_defaults(data)
        try:
            question = PlanRequest.model_validate(filled, context=context)
        except ValidationError:
            raise refused from None
    question.model_fields_set.difference_update(filled.keys() - data.keys())
    return question


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 < value < 2**31 else 0


def _heads(hidden: int) -> int:
    """Return the number of heads of a usual width."""
    return next((hidden // width for width in _WIDTHS if hidden % width == 0), 1)


def _parallel(stated: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the smallest tensor and pipeline parallel sizes with which the states of a model fit a device."""
    parameters = 12 * sizes["layers"] * sizes["hidden"] ** 2
    inside, nodes = sizes["gpus_per_node"], sizes["nodes"]
    tensors = [size for size in range(1, inside + 1) if inside % size == 0 and sizes["heads"] % size == 0]
    pipelines = [size for size in range(1, nodes + 1) if nodes % size == 0 and sizes["layers"] % size == 0]
    tensors = [_whole(stated["tensor_parallel"]) or 1] if "tensor_parallel" in stated else tensors
    pipelines = [_whole(stated["pipeline_parallel"]) or 1] if "pipeline_parallel" in stated else pipelines
    pairs = sorted(((tensor, pipeline) for pipeline in pipelines for tensor in tensors), key=lambda pair: pair[::-1])
    return next((pair for pair in pairs if STATE_BYTES * parameters / (pair[0] * pair[1]) <= ROOM_BYTES), pairs[-1])
