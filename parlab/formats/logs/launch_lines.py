"""Lines in which torchtitan and nanotron state the settings of a launch, before its first step."""

from __future__ import annotations

import math
import re
from typing import Any

from parlab.formats.grammar.units import slug, to_float, to_int
from parlab.formats.launch import typed

# Messages of torchtitan about the layout: `pp=1, dp_shard=8, tp=1`, `global batch size 64`.
_LAYOUT = re.compile(
    r"Building (?:device mesh with parallelism:|\d-D device mesh with)|Training starts at step|Trainer is initialized"
)
_SIZE = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep|etp)=(-?\d{1,7})\b")
_BATCH = re.compile(
    r"(local batch size|global batch size|gradient accumulation steps|sequence length|total steps):?\s(\d{1,12})"
)
_MESH = re.compile(r"device mesh with \[([^\]]{1,200})\], \[([\d, ]{1,100})\]")
# Pattern of a message -> the setting that it states, and how its text is read.
_STATED = (
    (re.compile(r"\bsize: ([\d,]{1,30}) total parameters"), "total_parameters", to_int),
    (re.compile(r"\b(?:GPU|CUDA) capacity: ([^(\n]{2,100}?)(?: \(\d{1,3}\))? with [\d.]{1,12} ?GiB"), "gpu_name", str),
    (re.compile(r"Peak FLOPS used for computing MFU: (\S{1,30})"), "peak_flops_per_gpu", to_float),
)
_NAMES = {
    "local_batch_size": "micro_batch_size",
    "sequence_length": "seq_len",
    "pp": "pipeline_parallel_degree",
    "tp": "tensor_parallel_degree",
}


def torchtitan(text: str) -> dict[str, Any]:
    """Return the settings of a message of torchtitan; sizes of -1, which it computes, are omitted."""
    if _LAYOUT.search(text):
        return _layout(text[:2000])
    matches = ((pattern.search(text), name, read) for pattern, name, read in _STATED)
    return {name: read(match[1]) for match, name, read in matches if match is not None}


def _layout(text: str) -> dict[str, Any]:
    sizes: dict[str, int | None] = {name: int(size) for name, size in _SIZE.findall(text)}
    if mesh := _MESH.search(text):
        names = [name.strip(" '\"") for name in mesh[1].split(",")]
        sizes.update(zip(names, (to_int(size) for size in mesh[2].split(",")), strict=False))
    settings = {**sizes, "world_size": _world(sizes)}
    settings.update((slug(name), to_int(size)) for name, size in _BATCH.findall(text))
    stated = {_NAMES.get(name, name): size for name, size in settings.items() if size is not None and size > 0}
    replicas = [size for name in ("dp_replicate", "dp_shard") if (size := stated.get(name))]
    return {**stated, "data_parallel_degree": math.prod(replicas)} if replicas else stated


def _world(sizes: dict[str, int | None]) -> int | None:
    """Return the number of ranks; a size of -1 stands for the remaining ones.

    Expert parallelism reuses ranks of the other dimensions.
    """
    across = [size or 0 for name, size in sizes.items() if name not in ("ep", "etp")]
    return math.prod(across) if across and all(0 < size < 2**20 for size in across) else None


NANOTRON_TAG = re.compile(r"\[[A-Z]{1,12}\|(?:[A-Z]{2}=\d{1,7}\|?){1,6}[^\]]{0,120}\]:\s?")
_SETTING = re.compile(r"\s*(?:[A-Za-z]\w{0,60}=[A-Z]\w{0,60}\()*([a-z]\w{0,60})=([^=(){}\[\]]{1,200}?)[,)]*\s*$")
_SETTINGS = frozenset(
    {"dp", "pp", "tp", "expert_parallel_size", "sequence_length", "train_steps", "micro_batch_size",
     "batch_accumulation_per_replica", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
     "num_key_value_heads", "vocab_size", "max_position_embeddings", "zero_stage", "pp_engine", "tp_mode", "dtype",
     "seed", "recompute_layer", "tie_word_embeddings"}
)  # fmt: skip


def nanotron(text: str) -> dict[str, Any]:
    """Return the setting of a line of the configuration that nanotron prints, `micro_batch_size=4,`."""
    tag = NANOTRON_TAG.search(text[:400])
    setting = _SETTING.match(text[tag.end() :][:400]) if tag else None
    return {setting[1]: typed(setting[2])} if setting and setting[1] in _SETTINGS else {}
