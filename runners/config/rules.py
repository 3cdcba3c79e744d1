"""Rules that involve several fields: sizes that must divide each other, layouts, schedules and placement."""

from __future__ import annotations

from collections.abc import Iterator

from .chain_rules import chain_problems
from .container_rules import container_problems
from .engine_rules import engine_problems
from .feature_rules import feature_problems
from .fields import RunFields
from .network_rules import emulation_problems, network_problems
from .problems import Problem, divisors
from .sections import ModelSection


def contradictions(config: RunFields) -> Iterator[Problem]:
    """Rules that involve several fields: sizes that must divide each other, layouts, schedules and placement."""
    model, train, parallel = config.model, config.train, config.parallel
    heads, tensor, pipeline = model.num_attention_heads, parallel.tensor_parallel_size, parallel.pipeline_parallel_size

    if model.hidden_size % heads and model.head_dim is None and not model.multi_latent_attention:
        yield Problem(
            "model.num_attention_heads",
            heads,
            f"num_attention_heads {heads} does not divide hidden_size {model.hidden_size};"
            f" use {divisors(model.hidden_size)}",
        )
    if heads % tensor:
        yield Problem(
            "parallel.tensor_parallel_size",
            tensor,
            f"tensor_parallel_size {tensor} does not divide num_attention_heads {heads}; use {divisors(heads)}",
        )
    if model.num_layers < pipeline:
        yield Problem(
            "parallel.pipeline_parallel_size",
            pipeline,
            f"pipeline_parallel_size {pipeline} is greater than num_layers {model.num_layers};"
            f" use at most {model.num_layers} stages or more layers",
        )
    share = train.micro_batch_size * parallel.data_parallel_size
    if not config.engine.reads_batches:
        pass
    elif train.global_batch_size % share:
        yield Problem(
            "train.global_batch_size",
            train.global_batch_size,
            f"global_batch_size {train.global_batch_size} is not divisible by micro_batch_size"
            f" {train.micro_batch_size} x data_parallel_size {parallel.data_parallel_size} = {share};"
            f" use a multiple of {share}",
        )
    elif config.engine.is_external:
        pass  # an external program may accept fewer micro batches than stages
    elif parallel.schedule != "gpipe" and config.num_micro_batches < pipeline:
        yield Problem(
            "train.micro_batch_size",
            train.micro_batch_size,
            f"{parallel.schedule} requires at least as many micro batches as stages, but there are"
            f" {config.num_micro_batches} for {pipeline} stages; use a smaller micro_batch_size, a larger"
            " global_batch_size or schedule gpipe",
        )
    if train.warmup_steps >= train.iterations:
        yield Problem(
            "train.warmup_steps",
            train.warmup_steps,
            f"warmup_steps {train.warmup_steps} of {train.iterations} iterations leave no step to measure;"
            f" use at most {train.iterations - 1}",
        )
    yield from _mask_problems(model)
    yield from _tensor_problems(config)
    yield from _schedule_problems(config)
    yield from _placement_problems(config)
    yield from network_problems(config)
    yield from emulation_problems(config)
    yield from container_problems(config)
    yield from feature_problems(config)
    yield from engine_problems(config)
    yield from chain_problems(config)


def _mask_problems(model: ModelSection) -> Iterator[Problem]:
    mask = model.attention_mask
    if model.kind == "bert" and mask != "bidirectional":
        yield Problem(
            "model.attention_mask",
            mask,
            f"bert needs attention_mask bidirectional, not {mask}; use bidirectional, or kind gpt",
        )
    if model.kind == "gpt" and mask == "bidirectional":
        remedy = "use causal or prefix, or kind bert"
        yield Problem(
            "model.attention_mask",
            mask,
            f"with attention_mask bidirectional, a gpt would see the tokens that it predicts; {remedy}",
        )
    length, longest = model.prefix_length, model.sequence_length - 1
    if model.attention_mask == "prefix" and not 1 <= length <= longest:
        remedy = f"use 1 to {longest}" if longest else "use a longer sequence, or another attention_mask"
        yield Problem(
            "model.prefix_length",
            length,
            f"prefix_length {length} must leave a prefix and at least one token after it in"
            f" {model.sequence_length} tokens; {remedy}",
        )
    if model.attention_backend == "flex" and mask != "prefix":
        message = (
            f"attention_backend flex requires attention_mask prefix, not {mask}; use sdpa, or attention_mask prefix"
        )
        yield Problem("model.attention_backend", "flex", message)
    if model.attention_mask != "prefix" and length:
        yield Problem(
            "model.prefix_length",
            length,
            f"prefix_length {length} has no effect with attention_mask {model.attention_mask};"
            " use 0, or attention_mask prefix",
        )


def _tensor_problems(config: RunFields) -> Iterator[Problem]:
    model, tensor = config.model, config.parallel.tensor_parallel_size
    if model.vocab_size % tensor and not config.engine.is_external:  # other trainers pad the vocabulary
        yield Problem(
            "model.vocab_size",
            model.vocab_size,
            f"tensor_parallel_size {tensor} does not divide vocab_size {model.vocab_size};"
            f" use {-(-model.vocab_size // tensor) * tensor}, or another tensor_parallel_size",
        )
    if config.parallel.sequence_parallel and tensor == 1:
        yield Problem(
            "parallel.sequence_parallel",
            True,
            "sequence_parallel requires tensor parallelism, but tensor_parallel_size is 1; use 2 or more, or false",
        )
    elif config.parallel.sequence_parallel and model.sequence_length % tensor:
        yield Problem(
            "model.sequence_length",
            model.sequence_length,
            f"tensor_parallel_size {tensor} does not divide sequence_length {model.sequence_length}, which"
            " sequence_parallel requires; use a multiple, or sequence_parallel false",
        )
    if config.train.loss_scale is not None and config.train.precision != "fp16":
        yield Problem(
            "train.loss_scale",
            config.train.loss_scale,
            f"loss_scale requires precision fp16, not {config.train.precision}; leave it empty, or use fp16",
        )


def _schedule_problems(config: RunFields) -> Iterator[Problem]:
    parallel, num_layers = config.parallel, config.model.num_layers
    stages, chunks, slope = parallel.pipeline_parallel_size, parallel.virtual_stages, parallel.warmup_slope
    if slope > 1 and parallel.schedule != "1f1b":
        yield Problem(
            "parallel.warmup_slope",
            slope,
            f"warmup_slope {slope} requires schedule 1f1b, not {parallel.schedule}; use 1, or schedule 1f1b",
        )
    if parallel.wire_precision == "int8" and chunks > 1:
        message = "wire_precision int8 supports one chunk of layers per rank only; use bf16, or virtual_stages 1"
        yield Problem("parallel.wire_precision", "int8", message)
    if parallel.schedule != "interleaved-1f1b":
        if chunks > 1:
            yield Problem(
                "parallel.virtual_stages",
                chunks,
                f"virtual_stages {chunks} requires schedule interleaved-1f1b, not {parallel.schedule};"
                " use 1, or schedule interleaved-1f1b",
            )
        return
    if stages == 1:
        yield Problem(
            "parallel.schedule",
            parallel.schedule,
            "interleaved-1f1b requires several stages, not pipeline_parallel_size 1; use 2 or more, or schedule 1f1b",
        )
    elif not 2 <= chunks <= _most_chunks(config):
        most = _most_chunks(config)
        remedy = f"use 2 to {most}" if most >= 2 else f"use at least {2 * stages} layers, or schedule 1f1b"
        yield Problem(
            "parallel.virtual_stages",
            chunks,
            f"virtual_stages {chunks} cannot interleave {num_layers} layers on {stages} ranks; {remedy}",
        )
    if config.num_micro_batches % stages and not config.engine.is_external:
        yield Problem(
            "train.global_batch_size",
            config.train.global_batch_size,
            f"with interleaved-1f1b, the number of micro batches must be a multiple of pipeline_parallel_size {stages},"
            f" not {config.num_micro_batches}; use another global_batch_size or micro_batch_size, or schedule 1f1b",
        )


def _most_chunks(config: RunFields) -> int:
    """Return the largest number of chunks of a rank; other trainers may count embedding and loss as layers."""
    layers = config.model.num_layers + (2 if config.engine.is_external else 0)
    return layers // config.parallel.pipeline_parallel_size


def _placement_problems(config: RunFields) -> Iterator[Problem]:
    parallel, cluster, world_size = config.parallel, config.cluster, config.world_size
    context = f" x CP {parallel.context_parallel_size}" if parallel.context_parallel_size > 1 else ""
    layout = (
        f"TP {parallel.tensor_parallel_size} x PP {parallel.pipeline_parallel_size}{context}"
        f" x DP {parallel.data_parallel_size} = {world_size}"
    )
    if cluster.gpus_per_node is None:
        if world_size % cluster.nodes:
            yield Problem(
                "cluster.nodes",
                cluster.nodes,
                f"nodes {cluster.nodes} does not divide {layout} GPUs; use {divisors(world_size)}",
            )
    elif cluster.nodes * cluster.gpus_per_node != world_size:
        yield Problem(
            "cluster.gpus_per_node",
            cluster.gpus_per_node,
            f"nodes {cluster.nodes} x gpus_per_node {cluster.gpus_per_node} is not {layout} GPUs;"
            " leave gpus_per_node empty, or make them equal",
        )
    names = [name for name in (cluster.node_names or "").split(",") if name]
    if names and len(set(names)) < cluster.nodes:
        yield Problem(
            "cluster.node_names",
            cluster.node_names,
            f"node_names {cluster.node_names} has {len(set(names))} names, but the run needs {cluster.nodes} nodes;"
            " add names, or leave it empty",
        )
    if not config.starter.starts_ranks and world_size > 1 and not config.engine.is_external:
        name = config.starter.name
        message = f"launcher {name} starts one process, but the layout needs {world_size}; use torchrun"
        yield Problem("launcher.kind", name, message)
