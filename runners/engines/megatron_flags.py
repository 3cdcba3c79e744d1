"""Conversion of Megatron-LM's flags to a RunConfig, and of a RunConfig to Megatron-LM's argument dump.

Source: Megatron-LM 2.2, megatron/arguments.py, with later names for arguments that 2.2 lacks.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runners.config import ConfigError, RunConfig, check
from runners.engines.process.process_group import Place, place_from_environment

DECAY = 0.01
"""Weight decay of torch's AdamW, and Megatron's default."""
WIDTH = 48
"""Width of name and dots in the argument dump."""
VOCABULARIES = {"bert": 28_996, "gpt": 50_257}
"""Vocabulary sizes of bert-large-cased and GPT-2, before padding."""
UNUSED_WITH_VALUE = (
    "--adam-beta1", "--adam-beta2", "--adam-eps", "--attention-dropout", "--data-impl", "--data-path", "--DDP-impl",
    "--distributed-backend", "--eval-interval", "--eval-iters", "--exit-interval", "--hidden-dropout", "--hysteresis",
    "--init-method-std", "--initial-loss-scale", "--load", "--local_rank", "--local-rank", "--loss-scale-window",
    "--lr-decay-iters", "--lr-decay-style", "--lr-warmup-fraction", "--lr-warmup-iters", "--mask-prob",
    "--max-position-embeddings", "--merge-file", "--min-loss-scale", "--min-lr", "--num-workers", "--save",
    "--save-interval", "--short-seq-prob", "--split", "--tensorboard-dir", "--tokenizer-type", "--vocab-file",
)  # fmt: skip
UNUSED_SWITCHES = (
    "--accumulate-allreduce-grads-in-fp32", "--log-params-norm", "--log-num-zeros-in-grad",
    "--no-bias-dropout-fusion", "--no-bias-gelu-fusion", "--no-masked-softmax-fusion",
    "--no-scaled-masked-softmax-fusion", "--untie-embeddings-and-output-weights", "--use-cpu-initialization",
    "--use-flash-attn",
)  # fmt: skip
UNUSED = "parlab trains on synthetic text at a constant learning rate, without dropout and checkpoints"


class Megatron(NamedTuple):
    config: RunConfig
    place: Place
    unused: dict[str, Any]
    """Accepted arguments without effect: name in the argument dump -> value."""


class _Flag(NamedTuple):
    name: str
    field: str
    type: type
    default: Any
    choices: Sequence[str] | None = None


FLAGS = (
    _Flag("--model", "model.kind", str, "bert", ("bert", "gpt")),
    _Flag("--num-layers", "model.num_layers", int, None),
    _Flag("--hidden-size", "model.hidden_size", int, None),
    _Flag("--num-attention-heads", "model.num_attention_heads", int, None),
    _Flag("--seq-length", "model.sequence_length", int, None),
    _Flag("--micro-batch-size", "train.micro_batch_size", int, None),
    _Flag("--global-batch-size", "train.global_batch_size", int, 0),
    _Flag("--tensor-model-parallel-size", "parallel.tensor_parallel_size", int, 1),
    _Flag("--pipeline-model-parallel-size", "parallel.pipeline_parallel_size", int, 1),
    _Flag("--train-iters", "train.iterations", int, 100),
    _Flag("--log-interval", "train.log_interval", int, 100),
    _Flag("--lr", "train.learning_rate", float, 1e-4),
    _Flag("--clip-grad", "train.gradient_clipping", float, 1.0),
    _Flag("--loss-scale", "train.loss_scale", float, None),
    _Flag("--optimizer", "train.optimizer", str, "adam", ("adam", "sgd")),
    _Flag("--seed", "train.seed", int, 1234),
)


def read_flags(arguments: Sequence[str], environment: Mapping[str, str]) -> Megatron:
    """Turn Megatron-LM's flags and torchrun's environment variables into a configuration.

    Exits with code 2 and a message for unknown or invalid flags; raises ConfigError for an invalid configuration.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    place = place_from_environment(environment)
    model_size = options.tensor_model_parallel_size * options.pipeline_model_parallel_size
    if model_size < 1 or place.world_size % model_size:
        parser.error(
            f"--tensor-model-parallel-size {options.tensor_model_parallel_size} x --pipeline-model-parallel-size"
            f" {options.pipeline_model_parallel_size} does not divide the {place.world_size} processes;"
            f" use torchrun --nproc-per-node with a multiple of {max(model_size, 1)}"
        )
    data = _sections(options, place.world_size // model_size)
    data["launcher"] = {"threads_per_rank": int(environment.get("OMP_NUM_THREADS", 1))}
    config, problems = check(data)
    if config is None:
        flags = {flag.field: flag.name for flag in FLAGS}
        raise ConfigError(
            [problem._replace(field=f"{flags.get(problem.field, '')} {problem.field}".strip()) for problem in problems]
        )
    names = [flag.lstrip("-").replace("-", "_") for flag in (*UNUSED_WITH_VALUE, *UNUSED_SWITCHES)]
    return Megatron(config, place, {name: vars(options)[name] for name in dict.fromkeys(names) if vars(options)[name]})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m runners.engines.megatron",
        description="Train a BERT or a GPT. Takes Megatron-LM's flags, or --config FILE.",
        allow_abbrev=False,
    )
    for flag in FLAGS:
        is_required = flag.default is None and flag.name != "--loss-scale"
        text = "required" if is_required else f"default: {flag.default}"
        parser.add_argument(
            flag.name, type=flag.type, default=flag.default, choices=flag.choices, required=is_required, help=text
        )
    for name in ("--fp16", "--bf16", "--sequence-parallel", "--checkpoint-activations", "--recompute-activations"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--recompute-granularity", choices=("full", "selective"))
    parser.add_argument("--num-layers-per-virtual-pipeline-stage", type=int)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--weight-decay", type=float, choices=(0.0, DECAY), default=DECAY)
    parser.add_argument("--make-vocab-size-divisible-by", type=int, default=128)
    unused = parser.add_argument_group("accepted and printed, but without effect", UNUSED)
    for name in UNUSED_WITH_VALUE:
        unused.add_argument(name, nargs="+" if name == "--data-path" else None)
    for name in UNUSED_SWITCHES:
        unused.add_argument(name, action="store_true")
    return parser


def _sections(options: argparse.Namespace, replicas: int) -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration that the flags describe."""
    data: dict[str, dict[str, Any]] = {}
    for flag in FLAGS:
        section, _, name = flag.field.partition(".")
        data.setdefault(section, {})[name] = vars(options)[flag.name.lstrip("-").replace("-", "_")]
    train, model, parallel = data["train"], data["model"], data["parallel"]
    parallel |= {"engine": "megatron", "data_parallel_size": replicas, "sequence_parallel": options.sequence_parallel}
    train["global_batch_size"] = train["global_batch_size"] or train["micro_batch_size"] * replicas
    train["warmup_steps"] = min(1, train["iterations"] - 1)
    train["precision"] = "fp16" if options.fp16 else "bf16" if options.bf16 else "fp32"
    is_full, is_selective = options.checkpoint_activations, options.recompute_activations
    train["recompute"] = options.recompute_granularity or (
        "full" if is_full else "selective" if is_selective else "none"
    )
    if options.optimizer == "adam" and options.weight_decay:
        train["optimizer"] = "adamw"  # Megatron-LM's Adam uses decoupled weight decay
    model["attention_mask"] = "bidirectional" if model["kind"] == "bert" else "causal"
    multiple = max(options.make_vocab_size_divisible_by, 1) * parallel["tensor_parallel_size"]
    model["vocab_size"] = -(-(options.vocab_size or VOCABULARIES[model["kind"]]) // multiple) * multiple
    if options.num_layers_per_virtual_pipeline_stage:
        layers = options.num_layers_per_virtual_pipeline_stage * parallel["pipeline_parallel_size"]
        parallel |= {"schedule": "interleaved-1f1b", "virtual_stages": model["num_layers"] // max(layers, 1)}
    return data


def arguments_of(config: RunConfig, place: Place, backend: str, unused: Mapping[str, Any]) -> dict[str, Any]:
    """Return Megatron-LM's arguments with the values of this run, in the order in which they are printed."""
    model, train, parallel = config.model, config.train, config.parallel
    chunks = parallel.virtual_stages if parallel.virtual_stages > 1 else None
    num_stages = parallel.pipeline_parallel_size * parallel.virtual_stages
    arguments = {
        "accumulate_allreduce_grads_in_fp32": True,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-08,
        "attention_dropout": 0.0,
        "bert_binary_head": model.kind == "bert",
        "bf16": train.precision == "bf16",
        "checkpoint_activations": train.recompute == "full",
        "clip_grad": train.gradient_clipping,
        "data_parallel_size": parallel.data_parallel_size,
        "distributed_backend": backend,
        "encoder_seq_length": model.sequence_length,
        "ffn_hidden_size": 4 * model.hidden_size,
        "fp16": train.precision == "fp16",
        "global_batch_size": train.global_batch_size,
        "hidden_dropout": 0.0,
        "hidden_size": model.hidden_size,
        "init_method_std": 0.02,
        "kv_channels": model.hidden_size // model.num_attention_heads,
        "layernorm_epsilon": 1e-05,
        "log_interval": train.log_interval,
        "loss_scale": train.loss_scale,
        "lr": train.learning_rate,
        "lr_decay_style": "constant",
        "max_position_embeddings": model.sequence_length,
        "micro_batch_size": train.micro_batch_size,
        "num_attention_heads": model.num_attention_heads,
        "num_layers": model.num_layers,
        "num_layers_per_virtual_pipeline_stage": None if chunks is None else model.num_layers // num_stages,
        "optimizer": train.optimizer,
        "padded_vocab_size": model.vocab_size,
        "params_dtype": {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[train.precision],
        "pipeline_model_parallel_size": parallel.pipeline_parallel_size,
        "rank": place.rank,
        "recompute_granularity": None if train.recompute == "none" else train.recompute,
        "seed": train.seed,
        "seq_length": model.sequence_length,
        "sequence_parallel": parallel.sequence_parallel,
        "tensor_model_parallel_size": parallel.tensor_parallel_size,
        "train_iters": train.iterations,
        "untie_embeddings_and_output_weights": True,
        "virtual_pipeline_model_parallel_size": chunks,
        "weight_decay": DECAY if train.optimizer == "adamw" else 0.0,
        "world_size": place.world_size,
    }
    return dict(sorted({**unused, **arguments}.items(), key=lambda item: item[0].lower()))


def argument_dump(arguments: Mapping[str, Any]) -> list[str]:
    """Return the lines of Megatron-LM's argument dump: name, dots and value, between two lines of dashes."""
    lines = [f"  {name} {'.' * (WIDTH - len(name))} {value}" for name, value in arguments.items()]
    dashes = "-" * 20
    return [f"{dashes}---- arguments ----{dashes}", *lines, f"{dashes} end of arguments {dashes}-"]
