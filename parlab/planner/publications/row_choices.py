"""Read the values of a row that are words: an unknown one is refused with the nearest, as unknown fields are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from parlab.planner.job.workload import PRECISIONS, Dispatcher, GroupedProducts, Precision, Recompute, Schedule
from parlab.planner.requests.fields import nearest_name

from .row_values import given, is_missing

_RECOMPUTES: dict[str, Recompute] = {
    "none": "none",
    "false": "none",
    "unknown": "none",
    "not stated": "none",
    "none/selective": "none",
    "selective": "selective",
    "selective+sp": "selective",
    "operations": "operations",
    "selective per op": "operations",
    "full": "full",
    "true": "full",
    "per-block checkpoint": "full",
}
_SCHEDULES: dict[str, Schedule] = {
    "1f1b": "1f1b",
    "1f1b/interleaved": "interleaved-1f1b",
    "1f1b-i": "interleaved-1f1b",
    "interleaved": "interleaved-1f1b",
    "interleaved-1f1b": "interleaved-1f1b",
    "gpipe": "gpipe",
    "zb-1p": "zb-h1",
    "zb-h1": "zb-h1",
    "zb-2p": "zb-h2",
    "zb-h2": "zb-h2",
    "zb-v": "zb-v",
    "dualpipe": "dualpipe",
    "dualpipe-v": "dualpipe-v",
    "dualpipev": "dualpipe-v",
}
"""Name in a row -> schedule. ZB-1p and ZB-2p are the automatic schedules of Qi et al. 2023 with that memory."""
_MLPS = {"plain": False, "gelu": False, "relu": False, "gated": True, "swiglu": True}
_ATTENTIONS: dict[str, Literal["gqa", "mla"]] = {"gqa": "gqa", "mha": "gqa", "mqa": "gqa", "mla": "mla"}
_KERNELS = {
    "plain": False,
    "eager": False,
    "flash": True,
    "flash-1": True,
    "flash-2": True,
    "flash-3": True,
}
_POSITIONS = {"learned": True, "rotary": False}
_EXCHANGES: dict[str, Literal["ring", "all-gather"]] = {
    "ring": "ring",
    "p2p": "ring",
    "all-gather": "all-gather",
    "allgather": "all-gather",
    "gather": "all-gather",
}
_DISPATCHERS: dict[str, Dispatcher] = {
    "allgather": "allgather",
    "all-gather": "allgather",
    "alltoall": "alltoall",
    "all-to-all": "alltoall",
    "nccl": "alltoall",
    "standard": "alltoall",
    "deepep": "deepep",
    "flex": "deepep",
    "hybridep": "hybridep",
    "hybrid-ep": "hybridep",
}
"""Name in a row -> dispatcher. Megatron-Core's `flex` means DeepEP unless it names a backend; torchtitan's `standard`
is NCCL's all-to-all."""
_PRODUCTS: dict[str, GroupedProducts] = {
    "separate": "separate",
    "false": "separate",
    "grouped": "grouped",
    "true": "grouped",
    "fused": "fused",
}
Offload = Literal["none", "optimizer", "all"]
_OFFLOADS: dict[str, Offload] = {
    "none": "none",
    "false": "none",
    "optimizer": "optimizer",
    "all": "all",
    "full": "all",
    "fp32 model copy to cpu": "none",
}
"""Name in a row -> states in CPU memory. A copy of the weights alone (Decentralized FM) is not modelled."""
_OPTIMIZERS: dict[str, int | None] = {
    "adam": None,
    "adamw": None,
    "fp16": None,
    "bf16": None,
    "bf16 fp32-grad-acc": None,
    "bf16 states": 8,
    "bf16 without fp32 weights": 4,
    "8 bit": 6,
    "8-bit": 6,
    "sgd": 4,
}
"""Name in a row -> bytes of optimizer state per parameter with the fp32 copy of the weights: moments in bf16 are 2
bytes each, in 8 bits 1; None: those of Adam."""


def _word(section: str, name: str, value: object, options: Mapping[str, Any], usual: str = "") -> Any:
    """Return the meaning of a word, of `usual` if it is not stated; what follows in brackets is a remark.

    Raises ValueError for an unknown one.
    """
    value = given(value, usual)
    text = re.sub(r"\s*\(.*\)\s*$", "", str(value)).strip().lower()
    if text in options:
        return options[text]
    nearest = nearest_name(text, options)
    hint = f"did you mean {nearest}? " if nearest else ""
    raise ValueError(f"{section}.{name} {str(value)[:40]!r} is unknown; {hint}use one of {', '.join(options)}")


def recompute(value: object) -> Recompute:
    """Return what is recomputed; nothing if the row does not say."""
    mode: Recompute = _word("parallel", "recompute", value, _RECOMPUTES, "none")
    return mode


def is_recompute_unstated(value: object) -> bool:
    """Return whether a row says that its recomputation is not stated."""
    return str(value or "").lower() in ("not stated", "unknown")


def schedule(value: object, virtual: int, layers: int) -> tuple[Schedule, int]:
    """Return the schedule and the chunks of a rank; the name 1F1B-I of Qi et al. 2023 means one layer per chunk."""
    name: Schedule = _word("parallel", "schedule", value, _SCHEDULES, "1f1b")
    if name == "interleaved-1f1b" and virtual == 1:
        return name, max(2, layers) if str(value).lower() == "1f1b-i" else 2
    if name == "interleaved-1f1b" or (name == "1f1b" and virtual > 1):
        return "interleaved-1f1b", virtual
    return name, 1


def precision(value: object, usual: Precision) -> Precision:
    """Return the precision of the products, `usual` if the row does not say."""
    name: Precision = _word("parallel", "precision", value, {name: name for name in PRECISIONS}, usual)
    return name


def is_gated(value: object) -> bool:
    """Return whether the MLP is gated."""
    return bool(_word("model", "mlp", value, _MLPS, "plain"))


def attention_kind(value: object) -> Literal["gqa", "mla"]:
    """Return the kind of the attention of a model."""
    kind: Literal["gqa", "mla"] = _word("model", "attention", value, _ATTENTIONS, "gqa")
    return kind


def has_learned_positions(value: object, usual: str) -> bool:
    """Return whether positions are learned, those of `usual` if the row does not say."""
    return bool(_word("model", "positions", value, _POSITIONS, usual))


def is_fused(value: object, usual: bool) -> bool:
    """Return whether attention is fused, `usual` if the row does not say."""
    return usual if is_missing(value) else bool(_word("parallel", "attention", value, _KERNELS))


def exchange(value: object) -> Literal["ring", "all-gather"]:
    """Return how context parallel ranks exchange keys and values."""
    kind: Literal["ring", "all-gather"] = _word("parallel", "cp_comm", value, _EXCHANGES, "ring")
    return kind


def dispatcher(value: object, usual: Dispatcher) -> Dispatcher:
    """Return what sends tokens to their experts, `usual` if the row does not say."""
    name: Dispatcher = _word("parallel", "expert_dispatcher", value, _DISPATCHERS, usual)
    return name


def grouped_products(value: object) -> GroupedProducts:
    """Return how the products of experts run, grouped if the row does not say."""
    kind: GroupedProducts = _word("parallel", "grouped_products", value, _PRODUCTS, "grouped")
    return kind


def optimizer_bytes(value: object) -> int | None:
    """Return the bytes of optimizer state per parameter; None: those of Adam in fp32."""
    stated: int | None = _word("parallel", "optimizer", value, _OPTIMIZERS, "adam")
    return stated


def offload(value: object) -> Offload:
    """Return the states that ZeRO keeps in CPU memory: as a word, or as {"Opt Offl": "Y", "Par Offl": "N"}."""
    if isinstance(value, Mapping):
        offloaded = {str(name).lower()[:3] for name, answer in value.items() if str(answer).upper().startswith("Y")}
        return "all" if "par" in offloaded else "optimizer" if "opt" in offloaded else "none"
    states: Offload = _word("parallel", "offload", value, _OFFLOADS, "none")
    return states


def is_eager(value: object) -> bool:
    """Return whether kernels are not compiled."""
    return bool(_word("parallel", "compile", value, {"compile": False, "eager": True}, "compile"))


def is_old_megatron(ddp: object) -> bool:
    """Return whether a row states Megatron-LM's implementation of data parallelism of 2020 to 2022."""
    return not is_missing(ddp) and bool(_word("parallel", "ddp", ddp, {"local": True, "torch": True}))


def flag(section: str, data: Mapping[str, Any], name: str, usual: bool = False) -> bool:
    """Return a value that is true or false, `usual` if it is missing. Raises ValueError for anything else."""
    value = data.get(name)
    if is_missing(value):
        return usual
    if value in (0, 1):
        return bool(value)
    raise ValueError(f"{section}.{name} {str(value)[:40]!r} is not true or false; use the JSON values true or false")
