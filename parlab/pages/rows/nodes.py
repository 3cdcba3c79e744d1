"""A node with its hardware and slots in use."""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.charts.format import quantity
from parlab.fleet.capacity import used_slots
from parlab.lab.models import Node
from parlab.planner.job.measured import own_link, positive


class NodeRow(NamedTuple):
    """A node as its page shows it."""

    node: Node
    used: int
    devices: str
    processor: str
    containers: str = ""
    """Runtimes, where runs may use containers."""
    rates: str = ""
    """What the node measured of its devices and of the links between them."""


def node_row(node: Node) -> NodeRow:
    """Return one node with the number of slots in use."""
    devices, processor = _devices(node.hardware), _processor(node.hardware)
    containers = ", ".join((node.abilities or {}).get("containers") or ())
    return NodeRow(node, used_slots().get(node.pk, 0), devices, processor, containers, _rates(node.hardware))


def _devices(hardware: dict[str, Any]) -> str:
    """List the GPUs, grouped by kind: `4 x NVIDIA H200 (139 GiB)`."""
    counted: dict[str, int] = {}
    for gpu in hardware.get("gpus") or []:
        name = str(gpu.get("name", "GPU"))
        if gpu.get("memory_bytes"):
            name += f" ({quantity(float(gpu['memory_bytes']), 'B')})"
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(f"{count} \N{MULTIPLICATION SIGN} {name}" for name, count in counted.items())


def _processor(hardware: dict[str, Any]) -> str:
    parts = []
    if hardware.get("cpu_cores"):
        parts.append(f"{hardware['cpu_cores']} cores")
    if hardware.get("memory_bytes"):
        parts.append(quantity(float(hardware["memory_bytes"]), "B"))
    if hardware.get("cpu_model"):
        parts.append(str(hardware["cpu_model"]))
    if rates := _matmul_text(hardware):
        parts.append(rates)
    return ", ".join(parts)


def _matmul_text(hardware: dict[str, Any]) -> str:
    """List the measured matrix product rates of the CPU: `measured 200 GFLOP/s in fp32 and 540 GFLOP/s in bf16`."""
    measured = hardware.get("matmul")
    flops = measured.get("flops") if isinstance(measured, dict) else None
    rates = []
    for precision, by_threads in flops.items() if isinstance(flops, dict) else ():
        values = [v for v in by_threads.values() if isinstance(v, int | float)] if isinstance(by_threads, dict) else []
        if values:
            rates.append(f"{quantity(float(max(values)), 'FLOP/s')} in {precision}")
    return f"measured {' and '.join(rates)}" if rates else ""


_RATES = (("attention", "FLOP/s", "in attention"), ("memory", "B/s", "in memory"), ("host", "B/s", "from the host"))


def _rates(hardware: dict[str, Any]) -> str:
    """List what the node measured: `750 TFLOP/s in bf16, 4.24 TB/s in memory, 360 GB/s between 8`."""
    rates = hardware.get("rates")
    if not isinstance(rates, dict):
        return ""
    matrix = rates.get("matrix")
    by_precision = matrix.items() if isinstance(matrix, dict) else ()
    parts = [(value, "FLOP/s", f"in {precision}") for precision, value in by_precision]
    parts += [(rates.get(name), unit, words) for name, unit, words in _RATES]
    texts = [f"{quantity(value, unit)} {words}" for value, unit, words in parts if positive(value)]
    link = own_link(rates)
    return ", ".join(texts + ([f"{quantity(link.bandwidth, 'B/s')} between them"] if link else []))
