"""Command line of the pipeline engine: a configuration file, or flags that describe one rank."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from runners.config import ConfigError, Problem, RunConfig, check
from runners.config.devices import AUTO, DEVICES
from runners.engines.process.process_group import Place, place_by_hand, place_from_environment
from runners.engines.process.starting import config_at
from runners.schedules import SCHEDULES


class Request(NamedTuple):
    """What one rank has to run."""

    config: RunConfig
    place: Place
    by_hand: bool = False
    """Each rank was started manually; also print human-readable lines."""
    all_operations: bool = False
    """Print the operations of every step, not only of selected ones."""


def _integer_from(minimum: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"invalid value {text}; use an integer of at least {minimum}")
        return int(text)

    return read


def _dist_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        valid = parts.scheme == "tcp" and bool(parts.hostname) and bool(parts.port)
    except ValueError:  # urlsplit checks the port when it is read
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"invalid address {text}; use tcp://HOST:PORT with the host of rank 0")
    return text


REQUIRED = object()


class Flag(NamedTuple):
    """A flag of a manually started rank, the configuration field that it sets, and its default."""

    name: str
    field: str
    default: Any
    help: str
    type: Callable[[str], Any] = _integer_from(1)
    choices: Sequence[str] | None = None


FLAGS = (
    Flag("--dist-url", "", REQUIRED, "rendezvous address, tcp://HOST:PORT of rank 0", _dist_url),
    Flag("--world-size", "parallel.pipeline_parallel_size", REQUIRED, "total number of ranks, one stage each"),
    Flag("--rank", "", REQUIRED, "number of this rank, counted from 0", _integer_from(0)),
    Flag("--batch-size", "train.global_batch_size", 64, "sequences per iteration"),
    Flag("--micro-batch-size", "train.micro_batch_size", 1, "sequences per micro batch"),
    Flag("--mode", "parallel.schedule", "gpipe", "schedule", str, SCHEDULES),
    Flag("--warmup-slope", "parallel.warmup_slope", 1, "1f1b: warm-up passes per following stage"),
    Flag("--virtual-stages", "parallel.virtual_stages", 1, "interleaved-1f1b: chunks of layers on each rank"),
    Flag(
        "--wire-precision",
        "parallel.wire_precision",
        "same",
        "precision of transfers",
        str,
        ("same", "bf16", "fp16", "int8"),
    ),
    Flag("--num-layers", "model.num_layers", 4, "layers of each stage"),
    Flag("--embedding-dim", "model.hidden_size", 768, "width of the residual stream"),
    Flag("--num-heads", "model.num_attention_heads", 12, "attention heads per layer"),
    Flag("--seq-length", "model.sequence_length", 2048, "tokens per sequence"),
    Flag(
        "--prefix-length", "model.prefix_length", 0, "tokens with bidirectional attention and no loss", _integer_from(0)
    ),
    Flag("--vocab-size", "model.vocab_size", 50257, "rows of the token embedding"),
    Flag("--num-iters", "train.iterations", 10, "iterations, the first one as warm-up"),
    Flag("--precision", "train.precision", "fp32", "precision of compute", str, ("fp32", "bf16")),
    Flag("--optimizer", "train.optimizer", "adam", "optimizer", str, ("adam", "adamw", "sgd")),
    Flag("--seed", "train.seed", 1234, "seed of weights and data, the same on every rank", _integer_from(0)),
    Flag("--device", "cluster.device", AUTO.name, "device to compute on", str, tuple(DEVICES)),
    Flag("--threads", "launcher.threads_per_rank", 1, "CPU threads of this rank"),
    Flag("--profiling", "", "no-profiling", "print the operations of every step", str, ("no-profiling", "profiling")),
)


def read_command_line(arguments: Sequence[str], environment: Mapping[str, str]) -> Request:
    """Turn the command line and torchrun's environment variables into a request.

    Exits with code 2 and a message for invalid flags; raises ConfigError for an invalid configuration.
    """
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    if path := options.pop("config", None):
        if options:
            parser.error(f"--config cannot be combined with {_flag_of(next(iter(options)))}; remove one of them")
        return _configured(parser, Path(path), environment)
    missing = [flag.name for flag in FLAGS if flag.default is REQUIRED and _dest(flag) not in options]
    if missing:
        parser.error(f"missing {', '.join(missing)}; use --config FILE, or all of --dist-url, --world-size and --rank")
    values = {_dest(flag): options.get(_dest(flag), flag.default) for flag in FLAGS}
    if values["rank"] >= values["world_size"]:
        size = values["world_size"]
        parser.error(f"--rank {values['rank']} is out of range for {size} ranks; use 0 to {size - 1}")
    return Request(
        config=_config_by_hand(values),
        place=place_by_hand(values["dist_url"], values["world_size"], values["rank"]),
        by_hand=True,
        all_operations=values["profiling"] == "profiling",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runners.engines.pipeline",
        description="Train a GPT in a pipeline: with --config, alone or under torchrun, or start each rank manually.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="a RunConfig as JSON")
    group = parser.add_argument_group("manual start; all ranks take the same flags except --rank")
    for flag in FLAGS:
        text = flag.help if flag.default is REQUIRED else f"{flag.help} (default: {flag.default})"
        group.add_argument(flag.name, type=flag.type, choices=flag.choices, default=argparse.SUPPRESS, help=text)
    return parser


def _configured(parser: argparse.ArgumentParser, path: Path, environment: Mapping[str, str]) -> Request:
    config = config_at(parser, path)
    place = place_from_environment(environment)
    if place.world_size != config.world_size:
        message = f"{config.world_size} stages need {config.world_size} processes, but {place.world_size} were started;"
        remedy = f" use torchrun --nproc-per-node {config.gpus_per_node}, or {place.world_size} stages"
        stages = config.parallel.pipeline_parallel_size
        raise ConfigError([Problem("parallel.pipeline_parallel_size", stages, message + remedy)])
    return Request(config, place)


def _config_by_hand(values: Mapping[str, Any]) -> RunConfig:
    """Build the RunConfig that the flags describe; the problems of a ConfigError name flag and field."""
    data: dict[str, dict[str, Any]] = {}
    for flag in FLAGS:
        if flag.field:
            section, _, name = flag.field.partition(".")
            data.setdefault(section, {})[name] = values[_dest(flag)]
    data["model"]["num_layers"] = values["num_layers"] * values["world_size"]
    data["model"]["attention_mask"] = "prefix" if values["prefix_length"] else "causal"
    data["train"]["warmup_steps"] = min(1, values["num_iters"] - 1)
    config, problems = check(data)
    if config is None:
        flags = {flag.field: flag.name for flag in FLAGS if flag.field}
        raise ConfigError(
            [problem._replace(field=f"{flags.get(problem.field, '')} {problem.field}".strip()) for problem in problems]
        )
    return config


def _dest(flag: Flag) -> str:
    return flag.name.removeprefix("--").replace("-", "_")


def _flag_of(dest: str) -> str:
    return f"--{dest.replace('_', '-')}"
