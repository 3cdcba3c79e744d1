"""One node beside the others: what it is, what it does, what its GPUs and its health sweeps measured."""

from __future__ import annotations

from typing import NamedTuple

from parlab.charts.format import DASH, SPACE, quantity
from parlab.fleet import capacity
from parlab.lab.models import Node

from .gauges import CLOCK, GPU, GPU_MEMORY, HEAT, POWER, gauges_of, held_by
from .tiles import HOT_C


class GpuRow(NamedTuple):
    """A GPU as a row: its values as text."""

    number: int
    values: list[str]
    is_hot: bool


GPU_COLUMNS = ("Busy", "Memory", "Power", f"{SPACE}°C", "Clock")


def gpu_rows(node: Node) -> list[GpuRow]:
    """Return what the GPUs of a node measured last; those without a run have dashes."""
    gauges = gauges_of(held_by([node])).get(node.pk, {})
    rows = []
    for index in range(capacity.gpu_count(node)):
        own = gauges.get(index, {})
        values = [
            _text(own.get(GPU), "%"),
            _text(own.get(GPU_MEMORY), "B"),
            _text(own.get(POWER), "W"),
            _text(own.get(HEAT), ""),
            _text(own.get(CLOCK), "Hz"),
        ]
        rows.append(GpuRow(index, values, own.get(HEAT, 0.0) >= HOT_C))
    return rows


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return DASH
    if unit in ("%", ""):
        return f"{value:.0f}{SPACE if unit else ''}{unit}"
    return quantity(value, unit)
