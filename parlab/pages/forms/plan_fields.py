"""Fields of a planning question that the main groups of the form leave out, described by the schema itself."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from parlab.planner.requests.request import PlanRequest

MAIN = frozenset(
    {
        "layers", "hidden", "heads", "kv_heads", "ffn", "mlp", "sequence", "vocabulary", "attention", "experts",
        "head_dim", "mla", "experts_per_token", "global_batch", "micro_batch", "precision", "recompute",
        "tokens_billion", "wanted_days", "wanted_cost", "tensor_parallel", "pipeline_parallel", "schedule", "chunks",
        "zero",
        "context_parallel", "expert_parallel", "sequence_parallel", "gpu", "memory_gib", "nodes", "gpus_per_node",
        "network_gbit_s",
        "price",
    }
)  # fmt: skip
"""Fields with a control of their own in the template."""
CHOSEN = frozenset({"model", "huggingface"})
"""Fields that links and the form for a config.json set."""
_YES_NO = (("true", "yes"), ("false", "no"))
_ACRONYMS = {"ffn": "MLP width", "nvlink": "NVLink", "kv": "KV", "q": "Q", "lora": "LoRA", "cuda": "CUDA"}


class Control(NamedTuple):
    """One field as a control of the form."""

    name: str
    title: str
    help: str
    value: str
    choices: tuple[tuple[str, str], ...]
    """Value and title of each choice; empty for a number."""
    is_optional: bool


def controls(texts: dict[str, str]) -> list[Control]:
    """Return a control for each field that has none in the template, with its text; the order is that of the schema."""
    schema = _schema()
    names = [name for name in PlanRequest.model_fields if name not in MAIN | CHOSEN]
    return [_control(name, schema[name], texts.get(name, "")) for name in names]


@cache
def _schema() -> dict[str, Any]:
    properties: dict[str, Any] = PlanRequest.model_json_schema()["properties"]
    return properties


def _control(name: str, schema: dict[str, Any], text: str) -> Control:
    kinds = schema.get("anyOf", [schema])
    is_optional = any(kind.get("type") == "null" for kind in kinds)
    choices: tuple[tuple[str, str], ...] = ()
    for kind in kinds:
        if "enum" in kind:
            choices = tuple((value, value) for value in kind["enum"])
        elif kind.get("type") == "boolean":
            choices = _YES_NO
            text = text or ("" if is_optional else "false")
    if is_optional and choices:
        choices = (("", "usual"), *choices)
    title = " ".join(_ACRONYMS.get(word, word) for word in name.split("_"))
    return Control(name, title[:1].upper() + title[1:], schema.get("description", ""), text, choices, is_optional)
