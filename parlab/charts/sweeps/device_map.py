"""A map of stages and shards as cells in the colours of their devices; a page draws the cells as SVG."""

from __future__ import annotations

import colorsys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from parlab.charts import theme
from parlab.charts.theme import Table

Grid = Sequence[Sequence[str]]
"""Device by stage and shard: a row for each stage."""

NAMED = (theme.BLUE, theme.ORANGE, theme.GREEN, theme.PURPLE, theme.SKY, theme.VERMILLION, theme.YELLOW, theme.GREY)
"""Colours of up to eight devices; with more devices, each gets a hue."""
GOLDEN_TURN = 0.618034
WIDEST, NARROWEST, ROOM = 72, 22, 1200
"""Widest and narrowest cell in px, and the width of all cells together to aim for."""
TALL, FLAT, MANY_SHARDS = 30, 22, 8
HEAD, SIDE, GAP = 18, 64, 2
LABEL_WIDTH = 48
"""Cells of at least this width contain the full name of the device, others its number."""
MAX_NAMED = 4


class Cell(NamedTuple):
    """A shard of a stage, in px."""

    x: int
    y: int
    device: str
    label: str
    colour: str
    ink: str
    """Readable colour of the label."""
    title: str


class Head(NamedTuple):
    """A heading of a column or row, with its centre in px."""

    at: int
    text: str


class Device(NamedTuple):
    """An entry of the legend."""

    name: str
    colour: str
    ink: str
    shards: int
    stages: int


class DeviceMap(NamedTuple):
    """The drawn map: stages as columns, their shards as rows."""

    width: int
    height: int
    cell_width: int
    cell_height: int
    cells: list[Cell]
    columns: list[Head]
    rows: list[Head]
    devices: list[Device]
    caption: str
    table: Table

    @property
    def middle(self) -> int:
        """Centre of a cell, in px from its left edge."""
        return self.cell_width // 2

    @property
    def baseline(self) -> int:
        """Baseline of a label, in px from the upper edge of its cell."""
        return self.cell_height // 2 + 4


def draw(grid: Grid) -> DeviceMap | None:
    """Lay out a map; None for an empty grid. Stages are columns, so that data flows from left to right."""
    if not grid or not grid[0]:
        return None
    stages, shards = len(grid), max(len(row) for row in grid)
    width = max(NARROWEST, min(WIDEST, ROOM // stages))
    height = FLAT if shards > MANY_SHARDS else TALL
    devices = _devices(grid)
    styles = {device.name: device for device in devices}
    cells = [
        Cell(
            SIDE + stage * width,
            HEAD + shard * height,
            name,
            name if width >= LABEL_WIDTH else name.rpartition(":")[2],
            styles[name].colour,
            styles[name].ink,
            f"stage {stage}, shard {shard}: {name}",
        )
        for stage, row in enumerate(grid)
        for shard, name in enumerate(row)
    ]
    every = 1 if width >= LABEL_WIDTH else 4
    return DeviceMap(
        SIDE + stages * width,
        HEAD + shards * height,
        width - GAP,
        height - GAP,
        cells,
        [
            Head(SIDE + stage * width + width // 2, f"stage {stage}" if every == 1 else str(stage))
            for stage in range(0, stages, every)
        ],
        [Head(HEAD + shard * height + height // 2 + 4, f"shard {shard}") for shard in range(shards)],
        devices,
        _map_caption(grid, devices),
        Table(
            ["stage", "shard", "device"],
            [[stage, shard, name] for stage, row in enumerate(grid) for shard, name in enumerate(row)],
        ),
    )


def _devices(grid: Grid) -> list[Device]:
    """Return the devices by number, each with its own colour."""
    shards = Counter(name for row in grid for name in row)
    stages = Counter(name for row in grid for name in set(row))
    names = sorted(shards, key=lambda name: (name.partition(":")[0], _device_index(name), name))
    colours = NAMED if len(names) <= len(NAMED) else [_hue(index) for index in range(len(names))]
    return [
        Device(name, colour, _ink(colour), shards[name], stages[name])
        for name, colour in zip(names, colours, strict=False)
    ]


def _device_index(name: str) -> int:
    digits = name.rpartition(":")[2]
    return int(digits) if digits.isdecimal() else 0


def _hue(index: int) -> str:
    """Return the colour of the n-th of many devices: hues far apart, alternating in lightness."""
    lightness = (0.72, 0.42, 0.58)[index % 3]
    red, green, blue = colorsys.hls_to_rgb(index * GOLDEN_TURN % 1, lightness, 0.62)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _ink(colour: str) -> str:
    """Choose black or white, whichever has the higher contrast (WCAG 2.2, relative luminance)."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 >= 1.05 / (luminance + 0.05) else "#ffffff"


def _map_caption(grid: Grid, devices: Sequence[Device]) -> str:
    stages, shards = len(grid), max(len(row) for row in grid)
    size = f"{_count(stages, 'stage')} \N{MULTIPLICATION SIGN} {_count(shards, 'shard')}"
    caption = f"{size} on {_count(len(devices), 'device')}"
    loads = sorted({device.shards for device in devices})
    if len(loads) == 1:
        caption += f", {_count(loads[0], 'shard')} on each"
    else:
        fullest = [device.name for device in devices if device.shards == loads[-1]]
        more = f" and {len(fullest) - MAX_NAMED} more" if len(fullest) > MAX_NAMED else ""
        caption += f", {loads[0]} to {loads[-1]} shards on each; most on {', '.join(fullest[:MAX_NAMED])}{more}"
    crossing = sum(1 for before, after in pairwise(grid) if set(before) != set(after))
    if len(grid) == 1:
        return caption + "."
    changes = "changes" if crossing == 1 else "change"
    return (
        caption + f". {_count(crossing, 'boundary', 'boundaries')} of {len(grid) - 1} between stages {changes} devices."
    )


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
