"""Presets: a small configuration for each engine, capacity searches, and published training setups."""

from __future__ import annotations

from typing import Any, NamedTuple

SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "sequence_length": 64,
    "vocab_size": 1024,
}
SHORT: dict[str, Any] = {"global_batch_size": 16, "micro_batch_size": 4, "iterations": 10, "warmup_steps": 1}
LAYOUT = "parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.data_parallel_size"
BERT_345M: dict[str, Any] = {
    "kind": "bert",
    "attention_mask": "bidirectional",
    "num_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "sequence_length": 512,
    "vocab_size": 29056,
}
GPT3_175B: dict[str, Any] = {
    "num_layers": 96,
    "hidden_size": 12288,
    "num_attention_heads": 96,
    "sequence_length": 2048,
    "vocab_size": 51200,
}
ENGINES, QUESTIONS, CASES = "Engines, small enough for a CPU", "Questions", "Published setups"
PODS = "Pods of Kubernetes"
EIGHT_IN_TWO: dict[str, Any] = {
    "model": BERT_345M | {"kind": "gpt", "attention_mask": "causal"},
    "train": SHORT | {"precision": "bf16"},
    "parallel": {"engine": "megatron", "tensor_parallel_size": 8, "data_parallel_size": 2},
    "cluster": {"pool": "kubernetes", "nodes": 2, "device": "cuda"},
}


class Preset(NamedTuple):
    """A preset configuration and sweep."""

    group: str
    title: str
    data: dict[str, Any]
    """Fields that differ from the defaults."""
    sweep: dict[str, list[Any]]


def _eight_by_four() -> dict[str, dict[str, str]]:
    return {f"stage_{stage}": {f"shard_{shard}": f"GPU:{stage}" for shard in range(4)} for stage in range(8)}


PRESETS = {
    "pipeline": Preset(
        ENGINES,
        "pipeline: GPipe and 1F1B over two stages",
        {
            "model": SMALL,
            "train": SHORT | {"global_batch_size": 32, "micro_batch_size": 1},
            "parallel": {"engine": "pipeline", "pipeline_parallel_size": 2},
        },
        {"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]},
    ),
    "megatron": Preset(
        ENGINES,
        "megatron: data, pipeline and tensor parallel",
        {"model": SMALL, "train": SHORT, "parallel": {"engine": "megatron"}},
        {LAYOUT: [[1, 1, 2], [1, 2, 1], [2, 1, 1]]},
    ),
    "zero": Preset(
        ENGINES,
        "zero: DeepSpeed ZeRO stages 0 to 3",
        {"model": SMALL, "train": SHORT, "parallel": {"engine": "zero", "data_parallel_size": 2}},
        {"parallel.zero_stage": [0, 1, 2, 3]},
    ),
    "sharding": Preset(
        ENGINES,
        "sharding: two stages with two shards each",
        {
            "model": SMALL,
            "train": SHORT | {"global_batch_size": 2, "micro_batch_size": 2},
            "parallel": {"engine": "sharding"},
            "sharding": {
                "sharding_size": 2,
                "stage_cnt": 2,
                "device_mapping": {
                    f"stage_{stage}": {f"shard_{shard}": f"CPU:{shard}" for shard in range(2)} for stage in range(2)
                },
            },
        },
        {"sharding.sharding_dim": [0, -1]},
    ),
    "hf": Preset(
        ENGINES,
        "hf: Hugging Face Trainer",
        {
            "model": SMALL | {"implementation": "huggingface"},
            "train": SHORT,
            "parallel": {"engine": "hf", "data_parallel_size": 2},
        },
        {},
    ),
    "allreduce": Preset(
        ENGINES,
        "allreduce: four collective operations by message size",
        {
            "train": {"iterations": 10, "warmup_steps": 1},
            "parallel": {"engine": "allreduce", "data_parallel_size": 2},
            "collectives": {"operation": "all", "max_bytes": 2**22},
        },
        {},
    ),
    "autotuning": Preset(
        ENGINES,
        "autotuning: DeepSpeed autotuner over ZeRO stages and micro batch sizes",
        {
            "model": SMALL,
            "train": SHORT | {"global_batch_size": 2, "micro_batch_size": 1},
            "parallel": {"engine": "autotuning", "data_parallel_size": 2},
            "autotuning": {"max_micro_batch_size": 4},
        },
        {},
    ),
    "command": Preset(
        ENGINES,
        "command: your own training script",
        {
            "model": SMALL,
            "train": SHORT,
            "parallel": {"engine": "command", "data_parallel_size": 2},
            "command": {"argv": ["/opt/train.py", "--layers", "{model.num_layers}", "--ranks", "{world_size}"]},
        },
        {},
    ),
    "largest-model": Preset(
        QUESTIONS,
        "Largest model that fits on one node",
        {
            "model": SMALL | {"num_layers": 1, "hidden_size": 512},
            "train": {"global_batch_size": 1, "micro_batch_size": 1, "iterations": 2, "warmup_steps": 1},
            "parallel": {"engine": "capacity"},
            "capacity": {"find": "num_layers"},
            "launcher": {"memory_limit_mib": 512},
        },
        {},
    ),
    "fewest-nodes": Preset(
        QUESTIONS,
        "Fewest ranks that a model needs",
        {
            "model": SMALL | {"num_layers": 8, "hidden_size": 256},
            "train": {"global_batch_size": 12, "micro_batch_size": 1, "iterations": 2, "warmup_steps": 1},
            "parallel": {"engine": "capacity", "zero_stage": 3},
            "capacity": {"find": "processes", "engine": "zero", "at_most": 4},
            "launcher": {"memory_limit_mib": 512},
        },
        {},
    ),
    "three-nodes": Preset(
        CASES,
        "GPT-3 small in three stages, GPipe and 1F1B",
        {
            "model": {
                "num_layers": 12,
                "hidden_size": 768,
                "num_attention_heads": 12,
                "sequence_length": 2048,
                "vocab_size": 50257,
            },
            "train": {"global_batch_size": 64, "micro_batch_size": 1, "iterations": 10, "warmup_steps": 1},
            "parallel": {"engine": "pipeline", "pipeline_parallel_size": 3},
        },
        {"parallel.schedule": ["gpipe", "1f1b"], "train.micro_batch_size": [1, 2, 4]},
    ),
    "bert-345m": Preset(
        CASES,
        "BERT 345M from 1 to 8 GPUs, tensor 2 x pipeline 2",
        {
            "model": BERT_345M,
            "train": {
                "global_batch_size": 32,
                "micro_batch_size": 4,
                "iterations": 100,
                "warmup_steps": 10,
                "precision": "fp16",
                "recompute": "full",
                "gradient_clipping": 1.0,
                "optimizer": "adamw",
                "log_interval": 10,
            },
            "parallel": {"engine": "megatron"},
        },
        {LAYOUT: [[1, 1, 1], [2, 1, 1], [2, 2, 1], [2, 2, 2]]},
    ),
    "bert-large-shards": Preset(
        CASES,
        "Eight stages with four shards each on eight GPUs",
        {
            "model": {
                "num_layers": 24,
                "hidden_size": 1024,
                "num_attention_heads": 16,
                "sequence_length": 384,
                "vocab_size": 30528,
            },
            "train": {"global_batch_size": 2, "micro_batch_size": 2, "iterations": 20, "warmup_steps": 2},
            "parallel": {"engine": "sharding"},
            "sharding": {
                "mode": "sharding",
                "sharding_size": 4,
                "sharding_dim": -1,
                "stage_cnt": 8,
                "accum_degree": 1,
                "device_mapping": _eight_by_four(),
            },
        },
        {},
    ),
    "gpt3-175b-zero": Preset(
        CASES,
        "GPT with 175 B parameters, ZeRO-3 on 8 GPUs",
        {
            "model": GPT3_175B,
            "train": {
                "global_batch_size": 8,
                "micro_batch_size": 1,
                "iterations": 10,
                "warmup_steps": 1,
                "precision": "bf16",
            },
            "parallel": {"engine": "zero", "zero_stage": 3, "data_parallel_size": 8},
        },
        {},
    ),
    "pods-nvidia": Preset(
        PODS,
        "two pods of 8 NVIDIA GPUs with RDMA",
        EIGHT_IN_TWO
        | {
            "kubernetes": {
                "shared_memory_gib": 16,
                "resources": {"rdma/hca_shared_devices_a": "1"},
                "tolerations": [{"key": "nvidia.com/gpu"}],
                "topology": "topology.kubernetes.io/zone",
                "environment": {"NCCL_IB_HCA": "mlx5"},
                "patch": {
                    "spec": {
                        "containers": [
                            {"name": "parlab", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
                        ]
                    }
                },
            }
        },
        {},
    ),
    "pods-amd": Preset(
        PODS,
        "two pods of 8 AMD GPUs",
        EIGHT_IN_TWO
        | {
            "kubernetes": {
                "gpu_resource": "amd.com/gpu",
                "shared_memory_gib": 16,
                "tolerations": [{"key": "amd.com/gpu"}],
                "topology": "topology.kubernetes.io/zone",
            }
        },
        {},
    ),
}
"""Key -> preset."""
