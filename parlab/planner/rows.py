"""Convert rows of published measurements (`model`, `parallel`, `hardware`, `measured`) to jobs on clusters.

Missing keys get usual values; the notes of a row list each of these assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from .cluster import Cluster, cluster, gbit_s
from .flops import Shape, executed_flops, model_flops
from .timing import stage_layers
from .workload import Job, Model, Precision, Recompute, Schedule

_SCHEDULE_PARTS = ("1f1b", "gpipe", "interleaved", "zb-")


@dataclass(frozen=True)
class Measured:
    """Measured values of a row; None if not stated."""

    iteration_s: float | None = None
    memory_gb: float | None = None
    is_oom: bool = False


@dataclass(frozen=True)
class Row:
    """One row as a job on a cluster."""

    id: str
    group: str
    job: Job
    cluster: Cluster
    measured: Measured
    is_precision_open: bool
    """The row states neither precision nor code base and its device lacks bf16: fp32 and fp16 are both possible."""
    notes: list[str] = field(default_factory=list)


def read(row: Mapping[str, Any]) -> Row:
    """Read one row. Raises ValueError that names field, value and remedy."""
    notes: list[str] = []
    model_data, parallel, hardware = (_section(row, name) for name in ("model", "parallel", "hardware"))
    model = _model(model_data, notes, is_shaped=bool(hardware.get("gbps")))
    job = _job(parallel, model, hardware, notes)
    is_precision_stated = any(parallel.get(name) for name in ("precision", "optimizer", "framework"))
    is_open = not is_precision_stated and "V100" in str(hardware.get("gpu"))
    if is_open:
        job = replace(job, precision="fp32")
        notes.append("precision is not given: fp32 assumed, the default of torch")
    job = replace(job, zero_offload=_offload(parallel.get("offload"), str(row.get("source") or "")))
    group = str(row.get("group") or "")
    hardware_cluster = _cluster(hardware, job, group)
    notes += _inconsistencies(job, hardware_cluster, _whole(hardware, "count", job.world_size))
    return Row(str(row.get("id", "")), group, job, hardware_cluster, _measured(row, job), is_open, notes)


def _inconsistencies(job: Job, hardware: Cluster, count: int) -> Iterator[str]:
    """Describe inconsistent values and how they are interpreted. Raises ValueError for a job that cannot run."""
    layers, heads = job.model.num_layers, job.model.num_heads
    if job.pipeline_parallel > layers:
        raise ValueError(f"pp {job.pipeline_parallel} is more than layers {layers}; use {layers} stages or fewer")
    if heads % job.tensor_parallel:
        yield f"tp {job.tensor_parallel} does not divide heads {heads}: treated as if it did"
    if count < job.world_size:
        yield f"count {count} is less than tp x pp x dp {job.world_size}: the GPU count of the layout is used"
    if job.global_batch_size < job.micro_batch_size * job.data_parallel:
        yield (
            f"gbs {job.global_batch_size} is less than mbs {job.micro_batch_size} x dp {job.data_parallel}: one micro"
            " batch per replica is assumed"
        )
    if job.precision == "fp8" and job.precision not in hardware.device.peak_flops:
        yield f"precision fp8 is not supported by {hardware.device.name}: the speed of bf16 is used"


def _section(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = row.get(name) or {}
    if not isinstance(section, Mapping):
        raise ValueError(f"{name} {str(section)[:40]!r} is not an object; use a JSON object")
    return section


def _whole(data: Mapping[str, Any], name: str, default: int) -> int:
    """Return a positive integer; the default if it is missing, null or 0."""
    value = data.get(name)
    number = _number(name, value or default)
    if number != int(number) or number < 1:
        raise ValueError(f"{name} {value!r} is not a positive integer; use 1 or more")
    return int(number)


def _number(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} {str(value)[:40]!r} is not a number; use a number") from error
    if not math.isfinite(number):
        raise ValueError(f"{name} {number} is not finite; use a finite number")
    return number


def _model(data: Mapping[str, Any], notes: list[str], *, is_shaped: bool) -> Model:
    vocab = data.get("vocab")
    if vocab is None and is_shaped and "vocab" not in data:
        # Experiments with shaped links between single GPUs train only the blocks (Decentralized FM: no output layer).
        vocab = 1
        notes.append("vocab is not given: no output layer assumed")
    elif vocab is None:
        vocab = 51200
        notes.append("vocab is not given: 51200 assumed, as in Megatron-LM's tables")
    sequence = _whole(data, "seq", 1024)
    if data.get("layers") and data.get("hidden"):
        layers, hidden = _whole(data, "layers", 1), _whole(data, "hidden", 1)
    else:
        layers, hidden = _usual_shape(_number("params_b", data.get("params_b") or 0) * 1e9)
        notes.append(
            f"layers and hidden are not given: {layers} and {hidden} assumed for params_b {data.get('params_b')}"
        )
    heads = _whole(data, "heads", max(1, hidden // 128))
    return Model(layers, hidden, heads, sequence, _whole({"vocab": vocab}, "vocab", 51200))


def _usual_shape(parameters: float) -> tuple[int, int]:
    """Return layers and hidden size of a GPT with that many parameters, its hidden size about 128 times its layers."""
    if not parameters > 0:
        raise ValueError(
            "model.layers, model.hidden and model.params_b are missing; give layers and hidden, or params_b"
        )
    layers = max(1, round((parameters / (12 * 128**2)) ** (1 / 3)))
    hidden = math.sqrt(parameters / (12 * layers))
    return layers, max(64, round(hidden / 64) * 64)


def _recompute(text: object) -> Recompute:
    mode = str(text or "none").lower()
    if mode.startswith("none"):
        return "none"
    return "selective" if "selective" in mode else "none" if mode in ("unknown", "false") else "full"


def _schedule(text: object, virtual: int, layers: int, notes: list[str]) -> tuple[Schedule, int]:
    name = str(text or "1f1b").lower()
    if not any(part in name for part in _SCHEDULE_PARTS):
        notes.append(f"unknown schedule {str(text)[:40]!r}: 1F1B assumed")
    if name.startswith(("zb-2p", "zb-h2")):
        return "zb-h2", 1
    if name.startswith(("zb-1p", "zb-h1")):
        return "zb-h1", 1
    if name.startswith("zb-v"):
        return "zb-v", 1
    if "gpipe" in name:
        return "gpipe", 1
    if name == "1f1b-i" and virtual == 1:
        # The name in Qi et al. 2023, where each chunk has one layer.
        return "interleaved-1f1b", max(2, layers)
    if "interleaved" in name or name == "1f1b-i" or virtual > 1:
        return "interleaved-1f1b", virtual if virtual > 1 else 2
    return "1f1b", 1


def _offload(columns: object, source: str) -> Literal["none", "optimizer", "all"]:
    """Read {"Opt Offl": "Y", "Par Offl": "N"}; without these columns the title of the table may state offloading."""
    if isinstance(columns, Mapping):
        offloaded = {str(name).lower()[:3] for name, value in columns.items() if str(value).upper().startswith("Y")}
        return "all" if "par" in offloaded else "optimizer" if "opt" in offloaded else "none"
    if columns is None and "full" in source.lower() and "offload" in source.lower():
        return "all"
    return "none"


def _precision(text: object, notes: list[str]) -> Precision:
    precision = str(text or "bf16").lower()
    if precision in ("fp32", "fp16", "bf16", "fp8"):
        return cast(Precision, precision)
    notes.append(f"unknown precision {str(text)[:40]!r}: bf16 assumed")
    return "bf16"


def _zero_stage(value: object) -> int:
    stage = _number("zero", value)
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"zero {value!r} is not a ZeRO stage; use 0, 1, 2 or 3")
    return int(stage)


def _job(data: Mapping[str, Any], model: Model, hardware: Mapping[str, Any], notes: list[str]) -> Job:
    tensor, pipeline = _whole(data, "tp", 1), _whole(data, "pp", 1)
    count = _whole(hardware, "count", tensor * pipeline)
    replicas = _whole(data, "dp", max(1, count // (tensor * pipeline)))
    micro = _whole(data, "mbs", 1)
    if not data.get("mbs"):
        notes.append("mbs is not given: 1 assumed")
    batch = _whole(data, "gbs", micro * replicas * _whole(data, "gas", 1))
    layers_each = stage_layers(model.num_layers, pipeline)[0]
    schedule, chunks = _schedule(data.get("schedule"), _whole(data, "virtual_pp", 1), layers_each, notes)
    if pipeline == 1:
        chunks = 1
    gpu = str(hardware.get("gpu") or "")
    is_recent = gpu.startswith(("H100", "H200", "B200", "MI300"))
    recompute = _recompute(data.get("recompute"))
    # On H100 and later, Megatron-LM uses its distributed optimizer wherever possible.
    zero = _zero_stage(is_recent if data.get("zero") is None else data["zero"])
    optimizer = str(data.get("optimizer") or "")
    framework = str(data.get("framework") or "")
    return Job(
        model,
        batch,
        micro,
        tensor,
        pipeline,
        replicas,
        precision=_precision(data.get("precision"), notes),
        recompute=recompute,
        schedule=schedule,
        virtual_stages=chunks,
        sequence_parallel=bool(data.get("sequence_parallel", is_recent)) or "SP" in str(data.get("recompute") or ""),
        zero_stage=zero,
        gradient_bytes=6 if "fp32-grad" in optimizer else None,
        overlaps_gradients=is_recent or "FSDP" in framework,
        gradient_messages=16 * (model.num_layers // pipeline) if "allreduce" in str(data.get("dp_comm")) else 1,
        has_flash_attention="flash" in str(data.get("attention") or "") or is_recent,
        has_checkpoints_on_cpu="deepspeed" in framework.lower() and zero == 3 and recompute == "full",
        family=framework,
    )


def _cluster(data: Mapping[str, Any], job: Job, group: str) -> Cluster:
    gpu = str(data.get("gpu") or "")
    if not gpu:
        raise ValueError("hardware.gpu is missing; give a device name, for example A100-80GB")
    if "delay_ms" in data or "gbps" in data:
        latency: float | None = _number("delay_ms", data.get("delay_ms") or 0) / 1e3
        network: float | None = _number("gbps", data["gbps"]) if data.get("gbps") else None
    else:
        latency, network = None, gbit_s(str(data.get("inter_node") or ""))
    if "V100-32" in gpu:
        gpu = "V100 32GB"
    if "A100-80" in gpu:
        gpu = "A100 80GB"
    return cluster(
        gpu.replace("-", " ").split("(")[0],
        max(_whole(data, "count", 1), job.world_size),
        _whole(data, "node", 8),
        inter_node_gbit_s=network,
        latency_s=latency,
        is_measured=bool(data.get("gbps")),
        name=group,
    )


def flops_shape(model: Model) -> Shape:
    """Return the sizes used by the closed formulas of a GPT."""
    return Shape(model.num_layers, model.hidden_size, model.sequence_length, model.vocab_size)


def _measured(row: Mapping[str, Any], job: Job) -> Measured:
    data, derived = _section(row, "measured"), _section(row, "derived")
    seconds = data.get("iter_s") or derived.get("iter_s") or derived.get("iter_s_from_exact_F")
    if not seconds:
        seconds = derived.get("iter_s_if_no_recompute") or _seconds_of_rates(data, job)
    memory = data.get("mem_gb") or data.get("mem_gb_nvidia_smi")
    if not memory and data.get("mem_mib_max"):
        memory = _number("mem_mib_max", data["mem_mib_max"]) / 1024
    return Measured(
        _number("iter_s", seconds) if seconds else None,
        _number("mem_gb", memory) if memory else None,
        bool(data.get("oom")),
    )


def _seconds_of_rates(data: Mapping[str, Any], job: Job) -> float | None:
    """Return the time of an iteration (s) from a measured rate per GPU; None if the row states no rate."""
    executed = executed_flops(flops_shape(job.model), job.global_batch_size, job.recompute)
    work = {
        "samples_per_gpu_s": job.global_batch_size,
        "tokens_per_s_gpu": job.tokens,
        "hfu_tflops_per_gpu": executed / 1e12,
        "tflops_per_gpu": executed / 1e12,
        "model_tflops_per_gpu": model_flops(flops_shape(job.model), job.global_batch_size) / 1e12,
    }
    for name, amount in work.items():
        if data.get(name) and (rate := _number(name, data[name])) > 0:
            return amount / (rate * job.world_size)
    return None


def tflops_per_gpu(job: Job, iteration_s: float) -> float:
    """Return executed TFLOP/s per GPU, recomputation included (Narayanan et al. 2021, equation 3)."""
    executed = executed_flops(flops_shape(job.model), job.global_batch_size, job.recompute)
    return executed / (job.world_size * iteration_s) / 1e12
