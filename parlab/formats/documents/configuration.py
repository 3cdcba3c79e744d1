"""JSON files that configure a launch: a device map of stages and shards, DeepSpeed, a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parlab.formats.documents.blocks import Code, parsed, records
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.sniff import Signs

SIGNS: Signs = (
    (re.compile(r'"(?:stage_cnt|sharding_size|device_mapping|accum_degree)" *:'), 10),
    (re.compile(r'"(?:train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps)" *:'), 5),
    (re.compile(r'"zero_optimization" *:'), 5),
    (re.compile(r'"(?:num_hidden_layers|n_layer|num_layers|hidden_size|n_embd|num_attention_heads|n_head)" *:'), 3),
)


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a JSON configuration: the data, and the launch that they describe."""
    return parsed(lines, _records)


def _records(text: str) -> Iterator[Record]:
    document = list(records([Code(1, text.splitlines(keepends=True))]))
    if any(record.kind == "config" for record in document):
        yield from document
    else:
        yield unread(1, "invalid JSON: truncated or damaged", text)
