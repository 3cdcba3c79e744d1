"""The one table of settings: names that trainers give to them -> fields of a Launch. Pure.

The names of metrics are in `quantities.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from parlab.formats.grammar.processes import STATED
from parlab.formats.grammar.quantities import plain
from parlab.formats.grammar.units import to_float, to_int
from parlab.formats.schema import Launch

# Field of a Launch -> names, in order of preference. With `?`, a name means the field among the parameters that a run
# reports, where signs and capitals do not count, and something else in some logs.
_NAMES: dict[str, str] = {
    "world_size": f"world_size num_gpus n_gpus ranks {STATED} gpus? num_devices? num_processes?",
    "data_parallel_size": "data_parallel_size dp dp_degree data_parallel_degree data_parallel_replicate_degree dp_size",
    "tensor_parallel_size": "tensor_model_parallel_size tensor_parallel_size model_parallel_size tp tp_degree"
    " tensor_parallel_degree tp_size tensor_parallel",
    "pipeline_parallel_size": "pipeline_model_parallel_size pipeline_parallel_size pp pp_degree"
    " pipeline_parallel_degree pp_size pipe_parallel_size stage_cnt pipeline_parallel",
    "micro_batch_size": "micro_batch_size train_micro_batch_size_per_gpu per_device_train_batch_size"
    " train_micro_batch_size per_device_batch_size micro_batch_size_per_gpu mbs device_train_microbatch_size"
    " local_batch_size",
    "global_batch_size": "global_batch_size train_batch_size total_train_batch_size global_train_batch_size"
    " effective_batch_size gbs",
    "gradient_accumulation_steps": "gradient_accumulation_steps num_micro_batches accumulation_steps accum_degree gas"
    " batch_accumulation_per_replica accumulate_grad_batches grad_accum_steps",
    "sequence_length": "seq_length sequence_length seq_len train_seq_len encoder_seq_length max_seq_len max_seq_length"
    " max_sequence_length block_size seqlen sequence_len context_length max_length?",
    "num_layers": "num_layers n_layers n_layer num_hidden_layers encoder_num_layers number_of_layers number_of_layer",
    "hidden_size": "hidden_size n_embd dim d_model embedding_dim model_dim hidden_dim? embed_dim?",
    "num_attention_heads": "num_attention_heads n_heads n_head num_heads number_of_heads number_of_head nhead?",
    "zero_stage": "zero_stage zero_optimization_stage zero_optimization.stage zero_config.stage",
}
_PRINTED = {field: [name for name in names.split() if name[-1] != "?"] for field, names in _NAMES.items()}
_SIZES = frozenset(name for names in _PRINTED.values() for name in names)
_REPORTED = {field: [plain(name) for name in names.split()] for field, names in _NAMES.items()}
_FIELDS = {name: field for field, names in _REPORTED.items() for name in names}
_PRECISIONS = ("params_dtype", "precision", "dtype", "torch_dtype", "mixed_precision_param", "mixed_precision")
_SWITCHES = ("fp8", "bf16", "fp16", "half")
# Of these marks the first one that a printed type has.
_TYPES = (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp8", "fp8"), ("float16", "fp16"), ("fp16", "fp16"),
          ("half", "fp16"), ("16", "fp16"), ("float32", "fp32"), ("fp32", "fp32"), ("32", "fp32"))  # fmt: skip
_TRUE = frozenset({"true", "yes", "1"})

SETTINGS: tuple[str, ...] = (*_NAMES, "precision")
"""What a person can choose as the meaning of a parameter: fields of a Launch."""


def is_size(name: str) -> bool:
    """Return whether logs print a size of a launch under this name."""
    return name in _SIZES


def setting_of(name: str) -> str:
    """Return the field of a Launch that a parameter of this name fills by itself; empty for none."""
    own_names = [plain(name), plain(_last(name))]
    if {plain(known) for known in (*_PRECISIONS, *_SWITCHES[:3])}.intersection(own_names):
        return "precision"
    return next((_FIELDS[own] for own in own_names if own in _FIELDS), "")


def _last(name: str) -> str:
    return re.split(r"[/.]", name)[-1]


def sizes_in(settings: Mapping[str, Any], *, is_reported: bool = False) -> dict[str, int]:
    """Return the sizes among settings by their fields, each from the first of its names that has a whole number.

    `is_reported`: the settings are parameters that a run reports, in groups as `model/hidden_size`.
    """
    if is_reported:
        reduced: dict[str, Any] = {}
        for name, value in settings.items():
            reduced.setdefault(plain(name), value)
            reduced.setdefault(plain(_last(name)), value)
        settings = reduced
    order = _REPORTED if is_reported else _PRINTED
    return {field: size for field, names in order.items() if (size := first_whole(settings, *names)) is not None}


def first_whole(settings: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these settings that is a whole number or its text."""
    return next((number for name in names if (number := _whole(settings.get(name))) is not None), None)


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        value = to_int(value[:40])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value) if value == int(value) else None


def precision(settings: Mapping[str, Any]) -> str | None:
    """Return fp32, fp16, bf16 or fp8 from switches or a printed type; None if neither is stated."""
    for name in _SWITCHES:
        value = settings.get(name)
        if any(_is_on(settings.get(key)) for key in (name, f"{name}.enabled", f"{name}_enabled")) or (
            name == "fp8" and isinstance(value, str)
        ):
            return "fp16" if name == "half" else name
    for name in _PRECISIONS:
        text = str(settings.get(name, "")).lower()
        if (stated := next((kind for mark, kind in _TYPES if mark in text), None)) is not None:
            return stated
    is_off = str(settings.get("mixed_precision")).lower() == "no" or {"fp16", "bf16"} & settings.keys()
    return "fp32" if is_off else None


def _is_on(value: Any) -> bool:
    return value is True or str(value).lower() in _TRUE


def launch_of(
    settings: Mapping[str, Any], meanings: Mapping[str, str] | None = None, *, world_size: int | None = None
) -> Launch:
    """Return the parameters of a run as a Launch: those with a known meaning under normal names, all as arguments.

    `world_size` is that of the launcher, for settings that do not state it.

    Values may be numbers or their texts; a value of another kind leaves its normal field empty. `meanings` are the
    fields that a person has chosen for names, empty for none; they take precedence over the table here.
    """
    meanings = meanings or {}
    others = {name: value for name, value in settings.items() if name not in meanings}
    fields: dict[str, Any] = dict(sizes_in(others, is_reported=True))
    chosen = {field: settings[name] for name, field in meanings.items() if field and name in settings}
    fields |= {field: number for field, value in chosen.items() if (number := _whole(value)) is not None}
    by_last = {_last(name).lower().replace("-", "_"): value for name, value in reversed(others.items())}
    stated = precision({"precision": chosen["precision"]} if "precision" in chosen else by_last)
    if stated is not None:
        fields["precision"] = stated
    if world_size is not None:
        fields.setdefault("world_size", world_size)
        # `batch_size` of a script on many ranks is that of each rank's data loader.
        if "global_batch_size" not in fields and (number := first_whole(by_last, "batch_size")):
            fields.setdefault("micro_batch_size", number)
    derived = dict(_derive(fields))
    arguments = {str(name): _typed(value) for name, value in settings.items()}
    return Launch(**fields, derived=derived, arguments=arguments)


def _derive(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Fill the global batch where the micro batch, accumulation and ranks state it; yield how."""
    micro, accumulation = fields.get("micro_batch_size"), fields.get("gradient_accumulation_steps", 1)
    ranks = fields.get("data_parallel_size")
    if ranks is None and "world_size" in fields:
        ranks = fields["world_size"] // max(
            1, fields.get("tensor_parallel_size", 1) * fields.get("pipeline_parallel_size", 1)
        )
    if "global_batch_size" not in fields and micro and ranks:
        fields["global_batch_size"] = micro * accumulation * ranks
        yield "global_batch_size", f"micro batch {micro} x accumulation {accumulation} x data parallel {ranks}"


def _typed(value: Any) -> Any:
    """Read a text as the number or truth value that it writes."""
    if not isinstance(value, str) or len(value) > 40:
        return value
    if value in ("True", "true", "False", "false"):
        return value.lower() == "true"
    number = to_int(value)
    return number if number is not None else value if (real := to_float(value)) is None else real
