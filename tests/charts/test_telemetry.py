"""Small figures of a run's machine."""

from __future__ import annotations

import math

from parlab.charts.runs import telemetry
from parlab.charts.runs.curves import Curve
from parlab.charts.runs.telemetry import Names


def curve(values: list[float], start: float = 1000.0) -> Curve:
    return Curve([1] * len(values), [start + i for i in range(len(values))], values)


def test_utilisation_has_a_line_for_each_gpu_under_its_own_number() -> None:
    series = {("gpu_util_pct", 1): curve([80.0, 90.0], 1001.0), ("gpu_util_pct", 0): curve([50.0, 60.0])}
    drawing = telemetry.figure("gpu-utilisation", series, Names(["GPU 3", "GPU 5"]))
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == ["GPU 3", "GPU 5"]
    assert [list(trace.x) for trace in drawing.figure.data] == [[0.0, 1.0], [1.0, 2.0]]
    assert drawing.caption.replace("\u202f", " ") == "Mean and range: 70.0 %, 50.0 to 90.0."
    assert drawing.table.header == ["of", "step", "unix_time_s", "gpu_util_pct"]
    assert drawing.table.rows[0] == ["GPU 3", 1, 1000.0, 50.0]


def test_both_directions_of_an_interface_share_its_colour() -> None:
    series = {(f"nic_{way}_bytes_per_s/eth{n}", -1): curve([2e6]) for n in range(2) for way in ("rx", "tx")}
    drawing = telemetry.figure("network", series, Names())
    assert drawing.figure is not None
    lines = {trace.name: trace for trace in drawing.figure.data}
    assert lines["eth0 received"].line.color == lines["eth0 sent"].line.color != lines["eth1 sent"].line.color
    assert lines["eth0 received"].line.dash != lines["eth0 sent"].line.dash
    assert list(lines["eth1 sent"].y) == [2.0]
    assert drawing.figure.layout.yaxis.title.text == "Network (MB/s)"


def test_of_many_gpus_the_busiest_and_the_idlest_are_drawn_and_all_are_in_the_table() -> None:
    series = {("power_watts", rank): curve([100.0 + rank]) for rank in range(16)}
    drawing = telemetry.figure("power", series, Names())
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == ["GPU 0", "GPU 15"]
    assert len(drawing.table.rows) == 16
    assert "Only the GPUs with the highest and the lowest mean" in drawing.caption


def test_samples_without_a_clock_are_counted() -> None:
    still = Curve([0, 0, 0], [0.0, 0.0, 0.0], [60.0, 61.0, 62.0])
    drawing = telemetry.figure("power", {("power_watts", 0): still}, Names())
    assert drawing.figure is not None
    assert list(drawing.figure.data[0].x) == [1, 2, 3]
    assert drawing.figure.layout.xaxis.title.text == "Sample"


def test_memory_is_drawn_in_a_binary_unit() -> None:
    drawing = telemetry.figure("gpu-memory", {("gpu_mem_bytes", 0): curve([3 * 2.0**30])}, Names(["GPU 0"]))
    assert drawing.figure is not None
    assert drawing.figure.layout.yaxis.title.text == "GPU memory (GiB)"
    assert list(drawing.figure.data[0].y) == [3.0]


def test_what_was_not_measured_says_so() -> None:
    for series in ({}, {("power_watts", 0): curve([math.nan])}):
        drawing = telemetry.figure("power", series, Names())
        assert drawing.figure is None
        assert drawing.empty is not None
        assert drawing.empty.startswith("Power: not measured")


def test_lines_name_node_and_device_and_nodes_with_equal_interfaces_stay_apart() -> None:
    nodes = ["a", "b", "c"]
    gpus = [f"{node} GPU {n}" for node in nodes for n in range(2)]
    series = {("gpu_util_pct", rank): curve([10.0 * rank]) for rank in range(6)}
    drawing = telemetry.figure("gpu-utilisation", series, Names(gpus, nodes))
    assert drawing.figure is not None
    assert [trace.name for trace in drawing.figure.data] == gpus
    traffic = {("nic_rx_bytes_per_s/eth0", -1 - node): curve([1e6 * (node + 1)]) for node in range(3)}
    drawing = telemetry.figure("network", traffic, Names(gpus, nodes))
    assert drawing.figure is not None
    by_name = {trace.name: trace for trace in drawing.figure.data}
    assert set(by_name) == {"a eth0 received", "b eth0 received", "c eth0 received"}
    assert len({trace.line.color for trace in by_name.values()}) == 3
    assert list(by_name["c eth0 received"].y) == [3.0]
    processors = telemetry.figure("processor", {("cpu_pct", -2): curve([50.0])}, Names(gpus, nodes))
    assert processors.table.rows[0][0] == "b"


def test_sixteen_nodes_do_not_fill_the_legend() -> None:
    nodes = [f"node{n:02}" for n in range(16)]
    ways = ("rx", "tx")
    traffic = {(f"nic_{way}_bytes_per_s/eth0", -1 - n): curve([1e6 * (n + 1)]) for n in range(16) for way in ways}
    drawing = telemetry.figure("network", traffic, Names([], nodes))
    assert drawing.figure is not None
    assert {trace.name.partition(" ")[0] for trace in drawing.figure.data} == {"node00", "node15"}
    assert len(drawing.table.rows) == 32
    assert "Only the lines with the highest and the lowest mean" in drawing.caption
