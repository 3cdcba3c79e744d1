"""Sizes of a launch that the rules need, from a segment of a document or from a stored run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.findings.contradictions import Amount, Counts, RunFacts, printed
from parlab.formats.schema import Figure, Segment
from parlab.planner.job.configs import other_model

_RECOMPUTE = ("recompute_granularity", "recompute_activations", "checkpoint_activations", "recompute")
# Ranks that share a sequence (Megatron-LM, torchtitan, DeepSpeed-Ulysses): a factor of the layout like TP and DP.
_CONTEXT = (
    "context_parallel_size", "context_parallel_degree", "cp_size", "cp", "sequence_parallel_size",
    "ds_sequence_parallel_size",
)  # fmt: skip
# Layouts that are not a product of TP, PP, DP and CP: replicas times shards, an encoder beside the decoder.
_OTHER_LAYOUTS = (
    "data_parallel_shard_degree", "dp_shard", "hsdp_shard_size", "encoder_pipeline_model_parallel_size",
    "encoder_tensor_model_parallel_size",
)  # fmt: skip
# Arguments of Megatron-LM (arguments.py) and other trainers whose work the sizes of a transformer do not determine.
_OTHER_KINDS = ("hybrid_override_pattern", "decoder_seq_length", "lora_rank", "lora_r", "peft_type")
# Arguments that the formulas of planner.flops do not cover.
_OTHER_SHAPES = (
    *_OTHER_KINDS, "num_experts", "moe_num_experts", "swiglu", "group_query_attention", "num_query_groups",
    "num_key_value_heads", "multi_latent_attention", "untie_embeddings_and_output_weights",
)  # fmt: skip

_CURRICULA = ("curriculum_learning", "curriculum_learning_legacy", "variable_seq_lengths", "data_efficiency_curriculum")


class Sizes(NamedTuple):
    """Sizes of a launch; None if unknown. Batch sizes count sequences."""

    gpus: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None
    context: int | None = None
    micro_batch: int | None = None
    global_batch: int | None = None
    accumulation: int | None = None
    sequence: int | None = None
    layers: int | None = None
    hidden: int | None = None
    vocabulary: int | None = None
    precision: str | None = None
    recompute: str | None = None
    is_plain: bool = True
    """A transformer that planner.flops describes: no experts, gates or grouped queries."""
    is_transformer: bool = True
    """All weights train, and all layers have attention."""
    is_ramped: bool = False
    """The global batch size grows during training."""
    is_curriculum: bool = False
    """The sequence length changes during training."""

    @property
    def counts(self) -> Counts:
        return Counts(self.accumulation, self.gpus, self.data)


def segment_sizes(segment: Segment) -> Sizes:
    """Return the sizes of a segment's launch."""
    launch, arguments = segment.launch, _by_last_name(segment.launch.arguments)
    return Sizes(
        gpus=launch.world_size,
        tensor=launch.tensor_parallel_size,
        pipeline=launch.pipeline_parallel_size,
        data=None if _any(arguments, _OTHER_LAYOUTS) else launch.data_parallel_size,
        context=_context(arguments),
        micro_batch=launch.micro_batch_size,
        global_batch=launch.global_batch_size,
        accumulation=launch.gradient_accumulation_steps,
        sequence=launch.sequence_length,
        layers=launch.num_layers,
        hidden=launch.hidden_size,
        vocabulary=count(arguments.get("padded_vocab_size")) or count(arguments.get("vocab_size")),
        precision=launch.precision,
        recompute=_recompute(arguments),
        is_plain=_is_plain(arguments, launch.hidden_size),
        is_transformer=not _any(arguments, _OTHER_KINDS),
        is_ramped=bool(arguments.get("rampup_batch_size")),
        is_curriculum=_any(arguments, _CURRICULA),
    )


def run_sizes(run: RunFacts) -> Sizes:
    """Return the sizes of a run: arguments of its launch, otherwise its resolved configuration."""

    def get(section: str, name: str) -> Any:
        argument = run.arguments.get(name)
        return argument if argument is not None else part(run.config, section).get(name)

    arguments = _by_last_name(run.arguments)
    cluster = part(run.config, "cluster")
    nodes, per_node = count(cluster.get("nodes")), count(cluster.get("gpus_per_node"))
    placed = nodes * per_node if nodes and per_node else None
    precision = get("train", "precision")
    is_other = _any(arguments, _OTHER_LAYOUTS) or not run.has_product_layout
    return Sizes(
        gpus=count(run.arguments.get("world_size")) or placed,
        tensor=count(get("parallel", "tensor_parallel_size")),
        pipeline=count(get("parallel", "pipeline_parallel_size")),
        data=None if is_other else count(get("parallel", "data_parallel_size")),
        context=_context(arguments) or count(part(run.config, "parallel").get("context_parallel_size")),
        micro_batch=count(get("train", "micro_batch_size")),
        global_batch=count(get("train", "global_batch_size")),
        accumulation=count(run.arguments.get("gradient_accumulation_steps")),
        sequence=count(get("model", "sequence_length")),
        layers=count(get("model", "num_layers")),
        hidden=count(get("model", "hidden_size")),
        vocabulary=count(get("model", "vocab_size")),
        precision=precision if isinstance(precision, str) else None,
        recompute=part(run.config, "train").get("recompute") or _recompute(arguments),
        is_plain=_is_plain(arguments, count(get("model", "hidden_size")))
        and other_model(part(run.config, "model")) is None,
        is_ramped=bool(arguments.get("rampup_batch_size")),
        is_curriculum=_any(arguments, _CURRICULA),
    )


def part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of nested data; empty if there is none."""
    section = data.get(name)
    return section if isinstance(section, Mapping) else {}


def count(value: Any) -> int | None:
    """Return a positive integer; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**53 or value != int(value):
        return None
    return int(value)


def number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300 or not math.isfinite(value):
        return None
    return float(value)


def stated(segment: Segment, name: str) -> Figure | None:
    """Return a figure that the prose near a launch states, if it is a number."""
    figure = segment.figures.get(name)
    return figure if figure is not None and figure.value is not None else None


def figure_amount(figure: Figure) -> Amount:
    """Return a figure with the precision of its digits: those of its own number, or of the only number in its text.

    The number in the text may be in another unit: `0.35 s per iteration` is 350 +- 5 ms.
    """
    value = figure.value or 0.0
    amounts = [amount for word in figure.text.split() if (amount := printed(word)) is not None]
    for amount in amounts:
        if amount.value == value:
            return amount
    if len(amounts) == 1 and amounts[0].value:
        return Amount(value, amounts[0].slack * abs(value / amounts[0].value))
    return Amount(value)


def _recompute(arguments: Mapping[str, Any]) -> str | None:
    for name in _RECOMPUTE:
        value = arguments.get(name)
        if isinstance(value, str) and value not in ("", "None"):
            return value
        if isinstance(value, bool):
            if not value:
                return "none"
            # recompute_activations (since 2022) means selective recomputation, the older checkpoint_activations full.
            return "selective" if name == "recompute_activations" else "full"
    return None


def _by_last_name(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the sections of nested settings: `parallelism.context_parallel_degree` -> context_parallel_degree."""
    return {name.rpartition(".")[2]: value for name, value in arguments.items()}


def _any(arguments: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    return any(arguments.get(name) for name in names)


def _context(arguments: Mapping[str, Any]) -> int | None:
    return next((size for name in _CONTEXT if (size := count(arguments.get(name)))), None)


def _is_plain(arguments: Mapping[str, Any], hidden: int | None) -> bool:
    if _any(arguments, _OTHER_SHAPES):
        return False
    feed_forward = count(arguments.get("ffn_hidden_size")) or count(arguments.get("intermediate_size"))
    return feed_forward is None or hidden is None or feed_forward == 4 * hidden
