"""What the recipes of published benchmarks state that their rows do not: dispatchers, overlap and CUDA graphs.

NVIDIA Megatron-Bridge, scripts/performance/configs of the releases 26.02 to 26.08.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_EIGHT_BITS = ("fp8", "mxfp8", "nvfp4")


class Recipe(NamedTuple):
    """Fields of the layout of the rows that a recipe is about."""

    source: str
    """Text in the source of a row."""
    model: str
    """Begin of the name of a model."""
    gpus: tuple[str, ...]
    """Begins of device names."""
    precisions: tuple[str, ...]
    fields: Mapping[str, Any]
    since: str = ""
    """First release, as the source writes it."""
    until: str = "99"
    """First release that the recipe is not of."""


_BRIDGE = "Megatron-Bridge performance page"
_ALL = ("",)
_GRACE = ("GB",)
_HOPPER = ("H100",)
_NODES = ("B200", "B300")
_ALONE = {"expert_dispatcher": "alltoall", "overlap_experts": False}
_RECORDED = {"expert_dispatcher": "hybridep", "overlap_experts": False, "cuda_graphs": True}
_WHOLE = {**_RECORDED, "overlap_experts": True, "grouped_products": "fused"}

RECIPES = (
    Recipe(_BRIDGE, "Qwen3 235B", _HOPPER, _ALL, {"expert_dispatcher": "alltoall", "overlap_experts": True}),
    Recipe(_BRIDGE, "Qwen3 235B", _NODES, _ALL, _ALONE, until="26.06"),
    Recipe(_BRIDGE, "Qwen3 30B", _NODES, _ALL, _ALONE, until="26.04"),
    Recipe(_BRIDGE, "Qwen3", (*_NODES, *_GRACE), _EIGHT_BITS, _WHOLE, since="26.06"),
    Recipe(_BRIDGE, "Qwen3 30B", (*_NODES, *_GRACE), _ALL, _RECORDED),
    Recipe(_BRIDGE, "Qwen3 30B", _HOPPER, _ALL, {"expert_dispatcher": "hybridep", "overlap_experts": False}),
    Recipe(_BRIDGE, "GPT-OSS", ("B300",), ("bf16",), {**_ALONE, "cuda_graphs": True}, until="26.04"),
    Recipe(_BRIDGE, "GPT-OSS", ("GB200",), ("bf16",), {"expert_dispatcher": "alltoall", "cuda_graphs": False}),
    Recipe(_BRIDGE, "GPT-OSS", _ALL, ("bf16",), {"expert_dispatcher": "alltoall"}),
    Recipe(_BRIDGE, "GPT-OSS", _GRACE, _EIGHT_BITS, _WHOLE, since="26.06"),
    Recipe(_BRIDGE, "GPT-OSS", _NODES, _EIGHT_BITS, {**_WHOLE, "cuda_graphs": False}, since="26.08"),
    Recipe(_BRIDGE, "DeepSeek", ("B200",), _EIGHT_BITS, {"expert_dispatcher": "deepep", "cuda_graphs": True}),
    Recipe(_BRIDGE, "DeepSeek", _GRACE, _EIGHT_BITS, _WHOLE, since="26.06"),
    Recipe(_BRIDGE, "", _GRACE, _ALL, _WHOLE, since="26.06"),
    Recipe(_BRIDGE, "", _ALL, _ALL, {"expert_dispatcher": "hybridep", "overlap_experts": False}),
)
"""The first recipe of a row counts. Routing is balanced by force in all of them."""


def recipe_fields(source: str, model: str, gpu: str, precision: str) -> Mapping[str, Any]:
    """Return the fields that the recipe of a row states; none for other rows."""
    for recipe in RECIPES:
        _before, found, release = source.partition(f"{recipe.source}, ")
        is_meant = found and recipe.since <= release < recipe.until and model.startswith(recipe.model)
        if is_meant and gpu.startswith(recipe.gpus) and precision.startswith(recipe.precisions):
            return recipe.fields
    return {}
