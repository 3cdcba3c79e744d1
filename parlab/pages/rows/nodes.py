"""Nodes with their hardware and slots in use."""

from __future__ import annotations

from typing import Any, NamedTuple

from parlab.charts.format import quantity
from parlab.fleet.capacity import used_slots
from parlab.lab.models import Node


class NodeRow(NamedTuple):
    """One line of the list of nodes."""

    node: Node
    used: int
    devices: str
    processor: str
    containers: str = ""
    """Runtimes, where runs may use containers."""


def node_list() -> list[NodeRow]:
    """Return all nodes with the number of slots in use."""
    used = used_slots()
    return [
        NodeRow(node, used.get(node.pk, 0), _devices(node.hardware), _processor(node.hardware))
        for node in Node.objects.all()
    ]


def node_row(node: Node) -> NodeRow:
    """Return one node with the number of slots in use."""
    devices, processor = _devices(node.hardware), _processor(node.hardware)
    containers = ", ".join((node.abilities or {}).get("containers") or ())
    return NodeRow(node, used_slots().get(node.pk, 0), devices, processor, containers)


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
