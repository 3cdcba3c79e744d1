"""One file, several formats: two engines in turn, an evaluation behind a training, lines of a wrapper between steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from parlab.formats.coverage.silence import watched
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.wrapping import Unwrapped
from parlab.formats.logs.registry import Reader
from parlab.formats.others import MAX_RUN, Others, renumber

# Files that hold nothing else, as a rule.
_FILES = frozenset({"all-reduce-bench", "csv", "dcgm-exporter", "jsonl", "tensorboard-json", "wandb-runs"})
# Beside their lines the engine prints its own, which a terminal may have wrapped.
_WRAPPED = frozenset({"deepspeed", "huggingface", "megatron"})


def read(lines: Iterable[str], name: str, formats: Mapping[str, Reader]) -> Iterator[Record]:
    """Read lines with the reader of a format of logs, and what it passes over with those of others.

    After a long run of another format, the reader of that format goes on, so that no more lines than those wait.
    """
    unwrapped = Unwrapped(lines)
    stream, before = iter(unwrapped if name in _WRAPPED else lines), 0
    while name:
        others = Others(name, is_alone=name in _FILES)
        for record in watched(formats[name].read, stream, name, others):
            if before and record.line:
                renumber(record, range(before + 1, before + record.until + MAX_RUN))
            if unwrapped.ends and record.line in unwrapped.ends:
                unwrapped.extend([record])
            yield record
        name, read_lines = others.following
        before += read_lines
