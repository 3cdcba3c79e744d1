"""What the chosen engine does not support, and the rules of the sections that only some engines read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from .device_map import map_problems
from .engines import ENGINES, Engine, engine_names
from .features import FEATURES
from .fields import RunFields
from .problems import Problem, divisors
from .sections import PLACEHOLDER, ModelSection, ParallelSection, Section, TrainSection

SECTIONS: Mapping[str, type[Section]] = {"model": ModelSection, "train": TrainSection, "parallel": ParallelSection}
"""Sections with fields of features."""


def engine_problems(config: RunFields) -> Iterator[Problem]:
    """Check a configuration against what its engine supports; a search is checked as the engine of its trials."""
    engine = config.training_engine
    for field, supported in engine.supported_values.items():
        section, _, name = field.partition(".")
        value = getattr(getattr(config, section), name)
        if value not in supported:
            choice = " or ".join(str(choice) for choice in supported)
            yield Problem(field, value, f"engine {engine.name} does not support {name} {value}; use {choice}")
    yield from _feature_problems(config, engine)
    yield from _huggingface_problems(config.model, engine)
    if config.parallel.zero_offload != "none":
        yield from _offload_problems(config.parallel, engine)
    yield from _profile_problems(config)
    yield from _checkpoint_problems(config)
    for section in config.engine.sections:
        if section in SECTION_RULES:
            yield from SECTION_RULES[section](config)


def _feature_problems(config: RunFields, engine: Engine) -> Iterator[Problem]:
    """Check that nothing is set that only other trainers have."""
    for section, name, default, lack in _lacking(engine):
        value = getattr(getattr(config, section), name)
        if value != default:
            field = f"{section}.{name}"
            choice = " or ".join(other for other, row in ENGINES.items() if field in row.fields)
            usual = "leave it empty" if default is None else f"use {str(default).lower()}"
            message = f"engine {engine.name} {lack}; {usual}, or describe the training with engine {choice}"
            yield Problem(field, value, f"{name} {value}: {message}")


@cache
def _lacking(engine: Engine) -> tuple[tuple[str, str, Any, str], ...]:
    """Return section, name and default of the features that an engine does not have, and how messages name them."""
    return tuple(
        (section, name, SECTIONS[section].model_fields[name].default, feature.lack)
        for feature in FEATURES
        for section, _, name in (field.partition(".") for field in feature.fields)
        if f"{section}.{name}" not in engine.fields
    )


def _profile_problems(config: RunFields) -> Iterator[Problem]:
    """Check which steps and ranks are recorded."""
    steps, ranks = config.profile.steps, config.profile.ranks
    if not steps:
        return
    if "profile" not in config.engine.sections:
        choice = ", ".join(engine_names(lambda row: "profile" in row.sections))
        message = f"engine {config.engine.name} records no traces; use an empty list, or engine {choice}"
        yield Problem("profile.steps", steps, message)
        return
    if steps != list(range(steps[0], steps[0] + len(steps))):
        last = steps[0] + len(steps) - 1
        message = f"steps {steps} are not consecutive; use steps in a row, like [{steps[0]}, {max(last, steps[0] + 1)}]"
        yield Problem("profile.steps", steps, message)
    elif steps[-1] > config.train.iterations:
        message = f"step {steps[-1]} is after the last step; use steps up to train.iterations {config.train.iterations}"
        yield Problem("profile.steps", steps, message)
    if outside := [rank for rank in ranks if rank >= config.world_size]:
        message = f"rank {outside[0]} does not exist; use ranks 0 to {config.world_size - 1}"
        yield Problem("profile.ranks", ranks, message)


def _checkpoint_problems(config: RunFields) -> Iterator[Problem]:
    """Check that the engine writes checkpoints, and that their directory is not the root of all files."""
    wanted = config.checkpoint
    if wanted.is_on and "checkpoint" not in config.engine.sections:
        choice = ", ".join(engine_names(lambda row: "checkpoint" in row.sections))
        message = f"engine {config.engine.name} writes no checkpoints; leave it empty, or use engine {choice}"
        field = "every_s" if wanted.every_steps is None else "every_steps"
        yield Problem(f"checkpoint.{field}", getattr(wanted, field), message)
    if wanted.directory and ".." in wanted.directory.split("/"):
        message = f"directory {wanted.directory} contains ..; use the path of the directory itself"
        yield Problem("checkpoint.directory", wanted.directory, message)


def _autotuning_problems(config: RunFields) -> Iterator[Problem]:
    first, most = config.train.micro_batch_size, config.autotuning.max_micro_batch_size
    if first > most:
        message = (
            f"max_micro_batch_size {most} is below train.micro_batch_size {first}, where the search starts;"
            f" use {first} or more"
        )
        yield Problem("autotuning.max_micro_batch_size", most, message)
    if config.parallel.zero_offload != "none":
        message = "DeepSpeed's autotuner does not support offloading; use none, or a sweep of engine zero"
        yield Problem("parallel.zero_offload", config.parallel.zero_offload, message)


def _huggingface_problems(model: ModelSection, engine: Engine) -> Iterator[Problem]:
    if model.implementation == "parlab":
        return
    if not engine.can_train_huggingface:
        choice = " or ".join(engine_names(lambda row: row.can_train_huggingface))
        message = (
            f"engine {engine.name} cannot train Hugging Face's models; use implementation parlab, or engine {choice}"
        )
        yield Problem("model.implementation", model.implementation, message)
    if model.attention_mask == "prefix":
        message = (
            "Hugging Face models do not support the prefix mask; use attention_mask causal, or implementation parlab"
        )
        yield Problem("model.attention_mask", "prefix", message)


def _offload_problems(parallel: ParallelSection, engine: Engine) -> Iterator[Problem]:
    offload, stage = parallel.zero_offload, parallel.zero_stage
    if not engine.can_offload:
        choice = " or ".join(engine_names(lambda row: row.can_offload and not row.is_external))
        message = f"zero_offload {offload} requires engine {choice}, not {engine.name}; use none, or engine {choice}"
        yield Problem("parallel.zero_offload", offload, message)
    elif stage < (least := 3 if offload == "all" else 1):
        message = f"zero_offload {offload} requires zero_stage {least} or more, not {stage}; use none, or zero_stage 3"
        yield Problem("parallel.zero_offload", offload, message)


def _command_problems(config: RunFields) -> Iterator[Problem]:
    if config.command.argv is None:
        message = 'engine command requires argv; use a list like ["/opt/train.py", "--layers", "{model.num_layers}"]'
        yield Problem("command.argv", None, message)
    fields = {f"{section}.{name}" for section, values in config for name in type(values).model_fields}
    placeholders = {"world_size", "num_micro_batches", *fields}
    for argument in config.command.argv or []:
        for name in PLACEHOLDER.findall(argument):
            if name not in placeholders:
                message = f"unknown field {{{name}}}; use {{section.field}}, {{world_size}} or {{num_micro_batches}}"
                yield Problem("command.argv", argument, message)


def _sharding_problems(config: RunFields) -> Iterator[Problem]:
    sharding, model, device = config.sharding, config.model, config.cluster.device
    yield from map_problems(sharding)
    size, stages, degree = sharding.sharding_size, sharding.stage_cnt, sharding.accum_degree
    if stages > model.num_layers:
        most = model.num_layers
        message = f"stage_cnt {stages} is greater than num_layers {most}; use at most {most}, or more layers"
        yield Problem("sharding.stage_cnt", stages, message)
    for name in ("hidden_size", "vocab_size"):
        whole = getattr(model, name)
        if whole % size:
            message = f"sharding_size {size} does not divide {name} {whole}; use {divisors(whole)}"
            yield Problem("sharding.sharding_size", size, message)
    if sharding.mode == "sharding" and degree > 1:
        message = f"mode sharding has one micro batch, but accum_degree is {degree}; use 1, or mode hybrid"
        yield Problem("sharding.accum_degree", degree, message)
    if sharding.mode == "pipeline" and size > 1:
        message = f"mode pipeline has one shard per stage, but sharding_size is {size}; use 1, or mode hybrid"
        yield Problem("sharding.sharding_size", size, message)
    if config.train.micro_batch_size * degree != config.train.global_batch_size:
        message = (
            f"micro_batch_size {config.train.micro_batch_size} x accum_degree {degree} is not global_batch_size"
            f" {config.train.global_batch_size}; use micro_batch_size = global_batch_size / accum_degree"
        )
        yield Problem("train.micro_batch_size", config.train.micro_batch_size, message)
    kinds = {device[:3] for stage in (sharding.device_mapping or {}).values() for device in stage.values()}
    excluded = {"GPU"} if not config.device.may_use_gpus else {"CPU"} if not config.device.may_use_cpu else set()
    for kind in sorted(kinds & excluded):
        message = f"device {device} contradicts device_mapping, which names {kind}s; use auto, or another map"
        yield Problem("cluster.device", device, message)


def _collectives_problems(config: RunFields) -> Iterator[Problem]:
    sizes, ranks = config.collectives, config.world_size
    if ranks < 2:
        yield Problem(
            "parallel.data_parallel_size",
            ranks,
            "a collective operation requires several ranks; use data_parallel_size 2 or more",
        )
    if sizes.max_bytes < sizes.min_bytes:
        message = f"max_bytes {sizes.max_bytes} is less than min_bytes {sizes.min_bytes}; use {sizes.min_bytes} or more"
        yield Problem("collectives.max_bytes", sizes.max_bytes, message)
    if sizes.min_bytes < 4 * ranks:
        message = (
            f"min_bytes {sizes.min_bytes} is less than one 4-byte number per rank for {ranks} ranks; use {4 * ranks}"
        )
        yield Problem("collectives.min_bytes", sizes.min_bytes, message + " or more")


SECTION_RULES: Mapping[str, Callable[[RunFields], Iterator[Problem]]] = {
    "collectives": _collectives_problems,
    "sharding": _sharding_problems,
    "autotuning": _autotuning_problems,
    "command": _command_problems,
}
"""Section -> its rules, for the engines that read it."""
