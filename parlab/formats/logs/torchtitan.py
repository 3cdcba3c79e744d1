"""torchtitan: `step: N  loss: x  memory: xGiB(p%)  tps: 1,234  tflops: x  mfu: x%`, one line per rank or of rank 0.

Source: torchtitan/components/metrics.py and train.py, v0.1 to 2026. `tps` (`wps` until late 2024) counts tokens per
second and device; `memory` is the largest reserved memory since the last line. Every rank may print the same step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from parlab.formats.grammar.cells import Cell
from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import STAMP, peel
from parlab.formats.grammar.quantities import known_to
from parlab.formats.grammar.readings import amount, reading, united
from parlab.formats.grammar.records import Field, Record, unread
from parlab.formats.grammar.repeats import Repeats, by_part
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import slug, to_float, to_int

SIGNS: Signs = (
    (re.compile(r"\bstep:\s{0,8}\d+\s{1,8}loss:\s{0,8}\S+\s.{0,120}\b(?:tps|wps|memory):"), 10),
    (re.compile(r"\[titan\]"), 4),
    (re.compile(r"root - INFO - (?:Training starts at step|Building device mesh|Peak FLOPS used for)"), 6),
)

_HEAD = re.compile(
    r"(?:(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?)\s[^\n]{0,60}?)?"
    r"(?P<validate>\bvalidate\s{1,4})?\bstep:\s{0,8}(?P<step>\d{1,18})\s"
)
_START = re.compile(
    rf"(?:\[titan\] ?)?{STAMP}(?:[\w. -]{{1,40}} - [A-Z]{{1,10}} - )?(?:validate\s{{1,4}})?"
    r"step:\s{0,8}\d{1,18}\s{1,8}loss:"
)
_CELL = re.compile(r"([A-Za-z][\w/()@. -]{0,60}?):\s{0,8}([^\s:]{1,60})(?=\s|$)")
_BRACKET = re.compile(r"([^()]{1,40})\(([^()]{1,20})\)")
# Messages of rank 0 about the layout of the launch: `pp=1, dp_shard=8, tp=1`, `global batch size 64`.
_LAUNCH = re.compile(
    r"Building (?:device mesh with parallelism:|\d-D device mesh with)|Training starts at step|Trainer is initialized"
)
_SIZE = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep|etp)=(-?\d{1,7})\b")
_SETTING = re.compile(
    r"(local batch size|global batch size|gradient accumulation steps|sequence length|total steps):?\s(\d{1,12})"
)
_MESH = re.compile(r"device mesh with \[([^\]]{1,200})\], \[([\d, ]{1,100})\]")
_MODEL = re.compile(r"\bsize: ([\d,]{1,30}) total parameters")
_DEVICE = re.compile(r"\b(?:GPU|CUDA) capacity: ([^(\n]{2,100}?)(?: \(\d{1,3}\))? with [\d.]{1,12} ?GiB")
_PEAK = re.compile(r"Peak FLOPS used for computing MFU: (\S{1,30})")
_NAMES = {
    "local_batch_size": "micro_batch_size",
    "sequence_length": "seq_len",
    "pp": "pipeline_parallel_degree",
    "tp": "tensor_parallel_degree",
}


@lru_cache(maxsize=4096)
def _field(key: str) -> Field:
    """Return the field of a cell; its key is `name` or `name|unit as printed`."""
    name, _, unit = key.partition("|")
    known = known_to("torchtitan").get(name)
    field = united(name, unit)
    if known is None:
        return field._replace(key=name)
    return field._replace(name=known.quantity.name) if unit else known.field(name)


def _cells(text: str) -> Iterator[Cell]:
    """Yield the cells after the step number; `66.91GiB(37.51%)` gives two."""
    for match in _CELL.finditer(text[:4000]):
        key, value = match[1].strip(), match[2]
        inner = _BRACKET.fullmatch(value) if value.endswith(")") else None
        if inner:
            yield _metric_cell(f"{key}_share" if inner[2].endswith("%") else f"{key}_{inner[2]}", inner[2])
            value = inner[1]
        if value != "N/A":  # mfu of a device whose peak is unknown
            yield _metric_cell(key, value)


def _metric_cell(key: str, text: str) -> Cell:
    number = to_float(text)
    if number is not None:
        return Cell(key, text, number)
    quantity = amount(text)
    return Cell(key, text, None) if quantity is None else Cell(f"{key}|{quantity[1]}", text, quantity[0])


def _step(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
    match = _HEAD.search(text[:600])
    if match is None:
        return []
    cells = list(_cells(text[match.end() :]))
    if not cells:
        return [unread(line, "a step without any value", text)]
    kind = "validation" if match["validate"] else "step"
    stamp = time or match["stamp"]
    return reading(kind, line, cells, _field, iteration=int(match["step"]), rank=rank, time=stamp)  # type: ignore[arg-type]


def _launch(text: str) -> dict[str, Any]:
    """Return the sizes of a message about mesh or batch; sizes of -1 (computed by torchtitan) are omitted."""
    sizes: dict[str, Any] = {name: int(size) for name, size in _SIZE.findall(text)}
    mesh = _MESH.search(text)
    if mesh:
        names = [name.strip(" '\"") for name in mesh[1].split(",")]
        sizes.update(zip(names, (to_int(size) for size in mesh[2].split(",")), strict=False))
    settings = dict(sizes)
    # Expert parallelism reuses ranks of the other dimensions; a size of -1 stands for the remaining ranks.
    across = [size for name, size in sizes.items() if name not in ("ep", "etp")]
    if across and all(isinstance(size, int) and 0 < size < 2**20 for size in across):
        settings["world_size"] = math.prod(across)
    settings.update((slug(name), to_int(size)) for name, size in _SETTING.findall(text))
    settings = {_NAMES.get(name, name): size for name, size in settings.items() if isinstance(size, int) and size > 0}
    replicate, shard = settings.get("dp_replicate"), settings.get("dp_shard")
    if replicate or shard:
        settings["data_parallel_degree"] = (replicate or 1) * (shard or 1)
    return settings


class Parser:
    """Collects the settings of a launch until its first step; every rank may repeat them."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def collect(self, text: str) -> None:
        """Add the settings that a line contains."""
        if _LAUNCH.search(text):
            self.settings.update(_launch(text[:2000]))
        elif match := _MODEL.search(text):
            self.settings["total_parameters"] = to_int(match[1])
        elif match := _DEVICE.search(text):
            self.settings["gpu_name"] = match[1].strip()
        elif match := _PEAK.search(text):
            self.settings["peak_flops_per_gpu"] = to_float(match[1])

    def launch(self, line: int) -> list[Record]:
        """Return a launch record with the settings collected so far, once."""
        settings, self.settings = self.settings, {}
        return [Record("launch", line, data=settings, opens=True)] if settings else []


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a torchtitan log; yield launches, steps (tokens/s and FLOP/s per device), validation and the end."""
    parser, repeats = Parser(), Repeats(by_part(_START, _step))
    for line, rank, time, text in peel(lines):
        if "step:" in text and (records := repeats.read(line, rank, time, text)):
            yield from parser.launch(line)
            yield from records
            continue
        parser.collect(text)
        end = ending(text)
        if end:
            yield from parser.launch(line)
            yield Record("end", line, data=end, rank=rank, time=time)
    yield from parser.launch(0)
