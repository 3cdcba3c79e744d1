"""Convert rows of published measurements (`model`, `parallel`, `hardware`, `measured`) to jobs on clusters.

Missing keys get usual values; the notes of a row list each of these assumptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from parlab.planner.job.cluster import Cluster, cluster, gbit_s
from parlab.planner.job.code_bases import CodeBase, code_base, release_of, with_code_base
from parlab.planner.job.practice import practice
from parlab.planner.job.workload import Job, Model, Precision, Schedule
from parlab.planner.prediction.job_flops import flops_of
from parlab.planner.prediction.memory import layers_of_stage
from parlab.planner.requests.fields import nearest_name, refuse_unknown

from . import row_choices, row_notes
from .recipes import recipe_fields
from .row_checks import gpu_of, refuse_impossible
from .row_choices import flag
from .row_fields import HARDWARE, MODEL, PARALLEL, names_of_rows
from .row_models import read_model
from .row_values import given, is_missing, maybe, number, section, stated, whole
from .sites import site_of


@dataclass(frozen=True)
class Measured:
    """Measured values of a row; None if not stated."""

    iteration_s: float | None = None
    memory_gb: float | None = None
    is_oom: bool = False
    is_allocated: bool = False
    """The memory is that of torch's allocator instead of the driver's ("memory_of": "allocator")."""


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
    is_recompute_open: bool = False
    """The row does not state what is recomputed."""


def read(row: Mapping[str, Any]) -> Row:
    """Read one row. Raises ValueError that names field, value and remedy."""
    notes: list[str] = []
    model_data, parallel, hardware = (section(row, name) for name in ("model", "parallel", "hardware"))
    refuse_unknown("model", model_data, MODEL)
    refuse_unknown("parallel", parallel, PARALLEL)
    refuse_unknown("hardware", hardware, HARDWARE)
    framework = given(parallel.get("framework"), "")
    if not isinstance(framework, str):
        raise ValueError(f"framework {str(framework)[:40]!r} is not a text; use the name of a trainer, or leave it out")
    # MosaicML's models have no dropout.
    is_fsdp = framework.startswith("FSDP")
    with names_of_rows():
        model = read_model(model_data, notes, is_shaped=bool(hardware.get("gbps")), has_dropout=not is_fsdp)
    if model.num_experts > 1:
        parallel = _with_recipe(row, parallel, notes)
    named = code_base(framework, str(row.get("source") or ""))
    with names_of_rows():
        job = _job(parallel, model, hardware, notes, named)
    offloaded = _offload(parallel.get("offload"), str(row.get("source") or ""))
    job = replace(job, code_base=named.name if named else "", zero_offload=offloaded)
    refuse_impossible(job, row)
    notes += [*row_notes.defaults(row, job), *row_notes.contradictions(row, job), *row_notes.without_effect(row, job)]
    is_precision_stated = any(parallel.get(name) for name in ("precision", "optimizer", "framework"))
    is_open = not is_precision_stated and "V100" in str(hardware.get("gpu"))
    if is_open:
        job = replace(job, precision="fp32")
        notes.append("precision is not given: fp32 assumed, the default of torch")
    job = replace(_with_habits(job, named, notes), release=_release(parallel, str(row.get("source") or "")))
    group = str(row.get("group") or "")
    with names_of_rows():
        hardware_cluster = _cluster(_with_links(hardware, str(row.get("source") or ""), notes), job, group)
    is_recompute_open = row_choices.is_recompute_unstated(parallel.get("recompute"))
    measured = _measured(row, job)
    return Row(str(row.get("id", "")), group, job, hardware_cluster, measured, is_open, notes, is_recompute_open)


def _release(parallel: Mapping[str, Any], source: str) -> str:
    """Return the release of the code base: as stated, otherwise the one in the source of the row."""
    stated = parallel.get("release")
    return release_of(source) if stated is None else str(stated)[:40]


def _with_recipe(row: Mapping[str, Any], parallel: Mapping[str, Any], notes: list[str]) -> Mapping[str, Any]:
    """Return a layout with what the recipe of the row states, unless the row states it."""
    model, hardware = section(row, "model"), section(row, "hardware")
    names = (str(model.get("name") or ""), str(hardware.get("gpu") or ""), str(parallel.get("precision") or ""))
    fields = recipe_fields(str(row.get("source") or ""), *names)
    added = {name: value for name, value in fields.items() if parallel.get(name) is None}
    if added:
        notes.append(f"as in its recipe: {', '.join(f'{name} {value}' for name, value in added.items())}")
    return {**parallel, **added}


def _with_habits(job: Job, named: CodeBase | None, notes: list[str]) -> Job:
    """Return a job with the habits of its code base, which the framework or the source of the row names."""
    if named is None:
        return job
    if named.habit:
        notes.append(
            f"as usual for {named.name}: {', '.join(f'{name} {value}' for name, value in named.habit.items())}"
        )
    return replace(with_code_base(job, named.name), family=job.family or named.name)


def _offload(value: object, source: str) -> row_choices.Offload:
    """Return the offloaded states; if a row does not say, the title of its table may."""
    if is_missing(value) and "full" in source.lower() and "offload" in source.lower():
        return "all"
    return row_choices.offload(value)


def _precision(data: Mapping[str, Any], gpu: str, notes: list[str]) -> Precision:
    """Return the precision, by default that of the 16 bits of code base and device.

    V100s have no bf16. Megatron-LM of 2020 to 2022, recognised by its option for data parallelism, trains in fp16.
    """
    usual: Precision = (
        "fp16"
        if "V100" in gpu or row_choices.is_old_megatron(data.get("ddp")) or data.get("optimizer") == "fp16"
        else "bf16"
    )
    if not data.get("precision"):
        notes.append(f"precision is not given: {usual} assumed")
    return row_choices.precision(data.get("precision"), usual)


def _zero_stage(data: Mapping[str, Any], usual: int) -> int:
    value = data.get("zero")
    stage = number("zero", usual if is_missing(value) else value)
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"zero {value!r} is not a ZeRO stage; use 0, 1, 2 or 3")
    return int(stage)


_MOST_CHUNKS = 8


def _gradient_bytes(data: Mapping[str, Any], shard_ranks: int | None) -> int | None:
    if "fp32-grad" in str(data.get("optimizer") or ""):
        return 6
    return 4 if shard_ranks else None


def _job(
    data: Mapping[str, Any], model: Model, hardware: Mapping[str, Any], notes: list[str], named: CodeBase | None
) -> Job:
    tensor, pipeline, context = whole(data, "tp", 1), whole(data, "pp", 1), whole(data, "cp", 1)
    count = whole(hardware, "count", tensor * pipeline * context)
    replicas = whole(data, "dp", max(1, count // (tensor * pipeline * context)))
    micro = whole(data, "mbs", 1)
    batch = whole(data, "gbs", micro * replicas * whole(data, "gas", 1))
    framework = str(data.get("framework") or "")
    shard_ranks = maybe(data, "fsdp")
    is_fsdp = bool(shard_ranks) or framework.startswith("FSDP")
    gpu = str(hardware.get("gpu") or "")
    precision = _precision(data, gpu, notes)
    is_recent = practice(gpu, precision, 1).is_recent
    schedule, chunks = _layout_schedule(data, model, pipeline, notes, is_recent=is_recent)
    recompute = row_choices.recompute(data.get("recompute"))
    # On H100 and later, Megatron-LM uses its distributed optimizer wherever possible.
    zero = _zero_stage(data, 3 if shard_ranks else int(is_recent))
    has_flash = row_choices.is_fused(data.get("attention"), usual=is_recent)
    usual = practice(gpu, precision, chunks, framework=named.name if named else "", is_fsdp=is_fsdp)
    return Job(
        model,
        batch,
        micro,
        tensor,
        pipeline,
        replicas,
        precision=precision,
        recompute=recompute,
        schedule=schedule,
        virtual_stages=chunks,
        sequence_parallel=flag("parallel", data, "sequence_parallel", is_recent)
        or "SP" in str(data.get("recompute") or ""),
        zero_stage=zero,
        gradient_bytes=_gradient_bytes(data, shard_ranks),
        overlaps_gradients=flag("parallel", data, "overlap_gradients", usual.overlaps_gradients),
        gradient_messages=16 * (model.num_layers // pipeline) if "allreduce" in str(data.get("dp_comm")) else 1,
        has_flash_attention=has_flash,
        has_checkpoints_on_cpu="deepspeed" in framework.lower() and zero == 3 and recompute == "full",
        family=framework,
        context_parallel=context,
        context_exchange=row_choices.exchange(data.get("cp_comm")),
        expert_parallel=whole(data, "ep", 1),
        expert_tensor_parallel=whole(data, "etp", 1),
        shard_ranks=shard_ranks,
        # torchtitan keeps gathered weights between the micro batches of a pipeline.
        reshards_after_forward=flag("parallel", data, "reshard_after_forward", pipeline == 1),
        overlaps_tensor=flag("parallel", data, "overlap_tensor", usual.overlaps_tensor),
        overlaps_experts=flag(
            "parallel", data, "overlap_experts", usual.overlaps_experts or schedule.startswith("dualpipe")
        ),
        overlaps_pipeline=flag("parallel", data, "overlap_pipeline", usual.overlaps_pipeline),
        dispatcher=row_choices.dispatcher(data.get("expert_dispatcher"), usual.dispatcher),
        expert_imbalance=number("expert_imbalance", given(data.get("expert_imbalance"), 1)),
        grouped_products=row_choices.grouped_products(data.get("grouped_products")),
        recomputed_layers=stated(data, "recomputed_layers"),
        first_stage_layers=stated(data, "first_stage_layers"),
        last_stage_layers=stated(data, "last_stage_layers"),
        offloads_activations=flag("parallel", data, "offload_activations"),
        # Experiments with shaped links between single GPUs run plain PyTorch modules (Decentralized FM).
        fuses_pointwise=not row_choices.is_eager(data.get("compile")) and not hardware.get("gbps"),
        has_fused_norms=None if is_missing(data.get("fused_norms")) else flag("parallel", data, "fused_norms"),
        fuses_loss=flag("parallel", data, "fused_loss", framework.startswith("FSDP")),
        copies_logits=is_fsdp and not framework,
        has_cuda_graphs=flag("parallel", data, "cuda_graphs", usual.has_cuda_graphs),
        optimizer_bytes=row_choices.optimizer_bytes(data.get("optimizer")),
        gathers_logits=flag("parallel", data, "gathered_logits"),
        recomputes_activation=flag("parallel", data, "recompute_activation"),
        has_8_bit_experts=flag("parallel", data, "compressed_experts"),
        has_expandable_segments=flag("parallel", data, "expandable_segments"),
        flash_generation=_flash_generation(data, framework, is_fsdp=is_fsdp),
    )


def _flash_generation(data: Mapping[str, Any], framework: str, *, is_fsdp: bool) -> int | None:
    """Return the generation of fused attention: "flash-2" is 2, MosaicML of 2023 used 1, torch's own kernel is 2."""
    attention = str(data.get("attention") or "")
    if attention[-2:] in ("-1", "-2", "-3"):
        return int(attention[-1])
    return 1 if framework.startswith("FSDP") else 2 if is_fsdp and not framework else None


def _layout_schedule(
    data: Mapping[str, Any], model: Model, pipeline: int, notes: list[str], *, is_recent: bool
) -> tuple[Schedule, int]:
    """Return the schedule and its chunks; recent trainings whose schedule is not stated interleave."""
    layers_each = max(layers_of_stage(model.num_layers, pipeline, stage) for stage in {0, min(1, pipeline - 1)})
    name = "vp" if is_missing(data.get("virtual_pp")) else "virtual_pp"
    if is_recent and pipeline > 1 and is_missing(data.get(name)) and is_missing(data.get("schedule")):
        chunks = max(v for v in range(1, _MOST_CHUNKS + 1) if layers_each % v == 0)
        notes.append(f"schedule is not given: interleaved 1F1B with {chunks} chunks assumed")
        return ("interleaved-1f1b", chunks) if chunks > 1 else ("1f1b", 1)
    virtual = whole(data, name, 1)
    schedule, chunks = row_choices.schedule(data.get("schedule"), virtual, layers_each)
    return schedule, chunks if pipeline > 1 else 1


def _with_links(data: Mapping[str, Any], source: str, notes: list[str]) -> Mapping[str, Any]:
    """Return the hardware with the links of a known cluster, unless the row states links."""
    site = site_of(source)
    if site is None or {"inter_node", "gbps", "link_gb_s"} & data.keys():
        return data
    notes.append(
        f"links of the {site.name}: {site.link_gb_s:g} GB/s inside a node, {site.network_gbit_s:g} Gbit/s between nodes"
    )
    return {**data, "link_gb_s": site.link_gb_s, "inter_node": f"{site.network_gbit_s:g}Gb"}


def _cluster(data: Mapping[str, Any], job: Job, group: str) -> Cluster:
    if "delay_ms" in data or "gbps" in data:
        latency: float | None = number("delay_ms", data.get("delay_ms") or 0) / 1e3
        network: float | None = number("gbps", data["gbps"]) if data.get("gbps") else None
    else:
        latency, network = None, gbit_s(str(data.get("inter_node") or ""))
    return cluster(
        gpu_of(data),
        max(whole(data, "count", 1), job.world_size),
        whole(data, "node", 8),
        inter_node_gbit_s=network,
        link_gb_s=None if is_missing(data.get("link_gb_s")) else number("link_gb_s", data["link_gb_s"]),
        latency_s=latency,
        is_measured=bool(data.get("gbps")) or "measured" in str(data.get("inter_node") or "").lower(),
        name=group,
        nvlink_domain=stated(data, "nvlink_domain"),
        oversubscription=number("oversubscription", given(data.get("oversubscription"), 1)),
        is_rail_optimized=flag("hardware", data, "rail_optimized"),
    )


_MEASURES = (
    "iter_s", "mem_gb", "mem_gb_nvidia_smi", "memory_gb", "mem_mib_max", "oom", "samples_per_gpu_s",
    "tokens_per_s_gpu", "tokens_per_s_per_gpu", "hfu_tflops_per_gpu", "tflops_per_gpu", "model_tflops_per_gpu",
)  # fmt: skip
"""Fields of `measured` that calibrate; others are remarks."""


def _measured(row: Mapping[str, Any], job: Job) -> Measured:
    data, derived = section(row, "measured"), section(row, "derived")
    seconds = data.get("iter_s") or derived.get("iter_s") or derived.get("iter_s_from_exact_F")
    if not seconds:
        seconds = derived.get("iter_s_if_no_recompute") or _seconds_of_rates(data, job)
    memory = data.get("mem_gb") or data.get("mem_gb_nvidia_smi") or data.get("memory_gb")
    if not memory and data.get("mem_mib_max"):
        memory = number("mem_mib_max", data["mem_mib_max"]) / 1024
    return Measured(
        _within("iter_s", seconds, 1e9),
        _within("mem_gb", memory, 1e6),
        flag("measured", data, "oom"),
        data.get("memory_of") == "allocator",
    )


def _within(name: str, value: object, most: float) -> float | None:
    """Return a measured value; None if it is not stated. Raises ValueError for one that nothing can measure."""
    if not value:
        return None
    if not 1e-6 <= (size := number(name, value)) <= most:
        raise ValueError(f"measured.{name} {size:g} is out of range; use 0.000001 to {most:g}")
    return size


def unmeasured(row: Mapping[str, Any]) -> str:
    """Return why a row without a measurement calibrates nothing, with the nearest names of its fields."""
    stated = [*section(row, "measured")]
    nearest = [name for field in stated if (name := nearest_name(str(field), _MEASURES))]
    hint = f"did you mean {nearest[0]}? " if nearest else ""
    return f"measured has no measurement; {hint}use one of {', '.join(_MEASURES)}"


def _seconds_of_rates(data: Mapping[str, Any], job: Job) -> float | None:
    """Return the time of an iteration (s) from a measured rate per GPU; None if the row states no rate."""
    needed, executed = (flops / 1e12 for flops in flops_of(job))
    work = {
        "samples_per_gpu_s": job.global_batch_size,
        "tokens_per_s_gpu": job.tokens,
        "tokens_per_s_per_gpu": job.tokens,
        "hfu_tflops_per_gpu": executed,
        "tflops_per_gpu": executed,
        "model_tflops_per_gpu": needed,
    }
    for name, amount in work.items():
        if data.get(name) and (rate := number(name, data[name])) > 0:
            return amount / (rate * job.world_size)
    return None


def tflops_per_gpu(job: Job, iteration_s: float) -> float:
    """Return executed TFLOP/s per GPU, recomputation included (Narayanan et al. 2021, equation 3)."""
    return flops_of(job)[1] / (job.world_size * iteration_s) / 1e12
