"""One small sweep per engine; two processor cores run all of them within minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

SMALL_GPT: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "sequence_length": 64,
    "vocab_size": 1024,
}
POOL = "three-nodes"
"""Pool of the daemons that the demo starts beside that of this machine."""
LAYOUT = "parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.data_parallel_size"


class DemoSweep(NamedTuple):
    """An experiment of a fresh demo, ready to launch."""

    name: str
    question: str
    note: str
    data: dict[str, Any]
    sweep: dict[str, list[Any]]


PIPELINE = DemoSweep(
    "Pipeline schedules on this machine",
    "Is 1F1B faster than GPipe, and which micro batch is best?",
    "A small GPT in two pipeline stages.",
    {
        "model": SMALL_GPT,
        "train": {"global_batch_size": 16, "micro_batch_size": 1, "iterations": 48, "warmup_steps": 2},
        "parallel": {"engine": "pipeline", "pipeline_parallel_size": 2},
    },
    {"parallel.schedule": ["gpipe", "1f1b", "zb-h1"], "train.micro_batch_size": [1, 2, 4]},
)
LAYOUTS = DemoSweep(
    "Megatron layouts of two ranks",
    "Is it faster to split a model between two ranks by layers (pipeline) or within each layer (tensor)?",
    "Pipeline parallel size 2, then tensor parallel size 2.",
    {
        "model": SMALL_GPT,
        "train": {"global_batch_size": 16, "micro_batch_size": 4, "iterations": 10, "warmup_steps": 1},
        "parallel": {"engine": "megatron"},
    },
    {LAYOUT: [[1, 2, 1], [2, 1, 1]]},
)
ZERO = DemoSweep(
    "ZeRO stages of two ranks",
    "How much slower is training when optimizer state, gradients and weights are partitioned?",
    "DeepSpeed ZeRO: stage 0 partitions nothing; stage 3 partitions optimizer state, gradients and weights.",
    {
        "model": SMALL_GPT,
        "train": {"global_batch_size": 16, "micro_batch_size": 4, "iterations": 6, "warmup_steps": 1},
        "parallel": {"engine": "zero", "data_parallel_size": 2},
    },
    {"parallel.zero_stage": [0, 3]},
)
SHARDING = DemoSweep(
    "Eight stages of four shards",
    "Which way of splitting each weight is faster: all-gather of outputs or all-reduce of partial sums?",
    "The device mapping of the published BERT-large case on two processes, with several shards per device.",
    {
        "model": SMALL_GPT | {"num_layers": 8, "hidden_size": 64},
        "train": {"global_batch_size": 2, "micro_batch_size": 2, "iterations": 8, "warmup_steps": 1},
        "parallel": {"engine": "sharding"},
        "sharding": {
            "mode": "sharding",
            "sharding_size": 4,
            "sharding_dim": -1,
            "stage_cnt": 8,
            "accum_degree": 1,
            "device_mapping": {
                f"stage_{stage}": {f"shard_{shard}": f"CPU:{shard // 2}" for shard in range(4)} for stage in range(8)
            },
        },
        "cluster": {"device": "cpu"},
    },
    {"sharding.sharding_dim": [0, -1]},
)
BASELINE = DemoSweep(
    "Hugging Face Trainer as a baseline",
    "How fast is the Trainer with its defaults, and does a micro batch of 8,192 fit into 2 GiB?",
    "GPT-2 with random weights on two data parallel ranks; the larger batch runs out of memory.",
    {
        "model": SMALL_GPT | {"implementation": "huggingface"},
        "train": {"global_batch_size": 16, "micro_batch_size": 4, "iterations": 8, "warmup_steps": 1},
        "parallel": {"engine": "hf", "data_parallel_size": 2},
        "cluster": {"device": "cpu"},
        "launcher": {"memory_limit_mib": 2048},
    },
    {"train.micro_batch_size, train.global_batch_size": [[4, 16], [8192, 16384]]},
)
BANDWIDTH = DemoSweep(
    "Bandwidth between two processes",
    "What bandwidth does all-reduce reach between two processes?",
    "Four collective operations over a range of message sizes; the first trial of each size is a warm-up.",
    {
        "train": {"iterations": 10, "warmup_steps": 1},
        "parallel": {"engine": "allreduce", "data_parallel_size": 2},
        "collectives": {"operation": "all", "min_bytes": 1024, "max_bytes": 2**22},
    },
    {},
)
CAPACITY = DemoSweep(
    "Largest model in 700 MiB",
    "What is the largest model that trains on one node?",
    "Short trial runs; some of them run out of the memory that a process may allocate.",
    {
        "model": {
            "num_layers": 1,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "sequence_length": 16,
            "vocab_size": 64,
        },
        "train": {"global_batch_size": 2, "micro_batch_size": 1, "iterations": 2, "warmup_steps": 1},
        "parallel": {"engine": "capacity"},
        "capacity": {"find": "num_layers", "at_most": 8},
        "cluster": {"device": "cpu"},
        "launcher": {"kind": "plain", "memory_limit_mib": 700},
    },
    {},
)


SLOW = DemoSweep(
    "Slow on purpose",
    "Where does the time of this run go, and which change makes it faster?",
    "Micro batches of one sequence, and all layers recomputed without need; steps 10 and 11 are traced.",
    {
        "model": SMALL_GPT,
        "train": {
            "global_batch_size": 16,
            "micro_batch_size": 1,
            "iterations": 24,
            "warmup_steps": 2,
            "recompute": "full",
        },
        "parallel": {"engine": "megatron", "data_parallel_size": 2},
        "profile": {"steps": [10, 11]},
    },
    {},
)
OVER_NODES = DemoSweep(
    "A pipeline over three nodes",
    "What does a run over three nodes look like, and which of its nodes is the slowest?",
    "Three daemons of pool three-nodes on this machine: network namespaces if the demo runs as root, else loopback.",
    {
        "model": SMALL_GPT | {"num_layers": 6},
        "train": {"global_batch_size": 12, "micro_batch_size": 1, "iterations": 8, "warmup_steps": 2},
        "parallel": {"engine": "pipeline", "pipeline_parallel_size": 3},
        "cluster": {"pool": POOL, "nodes": 3, "device": "cpu"},
    },
    {"parallel.schedule": ["gpipe", "1f1b"]},
)


def scaling(project: Path) -> DemoSweep:
    """Return a Megatron-LM BERT scaling sweep: its command line, filled from the fields, on 1, 2, 4 and 8 processes."""
    return DemoSweep(
        "Megatron BERT on 1 to 8 processes",
        "How does the throughput of BERT scale with tensor, pipeline and data parallel ranks?",
        "The command line of Megatron-LM run by engine command; a smaller model, without fp16, data and checkpoints.",
        {
            "model": SMALL_GPT | {"kind": "bert", "attention_mask": "bidirectional"},
            "train": {
                "global_batch_size": 16,
                "micro_batch_size": 2,
                "iterations": 8,
                "warmup_steps": 1,
                "recompute": "full",
                "gradient_clipping": 1.0,
                "optimizer": "adamw",
                "log_interval": 4,
            },
            "parallel": {"engine": "command"},
            "command": {"argv": megatron_command(project)},
        },
        {LAYOUT: [[1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2]]},
    )


def megatron_command(project: Path) -> list[str]:
    """Return the Megatron-LM command line of BERT 345M with its sizes taken from the configuration."""
    sizes = {
        "--num-layers": "{model.num_layers}",
        "--hidden-size": "{model.hidden_size}",
        "--num-attention-heads": "{model.num_attention_heads}",
        "--seq-length": "{model.sequence_length}",
        "--max-position-embeddings": "{model.sequence_length}",
        "--vocab-size": "{model.vocab_size}",
        "--tensor-model-parallel-size": "{parallel.tensor_parallel_size}",
        "--pipeline-model-parallel-size": "{parallel.pipeline_parallel_size}",
        "--micro-batch-size": "{train.micro_batch_size}",
        "--global-batch-size": "{train.global_batch_size}",
        "--train-iters": "{train.iterations}",
        "--log-interval": "{train.log_interval}",
        "--lr": "{train.learning_rate}",
        "--lr-decay-iters": "990000",
        "--min-lr": "0.00001",
        "--lr-warmup-fraction": "0.01",
        "--split": "949,50,1",
        "--save-interval": "500",
        "--eval-interval": "100",
        "--eval-iters": "10",
    }
    script = str(project / "runners" / "engines" / "megatron.py")
    return [script, *(part for flag in sizes.items() for part in flag), "--checkpoint-activations"]


def demo_sweeps(project: Path) -> list[DemoSweep]:
    """Return all sweeps in the order in which they run: first the one whose figures show the most."""
    return [PIPELINE, SLOW, BASELINE, ZERO, LAYOUTS, SHARDING, BANDWIDTH, CAPACITY, OVER_NODES, scaling(project)]
