"""NVIDIA's weak scaling table: published and predicted values.

Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC21),
table 1: A100 80 GB, eight per node with eight 200 Gbit/s network cards, sequence length 2048, vocabulary 51,200, full
recomputation. TFLOP/s include recomputation (HFU); the aggregate is in PFLOP/s. Chunks and the kind of data parallelism
are those of the authors' script (Megatron-LM, examples/sc21/run_table_1.sh).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from parlab.planner.job.cluster import Cluster, cluster
from parlab.planner.job.workload import Job, Model
from parlab.planner.prediction.job_flops import flops_of
from parlab.planner.prediction.prediction import Prediction, predict_job


@dataclass(frozen=True)
class Published:
    """One published row."""

    name: str
    heads: int
    hidden: int
    layers: int
    tensor: int
    pipeline: int
    data: int
    gpus: int
    micro_batch: int
    global_batch: int
    tflops_per_gpu: float
    peak_pct: float
    aggregate_pflops: float
    chunks: int = 1
    """Chunks of layers per rank of the pipeline."""
    overlaps_gradients: bool = False
    """torch's DistributedDataParallel instead of Megatron-LM's of that time, which reduces after the backward pass."""


_A100_PEAK = 312e12
TABLE = (
    Published("1.7B", 24, 2304, 24, 1, 1, 32, 32, 16, 512, 137, 44, 4.4, overlaps_gradients=True),
    Published("3.6B", 32, 3072, 30, 2, 1, 32, 64, 16, 512, 138, 44, 8.8, overlaps_gradients=True),
    Published("7.5B", 32, 4096, 36, 4, 1, 32, 128, 16, 512, 142, 46, 18.2, overlaps_gradients=True),
    Published("18B", 48, 6144, 40, 8, 1, 32, 256, 8, 1024, 135, 43, 34.6, overlaps_gradients=True),
    Published("39B", 64, 8192, 48, 8, 2, 32, 512, 4, 1536, 138, 44, 70.8),
    Published("76B", 80, 10240, 60, 8, 4, 32, 1024, 2, 1792, 140, 45, 143.8, 3),
    Published("145B", 96, 12288, 80, 8, 8, 24, 1536, 2, 2304, 148, 47, 227.1, 2),
    Published("310B", 128, 16384, 96, 8, 16, 15, 1920, 1, 2160, 155, 50, 297.4, 2),
    Published("530B", 128, 20480, 105, 8, 35, 9, 2520, 1, 2520, 163, 52, 410.2, 3),
    Published("1T", 160, 25600, 128, 8, 64, 6, 3072, 1, 3072, 163, 52, 502.0),
)


@dataclass(frozen=True)
class Compared:
    """A published row and its prediction."""

    published: Published
    prediction: Prediction
    tflops_per_gpu: float
    peak_pct: float
    aggregate_pflops: float
    error_pct: float
    """Predicted over published TFLOP/s per GPU, minus 1, in per cent."""

    @property
    def model_parallel(self) -> int:
        """Tensor parallel size times pipeline parallel size."""
        return self.published.tensor * self.published.pipeline


@cache
def compared() -> tuple[Compared, ...]:
    """Predict all rows with the shipped constants."""
    return tuple(_compared(row) for row in TABLE)


def published_row(sections: Mapping[str, Mapping[str, Any]]) -> Published | None:
    """Return the row with the sizes, layout and batch of an imported file; None if they differ from all rows.

    Files that repeat the table state neither sequence length nor vocabulary, which only the paper does.
    """
    model, train, parallel = (sections.get(name) or {} for name in ("model", "train", "parallel"))
    sizes = [model.get(name) for name in ("num_attention_heads", "hidden_size", "num_layers")]
    sizes += [parallel.get(f"{name}_parallel_size") for name in ("tensor", "pipeline", "data")]
    sizes += [train.get(name) for name in ("micro_batch_size", "global_batch_size")]
    return next((row for row in TABLE if _sizes(row) == sizes), None)


def _sizes(row: Published) -> list[int]:
    layout = [row.tensor, row.pipeline, row.data]
    return [row.heads, row.hidden, row.layers, *layout, row.micro_batch, row.global_batch]


def published_job(row: Published) -> tuple[Job, Cluster]:
    """Return a row as a job on the cluster of the authors."""
    job = Job(
        Model(row.layers, row.hidden, row.heads, 2048, 51_200),
        row.global_batch,
        row.micro_batch,
        row.tensor,
        row.pipeline,
        row.data,
        recompute="full",
        schedule="interleaved-1f1b" if row.chunks > 1 else "1f1b",
        virtual_stages=row.chunks,
        overlaps_gradients=row.overlaps_gradients,
    )
    return job, cluster("A100 80GB", row.gpus, 8, inter_node_gbit_s=1600)


def _compared(row: Published) -> Compared:
    job, where = published_job(row)
    prediction = predict_job(job, where)
    rate = flops_of(job)[1] / (row.gpus * prediction.iteration_s)
    return Compared(
        row,
        prediction,
        rate / 1e12,
        100 * rate / _A100_PEAK,
        rate * row.gpus / 1e15,
        100 * (rate / 1e12 / row.tflops_per_gpu - 1),
    )
