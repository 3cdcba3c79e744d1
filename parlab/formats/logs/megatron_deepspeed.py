"""Megatron-DeepSpeed: Megatron-LM's lines, with lines of the DeepSpeed engine in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parlab.formats.grammar.records import Record
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.wrapping import Unwrapped
from parlab.formats.logs import deepspeed, megatron

# A log of only one of the two has the same score with its own reader, which is registered first and wins.
SIGNS: Signs = (*megatron.SIGNS, *deepspeed.SIGNS)


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read both kinds of lines; a line that the Megatron-LM reader does not recognize goes to the DeepSpeed reader."""
    unwrapped = Unwrapped(lines)
    for record in megatron.read(unwrapped, also=deepspeed.Parser()):
        if record.line in unwrapped.ends:
            unwrapped.extend([record])
        yield record
