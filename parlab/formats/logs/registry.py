"""The log formats, without the document formats that may contain logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from parlab.formats.exports import histories, run_tables
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.sniff import Signs
from parlab.formats.logs import (
    deepspeed,
    dialects,
    huggingface,
    megatron,
)
from parlab.formats.tools import all_reduce_bench, dcgm_exporter, link_tests, mlperf, nccl_tests, serving, smi_tables


class Reader(Protocol):
    """A reader module: patterns of its lines, and their conversion to records."""

    @property
    def SIGNS(self) -> Signs: ...

    def read(self, lines: Iterable[str], /) -> Iterator[Record]: ...


# Name -> reader module. If two formats have the same score, the first one wins.
LOGS: dict[str, Reader] = {
    "megatron": megatron,
    "deepspeed": deepspeed,
    "nccl-tests": nccl_tests,
    "link-tests": link_tests,
    "all-reduce-bench": all_reduce_bench,
    "nvidia-smi": smi_tables,
    "dcgm-exporter": dcgm_exporter,
    "mlperf": mlperf,
    "huggingface": huggingface,
    "serving": serving,
    "csv": histories.CSV,
    "jsonl": histories.JSON_LINES,
    "tensorboard-json": histories.JSON_POINTS,
    "wandb-runs": run_tables,
    **{name: dialect for name, dialect in dialects.DIALECTS.items() if dialect.SIGNS},
}
