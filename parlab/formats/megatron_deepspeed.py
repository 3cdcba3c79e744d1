"""Megatron-DeepSpeed: lines of Megatron with lines of the DeepSpeed engine between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parlab.formats import deepspeed, megatron
from parlab.formats.records import Record
from parlab.formats.sniff import Signs

# A log of only one of the two has the same weight in that format, which is registered first.
SIGNS: Signs = (*megatron.SIGNS, *deepspeed.SIGNS)


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read both kinds of lines: those that are not from Megatron go to the reader of DeepSpeed."""
    return megatron.read(lines, also=deepspeed.Parser())
