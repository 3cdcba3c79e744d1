"""Names that other tools give to settings -> fields of a Launch. Pure. The names of metrics are in `quantities.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from parlab.formats.grammar.quantities import plain
from parlab.formats.grammar.units import to_float, to_int
from parlab.formats.schema import Launch

# Field of a Launch -> names of settings, reduced by `plain`; the first name that is present counts.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "micro_batch_size": ("microbatchsize", "perdevicetrainbatchsize", "trainmicrobatchsizepergpu", "perdevicebatchsize",
                         "microbatchsizepergpu", "mbs", "devicetrainmicrobatchsize", "localbatchsize"),
    "global_batch_size": ("globalbatchsize", "trainbatchsize", "globaltrainbatchsize", "effectivebatchsize",
                          "totaltrainbatchsize", "gbs"),
    "gradient_accumulation_steps": ("gradientaccumulationsteps", "accumulategradbatches", "gradaccumsteps",
                                    "accumulationsteps"),
    "sequence_length": ("sequencelength", "seqlength", "seqlen", "maxseqlen", "maxseqlength", "maxlength", "blocksize",
                        "encoderseqlength", "contextlength"),
    "num_layers": ("numlayers", "numhiddenlayers", "nlayers", "nlayer"),
    "hidden_size": ("hiddensize", "dmodel", "nembd", "hiddendim", "embeddim"),
    "num_attention_heads": ("numattentionheads", "nheads", "nhead", "numheads"),
    "world_size": ("worldsize", "numgpus", "ngpus", "gpus", "numdevices", "numprocesses"),
    "data_parallel_size": ("dataparallelsize", "dp", "dpsize", "dataparallelreplicatedegree"),
    "tensor_parallel_size": ("tensormodelparallelsize", "tensorparallelsize", "tensorparalleldegree", "tp", "tpsize",
                             "tensorparallel"),
    "pipeline_parallel_size": ("pipelinemodelparallelsize", "pipelineparallelsize", "pipelineparalleldegree", "pp",
                               "ppsize", "pipelineparallel"),
    "zero_stage": ("zerostage", "zerooptimizationstage"),
}  # fmt: skip
_PRECISIONS = {
    "fp32": "fp32", "32": "fp32", "float32": "fp32", "32true": "fp32", "no": "fp32",
    "fp16": "fp16", "16": "fp16", "float16": "fp16", "16mixed": "fp16", "16true": "fp16", "half": "fp16",
    "bf16": "bf16", "bfloat16": "bf16", "bf16mixed": "bf16", "bf16true": "bf16", "fp8": "fp8",
}  # fmt: skip
_PRECISION_NAMES = ("precision", "mixedprecision", "dtype", "torchdtype", "paramsdtype")


SETTINGS: tuple[str, ...] = (*_SETTINGS, "precision")
"""What a person can choose as the meaning of a parameter: fields of a Launch."""


def setting_of(name: str) -> str:
    """Return the field of a Launch that a parameter of this name fills by itself; empty for none."""
    own_names = {plain(name), plain(re.split(r"[/.]", name)[-1])}
    if own_names & {*_PRECISION_NAMES, "bf16", "fp16"}:
        return "precision"
    return next((field for field, names in _SETTINGS.items() if own_names & set(names)), "")


def launch_of(
    settings: Mapping[str, Any], meanings: Mapping[str, str] | None = None, *, world_size: int | None = None
) -> Launch:
    """Return the settings of a run as a Launch: those with a known meaning under normal names, all as arguments.

    `world_size` is that of the launcher, for settings that do not state it.

    Values may be numbers or their texts; a value of another kind leaves its normal field empty. `meanings` are the
    fields that a person has chosen for names, empty for none; they take precedence over the tables here.
    """
    meanings = meanings or {}
    reduced: dict[str, Any] = {}
    for name, value in settings.items():
        if name in meanings:
            continue
        reduced.setdefault(plain(name), value)
        reduced.setdefault(plain(re.split(r"[/.]", name)[-1]), value)
    fields: dict[str, Any] = {}
    for field, names in _SETTINGS.items():
        for name in names:
            number = _whole(reduced.get(name))
            if number is not None:
                fields[field] = number
                break
    chosen = {field: settings[name] for name, field in meanings.items() if field and name in settings}
    fields |= {field: number for field, value in chosen.items() if (number := _whole(value)) is not None}
    precision = _precision({**reduced, "precision": chosen["precision"]} if "precision" in chosen else reduced)
    if precision is not None:
        fields["precision"] = precision
    if world_size is not None:
        fields.setdefault("world_size", world_size)
        # `batch_size` of a script on many ranks is that of each rank's data loader.
        if "global_batch_size" not in fields and (number := _whole(reduced.get("batchsize"))):
            fields.setdefault("micro_batch_size", number)
    derived = _derive(fields)
    arguments = {str(name): _typed(value) for name, value in settings.items()}
    return Launch(**fields, derived=derived, arguments=arguments)


def _derive(fields: dict[str, Any]) -> dict[str, str]:
    """Fill the global batch where the micro batch, accumulation and ranks state it; returns how."""
    micro, accumulation = fields.get("micro_batch_size"), fields.get("gradient_accumulation_steps", 1)
    ranks = fields.get("data_parallel_size")
    if ranks is None and "world_size" in fields:
        ranks = fields["world_size"] // max(
            1, fields.get("tensor_parallel_size", 1) * fields.get("pipeline_parallel_size", 1)
        )
    if "global_batch_size" in fields or not micro or not ranks:
        return {}
    fields["global_batch_size"] = micro * accumulation * ranks
    return {"global_batch_size": f"micro batch {micro} x accumulation {accumulation} x data parallel {ranks}"}


def _precision(reduced: Mapping[str, Any]) -> str | None:
    for name in _PRECISION_NAMES:
        value = _PRECISIONS.get(plain(str(reduced.get(name, "")).removeprefix("torch.")))
        if value is not None:
            return value
    for name in ("bf16", "fp16"):
        if str(reduced.get(name)).lower() in ("true", "1"):
            return name
    return None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        number: int | None = value
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    else:
        number = to_int(str(value)[:40])
    return number if number is not None and 0 <= number < 2**53 else None


def _typed(value: Any) -> Any:
    """Read a text as the number or truth value that it writes."""
    if not isinstance(value, str) or len(value) > 40:
        return value
    if value in ("True", "true", "False", "false"):
        return value.lower() == "true"
    number = to_int(value)
    return number if number is not None else value if (real := to_float(value)) is None else real
