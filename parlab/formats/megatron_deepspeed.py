"""Megatron-DeepSpeed: Megatron's lines and, between them, those of the DeepSpeed engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parlab.formats import deepspeed, megatron
from parlab.formats.records import Record
from parlab.formats.sniff import Signs

# A log of only one of the two scores the same there, and is registered first.
SIGNS: Signs = (*megatron.SIGNS, *deepspeed.SIGNS)


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read both kinds of lines; a line that Megatron's reader leaves goes to DeepSpeed's."""
    return megatron.read(lines, also=deepspeed.Parser())
