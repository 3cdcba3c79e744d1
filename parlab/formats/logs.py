"""The log formats, without the document formats that may contain logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from parlab.formats import (
    all_reduce_bench,
    deepspeed,
    dialects,
    exports,
    huggingface,
    link_tests,
    maxtext,
    megatron,
    megatron_deepspeed,
    mlperf,
    nanotron,
    nccl_tests,
    nemo,
    nvidia_smi,
    pipeline_runner,
    ranklines,
    run_tables,
    serving,
    torchtitan,
)
from parlab.formats.records import Record
from parlab.formats.sniff import Signs


class Reader(Protocol):
    """A reader module: patterns of its lines, and their conversion to records."""

    @property
    def SIGNS(self) -> Signs: ...

    def read(self, lines: Iterable[str], /) -> Iterator[Record]: ...


# Name -> reader module. If two formats have the same score, the first one wins.
LOGS: dict[str, Reader] = {
    "megatron": megatron,
    "deepspeed": deepspeed,
    "megatron-deepspeed": megatron_deepspeed,
    "pipeline-runner": pipeline_runner,
    "torchtitan": torchtitan,
    "nanotron": nanotron,
    "nemo": nemo,
    "maxtext": maxtext,
    "ranklines": ranklines,
    "nccl-tests": nccl_tests,
    "link-tests": link_tests,
    "all-reduce-bench": all_reduce_bench,
    "nvidia-smi": nvidia_smi,
    "mlperf": mlperf,
    "huggingface": huggingface,
    "serving": serving,
    "csv": exports.CSV,
    "jsonl": exports.JSON_LINES,
    "tensorboard-json": exports.JSON_POINTS,
    "wandb-runs": run_tables,
    **{name: dialect for name, dialect in dialects.DIALECTS.items() if dialect.SIGNS},
}
