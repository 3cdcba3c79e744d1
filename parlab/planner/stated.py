"""Convert the partial configuration of an imported run to a job on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import rows
from .cluster import Cluster, cluster
from .hardware import Gpu, find
from .workload import Job

_REQUIRED = (
    ("model", "num_layers"),
    ("model", "hidden_size"),
    ("model", "sequence_length"),
    ("train", "micro_batch_size"),
    ("train", "global_batch_size"),
)
_MODEL = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "seq": "sequence_length",
    "vocab": "vocab_size",
}
_PARALLEL = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "schedule": "schedule",
    "virtual_pp": "virtual_stages",
    "zero": "zero_stage",
    "sequence_parallel": "sequence_parallel",
}
_TRAIN = {
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "precision": "precision",
    "recompute": "recompute",
}


def stated_job(sections: Mapping[str, Mapping[str, Any]], gpu: Gpu, gpus: int | None = None) -> tuple[Job, Cluster]:
    """Return the job described by an imported file and a cluster of `gpu` devices.

    `sections` uses the section and field names of a RunConfig (model, train, parallel, cluster), sizes in sequences and
    tokens; `gpus` is the number of GPUs stated by the file. Unspecified fields get usual values. Raises ValueError for
    a missing required field or an invalid value.
    """
    model, train, parallel = (sections.get(name) or {} for name in ("model", "train", "parallel"))
    missing = [f"{section}.{name}" for section, name in _REQUIRED if not (sections.get(section) or {}).get(name)]
    if missing:
        raise ValueError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    per_node = (sections.get("cluster") or {}).get("gpus_per_node") or 8
    hardware = {"gpu": gpu.name if find(gpu.name) else "A100", "node": per_node} | ({"count": gpus} if gpus else {})
    row = rows.read(
        {
            "model": _renamed(model, _MODEL) | {"vocab": model.get("vocab_size")},
            "parallel": _renamed(parallel, _PARALLEL) | _renamed(train, _TRAIN),
            "hardware": hardware,
        }
    )
    return row.job, cluster(gpu, row.cluster.gpus, row.cluster.gpus_per_node)


def _renamed(section: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {short: section[name] for short, name in names.items() if section.get(name) is not None}
